"""OLMo: Llama with LayerNorms that have neither weights nor biases."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES
SPELLINGS = FEW | {
    "biases": {"attention_bias": True}, "epsilon that is not read": {"layer_norm_eps": 1e-2, "rms_norm_eps": 1e-2},
    "tied": {"tie_word_embeddings": True}, "groups by default": {"num_key_value_heads": MISSING},
    "clip of null": {"clip_qkv": None}, "!clip": {"clip_qkv": 0.1},
}
