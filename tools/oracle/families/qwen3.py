"""Qwen3: Llama with norms on q and k."""
from families.decoder import BY_LAYER, EVERY, LLAMA, MISSING, SIZES, UNTIED, WIDE, config, shape

CASES = {
    "qwen3-like": (shape(2, 28, 4, 36, 21, 59, groups=2, kv_channels=10) | LLAMA | UNTIED | {
        "qk-layernorm": True, "rotary-base": 1000000, "norm-epsilon": 1e-6, "micro-batch-size": 1,
        "global-batch-size": 5},
        {"init": "float64"}),
}
BASE = SIZES | {"head_dim": 6}
SPELLINGS = EVERY | BY_LAYER | {
    "head size by default": {"head_dim": MISSING, "num_hidden_layers": 1},
    "groups by default": WIDE | {"num_key_value_heads": MISSING}, "biases": {"attention_bias": True},
}
