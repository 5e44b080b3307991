#!/usr/bin/env python3
"""Writes tests/unit/infer/sampling_rows.def, the tokens that are drawn from logits after transformers' logits
processors have applied biases, penalties and filters. Presence and frequency penalties follow the formula of OpenAI's
documentation.

usage: tools/oracle/sampling.py > tests/unit/infer/sampling_rows.def"""
import random

from cli import Command

command = Command(__doc__, packages="torch transformers")
command.parse_args()

import torch
from transformers.generation import logits_process as process

VOCAB, DRAWS, MARGIN = 12, 24, 1e-9


def processed(ids, n_prompt, logits, o):
    """Returns the logits that remain, in the order of sampling.h."""
    tokens, x = torch.tensor([ids]), torch.tensor([logits], dtype=torch.float64)
    if o["bias"]:
        x = process.SequenceBiasLogitsProcessor({(id,): float(b) for id, b in o["bias"].items()})(tokens, x)
    x = process.RepetitionPenaltyLogitsProcessor(o["repetition"])(tokens, x)
    for id in ids[n_prompt:]: x[0, id] -= o["frequency"]
    for id in {*ids[n_prompt:]}: x[0, id] -= o["presence"]
    x = process.TemperatureLogitsWarper(o["temperature"])(tokens, x)
    distinct = len({*x[0].tolist()}) == VOCAB
    if o["min_p"]: x = process.MinPLogitsWarper(o["min_p"])(tokens, x)
    if o["top_k"]: x = process.TopKLogitsWarper(o["top_k"])(tokens, x)
    if o["top_p"]: x = process.TopPLogitsWarper(o["top_p"])(tokens, x)
    return x[0] if distinct or not o["top_p"] else None  # the top-p filter of transformers does not order equal logits


def rows():
    r = random.Random(5)
    while True:
        maybe = lambda x, off=0.0: r.choice([off, x])
        o = {"temperature": r.choice([0.5, 1.0, 1.7]), "top_k": maybe(r.randint(2, 8), 0),
             "top_p": maybe(r.choice([0.3, 0.6, 0.9])), "min_p": maybe(r.choice([0.02, 0.2])),
             "presence": maybe(r.choice([-0.5, 0.75, 2.0])), "frequency": maybe(r.choice([-0.25, 0.5])),
             "repetition": maybe(r.choice([0.8, 1.3]), 1.0),
             "bias": {id: r.choice([-100, -1.5, 2.5]) for id in r.sample(range(VOCAB), r.choice([0, 0, 2]))}}
        eighths = [r.randint(-24, 24) for _ in range(VOCAB)]
        n_prompt, n = r.randint(1, 5), r.randint(5, 12)
        ids = [r.randrange(VOCAB) for _ in range(n)]
        left = processed(ids, n_prompt, [x / 8 for x in eighths], o)
        if left is None: continue
        sums = left.softmax(-1).cumsum(-1)
        uniform = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
        if (sums[:, None] - uniform).abs().min() < MARGIN: continue
        yield o, eighths, ids, n_prompt, torch.searchsorted(sums, uniform, right=True).tolist()


letters = lambda ids: "".join(chr(ord("a") + id) for id in ids)
print("/* Made by tools/oracle/sampling.py: ROW(temperature, top_k, top_p, min_p, presence, frequency, repetition,"
      " biases,\n * logits in eighths, prompt, new tokens, the tokens of evenly spaced draws). Token 0 is a. */")
for _, (o, eighths, ids, n_prompt, drawn) in zip(range(60), rows()):
    bias = o.pop("bias")
    pairs = ", ".join(f"{{{id}, {b}}}" for id, b in bias.items()) or "{0, 0}"
    print(f"ROW({', '.join(str(x) for x in o.values())}, LIST({pairs}), LIST({', '.join(map(str, eighths))}), "
          f'"{letters(ids[:n_prompt])}", "{letters(ids[n_prompt:])}", "{letters(drawn)}")')
