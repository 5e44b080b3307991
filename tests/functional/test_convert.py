"""The import of a config.json agrees with transformers: every case of tests/data/hf yields transformers' logits or is
refused, and each imported case can be exported and imported again. An export leaves no file if it fails or if
transformers would read another model. --check fails on another model and refuses files that are not references."""
import signal
import struct
import time

from harness import *

sys.path.insert(0, str(ROOT / "tools" / "oracle"))
import tensors

DATA = ROOT / "tests" / "data" / "hf"


def convert(*words, expect=0):
    return isotron("convert", *words, "--cpu-threads", 1, expect=expect)


def expand(table):
    """The names and shapes of a model's tensors: the inverse of `collapse` in tools/oracle/hf_configs.py."""
    for name, (shape, layers, experts) in table.items():
        for layer in layers or [0]:
            for expert in range(experts or 1):
                yield name.replace("*", str(layer)).replace("#", str(expert)), shape


def i64(rows):
    return "I64", [len(rows), len(rows[0])], struct.pack(f"<{len(rows) * len(rows[0])}q", *sum(rows, []))


def reference(name, tokens, logits, metadata={"weights": "float32"}, **more):
    tensors.write(WORK / name, {"tokens": tokens, "logits": logits} | more, metadata)
    return WORK / name


def encoder(rows, lengths=None):
    """The encoder inputs of a T5."""
    lengths = lengths or [len(row) for row in rows]
    return {"encoder_tokens": i64(rows),
            "encoder_lengths": ("I64", [len(lengths)], struct.pack(f"<{len(lengths)}q", *lengths))}


# Buffers that no model reads, in every dtype of safetensors and in a newer one.
IGNORED = {"h.0.attn.bias": ("BOOL", [1, 1, 2, 2], bytes(4)), "layers.0.attention.bias": ("F4", [4], bytes(2)),
           "h.0.attn.masked_bias": ("F8_E5M2", [], bytes(1)), "layers.0.attention.masked_bias": ("I16", [1], bytes(2)),
           "rotary_emb.inv_freq": ("C64", [2], bytes(16)),
           "layers.0.attention.rotary_emb.inv_freq": ("F8_E8M0", [3], bytes(3)),
           "embeddings.position_ids": ("U64", [1, 1], bytes(8)), "embeddings.token_type_ids": ("NEW", [9, 9], bytes(5))}

# The class that transformers uses for each model_type (AutoModelForCausalLM, ...).
CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
           "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "stablelm": "StableLmForCausalLM",
           "nemotron": "NemotronForCausalLM", "mixtral": "MixtralForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
           "qwen3_moe": "Qwen3MoeForCausalLM", "glm4_moe": "Glm4MoeForCausalLM", "starcoder2": "Starcoder2ForCausalLM",
           "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
           "granite": "GraniteForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
           "gpt_neox": "GPTNeoXForCausalLM", "falcon": "FalconForCausalLM", "olmo2": "Olmo2ForCausalLM",
           "phi3": "Phi3ForCausalLM", "arcee": "ArceeForCausalLM", "seed_oss": "SeedOssForCausalLM",
           "smollm3": "SmolLM3ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM",
           "helium": "HeliumForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM", "gemma": "GemmaForCausalLM",
           "exaone4": "Exaone4ForCausalLM", "olmo3": "Olmo3ForCausalLM", "flex_olmo": "FlexOlmoForCausalLM",
           "dots1": "Dots1ForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM", "granitemoe": "GraniteMoeForCausalLM",
           "granitemoeshared": "GraniteMoeSharedForCausalLM", "ministral": "MinistralForCausalLM",
           "ministral3": "Ministral3ForCausalLM",
           "vaultgemma": "VaultGemmaForCausalLM", "gpt_oss": "GptOssForCausalLM", "cohere": "CohereForCausalLM",
           "cohere2": "Cohere2ForCausalLM", "olmoe": "OlmoeForCausalLM", "phi": "PhiForCausalLM",
           "phimoe": "PhimoeForCausalLM",
           "opt": "OPTForCausalLM", "llama4_text": "Llama4ForCausalLM",
           "glm4_moe_lite": "Glm4MoeLiteForCausalLM", "solar_open": "SolarOpenForCausalLM",
           "exaone_moe": "ExaoneMoeForCausalLM", "jais2": "Jais2ForCausalLM",
           "internlm3": "LlamaForCausalLM", "olmo": "OlmoForCausalLM",
           "iquestcoder": "LlamaForCausalLM", "exaone": "LlamaForCausalLM", "persimmon": "PersimmonForCausalLM",
           "youtu": "YoutuForCausalLM", "granitemoehybrid": "GraniteMoeHybridForCausalLM",
           "gpt_bigcode": "GPTBigCodeForCausalLM", "gptj": "GPTJForCausalLM", "bloom": "BloomForCausalLM",
           "mpt": "MptForCausalLM", "hyperclovax": "HyperCLOVAXForCausalLM", "biogpt": "BioGptForCausalLM",
           "gpt_neo": "GPTNeoForCausalLM", "apertus": "ApertusForCausalLM",
           "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM", "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
           "ernie4_5_moe": "Ernie4_5_MoeForCausalLM", "cwm": "CwmForCausalLM", "mt5": "MT5ForConditionalGeneration",
           "qwen3_next": "Qwen3NextForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM",
           "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
           "mamba2": "Mamba2ForCausalLM", "nemotron_h": "NemotronHForCausalLM",
           "bamba": "BambaForCausalLM",
           "bert": "BertForPreTraining", "t5": "T5ForConditionalGeneration"}
