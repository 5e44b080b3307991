"""SmolLM3: Llama in which some layers have no RoPE, and only these layers can have a sliding window."""
from families.decoder import FEW, FULL, MISSING, ON, SIZES, SLIDING

CASES = {}
BASE = SIZES | {"pad_token_id": None, "num_hidden_layers": 4}
SPELLINGS = FEW | {
    "interval": {"no_rope_layer_interval": 2}, "list": {"no_rope_layers": [0, 1, 1, 0]},
    "list goes first": {"no_rope_layers": [1, 1, 0, 1, 0, 0], "no_rope_layer_interval": 0},
    "window": ON | {"no_rope_layers": [0, 1, 0, 1]},
    "window by list": ON | {"layer_types": [FULL, SLIDING, FULL, FULL]},
    "null window": ON | {"sliding_window": None}, "all biases": {"attention_bias": True, "mlp_bias": True},
    "groups by default": {"hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": MISSING},
    "!list, but off": ON | {"use_sliding_window": False, "layer_types": [FULL, SLIDING, FULL, FULL]},
    "short list": {"no_rope_layers": [1, 1]}, "interval of 0": {"no_rope_layer_interval": 0},
}
