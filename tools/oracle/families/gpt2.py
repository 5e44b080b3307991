"""GPT-2: learned positions, LayerNorm, and linear layers whose weights are stored transposed."""
import numpy as np

from families.decoder import renamed, shape

CASES = {
    "gpt2-tiny": (shape(2, 16, 2, None, 16, 64) | {"micro-batch-size": 4, "clip-grad": 1.0}, {"init": "float64"}),
    "gpt2-awkward": (shape(5, 30, 3, 41, 37, 131) | {
        "max-position-embeddings": 40, "make-vocab-size-divisible-by": 128, "micro-batch-size": 1,
        "global-batch-size": 3, "adam-beta2": 0.999, "clip-grad": 0.5, "seed": 7}, {"mask": True}),
    # used by sweeps over layouts: all sizes except the vocabulary are divisible by 2, 4 and 8
    "gpt2-layouts": (shape(4, 32, 4, 48, 16, 61) | {"micro-batch-size": 1, "global-batch-size": 8, "clip-grad": 1.0},
                     {"mask": True}),
}


def config(o):
    return {"vocab_size": o["vocab-size"], "n_positions": o["max-position-embeddings"], "n_embd": o["hidden-size"],
            "n_layer": o["num-layers"], "n_head": o["num-attention-heads"], "n_inner": o.get("ffn-hidden-size"),
            "activation_function": "gelu_new", "layer_norm_epsilon": o["norm-epsilon"], "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0,
            "tie_word_embeddings": not o.get("untie-embeddings-and-output-weights", False), "bos_token_id": None,
            "eos_token_id": None}


NAMES = {"transformer.wte": "model.embed_tokens", "transformer.wpe": "positions", "transformer.ln_f": "model.norm",
         "transformer.h.": "model.layers.", "attn.c_proj": "self_attn.o_proj", "mlp.c_fc": "mlp.up_proj",
         "mlp.c_proj": "mlp.down_proj", "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm"}


def llama(w, o):
    found = {}
    for name, x in renamed(w, NAMES).items():
        y = x.T if ".layers." in name else x  # a vector is its own transpose
        parts = zip("qkv", np.split(y, 3)) if "attn.c_attn" in name else []
        found |= {name.replace("attn.c_attn", f"self_attn.{part}_proj"): z for part, z in parts} or {name: y}
    return found


BASE = {"vocab_size": 7, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 24, "bos_token_id": None,
        "eos_token_id": None}
SPELLINGS = {
    "": {}, "wide": {"n_inner": 24}, "gelu": {"activation_function": "gelu"},
    "python": {"activation_function": "gelu_python"}, "python's tanh": {"activation_function": "gelu_python_tanh"},
    "accurate": {"activation_function": "gelu_accurate"}, "!fast": {"activation_function": "gelu_fast"},
    "quick": {"activation_function": "quick_gelu"}, "tanh": {"activation_function": "gelu_pytorch_tanh"},
    "relu2": {"activation_function": "relu2"}, "eps": {"layer_norm_epsilon": 1e-2},
    "untied": {"tie_word_embeddings": False}, "unscaled": {"scale_attn_weights": False},
    "!by layer": {"scale_attn_by_inverse_layer_idx": True}, "!second name": {"hidden_size": 32},
    "same second name": {"hidden_size": 16}, "window that is not read": {"sliding_window": 3},
}
