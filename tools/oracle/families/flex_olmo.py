"""FlexOlmo: OLMo 2 with MoE layers."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "pad_token_id": None}
SPELLINGS = FEW | {
    "normalised": {"norm_topk_prob": True}, "second name": {"num_local_experts": 5}, "biases": {"attention_bias": True},
    "experts by default": {"num_experts": MISSING, "num_experts_per_tok": MISSING}, "eps": {"rms_norm_eps": 1e-2},
    "as many groups": {"num_key_value_heads": MISSING},
}