DTYPES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "float16": "F16"}


def judge_export(name, folder, family, dtype, vocab_size, ids):
    """Checks properties of an exported folder that logits do not show: the class, the dtype of the weights, the
    vocabulary, the token ids."""
    config, generation = (json.loads((folder / f"{kind}.json").read_text()) for kind in ("config", "generation_config"))
    told = {"model_type": family, "architectures": [CLASSES[family]], "torch_dtype": dtype, "vocab_size": vocab_size}
    assert {k: config[k] for k in told} == told, f"{name}: {config}"
    assert {kind for kind, _, _ in tensors.read(folder / "model.safetensors").values()} == {DTYPES[dtype]}, (
        f"{name}: weights of another dtype")
    assert generation == ids, f"{name}: {generation} and not {ids}"
    found = {k: x for k, x in config.items() if k.endswith("_token_id") and x is not None}
    assert found == ids, f"{name}: {found} and not {ids}"


# ---- every variant of config.json ----

table, answers = json.loads((DATA / "configs.json").read_text()), tensors.read(DATA / "logits.safetensors")
for number, case in enumerate(table["cases"]):
    name, folder, saved, out = (case["family"],
                                case["name"]), *(WORK / f"{kind}-{number}" for kind in ("case", "saved", "out"))
    folder.mkdir()
    config = {"model_type": case["family"]} | table["bases"][case["family"]] | case["keys"]
    ids = {f"{kind}_token_id": (number * 3 + i) % config.get("vocab_size", 9)
           for i, kind in enumerate(("bos", "eos", "pad"))}
    if number % 4 == 1:
        ids["eos_token_id"] = [ids["eos_token_id"], ids["bos_token_id"]]
    if case["family"] in ("t5", "mt5"):
        ids |= {"decoder_start_token_id": ids["pad_token_id"]}
    ids = {k: case["keys"].get(k, i) for k, i in ids.items() if k not in case["drop"]}
    config |= ids
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in case["drop"]}))
    shapes = expand(table["shapes"][case["shapes"]]) if "shapes" in case else []
    predicts = case["name"] == "prediction of more tokens"
    apart = case["family"] in ("exaone_moe", "qwen3_next")
    later = "mtp" if apart else f"model.layers.{config.get('num_hidden_layers')}"
    more = {f"{later}.norm.weight": ("F8_E5M2", [3], bytes(3))} if predicts else {}
    tensors.write(folder / "model.safetensors", {n: tensors.weight(n, s) for n, s in shapes} | IGNORED | more,
                  {"format": "pt"})
    if case["refused"]:
        said = convert("--from-hf", folder, "--save", saved, expect=2)
        # not for its weights
        assert ("config.json': " in said or "config.json' describes" in said) and not saved.exists(), f"{name}: {said}"
        continue
    check = reference("reference", i64(table["tokens"]), answers[str(number)],
                      **(encoder(table["tokens"]) if case["family"] in ("t5", "mt5") else {}))
    said = convert("--from-hf", folder, "--save", saved, "--check", check)
    assert ("layers for multi-token prediction (MTP), which follow" in said) == predicts, said
    dtype = [*DTYPES][number % 2]
    convert("--load", saved, "--to-hf", out, *([] if dtype == "float32" else ["--hf-dtype", dtype]))
    judge_export(name, out, case["family"], dtype, config["vocab_size"], ids)
    convert("--from-hf", out, "--check", check)
print(f"{len(table['cases'])} spellings of config.json are read as transformers reads them, or refused")

# ---- import and export of a model that transformers saved ----

model, saved, out, again = DATA / "qwen3-moe-windows", WORK / "saved", WORK / "out", WORK / "again"
check = model / "reference.safetensors"
said = convert("--from-hf", model, "--save", saved, "--check", check)
assert "pass" in said and "bound = 8 max(" in said and "note" not in said, said
# the largest error and its bound, over all logits and for a single one: rounding in float64
for row in said.splitlines()[2:4]:
    name, error, bound = row.split()
    assert 0 < float(error) <= float(bound) < 100 * float(error) < 1e-11, said
convert("--load", saved, "--check", check)
convert("--load", saved, "--to-hf", out, "--check", check)
assert sorted(p.name for p in out.iterdir()) == ["config.json", "generation_config.json",
                                                 "model.safetensors"], list(out.iterdir())
convert("--from-hf", out, "--save", again, "--check", check)
assert_same_bytes(saved, again, 0, "exported and imported again")

