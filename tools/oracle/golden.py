#!/usr/bin/env python3
"""Creates golden cases, which are the results of PyTorch and Hugging Face transformers in float64 for 20 training
steps.

usage: tools/oracle/golden.py [--out golden] [--set KEY=VALUE ...] [CASE ...]
       tools/oracle/golden.py --check FOLDER ...

Without CASE, creates all cases in families/*.py. --set overrides an option of run.conf, to create cases of other
shapes. The optimizer step and the learning-rate schedule follow Megatron-LM (per-token loss; see `train`). A case must
pass witness.py; --check prints the differences between existing cases and the witness."""
import copy
import datetime
import hashlib
import json
import math
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

from cli import Command, Failed

command = Command(__doc__, "torch transformers safetensors numpy")
command.add_argument("--out", type=Path, default=Path("golden"))
command.add_argument("--set", action="append", default=[])
command.add_argument("--check", nargs="+", type=Path)
command.add_argument("cases", nargs="*")
command.parse_args()

import numpy as np
import safetensors.torch
import torch
import transformers

import encoders
import moe
import mtp
import sinks
import witness
from families import CASES, FAMILIES
from float64 import Float64, versions
from witness import trainer

TRAINING = {
    "lr": 1e-2, "min-lr": 1e-3, "lr-decay-style": "cosine", "lr-warmup-iters": 3, "lr-decay-iters": 18,
    "weight-decay": 0.1, "adam-beta1": 0.9, "adam-beta2": 0.95, "adam-eps": 1e-8, "clip-grad": 1.75,
    "micro-batch-size": 2, "global-batch-size": 4, "train-iters": 20, "hidden-dropout": 0, "attention-dropout": 0,
    "calculate-per-token-loss": True, "seed": 1234,
}


def initialise(model, rng, zero_centred, dtype):
    """Draws random weights. Biases and norm gains differ from 0 and from 1 by at least 0.05, so that their omission has
    an effect."""
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *moe.buffers(model).items()]:
            if not moe.is_vector(name, p):
                clear = (*moe.ROUTERS, "linear_attn.conv1d")
                std = moe.ROUTER_STD if name.removesuffix(".weight").endswith(clear) else 0.1
                value = rng.normal(0, std, tuple(p.shape))
            else:
                value = rng.uniform(0.05, 0.3, tuple(p.shape)) * rng.choice([-1, 1], tuple(p.shape))
                if any(word in name.lower() for word in ("norm", ".ln_", ".ln.")):
                    value += 0 if zero_centred and "linear_attn" not in name or name.endswith("bias") else 1
            p.copy_(torch.from_numpy(np.asarray(value, dtype).astype("float64")))


def language(o, rng):
    """Returns a function that draws sequences of a given length from a Markov chain in which each token has a few
    likely successors, so that the model can learn."""
    steps, batch, vocab = o["train-iters"], o["global-batch-size"], o["vocab-size"]
    successors = rng.integers(0, vocab, (vocab, 3))

    def speak(positions):
        tokens = rng.integers(0, vocab, (steps, batch, positions))
        for s in range(positions - 1):
            likely = successors[tokens[..., s], rng.choice(3, (steps, batch), p=[0.6, 0.3, 0.1])]
            tokens[..., s + 1] = np.where(rng.random((steps, batch)) < 0.9, likely, tokens[..., s + 1])
        return tokens
    return speak


def make_batches(o, rng, masked):
    steps, batch, seq = o["train-iters"], o["global-batch-size"], o["seq-length"]
    batches = {"tokens": torch.from_numpy(language(o, rng)(seq + 1))}
    if masked:
        mask = (rng.random((steps, batch, seq)) < rng.uniform(0.3, 1, (steps, batch, 1))).astype(np.float32)
        mask[1, 0] = 0  # a sample without a single counted token
        batches["loss_mask"] = torch.from_numpy(mask)
    return batches


def losses(model, x):
    """Returns the logits of a decoder and its loss."""
    logits = model(input_ids=x["tokens"][:, :-1], use_cache=False).logits
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), x["tokens"][:, 1:], reduction="none")
    return logits, {"lm loss": (each * x["loss_mask"]).sum() / x["loss_mask"].sum()}


