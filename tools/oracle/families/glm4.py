"""GLM-4 of 2025: GLM with norms on both sides of attention and MLP."""
from families import glm
from families.decoder import FEW

CASES = {}
BASE = glm.BASE
SPELLINGS = FEW | {"no biases": {"attention_bias": False}, "eps": {"rms_norm_eps": 1e-2}}
