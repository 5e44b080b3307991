"""Nemotron-H: each layer has one branch, which is Mamba-2, attention without positions, an MLP or experts."""
import re

from families import decoder
from families.decoder import MISSING, UNTIED, renamed, shape
from families.mamba2 import INFINITY, LIKE_LLAMA

KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
MAMBA = UNTIED | {"mamba-num-heads": 8, "mamba-head-dim": 5, "mamba-state-dim": 7, "mamba-num-groups": 2,
                  "position-embedding-type": "none", "normalization": "RMSNorm", "squared-relu": True,
                  "disable-bias-linear": True}
CASES = {
    "nemotron-h-like": (shape(6, 24, 6, 40, 40, 51, groups=2, kv_channels=5) | MAMBA | {
        "hybrid-layer-pattern": "M-M*-M", "mamba-dt-min": 0.6}, {"mask": True}),
    "nemotron-h-experts": (shape(5, 24, 6, 40, 24, 51, groups=2) | MAMBA | {
        "hybrid-layer-pattern": "MEM*E", "mamba-dt-min": 0.001, "num-experts": 6, "moe-router-topk": 2,
        "moe-ffn-hidden-size": 10,
        "moe-shared-expert-intermediate-size": 14, "moe-router-score-function": "sigmoid",
        "moe-router-enable-expert-bias": True, "moe-router-bias-update-rate": 0.01,
        "moe-router-load-balancing-type": "none", "moe-router-topk-scaling-factor": 1.5}, {}),
}


def config(o):
    pattern = o["hybrid-layer-pattern"]
    experts = {"n_routed_experts": o["num-experts"], "num_experts_per_tok": o["moe-router-topk"],
               "moe_intermediate_size": o["moe-ffn-hidden-size"],
               "moe_shared_expert_intermediate_size": o["moe-shared-expert-intermediate-size"],
               "routed_scaling_factor": o["moe-router-topk-scaling-factor"]} if "E" in pattern else {}
    sizes = {k: v for k, v in decoder.config(o, eps="layer_norm_epsilon").items()
             if k not in ("num_hidden_layers", "rope_parameters")}
    return sizes | experts | {
        "layers_block_type": [KINDS[letter] for letter in pattern], "mamba_num_heads": o["mamba-num-heads"],
        "mamba_head_dim": o["mamba-head-dim"], "ssm_state_size": o["mamba-state-dim"],
        "n_groups": o["mamba-num-groups"], "chunk_size": 16, "time_step_min": o["mamba-dt-min"]}


def on_disk(w):
    found = {}
    for name, x in w.items():
        layer, _, which = name.replace("model.", "backbone.", 1).partition(".experts.")
        parts = {f"{layer}.experts.{e}.{which}.weight": y.contiguous() for e, y in enumerate(x)} if which else {}
        found |= parts or {layer: x}
    return found


def llama(w, o):
    found = {}
    for name, x in renamed(w, LIKE_LLAMA).items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        kind = o["hybrid-layer-pattern"][int(layer[1])] if layer else ""
        block, norm = {"*": ("self_attn", "input_layernorm"), "-": ("mlp", "pre_mlp_layernorm"),
                       "E": ("mlp", "pre_mlp_layernorm")}.get(kind, ("mixer", "norm"))
        name = re.sub(r"(?<=\d)\.norm\.", f".{norm}.", name).replace(".mixer.", f".{block}.")
        found[name] = x.reshape(x.shape[0], -1) if name.endswith("conv1d.weight") else x
    return found


BASE = {"vocab_size": 7, "hidden_size": 16, "layers_block_type": [KINDS[k] for k in "M-*M"], "intermediate_size": 20,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 24,
        "mamba_num_heads": 8, "mamba_head_dim": 4, "ssm_state_size": 5, "n_groups": 2, "bos_token_id": None,
        "eos_token_id": None, "pad_token_id": None}
EXPERTS = {"layers_block_type": [KINDS[k] for k in "ME*E"], "n_routed_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 6, "moe_shared_expert_intermediate_size": 9}
SPELLINGS = {
    "": {}, "pattern": {"layers_block_type": MISSING, "hybrid_override_pattern": "M-*M"},
    "list goes first": {"hybrid_override_pattern": "MMMM"},
    "number of layers that is not read": {"num_hidden_layers": 9},
    "old words": {"layers_block_type": ["mamba", "mlp", "attention", "mamba"]},
    "limit of steps": {"time_step_min": 0.7}, "limit that is not read": {"time_step_limit": [0.7, INFINITY]},
    "older names": {"n_groups": MISSING, "mamba_n_groups": 2, "mamba_dt_min": 0.6},
    "expansion that is not read": {"expand": 4},
    "gelu": {"mlp_hidden_act": "gelu"}, "one group": {"n_groups": 1},
    "no attention": {"layers_block_type": [KINDS["M"]] * 2},
    "experts": EXPERTS, "scaled experts": EXPERTS | {"routed_scaling_factor": 2.5},
    "groups of experts": EXPERTS | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2},
    "latent experts": EXPERTS | {"moe_latent_size": 5}, "!tied": {"tie_word_embeddings": True},
    "!probabilities": EXPERTS | {"norm_topk_prob": False}, "!biases": {"use_bias": True},
    "!MLP biases": {"mlp_bias": True}, "!no bias of convolutions": {"use_conv_bias": False},
    "!taps": {"conv_kernel": 3}, "!eps": {"layer_norm_epsilon": 1e-2},
    "!layers by default": {"layers_block_type": MISSING},
}