def train(model, o, conf, batches, losses):
    """Trains with AdamW like Megatron-LM: p -= lr * (m_hat / (sqrt(v_hat) + eps) + wd * p), with weight decay on
    tensors of two or more dimensions.

    Returns the curve, the gradients and logits of the first step, and the parameters that PyTorch's AdamW computes from
    the same gradients."""
    b1, b2, wd = o["adam-beta1"], o["adam-beta2"], o["weight-decay"]
    params = dict(model.named_parameters())
    m, v, peer = ({n: f(p.detach()) for n, p in params.items()} for f in (torch.zeros_like,
                                                                          torch.zeros_like, torch.clone))
    torch_adamw = torch.optim.AdamW(
        [{"params": [p for n, p in peer.items() if moe.is_vector(n, p) != decayed], "weight_decay": wd * decayed}
         for decayed in (True, False)], betas=(b1, b2), eps=o["adam-eps"], foreach=False)
    curve, first, routers = [], None, moe.Routers(model, o)
    for k in range(o["train-iters"]):
        x = {name: values[k] for name, values in batches.items()}
        logits, parts = losses(model, x)
        ahead = [part for n, part in parts.items() if n.startswith("mtp_")]
        loss, mask = sum(parts.values()) - sum(ahead), x["loss_mask"]
        # Megatron-LM's weight of router losses is the number of all positions divided by the number of counted tokens.
        balance = routers.losses(*mask.shape) * (mask.numel() / mask.sum())
        total = loss + balance + (mtp.factor(o) * sum(ahead) if ahead else 0)
        grads = dict(zip(params, torch.autograd.grad(total, list(params.values()))))
        grads |= {n: torch.zeros_like(params[n]) for n in encoders.without_effect(model)}
        norm = math.sqrt(sum((g * g).sum().item() for g in grads.values()))
        clip = min(1.0, o["clip-grad"] / (norm + 1e-6))
        lr = trainer.learning_rate(conf, k * o["global-batch-size"], o["lr"], o["min-lr"])
        named = {n: part.item() for n, part in parts.items() if len(parts) > 1}
        curve.append({"loss": loss.item(), "grad_norm": norm, "clip": clip, "lr": lr} | named)
        first = first or (grads, logits.detach())
        with torch.no_grad():
            for n, p in params.items():
                g = grads[n] * clip
                m[n] = b1 * m[n] + (1 - b1) * g
                v[n] = b2 * v[n] + (1 - b2) * g * g
                m_hat, v_hat = m[n] / (1 - b1 ** (k + 1)), v[n] / (1 - b2 ** (k + 1))
                p -= lr * (m_hat / (v_hat.sqrt() + o["adam-eps"]) + (0 if moe.is_vector(n, p) else wd * p))
                peer[n].grad = g
        for group in torch_adamw.param_groups:
            group["lr"] = lr
        torch_adamw.step()
        routers.update_biases()
    return curve, *first, peer, routers.margin


def transformers_model(family, o, encoder):
    kind = ("MultipleChoice" if o.get("task") == "RACE" else "SequenceClassification" if o.get("task") else
            "MaskedLM" if o.get("bert-no-binary-head") else "PreTraining" if encoder else "CausalLM")
    model = getattr(transformers, "AutoModelFor" + kind).from_config(
        transformers.AutoConfig.for_model(family.replace("_bert", "-bert"), **FAMILIES[family].config(mtp.layers(o))),
        attn_implementation=encoders.implementation(o) if encoder else sinks.implementation(o),
        dtype=torch.float64).train()
    encoders.adapt(model, o) if encoder else sinks.add(model, o)
    model.config._experts_implementation = "eager"
    return model


