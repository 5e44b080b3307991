"""Granite 4: Granite with Mamba-2 layers, and experts with a shared expert. Without either, it is Granite with other
names for the MLP."""
from families import bamba, decoder
from families.bamba import HEADS, MAMBA
from families.decoder import FEW, FULL, MISSING, SIZES, UNTIED, renamed, shape
from families.mamba2 import INFINITY

CASES = {
    "granite-4-like": (shape(6, 24, 6, 14, 24, 51, groups=2) | UNTIED | MAMBA | {
        "hybrid-layer-pattern": "ME*EME", "position-embedding-type": "none", "embedding-multiplier": 6.5,
        "residual-multiplier": 0.6, "logits-scaling": 3.0, "softmax-scale": 0.3, "num-experts": 6,
        "moe-router-topk": 2, "moe-ffn-hidden-size": 10, "moe-shared-expert-intermediate-size": 14,
        "moe-router-load-balancing-type": "none", "clip-grad": 0.4}, {}),
}
IN_FILES = {"block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
            "block_sparse_moe.router.": "block_sparse_moe.router.layer."}


def config(o):
    kinds = [FULL if letter == "*" else "linear_attention" for letter in o["hybrid-layer-pattern"][::2]]
    return decoder.config(o) | bamba.mamba(o) | {
        "layer_types": kinds, "intermediate_size": o["moe-ffn-hidden-size"], "num_local_experts": o["num-experts"],
        "num_experts_per_tok": o["moe-router-topk"],
        "shared_intermediate_size": o["moe-shared-expert-intermediate-size"],
        "embedding_multiplier": o["embedding-multiplier"], "residual_multiplier": o["residual-multiplier"],
        "logits_scaling": o["logits-scaling"], "attention_multiplier": o["softmax-scale"]}


def on_disk(w):
    return renamed(w, IN_FILES)


def llama(w, o):
    found = {}
    for name, x in bamba.split(w, ("post_attention_layernorm", "block_sparse_moe", "shared_mlp")).items():
        layer, _, which = name.partition(".block_sparse_moe.")
        gates = "input_linear" in name
        if which.endswith("put_linear.weight"):
            for e, y in enumerate(x):
                parts = zip(("gate", "up"), y.reshape(2, -1, y.shape[1])) if gates else [("down", y)]
                found |= {f"{layer}.mlp.experts.{e}.{part}_proj.weight": z for part, z in parts}
        elif "shared_mlp" in name:
            parts = zip(("gate", "up"), x.reshape(2, -1, x.shape[1])) if gates else [("down", x)]
            layer = name.partition(".shared_mlp.")[0]
            found |= {f"{layer}.mlp.shared_experts.{part}_proj.weight": z for part, z in parts}
        else:
            found[name] = x
    return renamed(found, {"post_attention_layernorm": "pre_mlp_layernorm",
                           "block_sparse_moe.router.layer": "mlp.router"})


BASE = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {
    "shared_intermediate_size": 20, "num_local_experts": 0, "layer_types": [FULL] * 3, "mamba_n_heads": 1,
    "position_embedding_type": "rope", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "logits_scaling": 8.0, "attention_multiplier": 0.3}
HYBRID = HEADS | {"layer_types": ["linear_attention", FULL, "linear_attention"], "rms_norm_eps": 1e-5}
EXPERTS = {"num_local_experts": 4, "intermediate_size": 6, "shared_intermediate_size": 10}
SPELLINGS = FEW | {
    "no positions": {"position_embedding_type": "nope"},
    "no positions by default": {"position_embedding_type": MISSING},
    "null positions": {"position_embedding_type": None}, "old words": {"layer_types": ["attention"] * 3},
    "tied": {"tie_word_embeddings": True}, "biases": {"attention_bias": True}, "head size": {"head_dim": 6},
    "width by default": {"shared_intermediate_size": MISSING, "num_hidden_layers": 1, "layer_types": [FULL]},
    "theta": {"rope_theta": 50.0}, "groups by default": {"num_key_value_heads": MISSING},
    "eps": {"rms_norm_eps": 1e-2}, "experts": EXPERTS, "three experts": EXPERTS | {"num_experts_per_tok": 3},
    "experts by default": EXPERTS | {"num_local_experts": MISSING}, "Mamba": HYBRID,
    "Mamba and experts": HYBRID | EXPERTS, "Mamba without positions": HYBRID | {"position_embedding_type": "nope"},
    "only Mamba": HYBRID | {"layer_types": ["linear_attention"] * 3},
    "Mamba by default": HYBRID | {"layer_types": MISSING}, "older words": HYBRID | {"layer_types": ["mamba"] * 3},
    "second name of the layers": HYBRID | {"layer_types": MISSING,
                                           "layers_block_type": ["mamba", "attention", "mamba"]},
    "automatic width": HYBRID | {"mamba_d_head": "auto"},
    "limit of steps": HYBRID | {"time_step_limit": [0.7, INFINITY]},
    "tied Mamba": HYBRID | {"tie_word_embeddings": True}, "biases around Mamba": HYBRID | {"attention_bias": True},
    "!eps of Mamba": HYBRID | {"rms_norm_eps": 1e-2}, "!eps of Mamba by default": HYBRID | {"rms_norm_eps": MISSING},
    "!biases of Mamba": HYBRID | {"mamba_proj_bias": True}, "!gelu of Mamba": HYBRID | {"hidden_act": "gelu"},
}
