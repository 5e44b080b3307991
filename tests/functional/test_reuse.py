"""A checkpoint used by a run with other options: what may change does not stop the run, and nothing is lost on the way."""
from harness import *

data = corpus()
first = WORK / "first"
pretrain(data, first)


def run(*words, data=data):
    return isotron(*BASE, "--lr-warmup-iters", 0, *data, *words)


# Weights do not know how long the samples were, nor the dropout; the step count starts again.
out = run("--load", first, "--finetune", "--seq-length", 16, "--hidden-dropout", 0, "--train-iters", 1)
assert "iteration        1/       1" in out, out

# Model and tokenizer from the checkpoint alone.
out = isotron("generate", "--load", first, "--prompt", "a", "--tokens-to-generate", 2)
assert "successfully loaded" in out, out

# Loaded from one folder, saved to another: the copy is made even if no step is left.
run("--load", first, "--save", WORK / "second")
assert_same_bytes(first, WORK / "second", 12, "a run without steps")

# A dynamic loss scale starts at its beginning if the checkpoint had none; a fixed one is always that of the options.
out = run("--load", first, "--fp16", "--initial-loss-scale", 1024, "--train-iters", 13)
assert "loss scale: 1024.0" in out, out
run("--fp16", "--initial-loss-scale", 1024, "--save", WORK / "dynamic")
out = run("--load", WORK / "dynamic", "--fp16", "--loss-scale", 64, "--train-iters", 13)
assert "loss scale: 64.0" in out, out

# More was evaluated before than this run's validation data is made for.
halves = [*data[:2], "--split", "50,50,0", "--eval-iters", 5]
run("--eval-interval", 1, "--save", WORK / "evaluated", data=halves)
out = run("--load", WORK / "evaluated", "--train-iters", 13, "--eval-interval", 1000, data=halves)
assert "validation loss at iteration 13" in out, out

# No checkpoint is no error, but is said.
assert f"no checkpoint in {WORK / 'none'}" in run("--load", WORK / "none", "--train-iters", 1)

# A number of minutes that has no nanoseconds in 64 bits is long, not short.
assert "exiting" not in run("--exit-duration-in-mins", 2**31 - 1, "--train-iters", 2)
