"""Phi-3: Llama with q, k and v in one matrix, and gate and up in another. In later models, RoPE rotates only a part of
each head."""
import numpy as np

from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, SIZES, UNTIED, shape

CASES = {
    "phi3-like": (shape(4, 40, 4, 52, 20, 62, groups=2) | LLAMA | UNTIED | {"rotary-percent": 0.6,
                                                                            "window-size": "6,0"}, {"mask": True}),
}


def config(o):
    return decoder.config(o, **decoder.window(o))


def llama(w, o):
    found = {}
    for name, x in decoder.with_parts(w, o, {}, "self_attn.qkv_proj", by_group=False).items():
        halves = zip(("gate", "up"), np.split(x, 2)) if "gate_up_proj" in name else []
        found |= {name.replace("gate_up", half): y for half, y in halves} or {name: x}
    return found


LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
BASE = SIZES | {"pad_token_id": None}
SPELLINGS = EVERY | {
    "window": {"sliding_window": 3}, "no window": {"sliding_window": None},
    "as many groups": {"num_key_value_heads": MISSING}, "partly rotated": {"partial_rotary_factor": 0.5},
    "eps": {"rms_norm_eps": 1e-2}, "head size": {"head_dim": 6},
    "partly rotated inside": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0,
                                                  "partial_rotary_factor": 0.5}},
    "long": {"rope_scaling": LONG, "original_max_position_embeddings": 4},
    "long, short sequence": {"rope_scaling": LONG},
    "long in parameters": {"rope_parameters": LONG | {"rope_theta": 50.0}, "original_max_position_embeddings": 4},
    "long, length inside": {"rope_scaling": LONG | {"original_max_position_embeddings": 4}},
    "long, partly rotated": {"rope_scaling": LONG, "original_max_position_embeddings": 6, "head_dim": 8,
                             "hidden_size": 32, "partial_rotary_factor": 0.5},
    "long, factor": {"rope_scaling": LONG | {"factor": 3.0}, "original_max_position_embeddings": 4},
    "long, factor of attention": {"rope_scaling": LONG | {"factor": 3.0, "attention_factor": 1.5},
                                  "original_max_position_embeddings": 4},
    "long, one list": {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5]}},
    "old name of long": {"rope_scaling": LONG | {"type": "su"}, "original_max_position_embeddings": 4},
    "gelu": {"hidden_act": "gelu"},
}
