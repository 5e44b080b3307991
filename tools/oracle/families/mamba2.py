"""Mamba-2. Isotron's options for attention have no effect, because no layer has attention."""
from families.decoder import MISSING, UNTIED, renamed, shape

# Isotron's chunks have 128 positions.
CASES = {
    "mamba2-like": (shape(2, 24, 1, None, 144, 13) | UNTIED | {
        "hybrid-layer-pattern": "MM", "mamba-num-heads": 4, "mamba-head-dim": 12, "mamba-state-dim": 10,
        "mamba-num-groups": 4, "position-embedding-type": "none", "normalization": "RMSNorm",
        "disable-bias-linear": True, "mamba-dt-min": 0.6}, {}),
}
LIKE_LLAMA = {"backbone.embeddings": "model.embed_tokens", "backbone.norm_f": "model.norm", "backbone.": "model."}


def config(o):
    return {"vocab_size": o["vocab-size"], "hidden_size": o["hidden-size"], "num_hidden_layers": o["num-layers"],
            "num_heads": o["mamba-num-heads"], "head_dim": o["mamba-head-dim"], "state_size": o["mamba-state-dim"],
            "n_groups": o["mamba-num-groups"], "layer_norm_epsilon": o["norm-epsilon"], "chunk_size": 16,
            "time_step_limit": [o["mamba-dt-min"], float("inf")],
            "tie_word_embeddings": not o.get("untie-embeddings-and-output-weights", False),
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def llama(w, o):
    """Removes the dimension of size 1 of the convolutions' weights."""
    return renamed({n: x.reshape(x.shape[0], -1) if n.endswith("conv1d.weight") else x for n, x in w.items()},
                   LIKE_LLAMA)


INFINITY = float("inf")
BASE = {"vocab_size": 7, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 4, "state_size": 5,
        "n_groups": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SPELLINGS = {
    "": {}, "tied": {"tie_word_embeddings": True}, "groups by default": {"n_groups": MISSING},
    "expanded": {"expand": 3, "num_heads": 12, "n_groups": 3}, "one group": {"n_groups": 1},
    "limit of steps": {"time_step_limit": [0.7, INFINITY]},
    "swish": {"hidden_act": "swish"}, "short chunks": {"chunk_size": 4},
    "no expansion": {"expand": 4}, "!upper limit": {"time_step_limit": [0.0, 0.5]}, "!biases": {"use_bias": True},
    "!no bias of convolutions": {"use_conv_bias": False}, "!taps": {"conv_kernel": 3}, "!gelu": {"hidden_act": "gelu"},
    "!eps": {"layer_norm_epsilon": 1e-2},
}
