"""Phi-3.5-MoE: Mixtral with LayerNorm, biases, LongRoPE, and a router that compares experts whose logits are close to
each other."""
from families.decoder import EVERY, MISSING, SIZES

CASES = {}
LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0], "short_mscale": 1.3,
        "long_mscale": 1.3, "original_max_position_embeddings": 6}
# a wide band, in which several experts are close to each other
BASE = SIZES | {"num_local_experts": 6, "intermediate_size": 8, "router_jitter_noise": 0.3}
# transformers 5.24 also uses the short factors for texts above the original length, so no text is longer
SPELLINGS = {name: EVERY[name] for name in ("", "theta", "tied", "gelu", "window that is not read")} | {
    "biases": {"attention_bias": True}, "bias of the output layer": {"lm_head_bias": True},
    "no window": {"sliding_window": None}, "head size": {"head_dim": 6}, "epsilon": {"rms_norm_eps": 1e-2},
    "narrow band": {"router_jitter_noise": MISSING}, "no band": {"router_jitter_noise": 0.0},
    "two experts": {"num_local_experts": 2, "router_jitter_noise": 2.0}, "other noise": {"input_jitter_noise": 0.1},
    "choices by default": {"num_experts_per_tok": MISSING}, "!one choice": {"num_experts_per_tok": 1},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}}, "long": {"rope_scaling": LONG},
    "long in parameters": {"rope_parameters": LONG | {"rope_theta": 50.0}},
    "long, length outside": {"rope_scaling": LONG | {"original_max_position_embeddings": 3},
                             "original_max_position_embeddings": 7},
    "long, other factors": {"rope_scaling": LONG | {"factor": 3.0, "attention_factor": 1.5}},
    "long, no factors of attention": {
        "rope_scaling": {k: x for k, x in LONG.items() if k not in ("short_mscale", "long_mscale")}},
    "!long, two factors of attention": {"rope_scaling": LONG | {"long_mscale": 1.4}},
}
