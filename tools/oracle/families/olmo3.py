"""OLMo 3: OLMo 2 with sliding windows; RoPE is scaled only in layers without a window."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

LINEAR = {"rope_type": "linear", "factor": 2.0}
DEFAULT = {"rope_type": "default", "rope_theta": 30.0}
CASES = {}
BASE = SIZES | {"num_hidden_layers": 4, "sliding_window": 3}
SPELLINGS = {name: keys for name, keys in FEW.items() if name != "linear"} | {
    "theta": {"rope_theta": 50.0}, "linear": {"rope_scaling": LINEAR, "rope_theta": 50.0},
    "window by default": {"sliding_window": MISSING},
    "list": {"layer_types": [FULL, SLIDING, SLIDING, FULL]}, "pattern that is not read": {"sliding_window_pattern": 2},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}},
    "kinds": {"rope_parameters": {FULL: LINEAR | {"rope_theta": 40.0}, SLIDING: DEFAULT}},
    "sliding kind": {"rope_parameters": {SLIDING: DEFAULT, FULL: None}, "rope_theta": 50.0},
    "local theta that is not read": {"rope_local_base_freq": 20.0}, "biases": {"attention_bias": True},
    "all full": {"layer_types": [FULL] * 4},
    "!all full without a window": {"layer_types": [FULL] * 4, "sliding_window": None},
    "no window's size": {"sliding_window": None}, "!flat parameters": {"rope_parameters": DEFAULT},
}
