"""Weights in MXFP4 yield the same model as the same weights in bfloat16, and the same logits as transformers. An export
writes plain weights. If a quantized weight's tensors do not fit, they are refused with a message that names them. A
tokenizer with Harmony's special tokens, its template and the list of end tokens are exported as they were imported."""
import quantized
from harness import *
from quantized import convert, tensors

DATA = ROOT / "tests" / "data" / "hf"
PLAIN, PACKED = DATA / "gpt-oss-bf16", DATA / "gpt-oss-mxfp4"
GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"
BLOCKS, SCALES = f"{GATE_UP}_blocks", f"{GATE_UP}_scales"


for folder in PLAIN, PACKED:
    saved, out = WORK / folder.name, WORK / f"{folder.name}-out"
    convert("--from-hf", folder, "--save", saved, "--check", PLAIN / "reference.safetensors")
    convert("--load", saved, "--to-hf", out, "--hf-dtype", "bfloat16")
    assert tensors.read(out / "model.safetensors") == tensors.read(PLAIN / "model.safetensors"), folder
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
assert_same_bytes(WORK / PLAIN.name, WORK / PACKED.name, 0, "quantized or not")

weights, plain = (tensors.read(folder / "model.safetensors") for folder in (PACKED, PLAIN))
kind, (experts, rows, groups, size), content = weights[BLOCKS]
scales = weights[SCALES][2]


def refuses(edit, *parts, quantization={"quant_method": "mxfp4"}):
    quantized.refuses(PACKED, edit, *parts, quantization=quantization)


refuses({SCALES: None}, f"tensors: 1 missing: '{SCALES}'")
refuses({BLOCKS: None}, f"tensors: 1 missing: '{BLOCKS}'")
refuses({GATE_UP: plain[GATE_UP]},
        f"1 unexpected: '{GATE_UP}' (the file also contains this weight in quantized form: remove one of the two)")
refuses({BLOCKS: (kind, [experts, rows, groups * size], content)},
        f"1 of a quantized weight with another shape or dtype: '{BLOCKS}' (U8 [{experts}, {rows}, {groups * size}], "
        f"mxfp4 has U8 [{experts}, {rows}, {groups}, {size}])")
refuses({SCALES: (kind, [experts, rows - 1, groups], scales[:experts * (rows - 1) * groups])}, f"'{SCALES}' (U8 [")
refuses({SCALES: ("F16", [experts, rows, groups], 2 * scales)}, f"'{SCALES}' (F16 [")
refuses({SCALES: ("F8_E8M0", [experts, rows, groups], scales)}, f"'{SCALES}' (F8_E8M0 [")
refuses({SCALES: (kind, [experts, rows, groups], scales[:5] + b"\xff" + scales[6:])},
        f"1 with NaN or infinity (download them again): '{GATE_UP}' (32 of {experts * rows * groups * 32} values)")
refuses({f"{GATE_UP}_bias": None, f"{GATE_UP}_bias_scales": weights[SCALES]}, f"1 missing: '{GATE_UP}_bias'",
        f"1 unexpected: '{GATE_UP}_bias_scales'")
for method in ({"quant_method": "fp4"}, {}, None):
    refuses({}, "the model is quantized with the unsupported method", quantization=method)

# ---- tokenizer: the embedding has more rows than there are tokens ----

harmony = json.loads((DATA.parent / "tokenizer" / "harmony.json").read_text())
ids = {t["content"]: t["id"] for t in harmony["added_tokens"]}
HARMONY = {"tokenizer.json": harmony, "chat_template.jinja": "{{ '<|start|>' }}\n",
           "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|startoftext|>",
                                     "eos_token": "<|return|>", "pad_token": "<|endoftext|>",
                                     "added_tokens_decoder": {str(t["id"]): {k: v for k, v in t.items() if k != "id"}
                                                              for t in harmony["added_tokens"]}},
           "generation_config.json": {"bos_token_id": ids["<|startoftext|>"], "pad_token_id": ids["<|endoftext|>"],
                                      "eos_token_id": [ids[f"<|{t}|>"] for t in ("return", "endoftext", "call")]}}
source, saved, out = WORK / "harmony", WORK / "harmony-saved", WORK / "harmony-out"
rows = max(ids.values()) + 7
shutil.copytree(PACKED, source)
(source / "config.json").write_text(json.dumps(json.loads((PACKED / "config.json").read_text()) | {"vocab_size": rows}))
tensors.write(source / "model.safetensors",
              weights | {n: tensors.weight(n, [rows, weights[n][1][1]])
                         for n in ("model.embed_tokens.weight", "lm_head.weight")}, {"format": "pt"})
for name, content in HARMONY.items():
    (source / name).write_text(content if isinstance(content, str) else json.dumps(content))
convert("--from-hf", source, "--save", saved)
convert("--load", saved, "--to-hf", out)
for name in HARMONY.keys() - {"generation_config.json"}:
    assert (out / name).read_bytes() == (source / name).read_bytes(), name
for name in "config.json", "generation_config.json":
    assert HARMONY["generation_config.json"].items() <= json.loads((out / name).read_text()).items(), name
parts = ["<|start|>", "system", "<|message|>", "You", "<|end|>", "<|start|>", "assistant", "<|channel|>", "final",
         "<|constrain|>", "json", "<|message|>", "<|reserved_200013|>", "<|return|>"]
told = json.loads(isotron("tokenize", "--text", "".join(parts), "--tokenizer-type", "HuggingFaceTokenizer",
                          "--tokenizer-model", out))
assert [i for i in told["ids"] if i in ids.values()] == [ids[p] for p in parts if p in ids], told
assert "".join(told["tokens"]) == "".join(parts), told
