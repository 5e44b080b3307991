"""MiniMax-M2: Mixtral with sigmoid scores and balancing biases, a norm over all heads of q, and a norm over all heads
of k."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
SPELLINGS = FEW | {
    "channels that rotate": {"rotary_dim": 4}, "part goes first": {"rotary_dim": 4, "partial_rotary_factor": 0.25},
    "part inside": {"rotary_dim": 2, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "second name": {"num_experts": 5}, "eps": {"rms_norm_eps": 1e-2}, "!one expert": {"num_experts_per_tok": 1},
    "sizes by default": {"head_dim": MISSING, "num_hidden_layers": 1, "num_attention_heads": 8,
                         "num_key_value_heads": MISSING},
}
