"""Cohere: attention and MLP read the same norm, which has no bias; RoPE rotates adjacent channels, and logits are
scaled."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"logit_scale": 0.3}
SPELLINGS = FEW | {
    "scale by default": {"logit_scale": MISSING}, "untied": {"tie_word_embeddings": False},
    "eps": {"layer_norm_eps": 1e-2},
    "biases": {"attention_bias": True}, "!norms of heads": {"use_qk_norm": True},
    "as many groups": {"num_key_value_heads": MISSING},
    "!scale of 0": {"logit_scale": 0.0},
}
