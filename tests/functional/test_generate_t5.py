"""A T5 generates the same tokens as transformers for prompts of different lengths, begins and ends a text with the
tokens in its checkpoint, and prints sentinels. A BERT is refused."""
import struct

from harness import *

sys.path.insert(0, str(ROOT / "tools" / "oracle"))
import tensors


def generate(saved, *words, status=0):
    """Runs generate. Returns standard output and standard error."""
    words = [PROGRAM, "generate", "--load", saved, *words, *OPTIONS]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, errors="replace")
    assert done.returncode == status, (words, done)
    return done.stdout, done.stderr


def rows(tensor):
    _, shape, content = tensor
    n = shape[-1]
    ids = struct.unpack(f"<{len(content) // 8}q", content)
    return [ids[i:i + n] for i in range(0, len(ids), n)]


def words(ids):
    return " ".join(map(str, ids))


# ---- imported models: compared with generate() of transformers ----

END = 1
GREEDY = ["--temperature", 0, "--fp64", "--tokenizer-type", "NullTokenizer", "--vocab-size", 61]
for name in "t5-original", "t5-v1_1":
    folder, saved = ROOT / "tests/data/hf" / name, WORK / name
    isotron("convert", "--from-hf", folder, "--save", saved)
    found = tensors.read(folder / "reference.safetensors")
    texts, chosen = rows(found["encoder_tokens"]), [row[1:] for row in rows(found["tokens"])]
    prompts = [words(text[:n]) for text, n in zip(texts, rows(found["encoder_lengths"])[0])]
    answers = [words(row[:row.index(END)] if END in row else row) for row in chosen]
    (WORK / "prompts.txt").write_text("\n".join(prompts))
    said = generate(saved, *GREEDY, "--prompts-file", WORK / "prompts.txt", "--tokens-to-generate", len(chosen[0]))[0]
    assert said.split("\n")[1::3] == answers, (name, said, answers)
    assert any(END in row for row in chosen) and len(set(map(len, prompts))) == len(prompts)

answer = [a for a in answers if len(a.split()) == 23][0]
prompt = ["--prompt", prompts[answers.index(answer)], "--tokens-to-generate", 23]
told = answer.split()
stop = f" {told[4]} {told[5]}"
assert generate(saved, *GREEDY, *prompt, "--stop", stop)[0] == answer[:answer.index(stop)] + "\n"
last = next(i for i in range(1, 23) if told[i] not in told[:i])
assert generate(saved, *GREEDY, *prompt, "--null-tokenizer-eod-id", told[last])[0] == words(told[:last]) + "\n"
# If the files name several end tokens, each of them ends a text. If they name no first token, it is that of padding.
shutil.copytree(folder, several := WORK / "several")
config = json.loads((several / "config.json").read_text())
del config["decoder_start_token_id"]
(several / "config.json").write_text(json.dumps(config))
(several / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, int(told[last])]}))
isotron("convert", "--from-hf", several, "--save", WORK / "several-saved")
assert generate(WORK / "several-saved", *GREEDY, *prompt)[0] == words(told[:last]) + "\n"
# A first token that the files name takes precedence over padding.
shutil.copytree(folder, padded := WORK / "padded")
config = json.loads((folder / "config.json").read_text()) | {"pad_token_id": 7}
(padded / "config.json").write_text(json.dumps(config))
isotron("convert", "--from-hf", padded, "--save", WORK / "padded-saved")
assert generate(WORK / "padded-saved", *GREEDY, *prompt)[0] == answer + "\n"
table = generate(saved, *GREEDY, *prompt, "--logprobs")[0].splitlines()[1:]
assert [line.split()[:3:2] for line in table] == [["new", token] for token in told], table
drawn = [generate(saved, "--tokenizer-type", "NullTokenizer", "--vocab-size", 61, "--fp64", *prompt, "--top-k", 3,
                  "--random-seed", seed)[0] for seed in (1, 1, 2)]
assert drawn[0] == drawn[1] != drawn[2], drawn

