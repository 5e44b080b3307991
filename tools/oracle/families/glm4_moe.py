"""GLM-4-MoE: DeepSeek's router, with sigmoid scores, groups of experts and balancing biases."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, SIZES, UNTIED, shape

CASES = {
    "glm4-moe-like": (shape(2, 32, 4, 40, 14, 51, groups=2) | LLAMA | UNTIED | {
        "rotary-percent": 0.5, "add-qkv-bias": True, "qk-layernorm": True, "num-experts": 12, "moe-router-topk": 4,
        "moe-router-score-function": "sigmoid", "moe-router-num-groups": 4, "moe-router-group-topk": 2,
        "moe-router-topk-scaling-factor": 1.5, "moe-router-enable-expert-bias": True,
        "moe-router-bias-update-rate": 0.01, "moe-layer-freq": "[0,1]", "moe-ffn-hidden-size": 12,
        "moe-shared-expert-intermediate-size": 24}, {}),
}


def config(o):
    dense, ffn, shared = decoder.dense_layers(o), o["moe-ffn-hidden-size"], o["moe-shared-expert-intermediate-size"]
    assert dense == list(range(len(dense))) and shared % ffn == 0
    # transformers always adds up the best two scores of a group
    assert o.get("moe-router-group-score-topk", o["moe-router-topk"] / o["moe-router-group-topk"]) == 2
    return decoder.config(
        o, **decoder.experts(o), moe_intermediate_size=ffn, n_routed_experts=o["num-experts"],
        n_group=o["moe-router-num-groups"], topk_group=o["moe-router-group-topk"],
        routed_scaling_factor=o["moe-router-topk-scaling-factor"], n_shared_experts=shared // ffn,
        first_k_dense_replace=len(dense), use_qk_norm=o["qk-layernorm"], attention_bias=o["add-qkv-bias"],
        num_mtp_layers=0)


def llama(w, o):
    return decoder.renamed(w, {"shared_experts.": "shared_expert."})


BASE = SIZES | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
SPELLINGS = EVERY | {
    "rotated": {"partial_rotary_factor": 1.0},
    "rotated inside": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
    "dense layers": {"first_k_dense_replace": 2}, "no dense layer": {"first_k_dense_replace": 0},
    "qk norm": {"use_qk_norm": True}, "qkv bias": {"attention_bias": True}, "scaled": {"routed_scaling_factor": 1.5},
    "shared": {"n_shared_experts": 2}, "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2,
                                                  "num_experts_per_tok": 4},
    "fewer groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 3, "num_experts_per_tok": 4},
    "one group": {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 3},
    "second name": {"num_local_experts": 5},
    "!not normalised": {"norm_topk_prob": False}, "one expert": {"num_experts_per_tok": 1, "norm_topk_prob": False},
    "groups by default": {"num_attention_heads": 8, "hidden_size": 32, "num_key_value_heads": MISSING},
}