# ---- layers that predict further tokens (MTP): files have them, with copies of the embedding and the output layer,
# unless transformers has written the files ----

with_mtp, sent, again, bare = (WORK / f"mtp-{name}" for name in ("saved", "out", "again", "bare"))
isotron("pretrain", "--config", ROOT / "golden/deepseek-mtp/run.conf", "--mock-data", "--tokenizer-type",
        "NullTokenizer", "--train-iters", 1, "--lr-decay-iters", 4, "--save", with_mtp, "--save-interval", 1)
convert("--load", with_mtp, "--to-hf", sent)
assert "note" not in convert("--from-hf", sent, "--save", again)
convert("--load", again, "--to-hf", WORK / "mtp-twice")
weights = tensors.read(sent / "model.safetensors")
assert weights == tensors.read(WORK / "mtp-twice/model.safetensors")
ahead = "model.layers.4."
for name, of in {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}.items():
    assert weights[f"{ahead}{name}.weight"] == weights[f"{of}.weight"], name
assert weights[ahead + "eh_proj.weight"][1] == [32, 64] and ahead + "mlp.experts.7.up_proj.weight" in weights
bare.mkdir()
shutil.copy(sent / "config.json", bare)
main = {name: x for name, x in weights.items() if not name.startswith(ahead)}
tensors.write(bare / "model.safetensors", main, {"format": "pt"})
assert "the file has no layers for multi-token prediction" in convert("--from-hf", bare, "--save",
                                                                          WORK / "mtp-none")
convert("--load", WORK / "mtp-none", "--to-hf", WORK / "mtp-less")
assert tensors.read(WORK / "mtp-less/model.safetensors") == main
other = weights | {ahead + "shared_head.head.weight": weights["model.embed_tokens.weight"]}
tensors.write(bare / "model.safetensors", other, {"format": "pt"})
said = convert("--from-hf", bare, "--save", WORK / "mtp-bad", expect=2)
assert "unexpected" in said and f"{ahead}shared_head.head.weight" in said, said

# ---- padding is not part of a model: training with --padded-vocab-size on two ranks does not change its vocabulary
# ----

isotron("pretrain", "--load", saved, "--use-checkpoint-args", "--finetune", "--save", WORK / "padded",
        "--save-interval", 1, "--fp64", "--mock-data", "--micro-batch-size", 1, "--train-iters", 1, "--lr", 0,
        "--padded-vocab-size", 41, "--ranks", 2)
convert("--load", WORK / "padded", "--to-hf", WORK / "unpadded", "--check", check)
assert json.loads((WORK / "unpadded/config.json").read_text())["vocab_size"] == 37

# If an export to 16 bits rounds weights, they are rounded before logits are compared.
def finer(tensor):
    """Returns the tensor in float32 with each element's last bit set, which bfloat16 cannot represent."""
    _, shape, content = tensor
    return "F32", shape, b"".join(b"\1\0" + content[i:i + 2] for i in range(0, len(content), 2))


(WORK / "finer").mkdir()
shutil.copy(model / "config.json", WORK / "finer")
tensors.write(WORK / "finer" / "model.safetensors",
              {n: finer(t) for n, t in tensors.read(model / "model.safetensors").items()}, {})
said = convert("--from-hf", WORK / "finer", "--check", check)
assert "weights were rounded to bfloat16" in said and "u = 1.11e-16" in said, said
# If the reference's weights have the higher precision, they were rounded by the import, so u is that of float32.
good = tensors.read(check)
double = reference("double", good["tokens"], good["logits"], {"weights": "float64"})
said = convert("--from-hf", model, "--check", double)
assert "u = 5.96e-08" in said and "pass" in said, said

# ---- T5: v1.0 has tied embeddings and scales its logits, v1.1 does neither; transformers 5 ties a new v1.1 without
# scaling ----

for name, tied in ("t5-original", True), ("t5-v1_1", False), ("t5-tied", True):
    t5, back = DATA / name, WORK / f"{name}-out"
    convert("--from-hf", t5, "--save", WORK / name, "--check", t5 / "reference.safetensors")
    convert("--load", WORK / name, "--to-hf", back, "--hf-dtype", "bfloat16", "--check", t5 / "reference.safetensors")
    assert tensors.read(back / "model.safetensors") == tensors.read(t5 / "model.safetensors"), name
    config, ids = (json.loads((back / f"{kind}.json").read_text()) for kind in ("config", "generation_config"))
    assert ids == {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}, config
    assert ids.items() <= config.items(), config
    assert config.get("scale_decoder_outputs", tied) == (name == "t5-original"), config
    assert config["tie_word_embeddings"] == tied, config
    assert ("lm_head.weight" in tensors.read(back / "model.safetensors")) != tied, config
