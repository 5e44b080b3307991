"""Granite MoE: Granite with experts. One tensor contains the matrices of all experts."""
from families import granite
from families.decoder import FEW, MISSING

CASES = {}
BASE = granite.BASE | {"num_local_experts": 4}
SPELLINGS = FEW | {
    "experts by default": {"num_local_experts": MISSING}, "three experts": {"num_experts_per_tok": 3},
    "biases": {"attention_bias": True}, "MLP biases that are not read": {"mlp_bias": True},
    "eps": {"rms_norm_eps": 1e-2},
    "name that is not read": {"num_experts": 5},
    "multipliers by default": {k: MISSING for k in granite.BASE if "multiplier" in k or "scaling" in k},
}
