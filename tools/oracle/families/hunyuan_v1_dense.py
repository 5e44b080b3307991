"""Hunyuan, dense: Llama with a norm of each head after the rotation. A dynamic scaling with alpha stretches the
base."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 6}
SPELLINGS = FEW | {
    "biases": {"attention_bias": True}, "head size by default": {"head_dim": MISSING},
    "stretched": {"rope_theta": 50.0, "rope_scaling": {"type": "dynamic", "alpha": 30.0, "factor": 1.0, "mscale": 1.0}},
    "stretched, in its place": {"rope_parameters": {"rope_type": "dynamic", "alpha": 5.0, "factor": 1.0,
                                                    "rope_theta": 50.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}},
    "groups by default": {"num_key_value_heads": MISSING}, "tied": {"tie_word_embeddings": True},
}
