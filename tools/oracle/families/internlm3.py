"""InternLM3: Llama."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 4}
SPELLINGS = FEW | {
    "head size by default": {"head_dim": MISSING}, "groups by default": {"num_key_value_heads": MISSING},
    "all biases": {"attention_bias": True, "mlp_bias": True}, "!other names": {"qkv_bias": True, "bias": True},
}
