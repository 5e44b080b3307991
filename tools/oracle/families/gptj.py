"""GPT-J: attention and MLP read one norm, only MLPs and the output layer have biases, and RoPE rotates adjacent
channels."""
from families.decoder import MISSING

CASES = {}
BASE = {"vocab_size": 7, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 24, "rotary_dim": 4,
        "bos_token_id": None, "eos_token_id": None}
SPELLINGS = {
    "": {}, "wide": {"n_inner": 24}, "gelu": {"activation_function": "gelu"}, "eps": {"layer_norm_epsilon": 1e-2},
    "tied": {"tie_word_embeddings": True}, "whole heads": {"rotary_dim": 8},
    "channels by default": {"rotary_dim": MISSING, "n_embd": 128}, "no number of channels": {"rotary_dim": None},
    "same second name": {"hidden_size": 16}, "theta that is not read": {"rope_theta": 50.0},
}
