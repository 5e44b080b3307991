"""Ministral 3: Mistral with queries whose scale increases with their position."""
from families.decoder import FEW, FULL, MISSING, SIZES, SLIDING

CASES = {}
BETA, LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"
GROWS = {"rope_theta": 50.0, BETA: 0.5, LENGTH: 2}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "mscale": 1.0, "mscale_all_dim": 0.5} | GROWS
BASE = SIZES | {"head_dim": 6, "pad_token_id": None, "rope_parameters": YARN}


def without(key):
    return {k: x for k, x in YARN.items() if k != key}


SPELLINGS = {"": {}, "gelu": FEW["gelu"], "tied": {"tie_word_embeddings": True}} | {
    name: {"rope_parameters": GROWS | rope} for name, rope in (
        ("default", {"rope_type": "default"}), ("no type", {}), ("linear", {"rope_type": "linear", "factor": 2.0}),
        ("dynamic", {"rope_type": "dynamic", "factor": 2.0}), ("type of old files", {"type": "linear", "factor": 2.0}),
        ("llama 3", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}))
} | {
    "by default": {"rope_parameters": MISSING, "rope_theta": 50.0}, "null": {"rope_parameters": None},
    "old place": {"rope_parameters": MISSING, "rope_scaling": without("rope_theta"), "rope_theta": 70.0},
    "length outside": {LENGTH: 3},
    "length by default": {"rope_parameters": without(LENGTH), "max_position_embeddings": 6},
    "no theta": {"rope_parameters": without("rope_theta")}, "scale of 0": {"rope_parameters": YARN | {BETA: 0.0}},
    "no scale": {"rope_parameters": without(BETA)}, "empty": {"rope_parameters": {}},
    "no length": {"rope_parameters": {"rope_type": "default", BETA: 0.5}},
    "length outside, default": {"rope_parameters": {"rope_type": "default", BETA: 0.5}, LENGTH: 3},
    "window": {"sliding_window": 3}, "null window": {"sliding_window": None},
    "!some windows": {"sliding_window": 3, "layer_types": [FULL, SLIDING, SLIDING]},
    "sizes by default": {"head_dim": MISSING, "num_attention_heads": 8, "num_key_value_heads": MISSING,
                         "num_hidden_layers": 1},
}
