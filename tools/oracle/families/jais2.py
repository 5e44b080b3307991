"""Jais 2: Llama with LayerNorm, squared ReLU without a gate, and biases."""
from families.decoder import FEW, SIZES

CASES = {}
BASE = SIZES
SPELLINGS = FEW | {
    "head size": {"head_dim": 6}, "no biases": {"attention_bias": False, "mlp_bias": False},
    "biases of attention": {"mlp_bias": False}, "epsilon": {"layer_norm_eps": 1e-2}, "!gate": {"hidden_act": "silu"},
    "biases of MLPs": {"attention_bias": False},
}
