"""HyperCLOVA X: Granite with norms on the outputs of attention and MLP, and with scaled logits."""
from families.decoder import FEW, MISSING
from families.granite import BASE as GRANITE

CASES = {}
BASE = GRANITE | {"logits_scaling": 0.25}
SPELLINGS = FEW | {
    "scale by default": {"attention_multiplier": MISSING}, "null scale": {"attention_multiplier": None},
    "logits by default": {"logits_scaling": MISSING}, "head size": {"head_dim": 6},
    "null head size": {"head_dim": None},
    "all biases": {"attention_bias": True, "mlp_bias": True}, "tied": {"tie_word_embeddings": True},
    "groups by default": {"num_key_value_heads": MISSING}, "norms": {"use_post_norm": True},
    "!no norms": {"use_post_norm": False}, "heads that do not divide": {"hidden_size": 18, "head_dim": 4},
}
