#!/usr/bin/env python3
"""Writes tests/data/hf: logits of transformers for many variants of config.json, and small models that transformers has
saved.

usage: tools/oracle/hf_configs.py [--round-trip PROGRAM] [FAMILY...]
       FAMILY: only the cases of these families are run; results of other families are unchanged

Each case is a config.json (families/*.py). Its weights are a function of the tensors' names and shapes (tensors.py).
transformers computes its logits in float64, unless transformers fails on the case. The test functional/convert
imports every case with `isotron convert` and compares logits. With --round-trip, PROGRAM instead imports and exports
each case, and transformers computes the logits of the exported model."""
import copy
import datetime
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

from cli import Command, program

command = Command(__doc__, "torch transformers safetensors numpy")
command.add_argument("--round-trip", type=program)
command.add_argument("only", nargs="*")
only = command.parse_args().only

import numpy as np
import torch
import transformers

import float64
import tensors
from families import FAMILIES
from families.decoder import EXPERTS, MISSING, ON, SIZES, spelled

OUT = Path("tests/data/hf")
TOKENS = [[3, 0, 5, 6, 1, 4]]


def cases():
    for family, module in FAMILIES.items():
        for name, keys in module.SPELLINGS.items():
            yield family, name, keys, spelled(family, module.BASE, keys)


def collapse(found):
    """Converts {name: shape} to {name with * for the layer and # for the expert: [shape, layers, number of
    experts]}."""
    result = {}
    for name, shape in found.items():
        layer, expert = re.search(r"(?<=\.layers\.|.....\.h\.|.\.block\.|\.blocks\.)\d+",
                                  name), re.search(r"(?<=\.experts\.)\d+", name)
        short = re.sub(r"(\.layers\.|\.h\.|\.blocks?\.)\d+", r"\1*", re.sub(r"(\.experts\.)\d+", r"\1#", name))
        entry = result.setdefault(short, [shape, [], 0])
        if layer and int(layer[0]) not in entry[1]:
            entry[1].append(int(layer[0]))
        entry[2] = max(entry[2], int(expert[0]) + 1 if expert else 0)
    return result


def shapes(config):
    """Returns the shapes of the tensors that transformers would save."""
    with tempfile.TemporaryDirectory() as folder:
        float64.make(transformers.AutoConfig.for_model(**copy.deepcopy(config))).save_pretrained(folder)
        return {n: shape for n, (_, shape, _) in tensors.read(Path(folder, "model.safetensors")).items()}


def compute(folder):
    model, tokens = float64.load(folder)[0], torch.tensor(TOKENS)
    return float64.logits(model, tokens, **({"input_ids": tokens} if model.config.is_encoder_decoder else {})).numpy()


def answer(config):
    """Returns (shapes, logits), or (error, None)."""
    try:
        found = shapes(config)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config))
            tensors.write(Path(folder, "model.safetensors"), {n: tensors.weight(n, s) for n, s in found.items()},
                          {"format": "pt"})
            logits = compute(Path(folder))
    except Exception as e:  # any exception means that transformers has no such model
        return f"{type(e).__name__}: {' '.join(str(e).split())[:160]}", None
    return (found, logits) if np.isfinite(logits).all() else ("logits that are not finite", None)


def old_answers():
    """Returns the stored results of the families that are not run, with collapsed shapes."""
    table, stored = json.loads((OUT / "configs.json").read_text()), tensors.read(OUT / "logits.safetensors")
    found = {}
    for number, case in enumerate(table["cases"]):
        values = stored.get(str(number))
        if case["family"] not in only:
            found[case["family"], case["name"]] = (
                (table["shapes"][case["shapes"]], np.frombuffer(values[2]).reshape(values[1])) if values
                else (case["error"], None))
    return found


def make_models():
    """Writes models with save_pretrained. Sequences are longer than windows, and weights are so large that every term
    has an effect."""
    moe = SIZES | EXPERTS | ON | {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4,
                                     "vocab_size": 37, "intermediate_size": 32, "moe_intermediate_size": 8,
                                  "norm_topk_prob": True,
                                     "mlp_only_layers": [1], "sliding_window": 5, "initializer_range": 0.4,
                                  "max_position_embeddings": 40}
    t5 = {"vocab_size": 61, "d_model": 24, "d_kv": 5, "d_ff": 20, "num_layers": 3,
          "num_decoder_layers": 2, "num_heads": 3, "relative_attention_num_buckets": 8,
          "relative_attention_max_distance": 12, "decoder_start_token_id": 0}
    v1_1 = t5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    # with these seeds, one sample of t5-original and of t5-v1_1 generates an end token
    for name, kind, config, seed, samples in (
            ("qwen3-moe-windows", "qwen3_moe", moe, 1, 2), ("t5-original", "t5", t5, 2, 4),
            ("t5-v1_1", "t5", v1_1, 2, 4), ("t5-tied", "t5", v1_1, 2, 1)):
        torch.manual_seed(seed)
        config = transformers.AutoConfig.for_model(kind, **config)  # transformers 5 always ties a T5 v1.1
        model = float64.kind(config).from_config(config) if name == "t5-tied" else float64.make(config)
        for part, p in model.named_parameters() if kind == "t5" else ():
            torch.nn.init.normal_(p, float("layer_norm" in part), 0.7)
        save(model.to(torch.bfloat16), OUT / name, samples)


