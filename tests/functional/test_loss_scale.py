"""The dynamic loss scale of fp16 over data-parallel ranks. With --calculate-per-token-loss, the sequence of scales, and
therefore the loss curve, is the same as on one rank. Without it, a rank divides the loss by its number of microbatches
before the backward pass, as Megatron-LM does. Therefore dp ranks with the scale S compute the same scaled gradients as
one rank with the scale dp * S, and their scales are that rank's scales divided by dp."""
from harness import *

data = corpus()
SCALE, U = 2**22, 2**-11
TOKENS = 8 * 32  # of a step; the rounding of each moves the loss by some U, independent of the others
OPTIONS = ["--fp16", "--micro-batch-size", 1, "--loss-scale-window", 3, "--train-iters", 16, "--lr-decay-iters", 16]
runs = 0


def run(ranks, scale, *options):
    global runs
    runs += 1
    log = WORK / f"{runs}.jsonl"
    isotron(*BASE, *data, *OPTIONS, "--ranks", ranks, "--initial-loss-scale", scale, *options, "--log-jsonl", log)
    return records(log)


def same(got, want, dp, claim):
    """Asserts that `got` has the loss scales of `want` divided by dp, and the same losses."""
    assert any(r["skipped"] for r in want), f"{claim}: the scale does not move"
    assert len({r["loss_scale"] for r in want}) > 3, f"{claim}: the scale does not move"
    for a, b in zip(got, want, strict=True):
        assert a["loss_scale"] * dp == b["loss_scale"], f"{claim}: scale {a} against {b}"
        assert a["skipped"] == b["skipped"], f"{claim}: scale {a} against {b}"
        assert abs(a["lm_loss"] / b["lm_loss"] - 1) <= U / TOKENS**0.5, f"{claim}: loss {a} against {b}"
    print(claim)


one = run(1, SCALE, "--calculate-per-token-loss")
for dp in (2, 4, 8):
    same(run(dp, SCALE, "--calculate-per-token-loss"), one, 1, f"per token, dp{dp}: one rank's path")
    same(run(dp, SCALE), run(1, SCALE * dp), dp,
         f"per microbatch, dp{dp}: the path of one rank with {dp} times the scale")

# If a run has skipped all of its steps, it reports that nothing was trained; after one update, it does not.
for interval, scale, noted in ((1, 2**32, True), (3, 2**32, True), (1, 1, False)):
    said = isotron(*BASE, *data, *OPTIONS, "--train-iters", 4, "--initial-loss-scale", scale,
                   "--log-interval", interval)
    assert ("note: all steps of this run were skipped" in said) == noted, said
