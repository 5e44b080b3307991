"""DeepSeek-V3: latent attention, and GLM-4-MoE's router. Its latents always have norms, with an epsilon of 1e-6."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, SIZES, UNTIED, shape
from families.glm4_moe import llama as glm4_llama

# A query or key head has 24 channels without position and 8 rotated channels; a value head has 20.
LATENT = LLAMA | UNTIED | {"multi-latent-attention": True, "kv-lora-rank": 12, "qk-head-dim": 24,
                           "qk-pos-emb-head-dim": 8,
                           "v-head-dim": 20, "qk-layernorm": True, "latent-norm-epsilon": 1e-6}
YARN = {"rope-type": "yarn", "yarn-original-max-position-embeddings": 64, "yarn-beta-fast": 32, "yarn-beta-slow": 1}
ROUTER = {"moe-router-score-function": "sigmoid", "moe-router-enable-expert-bias": True,
          "moe-router-bias-update-rate": 0.01, "moe-router-topk-scaling-factor": 2.5}
CASES = {
    # used by sweeps over layouts
    "deepseek-layouts": (shape(4, 32, 4, 24, 16, 61) | LATENT | YARN | ROUTER | {
        "q-lora-rank": 10, "rotary-scaling-factor": 40, "mscale": 1, "mscale-all-dim": 1, "num-experts": 8,
        "moe-router-topk": 2, "moe-layer-freq": "[0,1,1,1]", "moe-ffn-hidden-size": 12,
        "moe-shared-expert-intermediate-size": 12, "micro-batch-size": 1, "global-batch-size": 8, "seed": 11}, {}),
    "deepseek-mtp": (shape(4, 32, 4, 24, 16, 61) | LATENT | YARN | ROUTER | {
        "q-lora-rank": 10, "rotary-scaling-factor": 40, "mscale": 1, "mscale-all-dim": 1, "num-experts": 8,
        "moe-router-topk": 2, "moe-layer-freq": "[0,1,1,1]", "moe-ffn-hidden-size": 12,
        "moe-shared-expert-intermediate-size": 12, "mtp-num-layers": 1, "mtp-loss-scaling-factor": 0.4,
        "micro-batch-size": 1, "global-batch-size": 8, "seed": 7}, {"mask": True}),
    "deepseek-v3-like": (shape(2, 28, 3, 40, 14, 51) | LATENT | YARN | ROUTER | {
        "q-lora-rank": 18, "rotary-scaling-factor": 40, "mscale": 1, "mscale-all-dim": 1, "num-experts": 7,
        "moe-router-topk": 3, "moe-layer-freq": "[0,1]", "moe-ffn-hidden-size": 12,
        "moe-shared-expert-intermediate-size": 24, "clip-grad": 3.5}, {"mask": True}),
    "mla-yarn": (shape(2, 26, 4, 36, 20, 47) | LATENT | YARN | {
        "q-lora-rank": 18, "rotary-scaling-factor": 4, "mscale": 0.7, "mscale-all-dim": 1.3, "rotary-base": 100,
        "yarn-original-max-position-embeddings": 10, "yarn-beta-fast": 2, "yarn-beta-slow": 0.5}, {}),
}


def latent(o):
    """Returns the keys of latent attention without biases."""
    return {"kv_lora_rank": o["kv-lora-rank"], "q_lora_rank": o.get("q-lora-rank"),
            "qk_nope_head_dim": o["qk-head-dim"],
            "qk_rope_head_dim": o["qk-pos-emb-head-dim"], "head_dim": o["qk-pos-emb-head-dim"],
            "v_head_dim": o["v-head-dim"], "attention_bias": False}


def experts(o):
    """Returns the keys of experts. Without experts, first_k_dense_replace makes all layers dense."""
    if "num-experts" not in o:
        return {"first_k_dense_replace": o["num-layers"], "n_group": 1, "topk_group": 1}
    dense, ffn = decoder.dense_layers(o), o["moe-ffn-hidden-size"]
    assert dense == list(range(len(dense))) and o["moe-shared-expert-intermediate-size"] % ffn == 0
    return decoder.experts(o) | {
        "moe_intermediate_size": ffn, "n_routed_experts": o["num-experts"], "first_k_dense_replace": len(dense),
        "n_shared_experts": o["moe-shared-expert-intermediate-size"] // ffn, "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": o.get("moe-router-topk-scaling-factor", 1)}


def config(o):
    return decoder.config(o, **latent(o) | experts(o), num_mtp_layers=0)


def llama(w, o):
    return decoder.renamed(glm4_llama(w, o), {"self_attn.q_proj": "self_attn.linear_q_proj"})


LATENTS = {"num_key_value_heads": None, "q_lora_rank": 6, "kv_lora_rank": 6, "qk_nope_head_dim": 6,
           "qk_rope_head_dim": 4,
           "v_head_dim": 7}  # transformers needs even ranks for DeepSeek-V2's complex rotation
BASE = SIZES | LATENTS | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "n_group": 1,
                          "topk_group": 1, "first_k_dense_replace": 1}
YARN_KEYS = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}


def yarn(**keys):
    return {"rope_theta": 50.0, "rope_scaling": YARN_KEYS | keys}


LATENT_SPELLINGS = EVERY | {
    "no latent of queries": {"q_lora_rank": None}, "keys of all heads": {"num_key_value_heads": 4},
    "keys of no size": {"num_key_value_heads": MISSING}, "size of the rotation": {"head_dim": 4},
    "other size of the rotation": {"head_dim": 8}, "other epsilon": {"rms_norm_eps": 1e-2},
    "yarn with mscales": yarn(mscale=0.7, mscale_all_dim=1.3), "yarn with one mscale": yarn(mscale=0.7),
    "yarn with the other mscale": yarn(mscale_all_dim=1.3),
    "yarn with a factor": yarn(mscale_all_dim=1.3, mscale=0.7, attention_factor=1.2),
    "!linear with mscale": {"rope_scaling": {"type": "linear", "factor": 2.0, "mscale_all_dim": 1.0}},
    "!fewer keys": {"num_key_value_heads": 2}, "!biases": {"attention_bias": True},
    "dense layers": {"first_k_dense_replace": 2}, "no dense layer": {"first_k_dense_replace": 0},
    "only dense layers": {"first_k_dense_replace": 3}, "scaled": {"routed_scaling_factor": 1.5},
    "shared": {"n_shared_experts": 3},
}
SPELLINGS = LATENT_SPELLINGS | {
    "halves": {"rope_interleave": False}, "null halves": {"rope_interleave": None},
    "!null, not normalised": {"norm_topk_prob": None}, "!not normalised": {"norm_topk_prob": False},
    "one expert": {"num_experts_per_tok": 1, "norm_topk_prob": False},
    "!one expert, normalised": {"num_experts_per_tok": 1},
    "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    "groups by default": {"n_routed_experts": 16, "n_group": MISSING, "topk_group": MISSING, "num_experts_per_tok": 8},
    "second name": {"num_local_experts": 5}, "prediction of more tokens": {"num_nextn_predict_layers": 1},
}
