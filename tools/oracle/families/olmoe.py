"""OLMoE: Llama with experts, a norm over all heads of q, and a norm over all heads of k."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"num_experts": 4, "num_experts_per_tok": 2}
SPELLINGS = FEW | {
    "normalised": {"norm_topk_prob": True}, "second name": {"num_local_experts": 5}, "biases": {"attention_bias": True},
    "experts by default": {"num_experts": MISSING, "num_experts_per_tok": MISSING}, "eps": {"rms_norm_eps": 1e-2},
    "!clipped": {"clip_qkv": 0.5}, "head size": {"head_dim": 6}, "heads that do not divide": {"hidden_size": 18},
}
