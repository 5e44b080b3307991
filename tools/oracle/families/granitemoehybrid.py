"""Granite 4 with attention in all layers and without experts: Granite with other names of the MLP."""
from families.decoder import FEW, FULL, MISSING, SIZES

CASES = {}
BASE = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | {
    "shared_intermediate_size": 20, "num_local_experts": 0, "layer_types": [FULL] * 3, "mamba_n_heads": 1,
    "position_embedding_type": "rope", "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "logits_scaling": 8.0, "attention_multiplier": 0.3}
SPELLINGS = FEW | {
    "no positions": {"position_embedding_type": "nope"},
    "no positions by default": {"position_embedding_type": MISSING},
    "null positions": {"position_embedding_type": None}, "old words": {"layer_types": ["attention"] * 3},
    "tied": {"tie_word_embeddings": True}, "biases": {"attention_bias": True}, "head size": {"head_dim": 6},
    "width by default": {"shared_intermediate_size": MISSING, "num_hidden_layers": 1, "layer_types": [FULL]},
    "theta": {"rope_theta": 50.0}, "groups by default": {"num_key_value_heads": MISSING},
    "!experts": {"num_local_experts": 4}, "!experts by default": {"num_local_experts": MISSING},
    "!Mamba": {"layer_types": [FULL, "linear_attention", FULL]}, "!Mamba by default": {"layer_types": MISSING},
}