# If the file has an output layer, it is used unless it is a copy of the embedding. Older versions of transformers
# declare the embeddings of v1.1 untied.
for name, source, rows, older in (("t5-copied", "t5-tied", "shared.weight", False),
                                  ("t5-older-copied", "t5-tied", "shared.weight", True),
                                  ("t5-own", "t5-v1_1", "lm_head.weight", False),
                                  ("t5-older-own", "t5-v1_1", "lm_head.weight", True)):
    folder = WORK / name
    shutil.copytree(DATA / "t5-tied", folder)
    weights = tensors.read(DATA / source / "model.safetensors")
    tensors.write(folder / "model.safetensors", weights | {"lm_head.weight": weights[rows]}, {"format": "pt"})
    if older:
        config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
        del config["scale_decoder_outputs"]
        (folder / "config.json").write_text(json.dumps(config))
    convert("--from-hf", folder, "--check", DATA / source / "reference.safetensors", "--save", WORK / f"{name}-saved")
    content = isotron("inspect", "--checkpoint", WORK / f"{name}-saved")
    assert ("output_layer.weight" in content) == (rows == "lm_head.weight"), content
t5_good, edited = tensors.read(DATA / "t5-original/reference.safetensors"), WORK / "t5-edited"
shutil.copytree(DATA / "t5-original", edited)
text = (edited / "config.json").read_text()
(edited / "config.json").write_text(text.replace('"relative_attention_max_distance": 12',
                                                 '"relative_attention_max_distance": 16'))
convert("--from-hf", edited, "--check", edited / "reference.safetensors", expect=1)
convert("--from-hf", edited, "--check", edited / "reference.safetensors", "--relative-attention-max-distance", 12)

# ---- dtypes: ignored tensors may have any, in one file and in shards; other tensors must have one that can be read
# ----

neox = DATA / "gpt-neox-mask"
convert("--from-hf", neox, "--save", WORK / "neox", "--check", neox / "reference.safetensors")
weights, name = tensors.read(neox / "model.safetensors"), "gpt_neox.layers.0.mlp.dense_h_to_4h.bias"
for kind in ("BOOL", "U8", "I64", "F8_E4M3", "C64", "NEW"):
    for sharded in False, True:
        folder = WORK / f"neox-{kind}-{sharded}"
        shutil.copytree(neox, folder)
        halves = {k: v for k, v in weights.items()
                  if k != name}, IGNORED | {name: (kind, [24], bytes(24 * 8 if kind in ("I64", "C64") else 24))}
        if sharded:
            (folder / "model.safetensors").unlink()
            for i, half in enumerate(halves):
                tensors.write(folder / f"{i}.safetensors", half, {})
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {k: f"{i}.safetensors"
                                                                                            for i in (0, 1)
                                                                                            for k in halves[i]}}))
        else:
            tensors.write(folder / "model.safetensors", halves[0] | halves[1], {})
        said = convert("--from-hf", folder, "--save", WORK / "refused", expect=2)
        assert f"tensors: 1 with a dtype other than F64, F32, BF16 or F16: '{name}' ('{kind}')" in said, said
        assert not (WORK / "refused").exists(), said
        if sharded:
            tensors.write(folder / "1.safetensors", halves[1] | {name: weights[name]}, {})
            convert("--from-hf", folder, "--check", neox / "reference.safetensors")

# ---- token ids and the tokenizer's files ----

TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "</s>": 2, "<s>": 3}, "merges": []},
             "added_tokens": [{"id": 2, "content": "</s>", "special": True},
                              {"id": 3, "content": "<s>", "special": True}]}


def with_tokens(name, files, **keys):
    """A copy of the model with additional keys in config.json, and additional files."""
    folder = WORK / name
    shutil.copytree(model, folder)
    (folder / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text()) | keys))
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return folder


