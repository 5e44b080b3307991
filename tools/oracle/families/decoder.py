"""Functions shared by decoders that are similar to Llama."""
import copy

import numpy as np

LLAMA = {"position-embedding-type": "rope", "normalization": "RMSNorm", "swiglu": True, "disable-bias-linear": True}
LLAMA3_CONTEXT = 8192  # a constant of Megatron-LM, like the factors 1 and 4
UNTIED = {"untie-embeddings-and-output-weights": True}


def shape(layers, hidden, heads, ffn, seq, vocab, groups=None, kv_channels=None):
    o = {"num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads, "seq-length": seq,
         "max-position-embeddings": seq, "vocab-size": vocab, "make-vocab-size-divisible-by": 8, "norm-epsilon": 1e-5}
    if ffn:
        o["ffn-hidden-size"] = ffn
    if groups:
        o |= {"group-query-attention": True, "num-query-groups": groups}
    if kv_channels:
        o["kv-channels"] = kv_channels
    return o


def config(o, eps="rms_norm_eps", **more):
    hidden, heads = o["hidden-size"], o["num-attention-heads"]
    rope = {"rope_type": "default", "rope_theta": float(o.get("rotary-base", 10000)),
            "partial_rotary_factor": o.get("rotary-percent", 1.0)}
    if o.get("use-rope-scaling"):
        rope |= {"rope_type": "llama3", "factor": o["rope-scaling-factor"], "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": LLAMA3_CONTEXT}
    if o.get("rope-type", o["position-embedding-type"]) == "yarn":
        rope |= {"rope_type": "yarn", "factor": o["rotary-scaling-factor"], "beta_fast": o["yarn-beta-fast"],
                 "beta_slow": o["yarn-beta-slow"],
                 "truncate": not o.get("no-yarn-correction-range-round-to-int", False),
                 "original_max_position_embeddings": o["yarn-original-max-position-embeddings"],
                 "mscale": o["mscale"], "mscale_all_dim": o["mscale-all-dim"]}
    return {"vocab_size": o["vocab-size"], "hidden_size": hidden, "intermediate_size": o["ffn-hidden-size"],
            "num_hidden_layers": o["num-layers"], "num_attention_heads": heads,
            "num_key_value_heads": o["num-query-groups"] if o.get("group-query-attention") else heads,
            # the rotary tables do not depend on max_position_embeddings
            "head_dim": o.get("kv-channels", hidden // heads), "max_position_embeddings": 2 * LLAMA3_CONTEXT,
            "tie_word_embeddings": not o.get("untie-embeddings-and-output-weights", False), "rope_parameters": rope,
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, eps: o["norm-epsilon"]} | more


def biases(o):
    bias = not o["disable-bias-linear"]
    return {"attention_bias": bias, "mlp_bias": bias}


def window(o):
    """Converts --window-size. Hugging Face also counts the token itself, and Megatron-LM only the tokens before it."""
    return {"sliding_window": int(o["window-size"].split(",")[0]) + 1}


def split_qkv(x, o, by_group):
    """Splits a matrix or vector into the rows of q, k and v. These are stored part by part, or by group of heads
    [queries of the group, k, v]."""
    heads = o["num-attention-heads"]
    groups = o["num-query-groups"] if o.get("group-query-attention") else heads
    pieces = groups if by_group else 1
    cuts = np.cumsum([heads // pieces, groups // pieces]) * (len(x) // (heads + 2 * groups))
    return [part.reshape(-1, *x.shape[1:]) for part in np.split(x.reshape(pieces, -1, *x.shape[1:]), cuts, axis=1)]


def with_parts(w, o, names, fused, by_group=True):
    """Returns weights with parts of their names replaced, and with the fused matrix of q, k and v split into three."""
    found = {}
    for name, x in renamed(w, names).items():
        parts = zip("qkv", split_qkv(x, o, by_group)) if fused in name else []
        found |= {name.replace(fused, f"self_attn.{part}_proj"): y for part, y in parts} or {name: x}
    return found


def experts(o):
    return {"num_experts_per_tok": o["moe-router-topk"], "output_router_logits": False}


def renamed(w, parts):
    """Returns weights with parts of their names replaced."""
    found = {}
    for name, x in w.items():
        for old, new in parts.items():
            name = name.replace(old, new)
        found[name] = x
    return found


def dense_layers(o):
    return [i for i, experts in enumerate(o["moe-layer-freq"].strip("[]").split(",")) if experts == "0"]


def qwen_experts(o):
    return experts(o) | {"moe_intermediate_size": o["moe-ffn-hidden-size"], "num_experts": o["num-experts"],
                         "norm_topk_prob": not o.get("moe-router-pre-softmax", False),
                         "mlp_only_layers": dense_layers(o)}


# ---- spellings of config.json ----

SIZES = {"vocab_size": 7, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 24, "bos_token_id": None, "eos_token_id": None}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
FULL, SLIDING = "full_attention", "sliding_attention"
ON = {"use_sliding_window": True, "sliding_window": 3}
WIDE = {"hidden_size": 64, "num_attention_heads": 32, "num_hidden_layers": 1}
NO_SIZE = {"layer_types": [FULL, FULL, SLIDING], "sliding_window": None}
MISSING = object()
EVERY = {
    "": {}, "theta": {"rope_theta": 50.0},
    "linear": {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {"rope_theta": 50.0,
             "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}},
    "dynamic": {"rope_theta": 50.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "tied": {"tie_word_embeddings": True}, "window that is not read": {"sliding_window": 3},
    "all layers full": {"layer_types": [FULL] * 3}, "gelu": {"hidden_act": "gelu"},
    "unknown layer type": {"layer_types": [FULL, FULL, "odd"]}, "few layer types": {"layer_types": [FULL, FULL]},
}
# spellings for types that read all other keys like a type with full tests
FEW = {name: EVERY[name] for name in ("", "linear", "gelu")}
BY_LAYER = {
    "window": ON, "window from layer 0": ON | {"max_window_layers": 0},
    "window from layer 2": ON | {"max_window_layers": 2},
    "window off": ON | {"use_sliding_window": False, "max_window_layers": 0},
    "window by list": ON | {"layer_types": [FULL, SLIDING, FULL]},
    "list goes first": ON | {"max_window_layers": 0, "layer_types": [FULL, FULL, SLIDING]},
    "old words": ON | {"layer_types": ["attention"] * 3},
    "chunked": ON | {"layer_types": [FULL, "chunked_attention", FULL]},
    "null window": ON | {"sliding_window": None, "max_window_layers": 0}, "!no window's size": NO_SIZE,
    "!list, but off": ON | {"use_sliding_window": False, "layer_types": [FULL, SLIDING, FULL]},
}


def spelled(family, base, keys):
    """Returns the config.json of a variant."""
    return copy.deepcopy({k: v for k, v in ({"model_type": family} | base | keys).items() if v is not MISSING})
