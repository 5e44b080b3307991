"""dots.llm1: the router of GLM-4-MoE, with a norm of each head and windows in the last layers."""
from families import glm4_moe
from families.decoder import FEW, FULL, MISSING, SLIDING

CASES = {}
BASE = glm4_moe.BASE | {"n_shared_experts": 1, "norm_topk_prob": True, "sliding_window": 3}
SPELLINGS = FEW | {
    "dense layers": {"first_k_dense_replace": 2}, "scaled": {"routed_scaling_factor": 1.5},
    "shared": {"n_shared_experts": 2},
    "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 3, "num_experts_per_tok": 4},
    "biases": {"attention_bias": True}, "second name": {"num_local_experts": 5},
    "windows": {"max_window_layers": 1}, "no window's size": {"max_window_layers": 1, "sliding_window": None},
    "list goes first": {"max_window_layers": 0, "layer_types": [SLIDING, FULL, SLIDING]},
    "window by default": {"max_window_layers": 1, "sliding_window": MISSING}, "head size": {"head_dim": 6},
    "!not normalised": {"norm_topk_prob": False}, "!not normalised by default": {"norm_topk_prob": MISSING},
    "no number of experts": {"n_routed_experts": MISSING}, "!one expert": {"num_experts_per_tok": 1},
    "one expert, not normalised by default": {"num_experts_per_tok": 1, "norm_topk_prob": MISSING},
    "no number of shared experts": {"n_shared_experts": MISSING},
}
