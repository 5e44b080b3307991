"""Over a hundred steps, the FP8 loss curve stays as close to the fp64 curve as bf16 does, relative to their roundoffs.
Let e(s) = loss(s) - fp64 loss(s), and let rms be the root mean square over steps and seeds. Then R = rms(e of FP8) /
rms(e of bf16). To first order, the error of a curve is proportional to the roundoff of its operands. R should therefore
be the ratio of the roundoffs, and may be 1.5 times as large (docs/reference/numerics.md). Only the forward pass's
operands count; they are e4m3 in every recipe. The coarser gradients of 'hybrid' affect a curve only through the
parameters. The learning rate is so small that curves do not diverge, but differ only by rounding errors. The test can
fail: a run whose scales underflow all operands exceeds the bound."""
import math

from harness import *

ON_GPU, OPTIONS[:] = list(OPTIONS), []  # the truth is the CPU's
STEPS = 100
# On a GPU, the sizes are large enough for FP8 GEMMs, also with blocks of 128.
HIDDEN, SEQUENCE, SEEDS = (256, 128, (1, 2)) if ON_GPU else (64, 32, (1,))
BOUND = 1.5 * 2**-4 / 2**-8  # the roundoffs of e4m3 and bf16
MODEL = ["--hidden-size", HIDDEN, "--ffn-hidden-size", 2 * HIDDEN, "--seq-length", SEQUENCE, "--micro-batch-size", 8,
         "--hidden-dropout", 0, "--attention-dropout", 0, "--lr", 3e-4, "--lr-warmup-iters", 20, "--train-iters", STEPS]
WINDOW = ["--fp8-amax-history-len", 16, "--fp8-amax-compute-algo", "max"]
CHUNKS = ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "linear", "--cross-entropy-chunk-size",
          4 * SEQUENCE]
RECIPES = {
    "delayed e4m3": ["e4m3", "--fp8-recipe", "delayed", *WINDOW],
    "delayed hybrid": ["hybrid", "--fp8-recipe", "delayed", *WINDOW],
    "tensorwise e4m3": ["e4m3", "--fp8-recipe", "tensorwise"],
    "tensorwise hybrid": ["hybrid", "--fp8-recipe", "tensorwise"],
    "tensorwise hybrid, output layer": ["hybrid", "--fp8-recipe", "tensorwise", "--fp8-output-proj", *CHUNKS],
    "blockwise e4m3": ["e4m3", "--fp8-recipe", "blockwise"],
    "blockwise hybrid": ["hybrid", "--fp8-recipe", "blockwise"],
}
NOTHING_LEFT = ["e4m3", "--fp8-recipe", "delayed", "--fp8-margin", 40]

data = corpus(STEPS * 8 * SEQUENCE)


def curve(seed, *options):
    log = WORK / "curve.jsonl"
    log.unlink(missing_ok=True)
    said = isotron(*BASE, *data, *MODEL, "--seed", seed, "--log-jsonl", log, *options)
    loss = losses(log)
    return [loss[i] for i in range(1, STEPS + 1)], said


def errors(*options):
    """Returns the errors of all seeds, concatenated."""
    e = []
    for seed, truth in truths.items():
        loss, said = curve(seed, "--bf16", *options, *ON_GPU)
        if ON_GPU and "--fp8-format" in options:
            assert "FP8 GEMMs: on the device" in said, said
        e += [x - y for x, y in zip(loss, truth)]
    return e


def rms(e):
    return math.sqrt(sum(x * x for x in e) / len(e))


def report(name, e, bound):
    part = len(e) // len(SEEDS) // 4
    parts = [rms([e[i] for i in range(len(e)) if i % STEPS // part == k]) for k in range(4)]
    ratio = rms(e) / rms(bf16)
    print(f"{name:18} rms error {rms(e):.2e}, by quarters {' '.join(f'{x:.1e}' for x in parts)}, mean "
          f"{sum(e) / len(e):+.1e}, R {ratio:.2f}"
          + (f", bound {bound:g}" if bound else ""))
    return ratio


truths = {seed: curve(seed, "--fp64")[0] for seed in SEEDS}
for seed, truth in truths.items():
    first, last = truth[0], sum(truth[-20:]) / 20
    print(f"seed {seed}: fp64 loss {first:.3f} at the first step, {last:.3f} over the last 20")
    assert last < first - 1, "nothing is learned, and there is no curve to keep to"
bf16 = errors()
report("bf16", bf16, None)
for name, options in RECIPES.items():
    e = errors("--fp8-format", *options)
    assert e != bf16, f"{name}: the curve of bf16, to the bit"
    assert report(name, e, BOUND) <= BOUND, f"{name}: farther from fp64 than rounded operands explain"
assert report("nothing left", errors("--fp8-format", *NOTHING_LEFT),
              None) > BOUND, "operands of nothing are not noticed"
