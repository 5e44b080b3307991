"""Megatron-LM's BERT: norms at the inputs of the branches, and one at the end of the encoder."""
from families.bert import BASE, SPELLINGS, config
from families.decoder import shape

CASES = {
    # used by sweeps over layouts: all sizes except the vocabulary are divisible by 2, 4 and 8
    "bert-layouts": (shape(4, 32, 4, 48, 16, 61) | {"model": "bert", "micro-batch-size": 1, "global-batch-size": 8,
                                                    "clip-grad": 1.0, "seed": 11}, {}),
    "bert-no-binary-head": (shape(3, 30, 3, 41, 17, 53) | {
        "model": "bert", "bert-no-binary-head": True, "activation": "gelu-erf", "micro-batch-size": 1,
        "global-batch-size": 3, "clip-grad": 0.5, "seed": 7}, {}),
    # questions with four choices, each of which is a sample
    "bert-choices": (shape(2, 32, 4, 48, 12, 47) | {"model": "bert", "task": "RACE", "micro-batch-size": 2,
                                                    "global-batch-size": 4, "clip-grad": 0.4, "seed": 5}, {}),
}
