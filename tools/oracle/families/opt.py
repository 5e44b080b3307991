"""OPT: GPT-2 with ReLU, and a table of positions that begins with two unused rows."""
from families.decoder import SIZES

CASES = {}
BASE = {key: SIZES[key] for key in SIZES if key not in ("intermediate_size", "num_key_value_heads")} | {"ffn_dim": 20}
SPELLINGS = {
    "": {}, "no biases": {"enable_bias": False}, "gelu": {"activation_function": "gelu"},
    "untied": {"tie_word_embeddings": False},
    "width of embeddings": {"word_embed_proj_dim": 16}, "!narrow embeddings": {"word_embed_proj_dim": 8},
    "!norms of sums": {"do_layer_norm_before": False}, "!no final norm": {"_remove_final_layer_norm": True},
    "!no gains": {"layer_norm_elementwise_affine": False},
}
