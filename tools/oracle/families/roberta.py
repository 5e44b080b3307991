"""RoBERTa: a BERT without sentence pairs, with one token type, positions that are counted from the padding token, and a
different head."""
from families import bert
from families.decoder import shape

PAD = 1
CASES = {
    "roberta": (shape(2, 28, 4, 36, 16, 47) | bert.POST | {"bert-no-binary-head": True, "num-token-types": 1,
                                                           "norm-epsilon": 1e-5, "hf-model-type": "roberta"},
                {"pad": PAD}),
}


def config(o):
    return bert.config(o) | {"type_vocab_size": o["num-token-types"], "pad_token_id": PAD,
                             "max_position_embeddings": o["max-position-embeddings"] + PAD + 1}


BASE = bert.BASE | {"pad_token_id": PAD}
SPELLINGS = {}
