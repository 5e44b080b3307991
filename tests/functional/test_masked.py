"""A BERT and a T5 are trained from text: preprocess splits sentences, and runs on several ranks, resumed runs and runs
from compressed text have the same losses as a run on one rank. Data and vocabularies that cannot be masked are
refused."""
import gzip
import re

from harness import *

TOKENS = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", ROOT / "tests/data/tokenizer/bert.json"]
MODEL = ["--model", "bert", "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 2, "--seq-length", 48,
         "--max-position-embeddings", 48, "--micro-batch-size", 2, "--global-batch-size", 8, "--lr", 1e-2,
         "--train-iters", 30, "--eval-iters", 0, "--log-interval", 1, "--fp64", "--split", "100,0,0"]
text = (ROOT / "tests/data/corpus.txt").read_text()[:30000]
(WORK / "text.txt").write_text(text)
(WORK / "text.gz").write_bytes(gzip.compress(text.encode()))


def preprocess(name, *words):
    isotron("preprocess", "--input", WORK / name, "--input-format", "paragraphs",
            "--output-prefix", WORK / name.replace(".", "-"), *TOKENS, *words)


def losses(*words, data="text-txt_text_sentence", model=MODEL, tokens=TOKENS):
    log = WORK / "log.jsonl"
    log.unlink(missing_ok=True)
    isotron("pretrain", *model, *tokens, "--data-path", WORK / data, "--log-jsonl", log, *words)
    return [json.loads(line)["lm_loss"] for line in log.read_text().splitlines() if "lm_loss" in line]


for name in ("text.txt", "text.gz"):
    preprocess(name, "--split-sentences")
one = losses("--save", WORK / "saved", "--save-interval", 20)
assert len(one) == 30 and sum(one[-5:]) < 0.9 * sum(one[:5]), one
assert losses(data="text-gz_text_sentence") == one
ranks = losses("--ranks", 2, "--tensor-model-parallel-size", 2)
assert max(abs(a - b) for a, b in zip(one, ranks)) < 1e-9, (one, ranks)
assert losses("--load", WORK / "saved", "--ckpt-step", 20) == one[20:]
assert losses("--mask-prob", 0.3)[0] != one[0]

vocabulary = json.loads(TOKENS[-1].read_text())
size = len(vocabulary["model"]["vocab"])
vocabulary["added_tokens"] += [{**vocabulary["added_tokens"][0], "id": size + i, "content": f"<extra_id_{i}>"}
                               for i in range(20)]
(WORK / "sentinels.json").write_text(json.dumps(vocabulary))
SENTINELS = [*TOKENS[:-1], WORK / "sentinels.json"]
T5 = [*MODEL, "--model", "t5", "--decoder-seq-length", 24]
one = losses(model=T5, tokens=SENTINELS)
assert len(one) == 30 and sum(one[-5:]) < 0.9 * sum(one[:5]), one
ranks = losses("--ranks", 2, "--tensor-model-parallel-size", 2, model=T5, tokens=SENTINELS)
assert max(abs(a - b) for a, b in zip(one, ranks)) < 1e-9, (one, ranks)
SPLIT = ["--data-path", WORK / "text-txt_text_sentence"]

# Unigram models of train-tokenizer have the tokens that a T5 needs: its decoder begins with <pad>, or with <s> if that
# token exists.
HF_T5 = [*T5, "--position-embedding-type", "relative", "--normalization", "RMSNorm", "--disable-bias-linear",
         "--softmax-scale", 1, "--activation", "relu"]
for name, words in ("bare", []), ("start", ["--special-tokens", "<pad>", "</s>", "<unk>", "<s>"]):
    isotron("train-tokenizer", "--model", "unigram", "--input", WORK / "text.txt",
            "--input-format", "paragraphs", "--output", WORK / f"{name}.json", "--vocab-size", 300, *words)
    tokens = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", WORK / f"{name}.json"]
    isotron("preprocess", "--input", WORK / "text.txt", "--input-format", "paragraphs", "--split-sentences",
            "--output-prefix", WORK / name, *tokens)
    saved = WORK / f"{name}-saved"
    extra = losses("--train-iters", 1, "--vocab-extra-ids", 20, "--save", saved, "--save-interval", 1,
                   data=f"{name}_text_sentence", model=HF_T5, tokens=tokens)
    assert len(extra) == 1 and math.isfinite(extra[0]), extra
    isotron("convert", "--load", saved, "--to-hf", WORK / f"{name}-hf")
    config = json.loads((WORK / f"{name}-hf" / "config.json").read_text())
    assert [config[f"{k}_token_id"] for k in ("decoder_start", "pad", "eos")] == [3 if words else 0, 0, 1], config
    config = json.loads((WORK / f"{name}-hf" / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == [f"<extra_id_{i}>" for i in range(20)], config
    assert [config.get(f"{k}_token") for k in ("bos", "eos", "pad", "unk")] == ["<s>" if words else None, "</s>",
                                                                                "<pad>", "<unk>"], config
assert "needs sentinel tokens" in isotron("pretrain", *T5, *TOKENS, *SPLIT, expect=2)
assert "raise --decoder-seq-length" in isotron("pretrain", *T5, *SENTINELS, *SPLIT, "--decoder-seq-length", 4, expect=2)

preprocess("text.txt")
WHOLE = ["--data-path", WORK / "text-txt_text_document"]
assert "preprocess --split-sentences" in isotron("pretrain", *MODEL, *TOKENS, *WHOLE, expect=2)
BYTES = ["--tokenizer-type", "ByteLevelTokenizer", "--data-path", WORK / "text-txt_text_sentence"]
assert "needs the token [CLS]" in isotron("pretrain", *MODEL, *BYTES, expect=2)
SHORT = [*TOKENS, *SPLIT, "--seq-length", 9, "--mask-prob", 0.15]
said = isotron("pretrain", *MODEL, *SHORT, expect=2)
assert ("a sequence of 9 tokens has at most 6 tokens of text, and 0.15 times that number is less than 1; "
        "set --seq-length to at least 10") in said, said
assert losses("--seq-length", 10, "--mask-prob", 0.15, "--train-iters", 1)[0] > 0
assert "must be greater than 0" in isotron("pretrain", *MODEL, *TOKENS, *WHOLE, "--mask-prob", 0, expect=2)

TEXT = ["--data-path", WORK / "text-txt_text_sentence", "--log-format", "short", "--train-iters", 1]
said = isotron("pretrain", *MODEL, *TOKENS, *TEXT)
assert re.search(r"\| loss \d\.\d+ \| sop loss 0\.\d+ \|", said), said
said = isotron("pretrain", *T5, *SENTINELS, *TEXT, "--decoder-num-layers", 1)
assert "2 encoder and 1 decoder layers" in said and "48 encoder and 24 decoder tokens" in said, said
