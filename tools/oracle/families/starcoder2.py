"""StarCoder2: RoPE, grouped queries and a sliding window in a model with GPT-2's MLP, LayerNorm and biases."""
from families import decoder
from families.decoder import EVERY, MISSING, SIZES, shape

CASES = {
    "starcoder2-like": (shape(2, 36, 6, 52, 20, 59, groups=2) | {
        "position-embedding-type": "rope", "rotary-base": 100000, "window-size": "6,0", "seed": 11}, {"mask": True}),
}
INSIDE = {"mlp.c_fc.": "mlp.up_proj.", "mlp.c_proj.": "mlp.down_proj."}


def config(o):
    return decoder.config(o, eps="norm_epsilon", use_bias=not o.get("disable-bias-linear", False), residual_dropout=0.0,
                          embedding_dropout=0.0, **decoder.window(o))


def llama(w, o):
    return decoder.renamed(w, INSIDE)


BASE = SIZES | {"tie_word_embeddings": False}
SPELLINGS = EVERY | {
    "window": {"sliding_window": 3}, "null window": {"sliding_window": None},
    "tied by default": {"tie_word_embeddings": MISSING}, "groups by default": {"num_key_value_heads": MISSING},
    "no biases": {"use_bias": False}, "eps": {"norm_epsilon": 1e-2}, "key that is not read": {"rms_norm_eps": 1e-2},
    "head size": {"head_dim": 6}, "heads that do not divide": {"hidden_size": 18, "head_dim": 4},
    "!list that is not read": {"layer_types": ["full_attention"] * 3, "sliding_window": 3},
    "!silu": {"hidden_act": "silu"},
}