def token_ids(folder):
    """The three token ids in config.json. generation_config.json must contain the ids that are known."""
    config, generation = (json.loads((folder / f"{name}.json").read_text()) for name in ("config", "generation_config"))
    ids = [config[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")]
    assert generation == {f"{kind}_token_id": i for kind, i in zip(("bos", "eos", "pad"), ids)
                          if i is not None}, generation
    return ids


assert token_ids(out) == [None, None, None]
source = with_tokens("source", {"tokenizer.json": TOKENIZER,
                                "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": None,
                                                          "unk_token": None},
                                # of 37 tokens
                                "generation_config.json": {"eos_token_id": [4, 6], "temperature": 0.6}}, eos_token_id=5,
                     pad_token_id=-1, bos_token_id=[3, 37])
said = convert("--from-hf", source, "--save", WORK / "tokens")
for wrong in ("pad_token_id is '-1'", "bos_token_id is '[3,37]'"):
    assert f"{wrong} in '{source}/config.json', but this model has no such token" in said, said
said = convert("--load", WORK / "tokens", "--to-hf", WORK / "told")
assert all(path.name in said.split("wrote ")[1] for path in (WORK / "told").iterdir()), said
assert token_ids(WORK / "told") == [3, [4, 6], None], ("generation_config.json goes before config.json, and that "
                                                       "before the tokenizer")
for file in ("tokenizer.json", "tokenizer_config.json"):
    assert (WORK / "told" / file).read_bytes() == (source / file).read_bytes(), file
convert("--from-hf", WORK / "told", "--save", WORK / "tokens-again")
convert("--load", WORK / "tokens-again", "--to-hf", WORK / "told-again")
for file in (WORK / "told").iterdir():
    assert (WORK / "told-again" / file.name).read_bytes() == file.read_bytes(), file
shutil.rmtree(source)
said = convert("--load", WORK / "tokens", "--to-hf", WORK / "gone")
assert "note: the tokenizer's files are not written" in said and not (WORK / "gone" / "tokenizer.json").exists(), said
assert token_ids(WORK / "gone") == [None, [4, 6], None]
said = convert("--load", WORK / "tokens", "--to-hf", WORK / "none", "--tokenizer-type", "HuggingFaceTokenizer",
               "--tokenizer-model", source, expect=2)
assert not (WORK / "none").exists(), said
convert("--load", saved, "--to-hf", WORK / "given", "--tokenizer-type", "HuggingFaceTokenizer",
        "--tokenizer-model", WORK / "told")
assert token_ids(WORK / "given") == [3, 2, None] and (WORK / "given" / "tokenizer.json").exists()

# A tokenizer.json without tokenizer_config.json, as train-tokenizer writes it. AutoTokenizer would choose a class by
# the model's type, so the export names a class that keeps the parts of the file, and adds the tokens that exist only as
# options.
BARE = {"model": {"type": "BPE",
                  "vocab": {"a": 0, "[CLS]": 1, "</s>": 2, "<s>": 3, "<pad>": 4, "[MASK]": 5}, "merges": []},
        "added_tokens": [{"id": i, "content": t, "special": True} for i, t in ((1, "[CLS]"), (2, "</s>"),
                                                                               (3, "<s>"), (4, "<pad>"))]}
(WORK / "bare.json").write_text(json.dumps(BARE))
convert("--from-hf", model, "--save", WORK / "bare-saved", "--tokenizer-type", "HuggingFaceTokenizer",
        "--tokenizer-model", WORK / "bare.json")
NAMES = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "bos_token": "<s>",
         # [MASK] is not special: a text may contain it
         "eos_token": "</s>", "pad_token": "<pad>", "cls_token": "[CLS]"}
for words, more in ([], {}), (["--vocab-extra-ids", 1, "--tokenizer-special-tokens", "<x>"],
                              {"additional_special_tokens": ["<x>", "<extra_id_0>"]}):
    convert("--load", WORK / "bare-saved", "--to-hf", WORK / "bare-out", "--overwrite", *words)
    assert json.loads((WORK / "bare-out" / "tokenizer_config.json").read_text()) == NAMES | more
    assert token_ids(WORK / "bare-out") == [3, 2, 4]
convert("--from-hf", WORK / "bare-out", "--save", WORK / "bare-again")

# For every kind of vocabulary, the exported folder is the same tokenizer: the handling of case, and the tokens from
# other files and from options, are kept.
for file, content in {"slow/vocab.json": '{"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3, "A": 4}',
                      "slow/merges.txt": "a b\n", "slow/added_tokens.json": '{"<x>": 5}',
                      "slow/special_tokens_map.json": '{"eos_token": "<x>"}', "fast/tokenizer.json": json.dumps(BARE),
                      "fast/tokenizer_config.json": '{"tokenizer_class": "PreTrainedTokenizerFast"}',
                      "words/vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nA\n##b\n"}.items():
    (WORK / file).parent.mkdir(exist_ok=True)
    (WORK / file).write_text(content)
for kind, *files in [("HuggingFaceTokenizer", "--tokenizer-model", WORK / "slow"),
                     ("GPT2BPETokenizer", "--vocab-file", WORK / "slow/vocab.json",
                      "--merge-file", WORK / "slow/merges.txt"),
                     ("BertWordPieceCase", "--vocab-file", WORK / "words/vocab.txt", "--vocab-extra-ids", 1),
                     ("HuggingFaceTokenizer", "--tokenizer-model", WORK / "bare.json", "--vocab-extra-ids", 1),
                     ("HuggingFaceTokenizer", "--tokenizer-model", WORK / "fast", "--vocab-extra-ids", 1)]:
    words = ["--tokenizer-type", kind, *files]
    convert("--load", saved, "--to-hf", WORK / "slow-out", "--overwrite", *words)
    (WORK / "slow-out/config.json").unlink()
    said = [isotron("tokenize", "--text", "ab<x>A Ab<extra_id_0>", *w)
            for w in (words, ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", WORK / "slow-out"])]
    assert said[0] == said[1], said
said = convert("--from-hf", with_tokens("list", {"generation_config.json": []}),
               "--save", WORK / "list-saved", expect=2)
assert "generation_config.json' is not a JSON object" in said and not (WORK / "list-saved").exists(), said

# A model trained from scratch is exported with the token ids of its tokenizer, in any order, and with the dtype of the
# export; float32 by default.
words = "</s> a <pad> b [SEP] c <s> [MASK] d [CLS] <extra_id_0>".split()
own = WORK / "own-tokens"
own.mkdir()
(own / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE",
                                                          "vocab": {w: i for i, w in enumerate(words)}, "merges": []},
                                                "added_tokens": [{"id": i, "content": w, "special": True}
                                                                 for i, w in enumerate(words) if len(w) > 1]}))
