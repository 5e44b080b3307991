"""EXAONE 4: OLMo 2 with norms of each query and key head, and a sliding window in the layers that have RoPE."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

CASES = {}
BASE = SIZES | {"num_hidden_layers": 4, "sliding_window": 3}
SPELLINGS = FEW | {
    "window by default": {"sliding_window": MISSING}, "pattern": {"sliding_window_pattern": 2},
    "list": {"layer_types": [FULL, SLIDING, SLIDING, FULL], "sliding_window_pattern": "LLG"},
    "all full": {"layer_types": [FULL] * 4}, "no window": {"sliding_window": None, "layer_types": [FULL] * 4},
    "no window and no list": {"sliding_window": None},
    "no window's size": {"sliding_window": None, "layer_types": [SLIDING] * 4},
    "text": {"sliding_window_pattern": "LLLG"}, "head size": {"head_dim": 6},
}
