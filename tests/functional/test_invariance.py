"""Options that say how the work is cut change no bit: recomputation of activations, the number of threads and, with
--batch-invariant-mode, the microbatch size. What changes the function does change the bits."""
from harness import *

data = corpus()


runs = {}


def run(*options):
    """The folder of a run with these options; equal options run once."""
    if options not in runs:
        runs[options] = WORK / f"run-{len(runs)}"
        pretrain(data, runs[options], *options)
    return runs[options]


def same(name, base, other, instead_of=()):
    assert_same_bytes(run(*base, *instead_of), run(*base, *other), 12, name)
    print(f"{name}: same bits")


for lane in ("fp64", "fp32", "bf16"):
    base = ["--lane", lane]
    full = ["--recompute-granularity", "full", "--recompute-method"]
    same(f"{lane}-uniform", base, [*full, "uniform", "--recompute-num-layers", 1])
    same(f"{lane}-uniform-2", base, [*full, "uniform", "--recompute-num-layers", 2])
    same(f"{lane}-block", base, [*full, "block", "--recompute-num-layers", 1])
    same(f"{lane}-selective", base, ["--recompute-granularity", "selective", "--recompute-modules", "core_attn", "mlp"])
    same(f"{lane}-threads", base, ["--cpu-threads", 3], instead_of=["--cpu-threads", 1])
    for micro in (1, 4, 8):
        invariant = [*base, "--batch-invariant-mode", "--calculate-per-token-loss"]
        same(f"{lane}-micro-{micro}", invariant, ["--micro-batch-size", micro])

try:
    assert_same_bytes(run(), run("--seed", 4321), 12, "another seed")
except AssertionError:
    print("another seed: other bits")
else:
    raise SystemExit("another seed gave the same bits: the comparison sees nothing")