HF = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model"]
LLAMA = ("--position-embedding-type rope --normalization RMSNorm --swiglu --ffn-hidden-size 24 --disable-bias-linear "
         "--untie-embeddings-and-output-weights")
T5 = ("--model t5 --decoder-seq-length 8 --position-embedding-type relative --normalization RMSNorm "
      "--disable-bias-linear --activation relu --softmax-scale 1")
NAMED = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
IDS = {"eos_token_id": 0, "pad_token_id": 2}
# A T5's decoder begins with <s>, or with [CLS] if the tokenizer names no <s>.
for i, (family, options, first) in enumerate((
        ("gpt2", "", {}), ("llama", LLAMA, {}), ("qwen2", f"{LLAMA} --add-qkv-bias", {}),
        ("mixtral", f"{LLAMA} --num-experts 4 --moe-ffn-hidden-size 8", {}),
        ("qwen3", f"{LLAMA} --qk-layernorm --kv-channels 8", {}),
        ("bert", "--model bert --norm-placement post --activation gelu-erf", {}),
        ("t5", T5, {"decoder_start_token_id": 6}), ("t5", T5, {"decoder_start_token_id": 9}))):
    begins = 9 not in first.values()
    (own / "tokenizer_config.json").write_text(json.dumps(NAMED | ({"bos_token": "<s>"} if begins else {})))
    trained, hf = WORK / f"own-{i}", WORK / f"own-{i}-hf"
    dtype = [*DTYPES][i % 4]
    isotron("pretrain", "--num-layers", 1, "--hidden-size", 16, "--num-attention-heads", 2, "--seq-length", 16,
            "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", own, "--micro-batch-size", 1, "--lr", 0,
            "--train-iters", 1, "--mock-data", "--eval-iters", 0, "--lane", "bf16" if family == "llama" else "fp32",
            *options.split(), "--save", trained, "--save-interval", 1)
    said = convert("--load", trained, "--to-hf", hf, *(["--hf-dtype", dtype] if i else []))
    # among the types that fit, the export chooses the first
    assert ("reads the tokenizer of every qwen2 model as a Qwen2Tokenizer" in said) == (family == "qwen2"), said
    judge_export(family, hf, family, dtype, len(words), IDS | first | ({"bos_token_id": 6} if begins else {}))
    same = (hf / "tokenizer.json").read_bytes() == (own / "tokenizer.json").read_bytes()
    assert same == (family != "qwen2"), family  # which is written in full
    told = [isotron("tokenize", "--text", "ab</s>c", *HF, folder)
            for folder in (own / "tokenizer.json", hf / "tokenizer.json")]
    assert told[0] == told[1], (family, told)

# ---- another model ----


def plant(name, edit_config=lambda c: c, edit_weights=lambda w: w, against=check):
    folder = WORK / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(edit_config(json.loads((model / "config.json").read_text()))))
    tensors.write(folder / "model.safetensors", edit_weights(tensors.read(model / "model.safetensors")),
                  {"format": "pt"})
    said = convert("--from-hf", folder, "--save", WORK / f"{name}-saved", "--check", against, expect=1)
    assert "FAIL" in said and not (WORK / f"{name}-saved").exists(), said


def last_bit(weights, tensor="model.layers.1.mlp.down_proj.weight"):
    kind, shape, content = weights[tensor]
    return weights | {tensor: (kind, shape, bytes([content[0] ^ 1]) + content[1:])}


plant("wider", lambda c: c | {"sliding_window": c["sliding_window"] + 1})
plant("without", lambda c: c | {"use_sliding_window": False})
plant("theta", lambda c: c | {"rope_parameters": c["rope_parameters"] | {"rope_theta": 10001.0}})
plant("eps", lambda c: c | {"rms_norm_eps": 1.001e-6})
plant("bit", edit_weights=last_bit)
plant("bit-of-double", edit_weights=last_bit, against=double)

# ---- folders that contain something else ----

before = {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()}
said = convert("--from-hf", model, "--save", saved, expect=2)
assert f"'{saved}' already contains checkpoints, the newest of step 0" in said, said
(WORK / "later" / "iter_0000020").mkdir(parents=True)
said = convert("--from-hf", model, "--save", WORK / "later", expect=2)
assert "the newest of step 20" in said and [p.name for p in (WORK / "later").iterdir()] == ["iter_0000020"], said
assert {p: p.read_bytes() for p in saved.rglob("*") if p.is_file()} == before, "a refused import changed the folder"
convert("--from-hf", model, "--save", saved, "--overwrite")
assert "of a run, the newest of step 20" in convert("--from-hf", model, "--save", WORK / "later",
                                                    "--overwrite", expect=2)


def held(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


was = held(out)
for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "notes.txt"):
    (out / name).write_text("{}")
