#!/usr/bin/env python3
"""Makes tests/unit/optim/schedule_vectors.def: learning rates and weight decays of Megatron-LM's schedules.

usage: tools/oracle/schedules.py > tests/unit/optim/schedule_vectors.def
       tools/oracle/schedules.py --upstream FOLDER

Written from the published formulas (Megatron-LM core/optimizer_param_scheduler.py and training.py
get_optimizer_param_scheduler say which quantity is counted in samples); needs nothing but Python. --upstream compares the values
with those of the OptimizerParamScheduler of a Megatron-LM source tree, which must agree to the last bit."""
import importlib.util
import math
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cli import Command

# Option words and the samples at which to look: boundaries, their neighbours, the middle and beyond the end.
BASE = "--lr 0.01 --global-batch-size 4 --train-iters 100"
LOOK = [0, 1, 4, 39, 40, 41, 200, 299, 300, 301, 399, 400, 401, 4000]
CASES = [
    "--lr-decay-style constant",
    "--lr-decay-style constant --lr-warmup-iters 10",
    "--lr-decay-style linear",
    "--lr-decay-style linear --min-lr 0.001 --lr-warmup-iters 10 --lr-warmup-init 0.0005",
    "--lr-decay-style cosine --min-lr 0.001 --lr-warmup-iters 10",
    "--lr-decay-style cosine --min-lr 0.001 --lr-decay-iters 75 --lr-warmup-fraction 0.13",
    "--lr-decay-style inverse-square-root --min-lr 0.0001",
    "--lr-decay-style inverse-square-root --min-lr 0.004 --lr-warmup-iters 10",
    "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 25 --min-lr 0.001 --lr-warmup-iters 10",
    "--lr-decay-style WSD --lr-wsd-decay-style cosine --lr-wsd-decay-iters 25 --min-lr 0.001",
    "--lr-decay-style WSD --lr-wsd-decay-iters 25 --min-lr 0.001 --lr-warmup-iters 10",
    "--lr-decay-style WSD --lr-wsd-decay-style minus_sqrt --lr-wsd-decay-iters 25",
    "--lr-decay-style cosine --decoupled-lr 0.03 --decoupled-min-lr 0.002 --min-lr 0.001 --lr-warmup-iters 10",
    "--lr-decay-style linear --weight-decay-incr-style linear --start-weight-decay 0.01 --end-weight-decay 0.1",
    "--lr-decay-style linear --weight-decay-incr-style cosine --start-weight-decay 0.01 --end-weight-decay 0.1",
    "--lr-decay-style linear --weight-decay 0.07",
    "--train-samples 402 --lr-decay-style cosine --lr-warmup-samples 40 --min-lr 0.001",
    "--train-samples 402 --lr-decay-style linear --lr-decay-samples 300 --lr-warmup-fraction 0.1"
    " --weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 0.1",
    "--train-samples 402 --lr-decay-style WSD --lr-wsd-decay-samples 101 --lr-wsd-decay-style cosine --lr-warmup-samples 39",
]


def options(words):
    words = words.split()
    return {words[i][2:]: words[i + 1] for i in range(0, len(words), 2)}


def steps(o):
    """Warm-up, decay, WSD and weight-decay lengths in samples."""
    batch = int(o["global-batch-size"])
    number = lambda name: int(o[name]) if name in o else None
    if "train-samples" in o:
        total = int(o["train-samples"])
        decay = number("lr-decay-samples") or int(o["train-samples"])
        warmup, wsd = number("lr-warmup-samples") or 0, number("lr-wsd-decay-samples")
    else:
        total = int(o["train-iters"]) * batch
        decay = (number("lr-decay-iters") or int(o["train-iters"])) * batch
        warmup = (number("lr-warmup-iters") or 0) * batch
        wsd = number("lr-wsd-decay-iters") and number("lr-wsd-decay-iters") * batch
    if "lr-warmup-fraction" in o:
        warmup = float(o["lr-warmup-fraction"]) * decay
    return warmup, decay, wsd, total


