"""Falcon: attention and MLP read the same residual, with one or two norms. q, k and v are in one matrix, group by
group."""
from families import decoder
from families.decoder import EVERY, MISSING, SIZES, UNTIED, shape

PARALLEL = {"position-embedding-type": "rope", "activation": "gelu-erf"}
CASES = {
    # as in Falcon 40B, but with biases and an untied output layer
    "falcon-like": (shape(4, 48, 6, 44, 20, 59, groups=2) | UNTIED | PARALLEL | {"parallel-residual": "two-norms"},
                    {"mask": True}),
    # as in Falcon 7B
    "falcon-one-norm": (shape(2, 40, 4, None, 16, 53, groups=1) | PARALLEL | {
        "parallel-residual": "one-norm", "disable-bias-linear": True, "rotary-base": 500}, {}),
}


def config(o):
    two = o["parallel-residual"] == "two-norms"
    assert two or o["num-query-groups"] == 1
    mine = {"layer_norm_epsilon": o["norm-epsilon"], "ffn_hidden_size": o.get("ffn-hidden-size"),
            "num_kv_heads": o["num-query-groups"], "bias": not o.get("disable-bias-linear", False),
            "new_decoder_architecture": two}
    theirs = decoder.config(o | {"ffn-hidden-size": None}, eps="layer_norm_epsilon")
    return {k: v for k, v in theirs.items() if k not in ("head_dim", "intermediate_size", "num_key_value_heads")} | mine


NAMES = {"transformer.word_embeddings": "model.embed_tokens", "transformer.ln_f": "model.norm",
         "transformer.h.": "model.layers.", "self_attention.dense": "self_attn.o_proj", "ln_attn": "input_layernorm",
         "ln_mlp": "post_attention_layernorm", "dense_h_to_4h": "up_proj", "dense_4h_to_h": "down_proj"}


def llama(w, o):
    return decoder.with_parts(w, o, NAMES, "self_attention.query_key_value")


BASE = {k: v for k, v in SIZES.items() if k not in ("intermediate_size", "num_key_value_heads")}
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
SPELLINGS = EVERY | {
    "new": NEW, "new, all heads": NEW | {"num_kv_heads": MISSING},
    "new, one norm": NEW | {"num_ln_in_parallel_attn": 1},
    "new, biases, width": NEW | {"bias": True, "ffn_hidden_size": 20}, "new, one head": NEW | {"num_kv_heads": 1},
    "sequential": {"parallel_attn": False}, "null parallel": {"parallel_attn": None},
    "null heads": {"multi_query": None}, "all heads": {"multi_query": False},
    "heads that are not read": {"num_kv_heads": 2}, "!some heads": {"multi_query": False, "num_kv_heads": 2},
    "!new, sequential": NEW | {"parallel_attn": False}, "!two norms": {"num_ln_in_parallel_attn": 2},
    "!alibi": {"alibi": True}, "!second name": {"n_embed": 32}, "same second name": {"n_embed": 16},
    "untied": {"tie_word_embeddings": False}, "positions by default": {"max_position_embeddings": MISSING},
    "eps": {"layer_norm_epsilon": 1e-2}, "relu2": {"activation": "relu2"},
    "heads that do not divide": {"hidden_size": 18},
}
