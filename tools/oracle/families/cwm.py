"""CWM: Llama with windows in all layers except the first of every four."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

CASES = {}
BASE = SIZES | {"num_hidden_layers": 5, "sliding_window": 3, "head_dim": 6, "bos_token_id": 1}
SPELLINGS = FEW | {
    "theta": {"rope_theta": 50.0}, "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "base outside": {"rope_theta": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "unknown first token": {"bos_token_id": MISSING}, "biases": {"mlp_bias": True},
    "list": {"layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING]}, "all full": {"layer_types": [FULL] * 5},
    "window by default": {"sliding_window": MISSING}, "null window": {"sliding_window": None},
    "sizes by default": {"head_dim": MISSING, "num_hidden_layers": 2, "num_attention_heads": 8,
                         "num_key_value_heads": MISSING},
}
