"""Hunyuan MoE: a shared expert with the width of the other experts."""
from families.decoder import FEW
from families.hunyuan_v1_dense import BASE as DENSE, SPELLINGS as DENSE_SPELLINGS

CASES = {}
BASE = DENSE | {"num_experts": 4, "moe_topk": 2}
SPELLINGS = FEW | {"stretched": DENSE_SPELLINGS["stretched"], "biases": {"attention_bias": True},
                   "list": {"moe_topk": [3, 3, 3]}, "!unequal list": {"moe_topk": [1, 2, 3]}}
