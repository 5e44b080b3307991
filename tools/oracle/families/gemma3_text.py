"""Gemma 3: Gemma 2 without soft caps and with norms of each query and key head. Five layers with a window, which have a
different rotary base, precede each layer of full attention."""
from families import decoder, gemma2
from families.decoder import FULL, MISSING, SLIDING, shape

CASES = {
    "gemma3-like": (shape(4, 24, 4, 40, 20, 61, groups=2, kv_channels=10) | {
        "position-embedding-type": "rope", "rotary-base": 1000, "rotary-seq-len-interpolation-factor": 4.0,
        "rope-local-base-freq": 20.0, "normalization": "RMSNorm", "norm-epsilon": 1e-6, "activation": "geglu-tanh",
        "disable-bias-linear": True, "apply-layernorm-1p": True, "qk-layernorm": True, "norm-placement": "sandwich",
        "scale-embedding": True, "window-size": "6,0", "window-attn-skip-freq": "[1,1,1,0]", "softmax-scale": 36**-0.5,
        "seed": 24}, {"mask": True}),
}


def config(o):
    rope = {FULL: {"rope_type": "linear", "factor": o["rotary-seq-len-interpolation-factor"],
                   "rope_theta": float(o["rotary-base"])},
            SLIDING: {"rope_type": "default", "rope_theta": o["rope-local-base-freq"]}}
    return gemma2.config(o) | {"rope_parameters": rope}


LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
DEFAULT = {"rope_type": "default", "rope_theta": 30.0}
BASE = {key: value for key, value in gemma2.BASE.items() if "softcapping" not in key} | {"sliding_window_pattern": 3}
SPELLINGS = {name: keys for name, keys in gemma2.SPELLINGS.items() if name not in ("linear", "yarn", "dynamic")} | {
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}},
    "!type of scaling that is not read": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "pattern by default": {"sliding_window_pattern": MISSING, "num_hidden_layers": 7},
    "pattern of 2": {"sliding_window_pattern": 2}, "pattern of 1": {"sliding_window_pattern": 1},
    "list goes first": {"sliding_window_pattern": 1, "layer_types": [FULL, SLIDING, FULL]},
    "local theta": {"rope_local_base_freq": 20.0},
    "both thetas, linear": {"rope_local_base_freq": 20.0, "rope_theta": 50.0, "rope_scaling": LINEAR},
    "theta in the scaling": {"rope_scaling": LINEAR | {"rope_theta": 30.0}, "rope_theta": 50.0},
    "kinds": {"rope_parameters": {FULL: LINEAR | {"rope_theta": 40.0}, SLIDING: DEFAULT}},
    "kinds without thetas": {"rope_parameters": {FULL: LINEAR, SLIDING: {"rope_type": "default"}}, "rope_theta": 50.0,
                             "rope_local_base_freq": 20.0},
    "full kind": {"rope_parameters": {FULL: DEFAULT}},
    "sliding kind": {"rope_parameters": {SLIDING: DEFAULT, FULL: None}},
    "empty scaling": {"rope_scaling": {}, "rope_parameters": {FULL: LINEAR, SLIDING: DEFAULT}},
    "no kinds": {"rope_parameters": {}},
    "llama3": {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 16, "rope_theta": 50.0}},
    "llama3, length outside": {"rope_parameters": {FULL: LLAMA3 | {"rope_theta": 50.0}, SLIDING: DEFAULT},
                               "original_max_position_embeddings": 6},
    "!flat parameters": {"rope_parameters": DEFAULT},
    "!sliding linear": {"rope_parameters": {FULL: DEFAULT, SLIDING: LINEAR}},
    "!both": {"rope_scaling": LINEAR, "rope_parameters": {FULL: DEFAULT, SLIDING: DEFAULT}},
    "!kinds in the scaling": {"rope_scaling": {FULL: LINEAR, SLIDING: DEFAULT}},
    "odd scaling": {"rope_scaling": {"rope_type": "odd", "factor": 2.0}}, "final cap": {"final_logit_softcapping": 0.7},
    "!cap that is not applied": {"attn_logit_softcapping": 0.5},
}
