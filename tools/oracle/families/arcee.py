"""Arcee: Llama with squared ReLU and without a gate."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES
SPELLINGS = FEW | {
    "head size": {"head_dim": 6}, "all biases": {"attention_bias": True, "mlp_bias": True},
    "!heads that do not divide": {"hidden_size": 18, "head_dim": 4}, "!gate": {"hidden_act": "silu"},
}
