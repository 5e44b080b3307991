"""IQuest-Coder: Llama."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 4}
SPELLINGS = FEW | {
    "head size by default": {"head_dim": MISSING, "num_hidden_layers": 1}, "null head size": {"head_dim": None},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "all biases": {"attention_bias": True, "mlp_bias": True}, "windows": {"use_sliding_window": True},
    "clipped": {"clip_qkv": 8.0}, "no windows": {"use_sliding_window": False, "clip_qkv": None},
}
