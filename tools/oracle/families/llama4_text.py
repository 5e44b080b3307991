"""Llama 4 (text): layers with rotation attend in chunks and normalize each head. In the other layers, the scale of
queries increases with their position. The router multiplies the input of an expert, and all tokens have a shared
expert."""
import json

from families import decoder
from families.decoder import EVERY, FULL, LLAMA, MISSING, SIZES, UNTIED, shape

TEXT = LLAMA | UNTIED | {
    "rotary-interleaved": True, "qk-l2-norm": True, "qk-l2-norm-rope-layers-only": True, "attention-chunk-size": 5,
    "no-rope-temperature-scale": 0.4, "no-rope-temperature-floor": 3, "moe-router-topk": 1,
    "moe-router-score-function": "sigmoid", "moe-apply-probs-on-input": True}
CASES = {
    "llama4-like": (shape(3, 28, 6, 20, 17, 51, groups=3, kv_channels=6) | TEXT | {
        "no-rope-freq": 3, "num-experts": 7, "moe-layer-freq": "[0,1,1]", "moe-ffn-hidden-size": 10,
        "moe-shared-expert-intermediate-size": 10, "rotary-base": 100}, {"mask": True}),
    # used by sweeps over layouts
    "llama4-layouts": (shape(4, 32, 4, 24, 16, 61, groups=2) | TEXT | {
        "no-rope-freq": 2, "num-experts": 8, "moe-layer-freq": "[0,1,1,0]", "moe-ffn-hidden-size": 12,
        "moe-shared-expert-intermediate-size": 12, "micro-batch-size": 1, "global-batch-size": 8, "seed": 11}, {}),
}
packed = True  # files have all experts in one tensor, like the model in memory


def config(o):
    layers, every = range(o["num-layers"]), o["no-rope-freq"]
    assert o["moe-shared-expert-intermediate-size"] == o["moe-ffn-hidden-size"]
    return decoder.config(
        o, **decoder.experts(o), num_local_experts=o["num-experts"], intermediate_size_mlp=o["ffn-hidden-size"],
        moe_layers=[i for i in layers if i not in decoder.dense_layers(o)],
        no_rope_layers=[int((i + 1) % every != 0) for i in layers], attention_chunk_size=o["attention-chunk-size"],
        attn_scale=o["no-rope-temperature-scale"], floor_scale=o["no-rope-temperature-floor"]
    ) | {"intermediate_size": o["moe-ffn-hidden-size"]}


def llama(w, o):
    """Splits packed experts into one tensor per expert, [out, in], with gate and up in separate tensors."""
    found = {}
    for name, x in decoder.renamed(w, {"feed_forward.router": "mlp.gate", "feed_forward": "mlp"}).items():
        layer, experts, which = name.partition(".mlp.experts.")
        for e, y in enumerate(x) if experts else ():
            halves = dict(zip(("gate_proj", "up_proj"), (y.T[:len(y.T) // 2], y.T[len(y.T) // 2:])))
            parts = halves if which == "gate_up_proj" else {which: y.T}
            found |= {f"{layer}.mlp.experts.{e}.{part}.weight": z for part, z in parts.items()}
        if not experts:
            found[name] = x
    return found


CHUNKED, LLAMA3 = "chunked_attention", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}
BASE = SIZES | {"num_local_experts": 4, "intermediate_size": 6, "intermediate_size_mlp": 20, "head_dim": 4,
                "num_hidden_layers": 4, "attention_chunk_size": 3, "floor_scale": 2, "attn_scale": 0.5,
                "rope_theta": 50.0}
SPELLINGS = {name: EVERY[name] for name in ("", "tied", "gelu", "linear", "unknown layer type")} | {
    "llama 3": {"rope_scaling": LLAMA3}, "in its place": {"rope_parameters": LLAMA3 | {"rope_theta": 150.0}},
    "theta by default": {"rope_theta": MISSING}, "groups by default": {
        "num_attention_heads": 8, "num_key_value_heads": MISSING, "hidden_size": 32},
    "head size by default": {"head_dim": MISSING}, "biases": {"attention_bias": True},
    "every second": {"interleave_moe_layer_step": 2, "no_rope_layer_interval": 2},
    "lists": {"moe_layers": [0, 3], "no_rope_layers": [1, 0, 1, 0]},
    "lists go first": {"moe_layers": [1, 2, 9], "interleave_moe_layer_step": 0, "no_rope_layers": [1, 1, 0, 1],
                       "no_rope_layer_interval": 3},
    "all rotate": {"no_rope_layers": [1, 1, 1, 1]}, "none rotates": {"no_rope_layers": [0, 0, 0, 0]},
    "no norms": {"use_qk_norm": False}, "!norms cancel the factor of attention": {"rope_scaling": YARN},
    "factor of 1": {"rope_scaling": YARN | {"attention_factor": 1.0}},
    "no norms, yarn": {"rope_scaling": YARN, "use_qk_norm": False}, "no chunks": {"attention_chunk_size": None},
    "chunks by default": {"attention_chunk_size": MISSING},
    "no temperature": {"attn_temperature_tuning": False}, "temperature of 0": {"attn_scale": 0.0},
    "temperature by default": {"attn_scale": MISSING, "floor_scale": MISSING},
    "layer types": {"layer_types": [CHUNKED, CHUNKED, CHUNKED, FULL]}, "all full": {"layer_types": [FULL] * 4},
    "!no experts": {"moe_layers": []}, "!chunks in two layers": {"layer_types": [CHUNKED, FULL, CHUNKED, FULL]},
    "one expert": {"num_experts_per_tok": 1}, "!two experts": {"num_experts_per_tok": 2},
}
