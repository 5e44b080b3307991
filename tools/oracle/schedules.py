#!/usr/bin/env python3
"""Writes tests/unit/optim/schedule_vectors.def, the learning rates and weight decays of Megatron-LM's schedules.

usage: tools/oracle/schedules.py > tests/unit/optim/schedule_vectors.def
       tools/oracle/schedules.py --upstream FOLDER

The formulas are those of the reference trainer (tests/functional/options). --upstream checks that the values are
bitwise equal to those of OptimizerParamScheduler in a Megatron-LM source tree."""
import math
import sys
import types
from pathlib import Path

from cli import Command

command = Command(__doc__, "numpy")
command.add_argument("--upstream")
command.parse_args()

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/functional/options"))
from trainer import Options, learning_rate, length, weight_decay

# Options, and the samples at which values are computed. These are boundaries, their neighbours, the middle, and a
# sample beyond the end.
BASE = "--lr 0.01 --global-batch-size 4"
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
    "--lr-decay-style WSD --lr-wsd-decay-style linear --lr-wsd-decay-iters 25 --lr-decay-iters 75 --min-lr 0.001",
    "--lr-decay-style cosine --decoupled-lr 0.03 --decoupled-min-lr 0.002 --min-lr 0.001 --lr-warmup-iters 10",
    "--lr-decay-style linear --weight-decay-incr-style linear --start-weight-decay 0.01 --end-weight-decay 0.1",
    "--lr-decay-style linear --weight-decay-incr-style cosine --start-weight-decay 0.01 --end-weight-decay 0.1",
    "--lr-decay-style linear --weight-decay 0.07",
    "--train-samples 402 --lr-decay-style cosine --lr-warmup-samples 40 --min-lr 0.001",
    "--train-samples 402 --lr-decay-style linear --lr-decay-samples 300 --lr-warmup-fraction 0.1"
    " --weight-decay-incr-style linear --start-weight-decay 0 --end-weight-decay 0.1",
    "--train-samples 402 --lr-decay-style WSD --lr-wsd-decay-samples 101 --lr-wsd-decay-style cosine "
    "--lr-warmup-samples 39",
]


def values(o, n):
    high, low = o.float("lr"), o.float("min-lr", 0.0)
    apart = o.float("decoupled-lr", high), o.float("decoupled-min-lr", low)
    return learning_rate(o, n, high, low), learning_rate(o, n, *apart), weight_decay(o, n)


def check_upstream(folder, cases):
    """Compares with Megatron-LM's class, which imports only a logger from Megatron-LM's other modules."""
    sys.modules |= {name: types.ModuleType(name) for name in ("megatron", "megatron.core", "megatron.core.utils")}
    sys.modules["megatron.core.utils"].log_single_rank = lambda *a, **k: None
    sys.path.append(f"{folder}/megatron/core")
    from optimizer_param_scheduler import OptimizerParamScheduler
    for o in cases:
        total, high, low = length(o, "train"), o.float("lr"), o.float("min-lr", 0.0)
        decay = length(o, "lr-decay", total)
        warmup = o.float("lr-warmup-fraction") * decay if "lr-warmup-fraction" in o else length(o, "lr-warmup", 0)
        groups = types.SimpleNamespace(param_groups=[{}, {"max_lr": o.float("decoupled-lr", high),
                                                          "min_lr": o.float("decoupled-min-lr", low)}])
        constant = o.float("weight-decay", 0.01)
        s = OptimizerParamScheduler(
            groups, o.float("lr-warmup-init", 0.0), high, low, warmup, decay, o.text("lr-decay-style"),
            o.float("start-weight-decay", constant), o.float("end-weight-decay", constant), total,
            o.text("weight-decay-incr-style", "constant"), wsd_decay_steps=length(o, "lr-wsd-decay"),
            lr_wsd_decay_style=o.text("lr-wsd-decay-style", "exponential"), use_checkpoint_opt_param_scheduler=False)
        for n in LOOK:
            s.num_steps = n
            s.step(0)
            theirs = [groups.param_groups[0]["lr"], groups.param_groups[1]["lr"],
                      groups.param_groups[0]["weight_decay"]]
            assert all(math.isclose(a, b, rel_tol=4e-16, abs_tol=1e-18) for a, b in zip(values(o, n),
                                                                                        theirs)), (o, n, theirs)
    print(f"{len(cases)} schedules agree with Megatron-LM's", file=sys.stderr)


def main(a):
    cases = [Options(f"{BASE if '--train-samples' in case else BASE + ' --train-iters 100'} {case}".split())
             for case in CASES]
    if a.upstream:
        return check_upstream(a.upstream, cases)
    print("/* Made by tools/oracle/schedules.py: SCHEDULE(option words) and, of it, AT(samples, lr, decoupled lr, "
          "weight decay). */")
    for o in cases:
        print("SCHEDULE(\"" + " ".join(f"--{k} {v}" for k, (v,) in o.items()) + "\")")
        print("\n".join("AT(%d, %r, %r, %r)" % (n, *values(o, n)) for n in LOOK))


command.run(main)
