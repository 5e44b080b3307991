"""Helium: Llama whose RoPE rotates adjacent channels."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 4}
SPELLINGS = FEW | {
    "biases": {"attention_bias": True}, "!MLP biases": {"mlp_bias": True}, "wide heads": {"head_dim": 6},
    "sizes by default": {"hidden_size": 2560, "num_attention_heads": 20, "head_dim": MISSING, "num_hidden_layers": 1,
                         "intermediate_size": 4, "num_key_value_heads": MISSING},
}
