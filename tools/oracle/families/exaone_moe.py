"""K-EXAONE: DeepSeek-V3's experts, a norm of each head, and a window in the layers that have rotation."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

CASES = {}
BASE = SIZES | {"num_hidden_layers": 4, "sliding_window": 3, "num_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 6}
SPELLINGS = FEW | {
    "pattern": {"sliding_window_pattern": 2}, "list": {"layer_types": [FULL, SLIDING, SLIDING, FULL]},
    "no window's size": {"sliding_window": None, "layer_types": [FULL] * 4},
    "dense layers": {"first_k_dense_replace": 2},
    "list of layers": {"first_k_dense_replace": 2, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]},
    "shared": {"num_shared_experts": 2}, "scaled": {"routed_scaling_factor": 1.5},
    "groups": {"num_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    "experts by default": {"num_experts": MISSING, "num_experts_per_tok": MISSING, "num_hidden_layers": 2},
    "prediction of more tokens": {},
    "!not normalised": {"norm_topk_prob": False},
}