strewn = held(out)
said = convert("--load", saved, "--to-hf", out, expect=2)
assert f"'{out}' is not empty, because it contains" in said and "--overwrite" in said and held(out) == strewn, said
(out / "tokenizer.model").write_text("")  # this model has no tokenizer that would replace it
assert "contains 'tokenizer.model'" in convert("--load", saved, "--to-hf", out, "--overwrite", expect=2)
(out / "tokenizer.model").unlink()
assert held(out) == strewn, "a refused export changed the folder"
convert("--load", saved, "--to-hf", out, "--overwrite")
assert held(out) == was | {"notes.txt": b"{}"}, "shards of the older model are left"

# An export of 100 MB is ended while it writes: Ctrl-C removes the unfinished files; after SIGKILL, the next export
# removes them.
isotron("pretrain", *"""--num-layers 1 --hidden-size 256 --num-attention-heads 4 --seq-length 8
  --max-position-embeddings 8 --vocab-size 100000 --tokenizer-type NullTokenizer --mock-data --micro-batch-size 1
  --global-batch-size 1 --train-iters 1 --lr 1e-3 --eval-iters 0 --save-interval 1
  --no-save-optim""".split(), "--save", WORK / "heavy")
target = WORK / "exported"
for number in (signal.SIGINT, signal.SIGKILL):
    process = subprocess.Popen([PROGRAM, "convert", "--load", WORK / "heavy", "--to-hf", target],
                               stderr=subprocess.PIPE, text=True)
    while not list(target.glob(".partial-*/model.safetensors.tmp")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.001)
    process.send_signal(number)
    said = process.communicate()[1]
    assert process.returncode == -number and target.exists() == (number == signal.SIGKILL), (number, said)
    assert number == signal.SIGKILL or "interrupted: the unfinished files are removed" in said, said
convert("--load", WORK / "heavy", "--to-hf", target)
assert sorted(held(target)) == ["config.json", "generation_config.json", "model.safetensors"]

# ---- an impossible model, or one that does not fit its type ----

(WORK / "odd").mkdir()
shutil.copy(model / "model.safetensors", WORK / "odd")
(WORK / "odd" / "config.json").write_text(json.dumps(json.loads((model / "config.json").read_text())
                                                     | {"vocab_size": 1 << 40}))
said = convert("--from-hf", WORK / "odd", "--save", WORK / "odd-saved", expect=2)
assert f"'{WORK / 'odd' / 'config.json'}' describes an invalid model: " in said and "--vocab-size" in said, said
said = convert("--from-hf", model, "--save", WORK / "odd-saved", "--norm-epsilon", "-1", expect=2)
assert "--norm-epsilon" in said and "config.json" not in said, said
said = convert("--from-hf", model, "--save", WORK / "odd-saved", "--hf-model-type", "gpt2", expect=2)
assert "cannot be exported as gpt2" in said and not (WORK / "odd-saved").exists(), said
said = pretrain(corpus(), WORK / "odd-saved", "--train-iters", 3, "--hf-model-type", "gpt2", expect=2)
assert "cannot be exported as gpt2" in said and not (WORK / "odd-saved").exists(), said

# ---- models with a vision tower, of which only the language model can be imported ----

for name, kind, tied in (("qwen3_5", "qwen3_5_text", False), ("qwen3_5_moe", "qwen3_5_moe_text", False),
                         ("gemma3", "gemma3_text", True), ("llama4", "llama4_text", False),
                         ("mistral3", "mistral", True)):
    whole, imported, usual = DATA / f"nested-{name}", WORK / f"nested-{name}", WORK / f"usual-{name}"
    text = ["--check", whole / "reference.safetensors", "--hf-model-type", kind]
    for wrong in (text[:2], [*text[:3], "qwen2"]):
        said = convert("--from-hf", whole, *wrong, expect=2)
        assert f'model_type is "{name}", which has a vision tower' in said and f"--hf-model-type {kind}" in said, said
    shutil.copytree(whole, usual)
    outer = json.loads((whole / "config.json").read_text())
    is_tied = outer.pop("tie_word_embeddings")
    outer["text_config"] |= {"eos_token_id": 5}
    (usual / "config.json").write_text(json.dumps(outer))
    said = convert("--from-hf", usual, "--save", imported, *text, expect=0 if is_tied == tied else 2)
    if is_tied != tied:  # the default of the outer tie_word_embeddings
        assert "lm_head.weight" in said, said
        continue
    assert "note: only the language model is imported; tensors: " in said and "language_model" not in said, said
    convert("--load", imported, "--to-hf", WORK / f"text-{name}", "--check", text[1])
    outer = json.loads((WORK / f"text-{name}" / "config.json").read_text())
    assert outer["model_type"] == kind and outer["eos_token_id"] == 5, outer

# ---- values that a dtype cannot represent ----


def with_value(name, value):
    """A copy of the model in the folder `finer`, in float32, in which one weight of the last norm has this value."""
    folder = WORK / name
    shutil.copytree(WORK / "finer", folder)
    weights = tensors.read(folder / "model.safetensors")
    kind, shape, content = weights["model.norm.weight"]
    tensors.write(folder / "model.safetensors",
                  weights | {"model.norm.weight": (kind, shape, struct.pack("<f", value) + content[4:])}, {})
    return folder


