"""Qwen3-MoE: norms on q and k, dense layers among MoE layers, and a window in all layers or in no layer."""
from families import decoder
from families.decoder import EVERY, EXPERTS, FULL, LLAMA, MISSING, ON, SIZES, SLIDING, shape

CASES = {
    "qwen3-moe-windows": (shape(3, 24, 6, 32, 14, 41, groups=3, kv_channels=4) | LLAMA | {
        "qk-layernorm": True, "norm-epsilon": 1e-6, "num-experts": 4, "moe-router-topk": 2, "moe-layer-freq": "[1,0,1]",
        "moe-ffn-hidden-size": 8, "window-size": "4,0", "micro-batch-size": 1, "global-batch-size": 3}, {}),
}


def config(o):
    return decoder.config(o, **decoder.qwen_experts(o), **decoder.window(o), use_sliding_window=True)


BASE = SIZES | EXPERTS
SPELLINGS = EVERY | {
    "window": ON, "window off": ON | {"use_sliding_window": False}, "null window": ON | {"sliding_window": None},
    "max_window_layers that is not read": ON | {"max_window_layers": 2},
    "all sliding": ON | {"layer_types": [SLIDING] * 3},
    "!list that is not read": ON | {"layer_types": [FULL, SLIDING, SLIDING]}, "normalised": {"norm_topk_prob": True},
    "dense layer": {"mlp_only_layers": [0, 2]}, "every second": {"decoder_sparse_step": 2},
    "second name": {"num_local_experts": 5}, "head size": {"head_dim": 6}, "biases": {"attention_bias": True},
    "groups by default": {"num_key_value_heads": MISSING},
}
