#!/usr/bin/env python3
"""Writes tests/data/hf/encoder-*: a small model of each supported class of BERT, Megatron-BERT and RoBERTa, saved by
transformers.

usage: tools/oracle/hf_encoders.py

If a class has a head with logits, reference.safetensors contains its logits for some texts (hf_logits.py)."""
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

from cli import Command

command = Command(__doc__, "torch transformers safetensors")
command.parse_args()

import torch
import transformers

OUT = Path("tests/data/hf")
SIZES = {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
         "max_position_embeddings": 22}
CLASSES = {"id2label": {0: "good news", 1: "bad", 2: "neither"}, "label2id": {"good news": 0, "bad": 1, "neither": 2}}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
XLM = ROBERTA | {"type_vocab_size": 2}
MODELS = {
    "BertForPreTraining": {}, "BertForMaskedLM": {}, "BertModel": {}, "BertForSequenceClassification": CLASSES,
    "BertForMultipleChoice": {}, "MegatronBertForMaskedLM": {}, "MegatronBertModel": {},
    "MegatronBertForSequenceClassification": CLASSES, "MegatronBertForMultipleChoice": {},
    "RobertaForMaskedLM": ROBERTA, "RobertaModel": ROBERTA, "RobertaForSequenceClassification": ROBERTA | CLASSES,
    "RobertaForMultipleChoice": ROBERTA, "XLMRobertaForMaskedLM": XLM,
    "XLMRobertaForSequenceClassification": XLM | CLASSES}


def main(_):
    transformers.utils.logging.disable_progress_bar()
    for seed, (name, keys) in enumerate(MODELS.items()):
        folder, kind = OUT / f"encoder-{name}", getattr(transformers, name)
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(seed)
        model = kind(kind.config_class(**SIZES | keys))
        for part, p in model.named_parameters():  # so large that every term has an effect
            torch.nn.init.normal_(p, float("orm" in part and "weight" in part or ".ln." in part and "weight" in part),
                                  0.3)
        model.to(torch.bfloat16).save_pretrained(folder)
        if not name.endswith("Model"):
            subprocess.run([sys.executable, HERE / "hf_logits.py", folder, folder / "reference.safetensors",
                            "--length", "17", "--samples", "4"], check=True)
        for file in folder.iterdir():
            file.chmod(0o644)


command.run(main)