def rate(o, n, high, low):
    warmup, decay, wsd, _ = steps(o)
    start = float(o.get("lr-warmup-init", 0))
    style = o["lr-decay-style"]
    if warmup and n <= warmup:
        return start + (high - start) * n / warmup
    if style == "constant":
        return high
    if n > decay:
        return low
    if style == "inverse-square-root":
        return max(low, high * math.sqrt(max(warmup, 1)) / math.sqrt(max(n, 1)))
    r = (n - warmup) / (decay - warmup)
    if style == "WSD":
        if n <= decay - wsd:
            return high
        r, style = (n - (decay - wsd)) / wsd, o.get("lr-wsd-decay-style", "exponential")
    left = {"linear": lambda: 1 - r, "cosine": lambda: (math.cos(math.pi * r) + 1) / 2,
            "exponential": lambda: 2 * 0.5**r - 1, "minus_sqrt": lambda: 1 - math.sqrt(r)}[style]()
    return low + left * (high - low)


def weight_decay(o, n):
    style = o.get("weight-decay-incr-style", "constant")
    if style == "constant":
        return float(o.get("weight-decay", 0.01))
    first, last = float(o["start-weight-decay"]), float(o["end-weight-decay"])
    total = steps(o)[3]
    if n > total:
        return last
    r = n / total
    return first + (last - first) * (r if style == "linear" else (math.cos(math.pi * (1 - r)) + 1) / 2)


def values(o, n):
    high, low = float(o["lr"]), float(o.get("min-lr", 0))
    apart = float(o.get("decoupled-lr", high)), float(o.get("decoupled-min-lr", low))
    return rate(o, n, high, low), rate(o, n, *apart), weight_decay(o, n)


def check_upstream(folder, cases):
    """The same numbers from Megatron-LM's own class, whose only import of the rest of Megatron-LM is a logger."""
    utils = types.ModuleType("megatron.core.utils")
    utils.log_single_rank = lambda *a, **k: None
    sys.modules |= {"megatron": types.ModuleType("megatron"), "megatron.core": types.ModuleType("megatron.core"),
                    "megatron.core.utils": utils}
    spec = importlib.util.spec_from_file_location("scheduler", f"{folder}/megatron/core/optimizer_param_scheduler.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for o in cases:
        warmup, decay, wsd, total = steps(o)
        high, low = float(o["lr"]), float(o.get("min-lr", 0))
        apart = {"max_lr": float(o.get("decoupled-lr", high)), "min_lr": float(o.get("decoupled-min-lr", low))}
        groups = types.SimpleNamespace(param_groups=[{}, apart])
        constant = o.get("weight-decay-incr-style", "constant") == "constant"
        first = float(o.get("weight-decay", 0.01) if constant else o["start-weight-decay"])
        last = first if constant else float(o["end-weight-decay"])
        s = module.OptimizerParamScheduler(
            groups, float(o.get("lr-warmup-init", 0)), high, low, warmup, decay, o["lr-decay-style"], first, last, total,
            o.get("weight-decay-incr-style", "constant"), wsd_decay_steps=wsd,
            lr_wsd_decay_style=o.get("lr-wsd-decay-style", "exponential"), use_checkpoint_opt_param_scheduler=False)
        for n in LOOK:
            s.num_steps = n
            s.step(0)
            theirs = [groups.param_groups[0]["lr"], groups.param_groups[1]["lr"], groups.param_groups[0]["weight_decay"]]
            for a, b in zip(values(o, n), theirs):
                assert math.isclose(a, b, rel_tol=4e-16, abs_tol=1e-18), (o, n, a, b)
    print(f"{len(cases)} schedules agree with Megatron-LM's", file=sys.stderr)


def main(a):
    cases = [options((BASE if "--train-samples" not in c else BASE.replace("--train-iters 100", "")) + " " + c) for c in CASES]
    if a.upstream:
        return check_upstream(a.upstream, cases)
    print("/* Made by tools/oracle/schedules.py: SCHEDULE(option words) and, of it, AT(samples, lr, decoupled lr, weight decay). */")
    for o in cases:
        print("SCHEDULE(\"" + " ".join(f"--{k} {v}" for k, v in o.items()) + "\")")
        print("\n".join("AT(%d, %r, %r, %r)" % (n, *values(o, n)) for n in LOOK))


command = Command(__doc__)
command.add_argument("--upstream")
command.run(main)
