"""Makes tests/data/hf: what transformers computes for many spellings of config.json, and a small model as it saves one.

    python3 tools/oracle/hf_configs.py [--round-trip PROGRAM]

Each case is a config.json; its weights follow from the tensors' names and shapes (tensors.py), and its logits are those that
transformers computes from the two, in float64, or it is an error. The test functional/convert imports every case with
`isotron convert` and compares logits. --round-trip instead imports and exports each case with PROGRAM and has transformers
compute the logits of what was exported.
"""

import copy
import datetime
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import called
import numpy as np
import safetensors
import torch
import transformers

import hf_logits
import tensors

OUT = Path("tests/data/hf")
TOKENS = [[3, 0, 5, 6, 1, 4]]
MODEL = "qwen3-moe-windows"

SIZES = {"vocab_size": 7, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 24, "bos_token_id": None, "eos_token_id": None}
GPT2 = {"vocab_size": 7, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 24, "bos_token_id": None, "eos_token_id": None}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
BASES = {
    "gpt2": GPT2, "llama": SIZES, "mistral": SIZES | {"sliding_window": None}, "qwen2": SIZES, "qwen3": SIZES | {"head_dim": 6},
    "stablelm": SIZES | {"partial_rotary_factor": 0.5}, "nemotron": SIZES,
    "mixtral": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": SIZES | EXPERTS | {"shared_expert_intermediate_size": 10}, "qwen3_moe": SIZES | EXPERTS,
    "glm4_moe": SIZES | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
}
FULL, SLIDING = "full_attention", "sliding_attention"
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
ON = {"use_sliding_window": True, "sliding_window": 3}
WIDE = {"hidden_size": 64, "num_attention_heads": 32, "num_hidden_layers": 1}
MISSING = object()

# What each type is tried with beside its base. "!" in front of a name: transformers has the model, Isotron does not.
EVERY = {
    "": {}, "theta": {"rope_theta": 50.0}, "linear": {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "tied": {"tie_word_embeddings": True}, "window that is not read": {"sliding_window": 3},
    "all layers full": {"layer_types": [FULL] * 3},
    "unknown layer type": {"layer_types": [FULL, FULL, "odd"]}, "few layer types": {"layer_types": [FULL, FULL]},
}
OLD_AND_NEW = {
    "parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "scaling goes first": {"rope_scaling": {"rope_type": "linear", "factor": 2.0},
                           "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "empty scaling": {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
}
NO_SIZE = {"layer_types": [FULL, FULL, SLIDING], "sliding_window": None}
LLAMA3_CASES = {"llama3": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16}, "rope_theta": 50.0},
                "llama3 without a length": {"rope_parameters": LLAMA3 | {"rope_theta": 50.0}},
                "llama3, length outside": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16},
                                           "original_max_position_embeddings": 6, "rope_theta": 50.0}}
