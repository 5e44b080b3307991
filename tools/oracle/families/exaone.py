"""EXAONE 3: Llama with GPT-2's names."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES
SPELLINGS = FEW | {
    "released names": {"num_hidden_layers": MISSING, "num_layers": 2, "layer_norm_epsilon": 1e-2,
                       "activation_function": "gelu"},
    "both names": {"num_layers": 3}, "!two numbers": {"num_layers": 2},
    "theta by default": {"rope_theta": MISSING}, "head size": {"head_dim": 6}, "tied": {"tie_word_embeddings": True},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "all biases": {"attention_bias": True, "mlp_bias": True},
}
