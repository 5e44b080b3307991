"""Mistral: Llama with a sliding window."""
from families import decoder
from families.decoder import EVERY, FULL, LLAMA, MISSING, SIZES, SLIDING, UNTIED, shape

CASES = {
    "mistral-like": (shape(2, 32, 4, 40, 33, 53, groups=2) | LLAMA | UNTIED | {"window-size": "6,0", "clip-grad": 0.3},
                     {}),
    "mistral-sinks": (shape(4, 32, 8, 48, 16, 61, groups=2) | LLAMA | UNTIED | {
        "window-size": "5,0", "softmax-type": "learnable", "micro-batch-size": 1, "global-batch-size": 8, "seed": 5},
                      {}),
}


def config(o):
    return decoder.config(o, **decoder.window(o))


BASE = SIZES | {"sliding_window": None}
SPELLINGS = EVERY | {
    "window": {"sliding_window": 3}, "window by default": {"sliding_window": MISSING},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "biases that are not read": {"attention_bias": True, "mlp_bias": True},
    "heads that do not divide": {"hidden_size": 18, "head_dim": 4},
    "!ministral": {"sliding_window": 3, "layer_types": [FULL, SLIDING, SLIDING], "rope_theta": 50.0},
    "!ministral without windows": {"layer_types": [FULL] * 3, "rope_theta": 50.0},
}
