"""MPT: ALiBi, norms and linear layers without biases, and one matrix with all rows of q, then of k, and then of v."""
from families import decoder
from families.decoder import MISSING, shape

CASES = {
    "mpt-like": (shape(2, 36, 12, None, 16, 53) | {
        "position-embedding-type": "alibi", "disable-norm-bias": True, "activation": "gelu-erf",
        "disable-bias-linear": True, "softmax-scale": 0.4}, {}),
}


def config(o):
    return {"vocab_size": o["vocab-size"], "d_model": o["hidden-size"], "n_layers": o["num-layers"],
            "n_heads": o["num-attention-heads"], "layer_norm_epsilon": o["norm-epsilon"], "max_seq_len": 64,
            "attn_config": {"softmax_scale": o["softmax-scale"]}}


NAMES = {"transformer.wte": "model.embed_tokens", "transformer.norm_f": "model.norm",
         "transformer.blocks.": "model.layers.", "attn.out_proj": "self_attn.o_proj", "ffn.": "mlp.",
         "norm_1": "input_layernorm", "norm_2": "post_attention_layernorm"}


def llama(w, o):
    return decoder.with_parts(w, o, NAMES, "attn.Wqkv", by_group=False)


def attention(**keys):
    return {"attn_config": keys}


BASE = {"vocab_size": 7, "d_model": 24, "n_layers": 3, "n_heads": 6, "max_seq_len": 24}
SPELLINGS = {
    "": {}, "16 heads": {"n_heads": 16, "d_model": 32}, "untied": {"tie_word_embeddings": False},
    "eps": {"layer_norm_epsilon": 1e-2}, "positions by default": {"max_seq_len": MISSING},
    "second names": {"n_layers": MISSING, "n_heads": MISSING, "d_model": MISSING, "num_hidden_layers": 2,
                     "num_attention_heads": 4, "hidden_size": 12},
    "scale": attention(softmax_scale=0.7), "!largest bias": attention(alibi_bias_max=5),
    "null": attention(softmax_scale=None, clip_qkv=None), "no object": {"attn_config": None},
    "width that is not read": {"expansion_ratio": 2}, "heads that do not divide": {"n_heads": 5},
    "!clipped": attention(clip_qkv=0.5), "!no alibi": attention(alibi=False), "!norms": attention(qk_ln=True),
    "!scaled logits": {"logit_scale": 2.0},
}
