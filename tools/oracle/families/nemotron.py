"""Nemotron: LayerNorm with gain 1 + w, and squared ReLU."""
from families import decoder
from families.decoder import EVERY, LLAMA, SIZES, UNTIED, shape

CASES = {
    "nemotron-1p": (shape(2, 36, 3, 50, 22, 55, groups=1) | LLAMA | UNTIED | {
        "normalization": "LayerNorm", "swiglu": False, "squared-relu": True, "apply-layernorm-1p": True,
        "rotary-percent": 0.5}, {}),
}


def config(o):
    return decoder.config(o, eps="norm_eps", **decoder.biases(o))


BASE = SIZES
SPELLINGS = EVERY | {
    "rotated": {"partial_rotary_factor": 1.0}, "all biases": {"attention_bias": True, "mlp_bias": True},
    "head size": {"head_dim": 8}, "eps": {"norm_eps": 1e-2},
}
