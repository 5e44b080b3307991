"""Ministral: Mistral with windows in some layers."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

CASES = {}
BASE = SIZES | {"sliding_window": 3, "head_dim": 6}
SPELLINGS = FEW | {
    "list": {"layer_types": [FULL, SLIDING, SLIDING]}, "null window": {"sliding_window": None},
    "!null window, all full": {"sliding_window": None, "layer_types": [FULL] * 3},
    "window by default": {"sliding_window": MISSING}, "all full": {"layer_types": [FULL] * 3},
    "no head size": {"head_dim": MISSING},
    "no window's size": {"sliding_window": None, "layer_types": [FULL, FULL, SLIDING]},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
}
