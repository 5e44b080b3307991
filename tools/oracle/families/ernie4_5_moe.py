"""Ernie 4.5 MoE: Ernie with experts that are chosen by softmax + bias."""
from families.decoder import FEW, MISSING, SIZES

CASES = {}
BASE = SIZES | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 6, "num_hidden_layers": 4}
SPELLINGS = FEW | {
    "theta": {"rope_theta": 50.0}, "untied": {"tie_word_embeddings": False}, "head size": {"head_dim": 6},
    "second name": {"moe_num_experts": MISSING, "num_experts": 5}, "!two names": {"num_experts_per_tok": 3},
    "range": {"moe_layer_start_index": 2, "moe_layer_end_index": 2}, "open range": {"moe_layer_end_index": -1},
    "interval": {"moe_layer_start_index": 0, "moe_layer_interval": 2},
    "one shared expert": {"moe_num_shared_experts": 1},
    "sizes by default": {"moe_num_experts": MISSING, "moe_k": MISSING, "num_hidden_layers": 2,
                         "num_attention_heads": 8, "num_key_value_heads": MISSING},
    "!biases": {"use_bias": True}, "!another minimum": {"moe_norm_min": 0.9}, "!one expert": {"moe_k": 1},
    "!no shared expert": {"moe_num_shared_experts": 0},
}
