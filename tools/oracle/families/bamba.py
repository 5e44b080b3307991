"""Bamba: layers of two branches, of which the first is Mamba-2 or attention, and the second is an MLP."""
import re

from families import decoder
from families.decoder import FEW, MISSING, UNTIED, renamed, shape
from families.mamba2 import INFINITY

MAMBA = {"mamba-num-heads": 8, "mamba-head-dim": 6, "mamba-state-dim": 7, "mamba-num-groups": 2,
         "normalization": "RMSNorm", "swiglu": True, "disable-bias-linear": True}
CASES = {
    "bamba-like": (shape(6, 24, 6, 40, 40, 51, groups=2, kv_channels=8) | UNTIED | MAMBA | {
        "hybrid-layer-pattern": "M-*-M-", "position-embedding-type": "rope", "rotary-percent": 0.5, "clip-grad": 1.2},
        {"mask": True}),
}


def mamba(o):
    """Returns the keys of Mamba-2 layers."""
    return {"num_hidden_layers": o["num-layers"] // 2, "mamba_n_heads": o["mamba-num-heads"],
            "mamba_d_head": o["mamba-head-dim"], "mamba_d_state": o["mamba-state-dim"],
            "mamba_n_groups": o["mamba-num-groups"], "mamba_chunk_size": 16}


def config(o):
    attention = [i for i, letter in enumerate(o["hybrid-layer-pattern"][::2]) if letter == "*"]
    return decoder.config(o, attn_layer_indices=attention, **mamba(o))


def split(w, second):
    """Divides each layer into two, the second of which has the modules with the names `second`."""
    found = {}
    for name, x in w.items():
        layer = re.match(r"model\.layers\.(\d+)\.(\w+)", name)
        if layer:
            at = 2 * int(layer[1]) + (layer[2] in second)
            name = name.replace(f".{layer[1]}.", f".{at}.", 1)
            if "mamba" in name or f"model.layers.{layer[1]}.mamba.D" in w:
                name = name.replace(".input_layernorm.", ".norm.").replace(".mamba.", ".mixer.")
        found[name] = x.reshape(x.shape[0], -1) if name.endswith("conv1d.weight") else x
    return found


def llama(w, o):
    return renamed(split(w, ("pre_ff_layernorm", "feed_forward")),
                   {"pre_ff_layernorm": "pre_mlp_layernorm", "feed_forward": "mlp", "final_layernorm": "norm"})


HEADS = {"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_state": 5, "mamba_n_groups": 2}
BASE = decoder.SIZES | HEADS | {"attn_layer_indices": [1], "pad_token_id": None}
SPELLINGS = {
    "": {}, "linear": FEW["linear"],
    "two with attention": {"attn_layer_indices": [0, 2]}, "number of no layer": {"attn_layer_indices": [2, 3]},
    "no attention": {"attn_layer_indices": []}, "no attention by default": {"attn_layer_indices": MISSING},
    "automatic width": {"mamba_d_head": "auto"}, "automatic width by default": {"mamba_d_head": MISSING},
    "expanded": {"mamba_expand": 3, "mamba_d_head": 6}, "one group by default": {"mamba_n_groups": MISSING},
    "state by default": {"mamba_d_state": MISSING}, "limit of steps": {"time_step_limit": [0.7, INFINITY]},
    "tied": {"tie_word_embeddings": True}, "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_theta": 50.0}, "short chunks": {"mamba_chunk_size": 4},
    "rotation that is not read": {"partial_rotary_factor": 1.0},
    "whole rotation": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
    "whole linear rotation": {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 1.0}},
    "other width": {"mamba_d_head": 5}, "!no Mamba": {"attn_layer_indices": [0, 1, 2]},
    "!upper limit": {"time_step_limit": [0.0, 0.5]}, "!biases of Mamba": {"mamba_proj_bias": True},
    "!no bias of convolutions": {"mamba_conv_bias": False}, "!taps": {"mamba_d_conv": 3},
    "!eps": {"rms_norm_eps": 1e-2}, "!gelu": {"hidden_act": "gelu"},
}
