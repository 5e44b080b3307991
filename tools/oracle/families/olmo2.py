"""OLMo 2: Llama with norms after attention and MLP instead of before them, a norm over all heads of q, and a norm over
all heads of k."""
from families.decoder import EVERY, LLAMA, MISSING, SIZES, UNTIED, config, shape

CASES = {
    "olmo2-like": (shape(4, 42, 6, 52, 20, 58, groups=2, kv_channels=8) | LLAMA | UNTIED | {
        "norm-placement": "post", "qk-layernorm": True, "qk-layernorm-whole": True, "rotary-base": 500000,
        "norm-epsilon": 1e-6}, {"mask": True}),
}
BASE = SIZES
SPELLINGS = EVERY | {
    "as many groups": {"num_key_value_heads": MISSING}, "head size": {"head_dim": 6}, "eps": {"rms_norm_eps": 1e-2},
    "biases": {"attention_bias": True}, "gelu": {"hidden_act": "gelu"},
    "!partly rotated": {"partial_rotary_factor": 0.5},
}
