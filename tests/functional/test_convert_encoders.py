"""Each class of BERT, Megatron-BERT and RoBERTa that transformers saved yields the same logits, and is exported bitwise
equal. A missing head is initialized if an option requests it. A fine-tuned model can be exported, and a model without a
pooler can be fine-tuned."""
from harness import *

sys.path.insert(0, str(ROOT / "tools" / "oracle"))
import tensors

DATA = ROOT / "tests" / "data" / "hf"
MODELS = {p.name.removeprefix("encoder-"): p for p in sorted(DATA.glob("encoder-*"))}
assert MODELS, "no model to convert"
POSITIONS = "roberta.embeddings.position_embeddings.weight"


def convert(*words, expect=0):
    return isotron("convert", *words, "--cpu-threads", 1, expect=expect)


def config(folder):
    return json.loads((folder / "config.json").read_text())


def there_and_back(name, folder, *words, check=()):
    """Imports and exports a folder. Returns the exported folder and the output of the import."""
    out = WORK / f"{name}-out"
    said = convert("--from-hf", folder, "--save", WORK / name, *words, *check)
    convert("--load", WORK / name, "--to-hf", out, "--hf-dtype", "bfloat16", *check)
    return out, said


def same_tensors(out, source, name):
    """Compares the tensors of two folders. RoBERTa's first two positions are zeros, because no token of a text uses
    them."""
    have, want = tensors.read(out / "model.safetensors"), tensors.read(source / "model.safetensors")
    if POSITIONS in want:
        kind, (rows, width), content = want[POSITIONS]
        want[POSITIONS] = kind, [rows, width], bytes(2 * 2 * width) + content[2 * 2 * width:]
    assert have == want, f"{name}: {have.keys() ^ want.keys()} {[n for n in want if have.get(n) != want[n]]}"


whole = {n: p for n, p in MODELS.items() if not n.endswith("Model")}
assert len(MODELS) == 15 and len(whole) == 12, MODELS.keys()
for name, folder in whole.items():
    out, said = there_and_back(name, folder, check=("--check", folder / "reference.safetensors"))
    assert "note" not in said, said
    same_tensors(out, folder, name)
    exported, source = config(out), config(folder)
    for key in ("architectures", "model_type", "max_position_embeddings", "type_vocab_size", "layer_norm_eps",
                "hidden_act", "vocab_size"):
        assert exported[key] == source[key], f"{name}: {key} is {exported[key]}, not {source[key]}"
    if "Sequence" in name:
        assert {k: exported[k] for k in ("id2label", "label2id")} == {k: source[k]
                                                                      for k in ("id2label", "label2id")}, exported
    assert "Roberta" not in name or exported["pad_token_id"] == 1, exported
    assert exported["torch_dtype"] == "bfloat16", exported
    told, ids = ({k: x for k, x in c.items() if k.endswith("_token_id") and x is not None} for c in (exported, source))
    assert told == ids == json.loads((out / "generation_config.json").read_text()), (name, told, ids)

# ---- heads that are missing ----

HEADLESS = {"BertModel": "bert.", "MegatronBertModel": "bert.", "RobertaModel": "roberta."}
for name, prefix in HEADLESS.items():
    said = convert("--from-hf", MODELS[name], "--save", WORK / name, expect=2)
    assert "--init-missing-heads" in said and "5 missing" in said and not (WORK / name).exists(), said
    out, said = there_and_back(name, MODELS[name], "--init-missing-heads", "--seed", 3)
    count = len(tensors.read(MODELS[name] / "model.safetensors"))
    heads = 5 if name == "RobertaModel" else 7
    assert f"initialized from --seed 3; tensors: {heads} missing: " in said, said
    assert f"\n{count} tensors from " in f"\n{said}", said
    assert ("the file's pooler is omitted" in said) == (name == "RobertaModel"), said
    source, found = tensors.read(MODELS[name] / "model.safetensors"), tensors.read(out / "model.safetensors")
    for tensor, value in source.items():
        if "position" in tensor and prefix == "roberta.":
            assert found[prefix + tensor][2][2 * 2 * 16:] == value[2][2 * 2 * 16:], tensor
        elif "pooler" not in tensor or prefix == "bert.":
            assert found[prefix + tensor] == value, tensor
    added = {t for t in found if t.removeprefix(prefix) not in source}
    assert len(added) == (7 if prefix == "bert." else 5), added
    assert any(any(found[t][2]) for t in added if "dense.weight" in t), added
