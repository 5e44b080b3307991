"""Seed-OSS: Llama with a bias for each part of attention."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 6}
SPELLINGS = FEW | {
    "attention biases": {"attention_out_bias": True}, "no biases": {"attention_bias": False},
    "null head size": {"head_dim": None},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "null groups": {"num_key_value_heads": None}, "!MLP biases": {"mlp_bias": True},
}
