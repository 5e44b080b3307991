"""Apertus: Llama with norms of queries and keys, and an MLP without a gate. Its activation, xIELU, has learned
numbers."""
from families import decoder
from families.decoder import LLAMA, MISSING, SIZES, UNTIED, renamed, shape

CASES = {
    "apertus-like": (shape(2, 42, 6, 46, 20, 53, groups=2, kv_channels=10) | LLAMA | UNTIED | {
        "swiglu": False, "activation": "xielu", "qk-layernorm": True, "rotary-base": 12000000,
        "use-rope-scaling": True, "rope-scaling-factor": 8.0}, {"mask": True}),
}


def config(o):
    return decoder.config(o, hidden_act="xielu")


def llama(w, o):
    return renamed(w, {"attention_layernorm": "input_layernorm", "feedforward_layernorm": "post_attention_layernorm"})


BASE = SIZES | {"head_dim": 6}
SPELLINGS = {
    "": {}, "eps": {"rms_norm_eps": 1e-2}, "other activation": {"hidden_act": "relu2"}, "!gate": {"hidden_act": "silu"},
    "theta": {"rope_theta": 50.0}, "base": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    "linear": {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "as published": {"rope_theta": 60.0, "mlp_bias": False, "post_norm": False, "qk_norm": True, "rope_scaling": {
        "factor": 3.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8,
        "rope_type": "llama3", "type": "llama3"}},
    "sizes by default": {"head_dim": MISSING, "num_key_value_heads": MISSING, "hidden_act": MISSING},
    "biases": {"attention_bias": True}, "bias that is not read": {"mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
}
