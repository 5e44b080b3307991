"""BioGPT: GPT-2 with OPT's positions and scaled embeddings."""
from families.decoder import MISSING, SIZES

CASES = {}
BASE = {key: SIZES[key] for key in SIZES if key != "num_key_value_heads"}
SPELLINGS = {
    "": {}, "not scaled": {"scale_embedding": False}, "scaled": {"scale_embedding": True},
    "tanh": {"hidden_act": "gelu_new"}, "relu": {"hidden_act": "relu"}, "untied": {"tie_word_embeddings": False},
    "epsilon that is not read": {"layer_norm_eps": 0.1}, "heads that do not divide": {"hidden_size": 18},
    "activation by default": {"hidden_act": MISSING},
}
