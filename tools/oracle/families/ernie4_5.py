"""Ernie 4.5: Llama whose RoPE rotates adjacent channels."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 6}
SPELLINGS = FEW | {
    "biases": {"use_bias": True}, "null head size": {"head_dim": None},
    "sizes by default": {"head_dim": MISSING, "num_hidden_layers": 1, "num_key_value_heads": MISSING},
}
