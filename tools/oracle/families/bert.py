"""The original BERT: norms after the residual additions and after the embedding, token types, and a pooler."""
from families.decoder import shape

POST = {"model": "bert", "norm-placement": "post", "activation": "gelu-erf", "norm-epsilon": 1e-12}
CASES = {
    "bert-original": (shape(4, 36, 6, 44, 24, 67) | POST | {"clip-grad": 1.0}, {"init": "float64"}),
    "bert-rope": (shape(3, 24, 2, 40, 19, 43) | POST | {
        "position-embedding-type": "rope", "norm-epsilon": 1e-5, "micro-batch-size": 1, "global-batch-size": 3}, {}),
    "bert-classes": (shape(3, 32, 4, 40, 16, 53) | POST | {"task": "labels", "class-labels": "a b c",
                                                           "micro-batch-size": 2, "global-batch-size": 8}, {}),
}


def config(o):
    return {"vocab_size": o["vocab-size"], "hidden_size": o["hidden-size"], "num_hidden_layers": o["num-layers"],
            "num_attention_heads": o["num-attention-heads"], "intermediate_size": o["ffn-hidden-size"],
            "hidden_act": "gelu" if "activation" in o else "gelu_new",
            "max_position_embeddings": o["max-position-embeddings"], "layer_norm_eps": o["norm-epsilon"],
            "type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            "pad_token_id": None, "num_labels": len(o.get("class-labels", "a b").split())}


BASE = {"vocab_size": 7, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
        "max_position_embeddings": 24, "pad_token_id": None}
SPELLINGS = {}
