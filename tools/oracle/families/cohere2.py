"""Cohere 2: Cohere with a sliding window in the layers that have RoPE."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

CASES = {}
BASE = SIZES | {"num_hidden_layers": 4, "sliding_window": 3, "logit_scale": 0.25}
SPELLINGS = FEW | {
    "pattern": {"sliding_window_pattern": 2}, "list": {"layer_types": [FULL, SLIDING, SLIDING, FULL]},
    "all full": {"layer_types": [FULL] * 4},
    "window by default": {"sliding_window": MISSING},
    "!null window": {"sliding_window": None, "layer_types": [FULL] * 4},
}
