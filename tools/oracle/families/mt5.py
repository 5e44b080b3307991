"""mT5: T5 v1.1, in which the gate is the default."""
from families import t5

CASES = {}
BASE = t5.BASE
SPELLINGS = {
    "defaults": {}, "untied": {"tie_word_embeddings": False}, "more decoder layers": {"num_decoder_layers": 3},
    "gated-silu": {"feed_forward_proj": "gated-silu"}, "relu": {"feed_forward_proj": "relu"},
    "few buckets": {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 3},
    "epsilon": {"layer_norm_epsilon": 1e-3}, "!decoder": {"is_decoder": True},
}
