"""GPTBigCode (StarCoder): GPT-2 whose query heads share a key and a value, and whose weights are not transposed."""
from families.decoder import MISSING
from families.gpt2 import BASE as GPT2

CASES = {}
BASE = GPT2
SPELLINGS = {
    "": {}, "wide": {"n_inner": 24}, "gelu": {"activation_function": "gelu"}, "eps": {"layer_norm_epsilon": 1e-2},
    "tanh": {"activation_function": "gelu_new"}, "untied": {"tie_word_embeddings": False},
    "one key": {"multi_query": True}, "!keys of each head": {"multi_query": False},
    "unscaled": {"scale_attn_weights": False}, "same second name": {"hidden_size": 16},
}
