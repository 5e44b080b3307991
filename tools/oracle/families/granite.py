"""Granite: Llama with multipliers of embeddings, branches, scores and logits."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, SIZES, shape

CASES = {
    "granite-like": (shape(2, 36, 6, 44, 20, 61, groups=2) | LLAMA | {
        "disable-bias-linear": False, "embedding-multiplier": 6.5, "residual-multiplier": 0.22, "logits-scaling": 3.0,
        "softmax-scale": 0.078125, "clip-grad": 0.5, "seed": 13}, {"mask": True}),
}


def config(o):
    return decoder.config(o, **decoder.biases(o), embedding_multiplier=o["embedding-multiplier"],
                          residual_multiplier=o["residual-multiplier"], logits_scaling=o["logits-scaling"],
                          attention_multiplier=o["softmax-scale"])


BASE = SIZES | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0,
                "attention_multiplier": 0.3}
SPELLINGS = EVERY | {
    **{f"{key} by default": {key: MISSING} for key in BASE if "multiplier" in key or "scaling" in key},
    "whole numbers": {"embedding_multiplier": 2, "residual_multiplier": 3, "logits_scaling": 4,
                      "attention_multiplier": 1},
    "as many groups": {"num_key_value_heads": MISSING}, "head size": {"head_dim": 6}, "eps": {"rms_norm_eps": 1e-2},
    "all biases": {"attention_bias": True, "mlp_bias": True}, "attention biases": {"attention_bias": True},
    "heads that do not divide": {"hidden_size": 18, "head_dim": 4}, "tanh": {"hidden_act": "gelu_pytorch_tanh"},
    "!relu2": {"hidden_act": "relu2"}, "!no scores": {"attention_multiplier": 0.0},
}
