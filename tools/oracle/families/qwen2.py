"""Qwen2: Llama with biases on q, k and v."""
from families.decoder import BY_LAYER, EVERY, LLAMA, MISSING, SIZES, UNTIED, WIDE, config, shape

CASES = {
    "qwen2-like": (shape(3, 24, 4, 40, 17, 70, groups=2) | LLAMA | {"add-qkv-bias": True, "rotary-base": 1000000,
                                                                    "norm-epsilon": 1e-6}, {}),
    "qwen2-deep": (shape(8, 32, 8, 48, 32, 67, groups=4) | LLAMA | UNTIED | {
        "add-qkv-bias": True, "micro-batch-size": 1, "global-batch-size": 8, "norm-epsilon": 1e-6}, {}),
}
BASE = SIZES
SPELLINGS = EVERY | BY_LAYER | {"max_window_layers alone": {"max_window_layers": 0},
                                "groups by default": WIDE | {"num_key_value_heads": MISSING}}