said = convert("--from-hf", with_value("not-a-number", float("nan")), "--save", WORK / "nan-saved", expect=2)
assert "1 with NaN or infinity" in said and "'model.norm.weight' (1 of" in said, said
assert not (WORK / "nan-saved").exists(), said
convert("--from-hf", with_value("large", 1e6), "--save", WORK / "large-saved")
said = convert("--load", WORK / "large-saved", "--to-hf", WORK / "large-out", "--hf-dtype", "float16", expect=2)
assert "'model.norm.weight' (1 of" in said and "--hf-dtype bfloat16" in said and not (WORK / "large-out").exists(), said
convert("--load", WORK / "large-saved", "--to-hf", WORK / "large-out", "--hf-dtype", "bfloat16")

# ---- exports that are refused or fail leave no files ----

convert("--from-hf", model, "--save", WORK / "pattern", "--window-attn-skip-freq", "[0,1,1]")
said = convert("--load", WORK / "pattern", "--to-hf", WORK / "refused", expect=2)
assert "cannot be exported as qwen3_moe" in said and "window_attn_skip_freq" in said, said
assert not (WORK / "refused").exists(), said
said = convert("--load", saved, "--to-hf", WORK / "refused", "--norm-epsilon", 0.5, expect=2)
assert "contains a different model: --norm-epsilon is 0.5, but the checkpoint has 1e-06" in said, said
assert not (WORK / "refused").exists(), said
convert("--load", saved, "--check", check, "--norm-epsilon", 0.5, expect=2)
before = {p: p.read_bytes() for p in out.iterdir()}
convert("--load", WORK / "pattern", "--to-hf", out, expect=2)
convert("--load", WORK / "pattern", "--to-hf", out, "--check", check, expect=1)
assert {p: p.read_bytes() for p in out.iterdir()} == before, "a refused export changed the folder"

# ---- files that are not references ----


def refuses(words, *parts):
    said = convert("--load", saved, "--check", words, expect=2)
    for part in parts:
        assert part in said, f"'{part}' is missing in: {said}"


kind, (samples, length, vocab), content = good["logits"]
nan = struct.pack("<d", float("nan"))
ids = list(struct.unpack(f"<{samples * length}q", good["tokens"][2]))
rows = [ids[:length], ids[length:]]
refuses(WORK / "none", "none")
refuses(model / "config.json", "config.json")
refuses(model / "model.safetensors", 'no I64 tensor "tokens"')
refuses(reference("unknown", good["tokens"], good["logits"], token_type_ids=good["tokens"]),
        "'token_type_ids'", "neither")
refuses(reference("no-weights", good["tokens"], good["logits"], {}), "which type of weights")
refuses(reference("other-weights", good["tokens"], good["logits"], {"weights": "int8"}), "which type of weights")
refuses(reference("short", good["tokens"],
                  (kind, [samples, length - 1, vocab], content[:samples * (length - 1) * vocab * 8])),
        f'no F64 tensor "logits" of shape [{samples}, {length}, vocabulary]')
refuses(reference("narrow", i64([[0] * length] * samples),
                  (kind, [samples, length, 3], content[:samples * length * 3 * 8])),
        f"logits of 3 tokens, but the model has a vocabulary of {vocab}")
refuses(reference("negative", i64([[-1] + rows[0][1:], rows[1]]), good["logits"]), "token 0 of sample 0 is -1")
refuses(reference("beyond", i64([rows[0], rows[1][:-1] + [vocab]]), good["logits"]),
        f"token {length - 1} of sample 1 is {vocab}")
refuses(reference("nan", good["tokens"], (kind, [samples, length, vocab], content[:-8] + nan)),
        "not finite", "sample 1")
for more, part in ((encoder(rows), "with an encoder-decoder, but the model is not an encoder-decoder"),
                   (encoder(rows[:1]), f'"encoder_tokens" is not I64 of shape [{samples}, positions]'),
                   (encoder(rows, [length, length + 1]),
                    f'"encoder_lengths" of sample 1 is {length + 1}, which is not in [1, {length}]'),
                   (encoder([[-1] + rows[0][1:], rows[1]]), "token 0 of sample 0 is -1")):
    refuses(reference("encoder", good["tokens"], good["logits"], **more), part)
del t5_good["encoder_tokens"], t5_good["encoder_lengths"]
said = convert("--from-hf", DATA / "t5-original",
               "--check", reference("no-encoder", t5_good["tokens"], t5_good["logits"]), expect=2)
assert "the reference was computed without an encoder, but the model is an encoder-decoder" in said, said
long = [[0] * 41]
refuses(reference("long", i64(long), (kind, [1, 41, vocab], bytes(41 * vocab * 8))),
        "the reference has 41 positions, but the model has only 40")
said = isotron("convert", "--check", check, expect=2)
assert "--from-hf" in said, said
