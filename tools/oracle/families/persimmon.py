"""Persimmon: LayerNorm (also of heads), squared ReLU, and q, k and v in one matrix, head by head."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"hidden_size": 32}
SPELLINGS = FEW | {
    "rotated": {"partial_rotary_factor": 1.0}, "relu2 by default": {"hidden_act": MISSING},
    "parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}},
    "no norms of heads": {"qk_layernorm": False}, "eps": {"layer_norm_eps": 1e-2},
    "tied": {"tie_word_embeddings": True}, "groups that are not read": {"num_key_value_heads": 1},
    "heads that do not divide": {"hidden_size": 18},
}