BY_LAYER = {
    "window": ON, "window from layer 0": ON | {"max_window_layers": 0}, "window from layer 2": ON | {"max_window_layers": 2},
    "window off": ON | {"use_sliding_window": False, "max_window_layers": 0}, "window by list": ON | {"layer_types": [FULL, SLIDING, FULL]},
    "list goes first": ON | {"max_window_layers": 0, "layer_types": [FULL, FULL, SLIDING]}, "old words": ON | {"layer_types": ["attention"] * 3},
    "chunked": ON | {"layer_types": [FULL, "chunked_attention", FULL]}, "null window": ON | {"sliding_window": None, "max_window_layers": 0}, "!no window's size": NO_SIZE,
    "!list, but off": ON | {"use_sliding_window": False, "layer_types": [FULL, SLIDING, FULL]},
}
OWN = {
    "llama": LLAMA3_CASES | OLD_AND_NEW | {
        "as many groups": {"num_key_value_heads": MISSING}, "head size": {"head_dim": 6}, "eps": {"rms_norm_eps": 1e-2},
        "all biases": {"attention_bias": True, "mlp_bias": True}, "!attention biases": {"attention_bias": True},
        "heads that do not divide": {"hidden_size": 18, "head_dim": 4}, "!gelu": {"hidden_act": "gelu"},
        "!list that is not read": NO_SIZE},
    "mistral": {"window": {"sliding_window": 3}, "window by default": {"sliding_window": MISSING},
                "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
                "biases that are not read": {"attention_bias": True, "mlp_bias": True},
                "heads that do not divide": {"hidden_size": 18, "head_dim": 4},
                "!ministral": {"sliding_window": 3, "layer_types": [FULL, SLIDING, SLIDING], "rope_theta": 50.0},
                "!ministral without windows": {"layer_types": [FULL] * 3, "rope_theta": 50.0}},
    "qwen2": BY_LAYER | {"max_window_layers alone": {"max_window_layers": 0},
                         "groups by default": WIDE | {"num_key_value_heads": MISSING}},
    "qwen3": BY_LAYER | {"head size by default": {"head_dim": MISSING, "num_hidden_layers": 1},
                         "groups by default": WIDE | {"num_key_value_heads": MISSING}, "!biases": {"attention_bias": True}},
    "stablelm": {"rotated by default": {"hidden_size": 32, "partial_rotary_factor": MISSING}, "qkv bias": {"use_qkv_bias": True},
                 "eps": {"layer_norm_eps": 1e-2}, "!parallel": {"use_parallel_residual": True}, "!qk norm": {"qk_layernorm": True},
                 "groups by default": WIDE | {"hidden_size": 128, "num_key_value_heads": MISSING}},
    "nemotron": {"rotated": {"partial_rotary_factor": 1.0}, "all biases": {"attention_bias": True, "mlp_bias": True},
                 "head size": {"head_dim": 8}, "eps": {"norm_eps": 1e-2}, "gelu": {"hidden_act": "gelu"}},
    "mixtral": {"window": {"sliding_window": 3}, "no window": {"sliding_window": None}, "second name": {"num_experts": 5},
                "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING}, "!best alone": {"num_experts_per_tok": 1},
                "!list that is not read": NO_SIZE},
    "qwen2_moe": BY_LAYER | {
        "window below layer 2": ON | {"max_window_layers": 2}, "no qkv bias": {"qkv_bias": False}, "normalised": {"norm_topk_prob": True},
        "dense layer": {"mlp_only_layers": [1]}, "every second": {"decoder_sparse_step": 2}, "name that is not read": {"num_local_experts": 5},
        "groups by default": {"num_attention_heads": 16, "hidden_size": 32, "num_key_value_heads": MISSING}},
    "qwen3_moe": {
        "window": ON, "window off": ON | {"use_sliding_window": False}, "null window": ON | {"sliding_window": None},
        "max_window_layers that is not read": ON | {"max_window_layers": 2}, "all sliding": ON | {"layer_types": [SLIDING] * 3},
        "!list that is not read": ON | {"layer_types": [FULL, SLIDING, SLIDING]}, "normalised": {"norm_topk_prob": True},
        "dense layer": {"mlp_only_layers": [0, 2]}, "every second": {"decoder_sparse_step": 2}, "second name": {"num_local_experts": 5},
        "head size": {"head_dim": 6}, "!biases": {"attention_bias": True}, "groups by default": {"num_key_value_heads": MISSING}},
    "glm4_moe": {
        "rotated": {"partial_rotary_factor": 1.0}, "rotated inside": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
        "dense layers": {"first_k_dense_replace": 2}, "no dense layer": {"first_k_dense_replace": 0}, "qk norm": {"use_qk_norm": True},
        "qkv bias": {"attention_bias": True}, "scaled": {"routed_scaling_factor": 1.5}, "shared": {"n_shared_experts": 2},
        "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}, "second name": {"num_local_experts": 5},
        "!not normalised": {"norm_topk_prob": False}, "groups by default": {"num_attention_heads": 8, "hidden_size": 32, "num_key_value_heads": MISSING}},
}
OWN_GPT2 = {
    "": {}, "wide": {"n_inner": 24}, "gelu": {"activation_function": "gelu"}, "quick": {"activation_function": "quick_gelu"},
    "tanh": {"activation_function": "gelu_pytorch_tanh"}, "relu2": {"activation_function": "relu2"}, "eps": {"layer_norm_epsilon": 1e-2},
    "untied": {"tie_word_embeddings": False}, "!unscaled": {"scale_attn_weights": False},
    "!by layer": {"scale_attn_by_inverse_layer_idx": True}, "!second name": {"hidden_size": 32}, "same second name": {"hidden_size": 16},
    "window that is not read": {"sliding_window": 3},
}


def cases():
    for family, base in BASES.items():
        for name, keys in (OWN_GPT2 if family == "gpt2" else EVERY | OWN[family]).items():
            yield family, name, keys


def config_of(family, keys):
    config = {"model_type": family} | BASES[family] | keys
    return copy.deepcopy({k: v for k, v in config.items() if v is not MISSING})


def collapse(found):
    """{name: shape} as {name with * for the layer and # for the expert: [shape, layers, number of experts]}"""
    result = {}
    for name, shape in found.items():
        layer, expert = re.search(r"(?<=\.layers\.|.....\.h\.)\d+", name), re.search(r"(?<=\.experts\.)\d+", name)
        short = re.sub(r"(\.layers\.|\.h\.)\d+", r"\1*", re.sub(r"(\.experts\.)\d+", r"\1#", name))
        entry = result.setdefault(short, [shape, [], 0])
        if layer and int(layer[0]) not in entry[1]:
            entry[1].append(int(layer[0]))
        entry[2] = max(entry[2], int(expert[0]) + 1 if expert else 0)
    return result


