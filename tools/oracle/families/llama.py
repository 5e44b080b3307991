"""Llama, and other models with the model type "llama"."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, NO_SIZE, SIZES, UNTIED, shape

CASES = {
    "llama-gqa": (shape(2, 36, 6, 40, 19, 61, groups=2) | LLAMA | UNTIED, {}),
    "llama3-rope-scaled": (shape(2, 32, 2, 44, 23, 67, groups=1) | LLAMA | {
        "rotary-base": 500000, "use-rope-scaling": True, "rope-scaling-factor": 4.0, "micro-batch-size": 1,
        "clip-grad": 0.25, "seed": 3}, {"mask": True}),
    "llama-bias-tied": (shape(2, 30, 3, 37, 18, 57) | LLAMA | {
        "disable-bias-linear": False, "lr-warmup-iters": 0, "lr-decay-iters": 20, "clip-grad": 1.0}, {}),
    "llama-yarn": (shape(3, 36, 3, 40, 21, 59, groups=1, kv_channels=12) | LLAMA | UNTIED | {
        "position-embedding-type": "yarn", "rotary-base": 30, "rotary-scaling-factor": 5.0,
        "yarn-original-max-position-embeddings": 17, "yarn-beta-fast": 3.0, "yarn-beta-slow": 0.7,
        "no-yarn-correction-range-round-to-int": True, "mscale": 0.7, "mscale-all-dim": 1.6, "seed": 5}, {}),
    # predicts two additional tokens; most labels of some samples are not counted
    "llama-mtp": (shape(2, 36, 6, 40, 19, 61, groups=2) | LLAMA | UNTIED | {
        "mtp-num-layers": 2, "mtp-loss-scaling-factor": 0.7, "clip-grad": 2.5}, {"mask": True}),
    "mtp-repeated": (shape(2, 28, 2, 36, 17, 59) | LLAMA | {
        "mtp-num-layers": 3, "mtp-use-repeated-layer": True, "mtp-loss-scaling-factor": 1.5, "clip-grad": 3,
        "seed": 8}, {"mask": True}),
    # used by sweeps over layouts
    "mtp-layouts": (shape(4, 32, 4, 40, 16, 61, groups=2) | LLAMA | {
        "mtp-num-layers": 2, "mtp-loss-scaling-factor": 0.6, "micro-batch-size": 1, "global-batch-size": 8,
        "seed": 3}, {"mask": True}),
    "llama-layouts": (shape(4, 32, 8, 48, 16, 61, groups=2) | LLAMA | {"micro-batch-size": 1, "global-batch-size": 8},
                      {}),
}


def config(o):
    return decoder.config(o, **decoder.biases(o))


BASE = SIZES
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 12, "rope_theta": 20.0}
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
    "yarn, parameters": {"rope_parameters": YARN},
    "yarn, mscales": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.5}},
    "yarn, one mscale": {"rope_parameters": YARN | {"mscale": 0.7}},
    "yarn, other mscale": {"rope_parameters": YARN | {"mscale_all_dim": 0.7}},
    "yarn, attention factor": {
        "rope_parameters": YARN | {"attention_factor": 1.3, "mscale": 0.7, "mscale_all_dim": 1.5}},
    "yarn, betas": {"rope_parameters": YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False}},
    "yarn, betas as integers": {"rope_parameters": YARN | {"beta_fast": 2, "beta_slow": 1, "factor": 3}},
    "yarn without a length": {"rope_parameters": {k: v for k, v in YARN.items() if "original" not in k}},
    "yarn without a factor": {"rope_parameters": {k: v for k, v in YARN.items() if k != "factor"}},
    "yarn, length outside": {"rope_parameters": YARN, "original_max_position_embeddings": 6},
    "yarn, factor below 1": {"rope_parameters": YARN | {"factor": 0.5}},
    "dynamic, parameters": {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 20.0}},
    "dynamic without a factor": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 20.0}},
    "scaling goes first": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": DEFAULT},
    "empty scaling": {"rope_scaling": {}, "rope_parameters": DEFAULT},
    "as many groups": {"num_key_value_heads": MISSING}, "head size": {"head_dim": 6}, "eps": {"rms_norm_eps": 1e-2},
    "all biases": {"attention_bias": True, "mlp_bias": True}, "attention biases": {"attention_bias": True},
    "MLP biases": {"mlp_bias": True}, "heads that do not divide": {"hidden_size": 18, "head_dim": 4},
    "tanh": {"hidden_act": "gelu_pytorch_tanh"}, "!relu2": {"hidden_act": "relu2"},
    "swish": {"hidden_act": "swish"}, "python": {"hidden_act": "gelu_python"}, "quick": {"hidden_act": "quick_gelu"},
    "!list that is not read": NO_SIZE,
}
