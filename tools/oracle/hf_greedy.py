#!/usr/bin/env python3
"""Writes tests/data/hf/greedy.json: the config.json of golden cases with Mamba-2 or Gated DeltaNet layers, and the
texts that transformers' generate() chooses greedily in float64 with the cases' trained parameters.

usage: tools/oracle/hf_greedy.py"""
import json
import tempfile
from pathlib import Path

from cli import Command, Failed

Command(__doc__, "torch transformers safetensors").parse_args()

import safetensors.torch
import torch
import transformers

import float64
import witness
from families import CASES, FAMILIES

ROOT = Path(__file__).resolve().parents[2]
LEAST_MARGIN = 1e-6
PROMPTS = {"mamba2-like": (1, 3, 7, 130, 150), "nemotron-h-like": (1, 2, 9, 31, 70), "nemotron-h-experts": (1, 5, 40),
           "bamba-like": (1, 9, 50), "granite-4-like": (1, 7, 30), "qwen3-next-like": (1, 2, 6, 60, 70)}
NEW = 24


def chosen(model, prompt):
    """Uses no cache, because with a cache, transformers ignores the limits of steps after the prompt."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                             eos_token_id=None, pad_token_id=0, use_cache=False)
        best = model(input_ids=out, use_cache=False).logits[0, len(prompt) - 1:-1].topk(2).values
    margin = (best[:, 0] - best[:, 1]).min().item()
    if margin < LEAST_MARGIN:
        raise Failed(f"a token leads by only {margin:.1e}: take other prompts")
    return out[0].tolist()


configs, rows = {}, []
for name, lengths in PROMPTS.items():
    family, case = CASES[name][0], ROOT / "golden" / name
    options = {key: witness.value_of(" ".join(words) or "true") for key, words in
               witness.read_conf(case / "run.conf").items()}
    trained = {n.removeprefix("param/"): x for n, x in safetensors.torch.load_file(case / "oracle.safetensors").items()
               if n.startswith("param/")}
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.AutoConfig.for_model(family, **FAMILIES[family].config(options))
        config.architectures = [type(float64.make(config)).__name__]
        config.save_pretrained(folder)
        safetensors.torch.save_file(trained, Path(folder, "model.safetensors"), {"format": "pt"})
        configs[name] = json.loads(Path(folder, "config.json").read_text())
        model = float64.load(folder)[0]
    random = torch.Generator().manual_seed(1)
    for n in lengths:
        prompt = torch.randint(0, options["vocab-size"], (n,), generator=random).tolist()
        rows.append({"case": name, "prompt": n, "tokens": chosen(model, prompt)})
text = ",\n".join(map(json.dumps, rows))
(ROOT / "tests/data/hf/greedy.json").write_text(
    f'{{"transformers": "{transformers.__version__}", "configs": {json.dumps(configs)}, "rows": [\n{text}\n]}}\n')
