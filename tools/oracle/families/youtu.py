"""Youtu-LLM: DeepSeek-V3 without experts."""
from families.decoder import FEW, MISSING
from families.deepseek_v3 import BASE as DEEPSEEK, yarn

CASES = {}
EXPERTS = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group",
           "topk_group", "routed_scaling_factor", "first_k_dense_replace", "norm_topk_prob")
BASE = {k: v for k, v in DEEPSEEK.items() if k not in EXPERTS} | {"num_key_value_heads": 4}
SPELLINGS = FEW | {
    "yarn": yarn(mscale=0.7, mscale_all_dim=1.3), "no latent of queries": {"q_lora_rank": None},
    "tied by default": {"tie_word_embeddings": MISSING}, "untied": {"tie_word_embeddings": False},
    "ranks by default": {"q_lora_rank": MISSING, "kv_lora_rank": MISSING, "num_hidden_layers": 1},
    "heads by default": {"qk_nope_head_dim": MISSING, "qk_rope_head_dim": MISSING, "v_head_dim": MISSING,
                         "num_hidden_layers": 1},
    "keys by default": {"num_attention_heads": 16, "num_key_value_heads": MISSING},
    "halves": {"rope_interleave": False}, "!biases": {"attention_bias": True},
}
