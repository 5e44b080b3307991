"""Bloom: ALiBi, a norm of the embeddings, and q, k and v in one matrix, head by head."""
from families import decoder
from families.decoder import MISSING, shape

CASES = {
    # the number of heads is not a power of two; each of 2 ranks has 3 heads
    "bloom-like": (shape(4, 24, 6, None, 20, 61) | {
        "position-embedding-type": "alibi", "embedding-layernorm": True, "activation": "gelu-tanh", "clip-grad": 1.2},
                   {"mask": True}),
}


def config(o):
    return {"vocab_size": o["vocab-size"], "hidden_size": o["hidden-size"], "n_layer": o["num-layers"],
            "n_head": o["num-attention-heads"], "layer_norm_epsilon": o["norm-epsilon"], "bos_token_id": None,
            "eos_token_id": None}


NAMES = {"transformer.word_embeddings_layernorm": "embedding.layernorm",
         "transformer.word_embeddings": "model.embed_tokens", "transformer.ln_f": "model.norm",
         "transformer.h.": "model.layers.", "self_attention.dense": "self_attn.o_proj", "dense_h_to_4h": "up_proj",
         "dense_4h_to_h": "down_proj"}


def llama(w, o):
    return decoder.with_parts(w, o, NAMES, "self_attention.query_key_value")


BASE = {"vocab_size": 7, "hidden_size": 24, "n_layer": 3, "n_head": 6, "bos_token_id": None, "eos_token_id": None}
SPELLINGS = {
    "": {}, "8 heads": {"n_head": 8}, "untied": {"tie_word_embeddings": False}, "eps": {"layer_norm_epsilon": 1e-2},
    "second names": {"n_layer": MISSING, "n_head": MISSING, "num_hidden_layers": 2, "num_attention_heads": 4},
    "oldest name": {"hidden_size": MISSING, "n_embed": 12}, "width that is not read": {"n_inner": 20},
    "ranks that are not read": {"pretraining_tp": 2}, "heads that do not divide": {"n_head": 5},
    "!norms as residuals": {"apply_residual_connection_post_layernorm": True},
}