def shapes(config):
    """Of the tensors that transformers would save."""
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**copy.deepcopy(config)))
        model.save_pretrained(folder)
        return {n: shape for n, (_, shape, _) in tensors.read(Path(folder, "model.safetensors")).items()}


def compute(folder):
    model, _ = hf_logits.load(folder)
    return hf_logits.compute(model, torch.tensor(TOKENS)).numpy()


def answer(config):
    """(shapes, logits), or (why not, None)"""
    try:
        found = shapes(config)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config))
            tensors.write(Path(folder, "model.safetensors"), {n: tensors.weight(n, s) for n, s in found.items()}, {"format": "pt"})
            logits = compute(Path(folder))
    except Exception as e:  # whatever transformers raises: it has no such model
        return f"{type(e).__name__}: {' '.join(str(e).split())[:160]}", None
    return (found, logits) if np.isfinite(logits).all() else ("logits that are not finite", None)


def make_model():
    """As save_pretrained writes it: windows that the sequence exceeds, weights large enough to show every term."""
    config = SIZES | EXPERTS | ON | {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4,
                                     "vocab_size": 37, "intermediate_size": 32, "moe_intermediate_size": 8, "norm_topk_prob": True,
                                     "mlp_only_layers": [1], "sliding_window": 5, "initializer_range": 0.4, "max_position_embeddings": 40}
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model("qwen3_moe", **config))
    model.to(torch.bfloat16).save_pretrained(OUT / MODEL)
    (OUT / MODEL / "generation_config.json").unlink()
    sys.argv[1:] = [str(OUT / MODEL), str(OUT / MODEL / "reference.safetensors"), "--length", "24"]
    hf_logits.main()
    for file in (OUT / MODEL).iterdir():
        file.chmod(0o644)


def round_trip(program):
    wrong = 0
    for family, name, keys in cases():
        config = config_of(family, keys)
        found, logits = answer(config)
        if logits is None or name.startswith("!"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "in").mkdir()
            (work / "in" / "config.json").write_text(json.dumps(config))
            tensors.write(work / "in" / "model.safetensors", {n: tensors.weight(n, s) for n, s in found.items()}, {"format": "pt"})
            steps = (["--from-hf", work / "in", "--save", work / "saved"], ["--load", work / "saved", "--to-hf", work / "out"])
            done = [subprocess.run([program, "convert", *s], capture_output=True, text=True) for s in steps]
            if any(d.returncode for d in done):
                print(f"{family} {name}: {done[0].stderr or done[1].stderr}".strip())
                continue
            error = np.linalg.norm(compute(work / "out") - logits) / np.linalg.norm(logits)
            wrong += not error < 1e-12
            print(f"{family} {name}: {json.loads((work / 'out' / 'config.json').read_text())['model_type']}, {error:.1e}")
    sys.exit(f"{wrong} exports are another model" if wrong else 0)


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if sys.argv[1:2] == ["--round-trip"]:
        round_trip(called.words(2, 2)[1])
    called.words(0, 0)
    OUT.mkdir(parents=True, exist_ok=True)
    table, sets, logits = [], [], {}
    for family, name, keys in cases():
        found, values = answer(config_of(family, keys))
        entry = {"family": family, "name": name.removeprefix("!"), "keys": {k: v for k, v in keys.items() if v is not MISSING},
                 "drop": [k for k, v in keys.items() if v is MISSING], "refused": name.startswith("!") or values is None}
        if values is None:
            entry["error"] = found
        else:
            found = collapse(found)
            if found not in sets:
                sets.append(found)
            entry["shapes"], logits[str(len(table))] = sets.index(found), values
        table.append(entry)
        print(f"{family} {name}: {found if values is None else 'logits'}")
    provenance = {"generator": "tools/oracle/hf_configs.py", "date": datetime.date.today().isoformat(),
                  "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
                               "transformers": transformers.__version__, "safetensors": safetensors.__version__}}
    def dump(x):
        return json.dumps(x, separators=(",", ":"))

    lines = [f'"{key}": {dump(value)}' for key, value in
             (("provenance", provenance), ("tokens", TOKENS), ("bases", BASES))]
    lines += [f'"{key}": [\n' + ",\n".join(map(dump, rows)) + "\n]" for key, rows in (("shapes", sets), ("cases", table))]
    (OUT / "configs.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    tensors.write(OUT / "logits.safetensors", {n: ("F64", x.shape, x.tobytes()) for n, x in logits.items()}, {})
    make_model()


if __name__ == "__main__":
    main()
