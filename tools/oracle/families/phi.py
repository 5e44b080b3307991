"""Phi-1 and 2: attention and MLP read one norm, part of each head rotates, and the output layer has a bias."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"hidden_size": 32}
SPELLINGS = FEW | {
    "rotated": {"partial_rotary_factor": 1.0}, "eps": {"layer_norm_eps": 1e-2},
    "!norms of heads": {"qk_layernorm": True},
    "as many groups": {"num_key_value_heads": MISSING},
}
