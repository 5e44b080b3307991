"""Mixtral: every layer is an MoE layer; tensors have different names in files."""
from families import decoder
from families.decoder import EVERY, LLAMA, MISSING, NO_SIZE, SIZES, UNTIED, shape

ROUTER = {"moe-router-topk": 2, "moe-router-load-balancing-type": "seq_aux_loss"}
CASES = {
    # used by sweeps over layouts
    "mixtral-layouts": (shape(4, 32, 4, 24, 16, 61, groups=2) | LLAMA | UNTIED | {"num-experts": 8} | ROUTER | {
        "moe-aux-loss-coeff": 0.05, "moe-z-loss-coeff": 0.02, "micro-batch-size": 1, "global-batch-size": 8,
        "seed": 11}, {}),
    "mixtral-like": (shape(2, 24, 4, 20, 13, 47, groups=2) | LLAMA | UNTIED | {"num-experts": 8} | ROUTER | {
        "moe-aux-loss-coeff": 0.05, "moe-z-loss-coeff": 0.02, "clip-grad": 2.5}, {}),
    "mixtral-masked": (shape(2, 16, 2, 12, 11, 41, groups=1) | LLAMA | UNTIED | {"num-experts": 5} | ROUTER | {
        "moe-aux-loss-coeff": 0.1, "moe-z-loss-coeff": 0.04, "micro-batch-size": 1}, {"mask": True}),
}


def config(o):
    return decoder.config(o, **decoder.experts(o), num_local_experts=o["num-experts"])


expert_names = (".block_sparse_moe.", "w1", "w3", "w2")


def llama(w, o):
    return decoder.renamed(w, {"block_sparse_moe": "mlp", ".w1.": ".gate_proj.", ".w3.": ".up_proj.",
                               ".w2.": ".down_proj."})


BASE = SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}
# transformers computes these scalings only if head_dim is given
SPELLINGS = EVERY | {name: EVERY[name] | {"head_dim": 4} for name in ("yarn", "dynamic")} | {
    "window": {"sliding_window": 3}, "no window": {"sliding_window": None}, "second name": {"num_experts": 5},
    "groups by default": {"num_attention_heads": 8, "num_key_value_heads": MISSING},
    "!best alone": {"num_experts_per_tok": 1}, "!list that is not read": NO_SIZE,
}
