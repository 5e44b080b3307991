"""StableLM: LayerNorm with SwiGLU, and RoPE on a part of each head."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, SIZES, UNTIED, WIDE, shape

CASES = {
    "stablelm-partial-rotary": (shape(2, 32, 2, 36, 20, 63) | LLAMA | UNTIED | {"normalization": "LayerNorm",
                                                                                "rotary-percent": 0.25}, {}),
}


def config(o):
    return decoder.config(o, eps="layer_norm_eps")


BASE = SIZES | {"partial_rotary_factor": 0.5}
SPELLINGS = EVERY | {
    "rotated by default": {"hidden_size": 32, "partial_rotary_factor": MISSING}, "qkv bias": {"use_qkv_bias": True},
    "eps": {"layer_norm_eps": 1e-2}, "!parallel": {"use_parallel_residual": True}, "!qk norm": {"qk_layernorm": True},
    "groups by default": WIDE | {"hidden_size": 128, "num_key_value_heads": MISSING},
}
