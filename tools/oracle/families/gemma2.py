"""Gemma 2: a GELU gate, norms on both sides of a branch, soft caps, scaled embeddings and windows in every second
layer."""
import json

from families import decoder
from families.decoder import EVERY, FULL, MISSING, NO_SIZE, SIZES, SLIDING, shape

CASES = {
    "gemma2-like": (shape(4, 24, 4, 40, 20, 61, groups=2, kv_channels=10) | {
        "position-embedding-type": "rope", "normalization": "RMSNorm", "norm-epsilon": 1e-6, "activation": "geglu-tanh",
        "disable-bias-linear": True, "apply-layernorm-1p": True, "norm-placement": "sandwich", "scale-embedding": True,
        "window-size": "6,0", "window-attn-skip-freq": "[1,0,1,0]", "softmax-scale": 36**-0.5,
        "attn-logit-softcapping": 1.5, "final-logit-softcapping": 2.0, "clip-grad": 1.5, "seed": 20}, {"mask": True}),
}


def config(o):
    return decoder.config(o, **decoder.window(o), hidden_activation="gelu_pytorch_tanh",
                          query_pre_attn_scalar=round(o["softmax-scale"]**-2),
                          attn_logit_softcapping=o.get("attn-logit-softcapping"),
                          final_logit_softcapping=o.get("final-logit-softcapping"),
                          layer_types=[SLIDING if windowed else FULL
                                       for windowed in json.loads(o["window-attn-skip-freq"])])


BASE = SIZES | {"head_dim": 6, "sliding_window": 3, "query_pre_attn_scalar": 5, "attn_logit_softcapping": 0.5,
                "final_logit_softcapping": 0.7, "pad_token_id": None}
SPELLINGS = EVERY | {
    **{f"{key} by default": {key: MISSING} for key in ("query_pre_attn_scalar", "attn_logit_softcapping",
                                                       "final_logit_softcapping", "num_key_value_heads",
                                                       "sliding_window", "pad_token_id")},
    "head size by default": {"head_dim": MISSING, "hidden_size": 8}, "!null window": {"sliding_window": None},
    "!null window, no layer": NO_SIZE | {"layer_types": [FULL] * 3},
    "other layers": {"layer_types": [FULL, SLIDING, FULL]}, "all sliding": {"layer_types": [SLIDING] * 3},
    "no caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "untied": {"tie_word_embeddings": False}, "gelu": {"hidden_activation": "gelu"},
    "silu": {"hidden_activation": "silu"}, "activation that is not read": {"hidden_act": "silu"},
    "eps": {"rms_norm_eps": 1e-2}, "biases": {"attention_bias": True},
    "!bidirectional": {"use_bidirectional_attention": True}, "!relu": {"hidden_activation": "relu2"},
    "!heads that do not divide": {"hidden_size": 18}, "!cap of 0": {"final_logit_softcapping": 0.0},
}
