"""Solar Open: GLM-4-MoE in which every layer has experts."""
from families.decoder import EXPERTS, FEW, MISSING, SIZES

CASES = {}
BASE = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
SPELLINGS = FEW | {
    "biases": {"attention_bias": True}, "shared": {"n_shared_experts": 2}, "scaled": {"routed_scaling_factor": 1.5},
    "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    "experts by default": {"n_routed_experts": MISSING, "num_experts_per_tok": MISSING, "num_hidden_layers": 1},
    "width by default": {"moe_intermediate_size": MISSING, "num_hidden_layers": 1},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "dense layers that are not read": {"first_k_dense_replace": 2}, "!not normalised": {"norm_topk_prob": False},
}
