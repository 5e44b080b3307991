"""GPT-OSS: experts with biases and a gate with limits, attention sinks, YaRN, and a window in every other layer."""
from families import decoder
from families.decoder import EVERY, FULL, MISSING, SIZES, SLIDING, UNTIED, shape

CASES = {
    "gpt-oss-like": (shape(4, 16, 4, 12, 16, 47, groups=2, kv_channels=6) | UNTIED | {
        "position-embedding-type": "yarn", "rotary-base": 150, "rotary-scaling-factor": 8.0,
        "yarn-original-max-position-embeddings": 8, "yarn-beta-fast": 32.0, "yarn-beta-slow": 1.0,
        "no-yarn-correction-range-round-to-int": True, "mscale": 1.0, "mscale-all-dim": 0.0,
        "normalization": "RMSNorm", "disable-bias-linear": False, "softmax-type": "learnable", "window-size": "4,0",
        "window-attn-skip-freq": "2", "num-experts": 7, "moe-router-topk": 3, "quick-geglu": True,
        "glu-linear-offset": 1.0, "activation-func-clamp-value": 0.4, "clip-grad": 1.0}, {}),
}
packed = True  # files have all experts in one tensor, like the model in memory


def config(o):
    return decoder.config(
        o, **decoder.experts(o), **decoder.window(o), num_local_experts=o["num-experts"],
        swiglu_limit=o["activation-func-clamp-value"], attention_bias=True,
        layer_types=[SLIDING if (i + 1) % 2 else FULL for i in range(o["num-layers"])])


def llama(w, o):
    """Splits packed experts into one tensor per expert, [out, in], with separate rows of gate and up."""
    found = {}
    for name, x in w.items():
        layer, experts, which = name.partition(".mlp.experts.")
        if not experts:
            found[name.replace(".mlp.router.", ".mlp.gate.")] = x
            continue
        kind = "bias" if which.endswith("_bias") else "weight"
        for e, y in enumerate(x):
            y = y.T if kind == "weight" else y
            parts = {"gate_proj": y[::2], "up_proj": y[1::2]} if which.startswith("gate_up") else {"down_proj": y}
            found |= {f"{layer}.mlp.experts.{e}.{part}.{kind}": z for part, z in parts.items()}
    return found


BASE = SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3, "head_dim": 4,
                "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 6}
SPELLINGS = {name: EVERY[name] for name in ("", "tied", "gelu", "unknown layer type", "few layer types")} | {
    "yarn": {"rope_theta": 150.0, "rope_scaling": YARN, "rope_parameters": MISSING},
    "yarn in its place": {"rope_parameters": YARN | {"rope_theta": 150.0}},
    "yarn by default": {"rope_parameters": MISSING}, "null rope": {"rope_parameters": None, "rope_theta": 50.0},
    "window by default": {"sliding_window": MISSING, "num_hidden_layers": 2},
    "second name": {"num_local_experts": MISSING, "num_experts": 5},
    "list": {"layer_types": [FULL, SLIDING, SLIDING]}, "all full": {"layer_types": [FULL] * 3},
    "limit": {"swiglu_limit": 0.1}, "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "head size by default": {"head_dim": MISSING},
    "!another gate": {"swiglu_alpha": 1.5}, "!no biases": {"attention_bias": False},
}
