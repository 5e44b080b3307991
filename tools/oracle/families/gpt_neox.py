"""GPT-NeoX: attention and MLP read the same residual, each with a separate norm. q, k and v are in one matrix, head by
head."""
from families import decoder
from families.decoder import EVERY, MISSING, SIZES, UNTIED, shape

CASES = {
    "gpt-neox-like": (shape(4, 36, 6, 52, 20, 61) | UNTIED | {
        "position-embedding-type": "rope", "rotary-percent": 0.4, "rotary-base": 5000, "activation": "gelu-erf",
        "parallel-residual": "two-norms"}, {"mask": True}),
}


def config(o):
    return decoder.config(o, eps="layer_norm_eps", hidden_act="gelu",
                          use_parallel_residual=o.get("parallel-residual") == "two-norms")


file_names = {"lm_head.weight": "embed_out.weight"}
NAMES = {"gpt_neox.embed_in": "model.embed_tokens", "gpt_neox.final_layer_norm": "model.norm", "embed_out": "lm_head",
         "gpt_neox.layers": "model.layers", "attention.dense": "self_attn.o_proj", "dense_h_to_4h": "up_proj",
         "dense_4h_to_h": "down_proj"}


def llama(w, o):
    return decoder.with_parts(w, o, NAMES, "attention.query_key_value")


BASE = SIZES | {"hidden_size": 32}
SPELLINGS = EVERY | {
    "sequential": {"use_parallel_residual": False}, "rotated": {"rotary_pct": 1.0},
    "own theta": {"rotary_emb_base": 50.0},
    "parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}},
    "parameters go first": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "rotary_emb_base": 70.0,
                            "rotary_pct": 0.5},
    "linear, own theta": {"rotary_emb_base": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "name that is not read": {"partial_rotary_factor": 1.0}, "tied by default": {"tie_word_embeddings": MISSING},
    "eps": {"layer_norm_eps": 1e-2}, "tanh": {"hidden_act": "gelu_new"}, "relu2": {"hidden_act": "relu2"},
    "!no attention biases": {"attention_bias": False}, "heads that do not divide": {"hidden_size": 18},
}
