"""A second, independent computation of a golden case by the reference trainer of tests/functional/options. It uses
numpy and float64, and no code of PyTorch or Hugging Face.

The witness reads only the files of the case. Its agreement with the oracle therefore proves that the oracle computed in
float64, that it used the weights on disk, and that the options in run.conf describe its model."""
import collections
import json
import re
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/functional/options"))
import decoder
import trainer
from families import CASES, FAMILIES
from families.decoder import renamed
from gradients import Var, backward

NAMES = {"model.embed_tokens": "embedding.word_embeddings", "positions.": "embedding.position_embeddings.",
         "lm_head": "output_layer", "model.norm": "decoder.final_layernorm", "model.layers": "decoder.layers",
         "self_attn": "self_attention", "self_attention.sinks": "self_attention.core_attention.softmax_offset",
         "q_a_proj": "linear_q_down_proj", "q_b_proj": "linear_q_up_proj", "kv_a_proj_with_mqa": "linear_kv_down_proj",
         "kv_b_proj": "linear_kv_up_proj", "q_a_layernorm": "q_layernorm", "kv_a_layernorm": "kv_layernorm",
         "o_proj": "linear_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm", ".down_proj": ".linear_fc2",
         "pre_feedforward_": "pre_mlp_", "post_feedforward_": "post_mlp_",
         "gate.e_score_correction_bias": "router.expert_bias", "mlp.gate.": "mlp.router.",
         "shared_expert_gate.": "shared_experts.gate_", "shared_expert.": "shared_experts.",
         "act_fn": "activation_func"}
PARTS = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "fc1", "up": "fc1"}


def value_of(text):
    """Parses the value of an option as a number, a boolean or a text, such as a layer pattern."""
    try:
        value = json.loads(text)
        return text if isinstance(value, list) else value
    except json.JSONDecodeError:
        return text


def read_conf(path):
    """Returns the options of a run.conf as command-line arguments."""
    pairs = (line.split(" = ") for line in path.read_text().splitlines())
    return trainer.Options(word for key, value in pairs
                           for word in [f"--{key}", *([] if value == "true" else value.split())])


AHEAD = {"shared_head.norm": "final_layernorm", "enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj"}


def numbered(tensors, m):
    """Renames the layers that follow the decoder's layers and predict additional tokens."""
    found = {}
    for name, x in tensors.items():
        if name.endswith(("shared_head.head.weight", ".embed_tokens.weight")) and ".layers." in name:
            continue  # a copy
        layer = re.match(r"model\.layers\.(\d+)\.(.*)\.(\w+)$", name)
        if layer and int(layer[1]) >= m.layers:
            module = AHEAD.get(layer[2], f"transformer_layer.{layer[2]}")
            name = f"mtp.layers.{int(layer[1]) - m.layers}.{module}.{layer[3]}"
        found[name] = x
    return found


def megatron(tensors, m):
    """Converts tensors from Llama's names to Megatron-LM's names and layout."""
    pieces = collections.defaultdict(dict)
    after_attention = "post_self_attn_layernorm" if m.norms_output else "pre_mlp_layernorm"
    for name, x in renamed(numbered(tensors, m), NAMES | {"post_attention_layernorm": after_attention}).items():
        expert, part = re.search(r"experts\.(\d+)\.", name), re.search(r"\.(q|k|v|gate|up)_proj", name)
        whole = re.sub(r"experts\.\d+\.", "experts.", name)
        if part:
            whole = whole.replace(part[0], f".linear_{PARTS[part[1]]}")
        pieces[whole][int(expert[1]) if expert else 0, list(PARTS).index(part[1]) if part else 0] = x
    found = {}
    for name, parts in pieces.items():
        parts = [parts[place] for place in sorted(parts)]
        if "linear_qkv" in name:  # stored group by group
            parts = np.concatenate([x.reshape(m.groups, -1, *x.shape[1:]) for x in parts], axis=1)
        found[name] = np.concatenate([np.atleast_1d(x) for x in parts])
    return found


def relative(pairs, by):
    return {f"{what} against {by}": float(np.linalg.norm(x - y) / np.linalg.norm(y)) for what, (x, y) in pairs.items()}


