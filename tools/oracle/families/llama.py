"""Llama, and other models under its name."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, NO_SIZE, SIZES, UNTIED, shape

CASES = {
    "llama-gqa": (shape(2, 36, 6, 40, 19, 61, groups=2) | LLAMA | UNTIED, {}),
    "llama3-rope-scaled": (shape(2, 32, 2, 44, 23, 67, groups=1) | LLAMA | {
        "rotary-base": 500000, "use-rope-scaling": True, "rope-scaling-factor": 4.0, "micro-batch-size": 1,
        "clip-grad": 0.25, "seed": 3}, {"mask": True}),
    "llama-bias-tied": (shape(2, 30, 3, 37, 18, 57) | LLAMA | {
        "disable-bias-linear": False, "lr-warmup-iters": 0, "lr-decay-iters": 20, "clip-grad": 1.0}, {}),
    # for sweeps over layouts
    "llama-layouts": (shape(4, 32, 8, 48, 16, 61, groups=2) | LLAMA | {"micro-batch-size": 1, "global-batch-size": 8},
                      {}),
}


def config(o):
    return decoder.config(o, **decoder.biases(o))


BASE = SIZES
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
DEFAULT = {"rope_type": "default", "rope_theta": 50.0}
SPELLINGS = EVERY | {
    "llama3": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16}, "rope_theta": 50.0},
    "llama3 without a length": {"rope_parameters": LLAMA3 | {"rope_theta": 50.0}},
    "llama3, length outside": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16},
                               "original_max_position_embeddings": 6, "rope_theta": 50.0},
    "long": {"rope_scaling": LONG | {"original_max_position_embeddings": 4}, "rope_theta": 50.0},
    "long without a length": {"rope_scaling": LONG},
    "long, length outside": {"rope_scaling": LONG | {"original_max_position_embeddings": 16},
                             "original_max_position_embeddings": 4},
    "parameters": {"rope_parameters": DEFAULT},
    "scaling goes first": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": DEFAULT},
    "empty scaling": {"rope_scaling": {}, "rope_parameters": DEFAULT},
    "as many groups": {"num_key_value_heads": MISSING}, "head size": {"head_dim": 6}, "eps": {"rms_norm_eps": 1e-2},
    "all biases": {"attention_bias": True, "mlp_bias": True}, "attention biases": {"attention_bias": True},
    "!MLP biases": {"mlp_bias": True}, "heads that do not divide": {"hidden_size": 18, "head_dim": 4},
    "tanh": {"hidden_act": "gelu_pytorch_tanh"}, "!relu2": {"hidden_act": "relu2"},
    "!list that is not read": NO_SIZE,
}