other = there_and_back("other-seed", MODELS["BertModel"], "--init-missing-heads", "--seed", 4)[0]
assert tensors.read(other / "model.safetensors") != tensors.read(WORK / "BertModel-out" / "model.safetensors")
masked = MODELS["BertForMaskedLM"]
for words, kind in ([], "BertForPreTraining"), (["--bert-no-binary-head"], "BertForMaskedLM"):
    out, said = there_and_back(f"masked-{kind}", masked, "--init-missing-heads", *words)
    assert config(out)["architectures"] == [kind] and ("note: heads" in said) == (not words), said

holey, weights = WORK / "holey", tensors.read(MODELS["BertModel"] / "model.safetensors")
del weights["encoder.layer.0.output.dense.weight"]
shutil.copytree(MODELS["BertModel"], holey)
tensors.write(holey / "model.safetensors", weights, {"format": "pt"})
said = convert("--from-hf", holey, "--save", WORK / "holey-saved", "--init-missing-heads", expect=2)
assert "1 missing" in said and "layer.0.output.dense.weight" in said and not (WORK / "holey-saved").exists(), said

# ---- files that do not fit ----


def edited(name, source, **keys):
    folder = WORK / name
    shutil.copytree(MODELS[source], folder)
    (folder / "config.json").write_text(json.dumps(config(folder) | keys))
    return folder


def refused(why, source, **keys):
    said = convert("--from-hf", edited("edited", source, **keys), "--save", WORK / "edited-saved", expect=2)
    assert why in said and not (WORK / "edited-saved").exists(), said
    shutil.rmtree(WORK / "edited")


refused("architectures is '[\"BertForTokenClassification\"]', but only the heads", "BertForMaskedLM",
        architectures=["BertForTokenClassification"])