def check_with_torch(family, folder):
    """Compares with the family's model, which is the oracle if transformers has no such model."""
    import safetensors.torch
    import torch
    from float64 import Float64
    o = {key: value_of(" ".join(words) or "true") for key, words in read_conf(folder / "run.conf").items()}
    read = lambda name: safetensors.torch.load_file(folder / f"{name}.safetensors")
    init, oracle, batch = read("init"), read("oracle"), {n: x[0] for n, x in read("batches").items()}
    init = {n: x.double() for n, x in init.items()}
    batch["loss_mask"] = batch["loss_mask"].double()
    with Float64():
        loss, grads, logits = family.witness(o, init, batch)
    if other := {n for n in oracle if n.startswith("grad/")} ^ {f"grad/{n}" for n in grads}:
        raise ValueError(f"run.conf and the files disagree about {sorted(other)}")
    first = json.loads((folder / "curve.json").read_text())["steps"][0]["loss"]
    flat = lambda arrays: np.concatenate([x.numpy().ravel() for x in arrays])
    pairs = {"loss": (np.array(loss), np.array(first)),
             "gradient": (flat(grads.values()), flat(oracle[f"grad/{n}"] for n in grads))}
    if "logits" in oracle:
        pairs["logits"] = logits.numpy().ravel(), oracle["logits"].numpy().ravel()
    return relative(pairs, "a second model")


def check(folder):
    """Returns the relative differences between the reference trainer and the oracle at step 1, by name."""
    if hasattr(FAMILIES[CASES[folder.name][0]], "witness"):
        return check_with_torch(FAMILIES[CASES[folder.name][0]], folder)
    family = FAMILIES[CASES[folder.name][0]]
    o, llama, centred = (read_conf(folder / "run.conf"), getattr(family, "llama", lambda w, o: w),
                         getattr(family, "centred", lambda w: w))
    m, values = decoder.Shape(o), {key: value_of(" ".join(words) or "true") for key, words in o.items()}
    translated = lambda w: megatron(llama({n: x.astype(np.float64) for n, x in w.items()}, values), m)
    oracle, batches = load_file(folder / "oracle.safetensors"), load_file(folder / "batches.safetensors")
    w = {n: Var(x) for n, x in translated(centred(load_file(folder / "init.safetensors"))).items()}
    grads = translated({n.removeprefix("grad/"): x for n, x in oracle.items() if n.startswith("grad/")})
    expected = {(n, shape) for n, (shape, _) in decoder.tensors(m).items()}
    for found in ({n: x for n, x in w.items() if not n.endswith(("expert_bias", ".beta", ".eps"))}, grads):
        if other := expected ^ {(n, x.shape) for n, x in found.items()}:
            raise ValueError(f"run.conf and the files disagree about {sorted(other)}")
    text = batches["tokens"][0]
    place = np.broadcast_to(np.arange(text.shape[1] - 1), text[:, 1:].shape)
    mask = batches["loss_mask"][0].astype(np.float64) if "loss_mask" in batches else np.ones(place.shape)
    batch = trainer.Batch(text[:, :-1], text[:, 1:], mask, place, np.zeros_like(place), m.ahead)
    run = decoder.Pass(m, w, batch)
    (total, *ahead), weigh, n = run.losses(), dict(decoder.router_losses(o)), batch.weights
    factor = o.float("mtp-loss-scaling-factor", 0.1) / max(m.ahead, 1) * n[0]
    backward([(total, 1.0), *((x, factor / k) for x, k in zip(ahead, n[1:]))]
             + [(x, weigh[kind] * mask.size) for kind, _, x in run.router_losses])
    loss = json.loads((folder / "curve.json").read_text())["steps"][0]["loss"]
    flat = lambda arrays: np.concatenate([x.ravel() for x in arrays])
    pairs = {"loss": (total.value.sum() / mask.sum(), np.array(loss)),
             "gradient": (flat(w[n].gradient / mask.sum() for n in grads), flat(grads.values()))}
    if "logits" in oracle:
        pairs["logits"] = run.logits().value.ravel(), oracle["logits"].ravel()
    return relative(pairs, "numpy")
