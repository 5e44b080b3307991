#!/usr/bin/env python3
"""Writes tests/data/hf/beams.json: the texts that transformers' beam search finds in float64 for the models in this
folder.

usage: tools/oracle/hf_beams.py"""
import json
from pathlib import Path

from cli import Command

Command(__doc__, "torch transformers").parse_args()

import torch
import transformers

import float64

FOLDER = Path(__file__).resolve().parents[2] / "tests/data/hf"
# model, its end token, and the number of new tokens
MODELS = [("qwen3-moe-windows", 6, 14), ("t5-v1_1", 28, 20), ("t5-original", 5, 20)]
SEARCHES = [(1, 1.0), (2, 1.0), (3, 0.0), (4, 2.0), (5, 0.6), (5, -1.0)]  # pairs of a width and a length penalty


def found(model, prompt, end, length, width, penalty):
    if model.config.is_encoder_decoder:
        model.config.decoder_start_token_id = 0
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=length,
                             eos_token_id=end, pad_token_id=0, do_sample=False, num_beams=width,
                             length_penalty=penalty, use_cache=False)
    tokens = out[0].tolist()[1 if model.config.is_encoder_decoder else len(prompt):]
    return tokens[:tokens.index(end)] if end in tokens else tokens


rows = []
for name, end, length in MODELS:
    model, _ = float64.load(FOLDER / name)
    random = torch.Generator().manual_seed(1)
    for width, penalty in SEARCHES:
        for _ in range(3):
            n = int(torch.randint(1, 12, (), generator=random))
            prompt = torch.randint(2, model.config.vocab_size, (n,), generator=random).tolist()
            rows.append({"model": name, "end": end, "length": length, "width": width, "penalty": penalty,
                         "prompt": prompt, "tokens": found(model, prompt, end, length, width, penalty)})
text = ",\n".join(json.dumps(row) for row in rows)
(FOLDER / "beams.json").write_text(f'{{"transformers": "{transformers.__version__}", "rows": [\n{text}\n]}}\n')
