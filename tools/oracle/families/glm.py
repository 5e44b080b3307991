"""GLM-4 9B: Llama whose RoPE rotates adjacent channels, with gate and up in one matrix."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"pad_token_id": None, "head_dim": 8}
SPELLINGS = FEW | {
    "rotated": {"partial_rotary_factor": 1.0},
    "rotated inside": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
    "no biases": {"attention_bias": False}, "eps": {"rms_norm_eps": 1e-2},
    "sizes by default": {"head_dim": MISSING, "num_hidden_layers": 1, "num_key_value_heads": MISSING},
}
