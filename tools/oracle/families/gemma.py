"""Gemma: Llama with a gate of tanh GELU, gains 1 + w and scaled embeddings."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 6}
SPELLINGS = FEW | {
    "silu": {"hidden_act": "silu"}, "biases": {"attention_bias": True}, "untied": {"tie_word_embeddings": False},
    "groups by default": {"num_attention_heads": 16, "num_key_value_heads": MISSING},
    "head size by default": {"head_dim": MISSING, "num_hidden_layers": 1},
    "heads that do not divide": {"hidden_size": 18},
    "!both directions": {"use_bidirectional_attention": True},
}