def make_nested():
    """Writes language models with a vision tower, whose config.json is nested."""
    text = SIZES | {"hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": 8, "vocab_size": 37, "max_position_embeddings": 40, "initializer_range": 0.4}
    linear = text | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
                     "linear_value_head_dim": 5, "layer_types": ["linear_attention", "full_attention"],
                     "num_hidden_layers": 2}
    experts = linear | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
                        "shared_expert_intermediate_size": 6}
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "image_size": 4, "patch_size": 2}
    qwen = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 16,
            "patch_size": 2, "num_position_embeddings": 4}
    llama = small | {"vision_output_dim": 8, "projector_input_dim": 8, "projector_output_dim": 8}
    for name, kind, vision, text, keys in (
            ("qwen3_5", "Qwen3_5", qwen, linear, {}),
            ("qwen3_5_moe", "Qwen3_5Moe", qwen, experts, {"tie_word_embeddings": True}),
            ("gemma3", "Gemma3", small, text | {"sliding_window": 5}, {"mm_tokens_per_image": 1}),
            ("llama4", "Llama4", llama, text | {"num_local_experts": 2, "intermediate_size_mlp": 20}, {}),
            ("mistral3", "Mistral3", small | {"model_type": "pixtral", "head_dim": 4}, text | {"model_type": "mistral"},
             {})):
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(name, text_config=text, vision_config=vision, **keys)
        model = getattr(transformers, f"{kind}ForConditionalGeneration")._from_config(config)
        save(model.to(torch.bfloat16), OUT / f"nested-{name}", 2)


def save(model, folder, samples):
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    subprocess.run([sys.executable, HERE / "hf_logits.py", folder, folder / "reference.safetensors",
                    "--length", "24", "--samples", str(samples)], check=True)
    for file in folder.iterdir():
        file.chmod(0o644)


def round_trip(program):
    wrong = 0
    for family, name, _, config in cases():
        if only and family not in only:
            continue
        found, logits = answer(config)
        if logits is None or name.startswith("!"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            (work / "in").mkdir()
            (work / "in" / "config.json").write_text(json.dumps(config))
            tensors.write(work / "in" / "model.safetensors", {n: tensors.weight(n, s) for n, s in found.items()},
                          {"format": "pt"})
            steps = (["--from-hf", work / "in", "--save", work / "saved"],
                     ["--load", work / "saved", "--to-hf", work / "out"])
            done = [subprocess.run([program, "convert", *s], capture_output=True, text=True) for s in steps]
            if any(d.returncode for d in done):
                print(f"{family} {name}: {done[0].stderr or done[1].stderr}".strip())
                continue
            error = np.linalg.norm(compute(work / "out") - logits) / np.linalg.norm(logits)
            wrong += not error < 1e-12
            print(f"{family} {name}: {json.loads((work / 'out' / 'config.json').read_text())['model_type']}, "
                  f"{error:.1e}")
    print(f"{wrong} exports are another model")
    return int(wrong > 0)


def main(a):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if a.round_trip:
        return round_trip(a.round_trip)
    OUT.mkdir(parents=True, exist_ok=True)
    table, sets, logits, old = [], [], {}, old_answers() if only else {}
    for family, name, keys, config in cases():
        kept = old.get((family, name.removeprefix("!")))
        found, values = kept or answer(config)
        entry = {"family": family, "name": name.removeprefix("!"),
                 "keys": {k: v for k, v in keys.items() if v is not MISSING},
                 "drop": [k for k, v in keys.items() if v is MISSING],
                 "refused": name.startswith("!") or values is None}
        if values is None:
            entry["error"] = found
        else:
            found = found if kept else collapse(found)
            if found not in sets:
                sets.append(found)
            entry["shapes"], logits[str(len(table))] = sets.index(found), values
        table.append(entry)
        if not kept:
            print(f"{family} {name}: {found if values is None else 'logits'}")
    provenance = {"generator": "tools/oracle/hf_configs.py", "date": datetime.date.today().isoformat(),
                  "versions": float64.versions()}
    def dump(x):
        return json.dumps(x, separators=(",", ":"))

    lines = [f'"{key}": {dump(value)}' for key, value in
             (("provenance", provenance), ("tokens", TOKENS),
              ("bases", {name: module.BASE for name, module in FAMILIES.items()}))]
    lines += [f'"{key}": [\n' + ",\n".join(map(dump, rows)) + "\n]" for key, rows in (("shapes", sets),
                                                                                      ("cases", table))]
    (OUT / "configs.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    tensors.write(OUT / "logits.safetensors", {n: ("F64", x.shape, x.tobytes()) for n, x in logits.items()}, {})
    if not only:
        make_models()
        make_nested()


command.run(main)
