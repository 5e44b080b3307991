"""Qwen3-Next: Gated DeltaNet layers, attention with a gate, gains 1 + w, and a shared expert with a gate."""
import re

import numpy as np

from families import decoder
from families.decoder import EXPERTS, FULL, LLAMA, MISSING, SIZES, UNTIED, shape

LINEAR = "linear_attention"
# Isotron's chunks have 64 positions.
CASES = {
    "qwen3-next-like": (shape(4, 24, 4, 28, 72, 27, groups=2, kv_channels=8) | LLAMA | UNTIED | {
        "rotary-percent": 0.25, "norm-epsilon": 3e-2, "apply-layernorm-1p": True, "qk-layernorm": True,
        "attention-output-gate": True, "experimental-attention-variant": "gdn", "linear-attention-freq": "[1,1,0,1]",
        "linear-num-key-heads": 4, "linear-num-value-heads": 12, "linear-key-head-dim": 5, "linear-value-head-dim": 3,
        "linear-conv-kernel-dim": 4, "num-experts": 4, "moe-router-topk": 2, "moe-layer-freq": "[0,1,1,1]",
        "moe-ffn-hidden-size": 12, "moe-shared-expert-intermediate-size": 12, "moe-shared-expert-gate": True,
        "moe-router-load-balancing-type": "none", "clip-grad": 0.7}, {"mask": True}),
}


def linear(o):
    listed = o["linear-attention-freq"].strip("[]").split(",")
    return {"layer_types": [LINEAR if x == "1" else FULL for x in listed]} | {
        f"linear_{key}": o[f"linear-{key.replace('_', '-')}"] for key in (
            "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")}


def config(o):
    return decoder.config(o, **linear(o), **decoder.qwen_experts(o),
                          shared_expert_intermediate_size=o["moe-shared-expert-intermediate-size"])


def split(x, pieces, sizes):
    """Splits rows, which are stored in equal pieces of parts with these numbers of rows, into the parts."""
    parts = np.split(x.reshape(pieces, -1, *x.shape[1:]), np.cumsum(sizes)[:-1], axis=1)
    return [part.reshape(-1, *x.shape[1:]) for part in parts]


def regrouped(x, o):
    """Moves the gates, which alternate with the queries, after all queries of their group."""
    d, groups = o["kv-channels"], o["num-query-groups"]
    parts = split(x, o["num-attention-heads"], (d, d))
    return np.concatenate([y.reshape(groups, -1, *x.shape[1:]) for y in parts], axis=1).reshape(x.shape)


def llama(w, o):
    keys, dk, dv = (o[f"linear-{x}"] for x in ("num-key-heads", "key-head-dim", "value-head-dim"))
    each, found = o["linear-num-value-heads"] // keys, {}
    for name, x in w.items():
        if "in_proj_ba" in name:
            continue
        if "in_proj_qkvz" in name:
            beta_alpha = split(w[name.replace("qkvz", "ba")], keys, (each, each))
            x = np.concatenate(split(x, keys, (dk, dk, each * dv, each * dv)) + beta_alpha)
        x = regrouped(x, o) if "q_proj" in name else x.reshape(len(x), -1) if "conv1d" in name else x
        found[re.sub(r"linear_attn\.norm", "self_attn.out_norm", name).replace("linear_attn", "self_attn").replace(
            "in_proj_qkvz", "in_proj")] = x
    return found


def centred(w):
    """The gated norm's gain is 1 + w in Megatron-LM, but not in transformers."""
    return {n: x - 1 if n.endswith("linear_attn.norm.weight") else x for n, x in w.items()}


DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 3, "linear_value_head_dim": 5,
         "head_dim": 8, "layer_types": [LINEAR, FULL, LINEAR]}
BASE = SIZES | EXPERTS | DELTA | {"shared_expert_intermediate_size": 10}
ATTENTION = {
    "": {}, "theta": {"rope_theta": 50.0}, "tied": {"tie_word_embeddings": True}, "taps": {"linear_conv_kernel_dim": 3},
    "linear": {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "more channels rotated": {"partial_rotary_factor": 0.5}, "biases": {"attention_bias": True},
    "all linear": {"layer_types": [LINEAR] * 3}, "all full": {"layer_types": [FULL] * 3},
    "layers by default": {"layer_types": MISSING, "num_hidden_layers": 5},
    "interval": {"layer_types": MISSING, "full_attention_interval": 2},
    "interval that is not read": {"full_attention_interval": 2}, "eps": {"rms_norm_eps": 1e-2},
    "one key head": {"linear_num_key_heads": 1}, "head size by default": {"head_dim": MISSING, "num_hidden_layers": 1,
                                                                          "layer_types": [FULL]},
    "groups by default": {"num_key_value_heads": MISSING},
    "heads by default": {"linear_num_key_heads": MISSING, "linear_num_value_heads": MISSING},
    "widths by default": {"linear_key_head_dim": MISSING, "linear_value_head_dim": MISSING},
    "value heads that do not divide": {"linear_num_value_heads": 5}, "!gelu": {"hidden_act": "gelu"},
    "unknown layer type": {"layer_types": [FULL, LINEAR, "odd"]}, "few layer types": {"layer_types": [FULL, LINEAR]},
}
SPELLINGS = ATTENTION | {
    "not normalised": {"norm_topk_prob": False}, "dense layer": {"mlp_only_layers": [1]},
    "every second": {"decoder_sparse_step": 2}, "name that is not read": {"num_local_experts": 5},
    "no experts": {"mlp_only_layers": [0, 1, 2]}, "prediction of more tokens": {},
}
