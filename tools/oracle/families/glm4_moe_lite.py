"""GLM-4-MoE-Lite (GLM-4.7-Flash): DeepSeek-V3 with a list that names each layer's MLP."""
from families.decoder import FEW, MISSING
from families.deepseek_v3 import BASE as DEEPSEEK, yarn

CASES = {}
BASE = {k: v for k, v in DEEPSEEK.items() if k != "first_k_dense_replace"} | {"num_key_value_heads": 4}
SPELLINGS = FEW | {
    "yarn": yarn(mscale=0.7, mscale_all_dim=1.3), "no latent of queries": {"q_lora_rank": None},
    "list": {"mlp_layer_types": ["sparse", "dense", "sparse"]},
    "number of dense layers that is not read": {"first_k_dense_replace": 1},
    "groups": {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4},
    "ranks by default": {"q_lora_rank": MISSING, "kv_lora_rank": MISSING, "num_hidden_layers": 1},
    "heads by default": {"qk_nope_head_dim": MISSING, "v_head_dim": MISSING, "num_hidden_layers": 1},
    "router by default": {"n_routed_experts": MISSING, "num_experts_per_tok": MISSING, "n_group": MISSING,
                          "num_hidden_layers": 2},
    "second name": {"num_local_experts": 5}, "prediction of more tokens": {"num_nextn_predict_layers": 1},
    "halves": {"rope_interleave": False}, "!unknown layer": {"mlp_layer_types": ["sparse", "dense", "odd"]},
    "few layers": {"mlp_layer_types": ["sparse", "dense"]},
}