def make(name, out, overrides, arguments):
    family, options, files = CASES[name]
    o = TRAINING | options | overrides
    rng = np.random.default_rng(o["seed"])
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.conf").write_text("".join(
        f"{k} = {str(v).lower() if isinstance(v, bool) else v}\n" for k, v in o.items() if v is not False))
    dtype, encoder, module = files.get("init", "float32"), o.get("model") == "bert", FAMILIES[family]
    own = hasattr(module, "model")
    if own:
        batches = module.batches(o, rng, language(o, rng))
    elif o.get("task"):
        batches = encoders.task_batches(o, rng)
    elif encoder:
        batches = encoders.make_batches(o, rng, files.get("pad", 0))
    else:
        batches = make_batches(o, rng, files.get("mask"))
    with Float64():
        model = module.model(o) if own else transformers_model(family, o, encoder)
        if "mtp-num-layers" in o:
            mtp.add(model, o)
        initialise(model, rng, o.get("apply-layernorm-1p"), dtype)
        encoders.clear_padding(model) if encoder else None
    save_init(family, model, folder, dtype)
    masks = (batches["loss_mask"] if "loss_mask" in batches else torch.ones(batches["tokens"][..., 1:].shape)).double()
    task = (module.losses if own else encoders.task_losses if o.get("task") else encoders.losses if encoder else
            mtp.losses(o) if "mtp-num-layers" in o else losses)
    with Float64():
        curve, grads, logits, peer, margin = train(model, o, witness.read_conf(folder / "run.conf"),
                                                   batches | {"loss_mask": masks}, task)
    params = {n: p.detach() for n, p in model.named_parameters()}
    oracle = {"grad/" + n: g for n, g in moe.on_disk(FAMILIES[family], grads).items()} | {
        "param/" + n: p for n, p in moe.on_disk(FAMILIES[family], params | moe.buffers(model)).items()}
    # RoBERTa's logits are not stored, because it gives all padding the same position
    if 0 < logits.nbytes <= 64 << 10 and not files.get("pad"):
        oracle["logits"] = logits.contiguous()
    safetensors.torch.save_file(batches, folder / "batches.safetensors", {"format": "pt"})
    safetensors.torch.save_file(oracle, folder / "oracle.safetensors", {"format": "pt"})
    steps = ",\n".join("    " + json.dumps(step) for step in curve)
    (folder / "curve.json").write_text('{\n  "steps": [\n' + steps + "\n  ]\n}\n")
    checks = {} if encoder else witness.check(folder)  # the witness has no encoder
    checks["parameters against torch.optim.AdamW"] = max(((p - peer[n]).norm() / p.norm()).item()
                                                         for n, p in params.items())
    for what, error in checks.items():
        if not error <= 1e-12:
            raise Failed(f"{name}: {what} differs by {error:.2e} relative: this is no oracle")
    margins = {"router_margin": margin} if math.isfinite(margin) else {}
    (folder / "provenance.json").write_text(json.dumps(provenance(family, type(model).__name__, arguments) | {
        "checks": checks, **margins, "date": datetime.date.today().isoformat()}, indent=2) + "\n")
    norms, used = [s["grad_norm"] for s in curve], sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: loss {curve[0]['loss']:.4f} -> {curve[-1]['loss']:.4f}, grad norm "
          f"{min(norms):.3f}..{max(norms):.3f}, "
          f"clipped {sum(s['clip'] < 1 for s in curve)} of {len(curve)}, {used // 1024} KiB; "
          + ", ".join(f"{k} {e:.0e}" for k, e in checks.items())
          + (f"; no choice of experts closer than {margin:.1e}" if margins else ""))


def provenance(family, model, arguments):
    sources = [HERE / f"{f}.py" for f in ("golden", f"families/{family}", "families/decoder", "moe", "mtp", "sinks",
                                          "encoders", "witness", "float64")]
    sources += [Path(trainer.__file__), Path(trainer.decoder.__file__)]
    return {"generator": "tools/oracle/golden.py", "arguments": arguments, "model": model,
            "source_sha256": hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest(),
            "versions": versions(), "device": f"cpu, 1 thread, {torch.backends.cpu.get_cpu_capability()}",
            "dtype": "float64"}


def save_init(family, model, folder, dtype):
    """Writes exactly the file that save_pretrained writes. Uses a copy, because casting a model to float32 and back
    would change its rotary table."""
    dtype = getattr(torch, dtype)
    if not hasattr(model, "save_pretrained"):
        weights = {n: p.detach().to(dtype) for n, p in model.named_parameters()}
        safetensors.torch.save_file(weights, folder / "init.safetensors", {"format": "pt"})
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy.deepcopy(model).to(dtype).save_pretrained(scratch)
        (folder / "init.safetensors").write_bytes((Path(scratch) / "model.safetensors").read_bytes())
    saved = safetensors.torch.load_file(folder / "init.safetensors")
    mine = moe.on_disk(FAMILIES[family], {n: p.detach() for n, p in model.named_parameters()} | moe.buffers(model))
    if saved.keys() != mine.keys():
        raise Failed(f"{folder.name}: save_pretrained and we disagree about the names "
                     f"{sorted(saved.keys() ^ mine.keys())}")
    for name, x in saved.items():
        if not torch.equal(x, mine[name].to(x.dtype)):
            raise Failed(f"{folder.name}: save_pretrained and we disagree about {name}")
    if copies := mtp.copies(saved):
        safetensors.torch.save_file(saved | copies, folder / "init.safetensors", {"format": "pt"})


def main(a):
    for folder in a.check or []:
        print(folder, ", ".join(f"{what} {error:.0e}" for what, error in witness.check(folder).items()))
    unknown = [name for name in a.cases if name not in CASES] + [item for item in a.set if "=" not in item]
    if unknown:
        command.error(f"there is no case and no KEY=VALUE '{unknown[0]}'; the cases are {', '.join(CASES)}")
    transformers.utils.logging.disable_progress_bar()
    overrides = {key: witness.value_of(value) for key, value in (item.split("=", 1) for item in a.set)}
    for name in a.cases or ([] if a.check else CASES):
        make(name, a.out, overrides, [a for s in a.set for a in ("--set", s)] + [name])


command.run(main)