# With the tokenizer of a Hugging Face T5, </s> is appended to a prompt, and sentinels are printed by name.
spelled = {i: f"<extra_id_{60 - i}>" if i > 40 else f"w{i}" for i in range(61)} | {0: "<pad>", END: "</s>"}
special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def spell(name, spelled):
    """Imports the model with a tokenizer that has these words."""
    (folder := WORK / f"{name}-folder").mkdir()
    for file in "config.json", "model.safetensors":
        shutil.copy(ROOT / "tests/data/hf/t5-v1_1" / file, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast",
                                                              "eos_token": "</s>"}))
    (folder / "tokenizer.json").write_text(json.dumps({
        "model": {"type": "WordLevel", "vocab": {text: i for i, text in spelled.items()}, "unk_token": "w2"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "added_tokens": [{"id": i, "content": text} | special for i, text in spelled.items() if text[0] == "<"],
        "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                                                    {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                           "special_tokens": {"</s>": {"id": "</s>", "ids": [END], "tokens": ["</s>"]}}}}))
    isotron("convert", "--from-hf", folder, "--save", WORK / name)


def both(name, ids):
    """Returns the text with that tokenizer, and the ids of the same text."""
    said = generate(WORK / name, "--temperature", 0, "--fp64", "--prompt", " ".join(spelled[i] for i in ids),
                    "--tokens-to-generate", 12)[0]
    return said, [int(n) for n in generate(WORK / "t5-v1_1", *GREEDY, "--prompt", words([*ids, END]),
                                           "--tokens-to-generate", 12)[0].split()]


spell("spelled", spelled)
said, numbers = both("spelled", [5, 55, 7, 23])
assert said.split() == [spelled[n] for n in numbers] and "<extra_id_" in said, (said, numbers)

# Ids that the model's tokenizer lacks are not printed.
spell("short", {i: text for i, text in spelled.items() if i < 30})
said, numbers = both("short", [12, 8])
assert said.split() == [spelled[n] for n in numbers if n < 30] and min(numbers) < 30 <= max(numbers), (said, numbers)

# ---- a model trained by Isotron: its decoder begins with [CLS], and its texts with the first sentinel ----

TOKENS = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", WORK / "sentinels.json"]
vocabulary = json.loads((ROOT / "tests/data/tokenizer/bert.json").read_text())
size = len(vocabulary["model"]["vocab"])
vocabulary["added_tokens"] += [{**vocabulary["added_tokens"][0], "id": size + i, "content": f"<extra_id_{i}>"}
                               for i in range(20)]
TOKENS[-1].write_text(json.dumps(vocabulary))
SHAPE = ["--num-layers", 1, "--hidden-size", 32, "--num-attention-heads", 2, "--seq-length", 48,
         "--max-position-embeddings", 48, "--micro-batch-size", 8, "--global-batch-size", 8, "--lr", 1e-2,
         "--eval-iters", 0]
T5 = ["--model", "t5", "--decoder-seq-length", 24]
shutil.copy(ROOT / "tests/data/corpus.txt", WORK / "text.txt")
isotron("preprocess", "--input", WORK / "text.txt", "--input-format", "paragraphs", "--output-prefix", WORK / "text",
        "--split-sentences", *TOKENS)
isotron("pretrain", *T5, *SHAPE, *TOKENS, "--data-path", WORK / "text_text_sentence", "--split", "100,0,0",
        "--train-iters", 40, "--save", WORK / "trained", "--save-interval", 40)
said = generate(WORK / "trained", "--temperature", 0, "--prompt", "The loss <extra_id_0> ranks.", "A <extra_id_0>",
                "--tokens-to-generate", 8)[0]
assert [text.startswith("<extra_id_0>") for text in said.split("\n")[1::3]] == [True, True], said
many = ["--temperature", 0, "--prompt", "The loss <extra_id_0> ranks.", "A <extra_id_0>", "--tokens-to-generate", 8,
        "--fp64", "--logprobs"]
assert_same_text(generate(WORK / "trained", *many, "--tensor-model-parallel-size", 2)[0],
                 generate(WORK / "trained", *many)[0], "2 ranks")
# A text ends at [SEP], as in the training data.
drawn = generate(WORK / "trained", "--prompt", *8 * ["The loss <extra_id_0> ranks."], "--tokens-to-generate", 20,
                 "--logprobs")[0]
ids = [int(line.split()[2]) for line in drawn.splitlines() if line.startswith("new ")]
assert len(ids) < 8 * 20 and vocabulary["model"]["vocab"]["[SEP]"] not in ids, drawn
said = generate(WORK / "trained", "--temperature", 0, "--prompt", "A", "--tokens-to-generate", 48, status=2)[1]
assert "48 new tokens exceed the model's 48 positions" in said, said

# ---- models that cannot generate text ----

NULL = [*SHAPE, "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 60, "--train-iters", 1,
        "--save-interval", 1]
isotron("pretrain", *T5, *NULL, "--save", WORK / "mock")
said = generate(WORK / "mock", "--prompt", "5 6", status=2)[1]
assert "begins with [BOS], [CLS] or padding, and the tokenizer NullTokenizer has none" in said, said
isotron("pretrain", "--model", "bert", *NULL, "--save", WORK / "bert")
assert "BERT predicts masked tokens and cannot generate text" in generate(WORK / "bert",
                                                                            "--prompt", "5 6", status=2)[1]
print("a T5 generates what transformers does")
