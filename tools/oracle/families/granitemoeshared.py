"""Granite MoE with a shared expert."""
from families import granitemoe
from families.decoder import FEW, MISSING

CASES = {}
BASE = granitemoe.BASE | {"shared_intermediate_size": 10}
SPELLINGS = FEW | {
    "no shared expert": {"shared_intermediate_size": 0},
    "no shared expert by default": {"shared_intermediate_size": MISSING},
    "biases": {"attention_bias": True},
}