refused("but only single_label_classification is supported", "BertForSequenceClassification", problem_type="regression")
refused("without quotes and line ends", "BertForSequenceClassification", id2label={"0": 'a "quote"', "1": "b"})
refused("without quotes and line ends", "BertForSequenceClassification", id2label={"0": "a", "2": "b"})
refused("lists a class twice", "BertForSequenceClassification", id2label={"0": "a", "1": "b", "2": "a"})
refused("at least two classes", "BertForSequenceClassification", id2label={"0": "a"})
refused("classifier.weight", "BertForSequenceClassification", id2label={"0": "a", "1": "b"})
refused("num_labels", "BertForSequenceClassification", id2label=None, num_labels=1 << 40)
refused("padding token, which must be 1", "RobertaForMaskedLM", pad_token_id=0)
refused("the first two positions are unused", "RobertaForMaskedLM", max_position_embeddings=2)
refused("position_embeddings.weight", "RobertaForMaskedLM", max_position_embeddings=23)
refused("the activation of RoBERTa's head", "RobertaForMaskedLM", hidden_act="relu")
refused("token_type_embeddings.weight", "RobertaForMaskedLM", type_vocab_size=2)
plain = edited("plain", "BertForSequenceClassification", id2label=None, num_labels=3)
assert config(there_and_back("plain-saved", plain)[0])["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
for kind in "BertForSequenceClassification", "RobertaForMultipleChoice":
    for rate in 0.25, 0.0:
        assert config(there_and_back(f"{kind}-{rate}",
                                     edited(f"dropout-{kind}-{rate}", kind,
                                            classifier_dropout=rate))[0])["classifier_dropout"] == rate
    assert "classifier_dropout" not in config(WORK / f"{kind}-out")
refused("not a number", "BertForSequenceClassification", classifier_dropout="much")
folder = MODELS["BertForSequenceClassification"]
said = convert("--from-hf", folder, "--check", masked / "reference.safetensors", expect=2)
assert "the reference has logits of tokens, but the model has logits of classes" in said, said
said = convert("--from-hf", masked, "--check", folder / "reference.safetensors", expect=2)
assert "the reference has logits of classes, but the model has logits of tokens" in said, said
other = tensors.read(folder / "model.safetensors")
kind, shape, content = other["classifier.bias"]
(WORK / "bit").mkdir()
shutil.copy(folder / "config.json", WORK / "bit")
tensors.write(WORK / "bit" / "model.safetensors",
              other | {"classifier.bias": (kind, shape, bytes([content[0] ^ 1]) + content[1:])}, {"format": "pt"})
assert "FAIL" in convert("--from-hf", WORK / "bit", "--check", folder / "reference.safetensors", expect=1)
assert "--init-missing-heads" in convert("--load", WORK / "BertForMaskedLM", "--to-hf", WORK / "no",
                                         "--init-missing-heads", expect=2)
assert "--seed" in convert("--from-hf", masked, "--save", WORK / "no", "--seed", 3, expect=2)

# ---- fine-tuning of a model without a pooler, and its export ----

lines = [f"{label}\t{text}\ta house" for label, text in (("good", "a fine day"), ("bad", "a poor river"))
         for _ in range(8)]
(WORK / "train.tsv").write_text("".join(f"{line}\n" for line in lines))
TOKENS = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", ROOT / "tests/data/tokenizer/bert.json"]
SIZES = ["--model", "bert", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
         "--max-position-embeddings", 16]
(WORK / "text.txt").write_text((ROOT / "tests/data/corpus.txt").read_text()[:8000])
isotron("preprocess", "--input", WORK / "text.txt", "--input-format", "paragraphs", "--output-prefix", WORK / "text",
        "--split-sentences", *TOKENS)
TASK = ["--task", "labels", "--train-data", WORK / "train.tsv", "--valid-data", WORK / "train.tsv",
        "--use-checkpoint-args", "--epochs", 1, "--micro-batch-size", 4, "--lr", 1e-3, "--log-format", "short"]
for name, words in (("none", []), ("one", ["--num-token-types", 1]), ("two", ["--num-token-types", 2])):
    isotron("pretrain", *SIZES, *TOKENS, *words, "--bert-no-binary-head", "--activation", "gelu-erf",
            "--norm-placement", "post", "--data-path", WORK / "text_text_sentence", "--split", "100,0,0",
            "--micro-batch-size", 4, "--lr", 1e-3, "--train-iters", 2, "--eval-iters", 0,
            "--save", WORK / f"pre-{name}", "--save-interval", 2)
    said = isotron("finetune", *TASK, "--pretrained-checkpoint", WORK / f"pre-{name}", "--save", WORK / f"tuned-{name}")
    assert said.count("the checkpoint has no pooler: this part is initialized from --seed 1234\n") == 1, said
    assert "the checkpoint has no classification_head" in said and "lm_head, output_layer are omitted" in said, said
    out = WORK / f"tuned-{name}-out"
    said = convert("--load", WORK / f"tuned-{name}", "--to-hf", out, expect=2 if name == "none" else 0)
    if name == "none":
        assert "type_vocab_size" in said, said
        continue
    assert config(out)["architectures"] == ["BertForSequenceClassification"], config(out)
    assert config(out)["id2label"] == {"0": "bad", "1": "good"}, config(out)
    convert("--from-hf", out, "--save", WORK / f"again-{name}")
said = isotron("pretrain", *SIZES, *TOKENS, "--num-token-types", 1, "--data-path", WORK / "text_text_sentence",
               "--split", "100,0,0", "--micro-batch-size", 4, "--lr", 1e-3, "--train-iters", 2, expect=2)
assert "needs two token types, not --num-token-types 1" in said, said
