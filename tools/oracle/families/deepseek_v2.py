"""DeepSeek-V2: latent attention, and experts whose probabilities are not normalised."""
from families import decoder
from families.decoder import MISSING, shape
from families.deepseek_v3 import BASE as V3, LATENT, LATENT_SPELLINGS, YARN, experts, latent, llama

CASES = {
    "deepseek-v2-like": (shape(2, 24, 3, 32, 13, 43) | LATENT | YARN | {
        "rotary-scaling-factor": 40, "mscale": 0.707, "mscale-all-dim": 0.707, "num-experts": 6, "moe-router-topk": 2,
        "moe-router-pre-softmax": True, "moe-router-topk-scaling-factor": 1.5, "moe-layer-freq": "[0,1]",
        "moe-router-load-balancing-type": "seq_aux_loss", "moe-aux-loss-coeff": 0.05, "moe-ffn-hidden-size": 12,
        "moe-shared-expert-intermediate-size": 24}, {}),
}


def config(o):
    return decoder.config(o, **latent(o) | experts(o))


BASE = {k: v for k, v in V3.items() if "group" not in k}
SPELLINGS = LATENT_SPELLINGS | {
    "greedy": {"topk_method": "greedy", "n_group": 2, "topk_group": 1},
    "normalised, not read": {"norm_topk_prob": True},
    "groups": {"topk_method": "group_limited_greedy", "n_routed_experts": 12, "n_group": 4, "topk_group": 2,
               "num_experts_per_tok": 3}, "!other method": {"topk_method": "noaux_tc", "n_group": 2, "topk_group": 1},
    "one expert of each token": {"num_experts_per_tok": 1}, "!biases of MLPs": {"mlp_bias": True},
    "no number of experts": {"num_experts_per_tok": MISSING}, "second name": {"num_experts": 5},
    "sizes that do not divide": {"hidden_size": 18},
}
