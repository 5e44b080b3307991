"""GPT-Neo: GPT-2 without a scale for scores and without biases on q, k and v, but with windows in some layers."""
from families.decoder import MISSING

CASES = {}
BASE = {"vocab_size": 7, "hidden_size": 16, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 24,
        "window_size": 3, "attention_types": [[["global", "local"], 2]], "bos_token_id": None, "eos_token_id": None}
SPELLINGS = {
    "": {}, "wide": {"intermediate_size": 24}, "gelu": {"activation_function": "gelu"},
    "eps": {"layer_norm_epsilon": 1e-2}, "untied": {"tie_word_embeddings": False},
    "all global": {"attention_types": [[["global"], 4]]}, "all local": {"attention_types": [[["local"], 4]]},
    "several items": {"attention_types": [[["local"], 1], [["global", "local", "local"], 1]]},
    "layers by default": {"attention_types": MISSING, "num_layers": 24},
    "window by default": {"window_size": MISSING}, "few layers": {"attention_types": [[["global", "local"], 1]]},
    "unknown layer": {"attention_types": [[["global", "odd"], 2]]}, "second name": {"num_attention_heads": 4},
    "!two numbers": {"num_hidden_layers": 3},
}
