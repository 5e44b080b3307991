"""Qwen2-MoE: a softmax before the choice of experts, and a shared expert with a gate."""
from families import decoder
from families.decoder import BY_LAYER, EVERY, EXPERTS, LLAMA, MISSING, ON, SIZES, shape

CASES = {
    "qwen2-moe-like": (shape(3, 24, 4, 36, 11, 43, groups=2) | LLAMA | {
        "add-qkv-bias": True, "norm-epsilon": 1e-6, "num-experts": 6, "moe-router-topk": 3,
        "moe-router-pre-softmax": True, "moe-layer-freq": "[0,1,1]", "moe-ffn-hidden-size": 10,
        "moe-shared-expert-intermediate-size": 14, "moe-shared-expert-gate": True, "micro-batch-size": 1,
        "global-batch-size": 3}, {"mask": True}),
}


def config(o):
    return decoder.config(o, **decoder.qwen_experts(o),
                          shared_expert_intermediate_size=o["moe-shared-expert-intermediate-size"])


BASE = SIZES | EXPERTS | {"shared_expert_intermediate_size": 10}
SPELLINGS = EVERY | BY_LAYER | {
    "window below layer 2": ON | {"max_window_layers": 2}, "no qkv bias": {"qkv_bias": False},
    "normalised": {"norm_topk_prob": True}, "dense layer": {"mlp_only_layers": [1]},
    "every second": {"decoder_sparse_step": 2}, "name that is not read": {"num_local_experts": 5},
    "groups by default": {"num_attention_heads": 16, "hidden_size": 32, "num_key_value_heads": MISSING},
}
