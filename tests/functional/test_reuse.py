"""A run can use a checkpoint with different options: allowed changes do not stop the run, and nothing is lost."""
import re

from harness import *

data = corpus()
first = WORK / "first"
pretrain(data, first)


def run(*words, data=data, expect=0):
    return isotron(*BASE, "--lr-warmup-iters", 0, *data, *words, expect=expect)


# With --finetune, the sequence length and dropout may change, and the step count restarts.
out = run("--load", first, "--finetune", "--seq-length", 16, "--hidden-dropout", 0, "--train-iters", 1)
assert "iteration        1/       1" in out, out

t5 = ["pretrain", "--model", "t5", "--position-embedding-type", "relative", "--num-layers", 1, "--hidden-size", 32,
      "--num-attention-heads", 2, "--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", 60,
      "--micro-batch-size", 2, "--train-iters", 1, "--lr", 1e-3]
isotron(*t5, "--seq-length", 32, "--decoder-seq-length", 16, "--save", WORK / "t5", "--save-interval", 1)
said = isotron(*t5, "--seq-length", 32, "--decoder-seq-length", 24, "--load", WORK / "t5", expect=2)
assert "--decoder-seq-length is 24, but the checkpoint has 16" in said, said
assert "lengths may change with --finetune" in said, said
isotron(*t5, "--seq-length", 48, "--decoder-seq-length", 24, "--load", WORK / "t5", "--finetune")

# generate reads the model and the tokenizer only from the checkpoint.
out = isotron("generate", "--load", first, "--prompt", "a", "--tokens-to-generate", 2)
assert "successfully loaded" in out, out

# A run that loads from one folder and saves to another makes the copy even if no steps are left.
run("--load", first, "--save", WORK / "second")
assert_same_bytes(first, WORK / "second", 12, "a run without steps")

# A dynamic loss scale starts at its initial value if the checkpoint has none; a fixed one always comes from the
# options.
out = run("--load", first, "--fp16", "--initial-loss-scale", 1024, "--train-iters", 13)
assert "loss scale: 1024.0" in out, out
run("--fp16", "--initial-loss-scale", 1024, "--save", WORK / "dynamic")
out = run("--load", WORK / "dynamic", "--fp16", "--loss-scale", 64, "--train-iters", 13)
assert "loss scale: 64.0" in out, out

# The run that saved the checkpoint has read more validation samples than this run builds.
halves = [*data[:2], "--split", "50,50,0", "--eval-iters", 5]
run("--eval-interval", 1, "--save", WORK / "evaluated", data=halves)
out = run("--load", WORK / "evaluated", "--train-iters", 13, "--eval-interval", 1000, data=halves)
assert "validation loss at iteration 13" in out, out

# If the folder of --load contains no checkpoint, a run starts only if it will save there or the folder is empty.
(WORK / "empty").mkdir()
for words in (["--load", WORK / "empty"], ["--load", WORK / "begun", "--save", WORK / "begun"]):
    assert f"no checkpoint in {words[1]}: starting anew" in run(*words, "--train-iters", 1), words
for words in (["--load", WORK / "nothing"], ["--load", WORK / "nothing", "--save", WORK / "other"], ["--load", WORK]):
    assert "contains no checkpoint; check the path" in run(*words, expect=2), words
for folder in ("empty", "begun-not"):
    assert "--exit-on-missing" in run("--load", WORK / folder, "--save", WORK / folder,
                                      "--exit-on-missing-checkpoint", expect=2)

# --load may name one checkpoint in the folder. The resumed run is bitwise equal.
straight, inner = WORK / "straight", WORK / "inner"
run("--save", straight, "--save-interval", 5)
assert "at iteration 5\n" in run("--load", f"{straight}/iter_0000005/",
                                 "--save", inner), "the inner folder is not loaded"
assert_same_bytes(straight, inner, 12, "loaded by the name of the checkpoint")
assert "two different checkpoints" in run("--load", straight / "iter_0000005", "--ckpt-step", 10, expect=2)
isotron("generate", "--load", straight / "iter_0000010", "--prompt", "a", "--tokens-to-generate", 1)
shutil.copytree(straight / "iter_0000005", WORK / "renamed")
assert "its name is not iter_" in run("--load", WORK / "renamed", expect=2)

# A run refuses to save among the checkpoints of another run. A note states whether a run restarts from one of its older
# checkpoints.
before = sorted(inner.rglob("*"))
for words in ([], ["--load", straight], ["--load", inner, "--finetune"]):
    assert f"--load '{inner}' to continue that run" in run(*words, "--save", inner, expect=2), words
run("--load", straight, "--skip-train", "--save", inner)  # an evaluation saves nothing
assert before == sorted(inner.rglob("*"))
assert "checkpoints after step 5 in" in run("--load", straight, "--save", straight, "--ckpt-step", 5)

# A resumed run prints notes only about differences from the saved run.
said = run("--load", straight, "--save", straight, "--micro-batch-size", 4, "--log-interval", 3)
assert "already at step 12 of 12: nothing to train" in said and "note:" not in said, said
said = run("--load", straight, "--ckpt-step", 5, "--seed", 5, "--global-batch-size", 16, "--lr", 1e-3, "--bf16",
           "--lr-decay-iters", 10, "--hidden-dropout", 0.3, "--train-iters", 11, data=[*data[:-1], "90,10,0"])
notes = dict(re.findall(r"^  note: --(\S+) is (.*)$", said, re.M))
assert notes.keys() == {"seed", "split", "global-batch-size", "lr", "lane", "lr-decay-iters", "hidden-dropout",
                        "train-iters"}, said
assert notes["seed"] == "5, but the checkpoint has 1234: the order of the data and the dropout change", said
assert notes["lr-decay-iters"].startswith("10, but the checkpoint has none: "), said
assert notes["hidden-dropout"] == "0.3, but the checkpoint has 0.1: the dropout of the remaining steps changes", said
assert notes["train-iters"] == "11, but the checkpoint has 12: the last step changes", said
# Notes about schedules depend on the rates of the remaining steps, not on the options.
CHANGE, STAY, LAST, TOO = ("the learning rates of the remaining steps change",
                           "the learning rates of the remaining steps do not change", "the last step changes",
                           ", and the learning rates change")
for words, expected in {
    "--lr 1e-3": {"lr": CHANGE}, "--lr-warmup-iters 3": {"lr-warmup-iters": CHANGE},
    "--lr-decay-iters 12": {"lr-decay-iters": STAY}, "--lr-decay-iters 11": {"lr-decay-iters": CHANGE},
    "--train-iters 24": {"train-iters": LAST + TOO},
    "--train-iters 24 --lr-decay-iters 12": {"train-iters": LAST, "lr-decay-iters": STAY},
    "--global-batch-size 16": {"global-batch-size": "the samples of each step change" + TOO},
    "--lr-decay-style constant --lr-warmup-iters 4": {"lr-decay-style": CHANGE, "lr-warmup-iters": STAY},
    "--lr-wsd-decay-style linear": {"lr-wsd-decay-style": STAY},
    "--weight-decay 0.3": {"weight-decay": "the weight decay of the remaining steps changes"},
    "--weight-decay-incr-style linear --start-weight-decay 0.01 --end-weight-decay 0.01":
        {name: "the weight decay of the remaining steps does not change"
         for name in ("weight-decay-incr-style", "start-weight-decay", "end-weight-decay")},
    "--use-checkpoint-opt_param-scheduler --lr 1 --train-iters 13": {"lr-decay-iters": STAY, "train-iters": LAST},
    "--no-load-optim": {"no-load-optim": "the optimizer, the loss scale and the learning-rate and weight-decay "
                        "schedules restart"},
}.items():
    said = run("--load", straight, "--ckpt-step", 5, "--exit-interval", 1, *words.split())
    notes = {name: then for name, then in re.findall(r"^  note: --([^ :]+).*: (.*)$", said, re.M)}
    assert notes == expected, f"{words}: {notes}"
said = run("--load", straight, "--no-bias-gelu-fusion", expect=2)
assert "--no-bias-gelu-fusion is true, but the checkpoint has false; use the checkpoint's values" in said, said

# If the data has changed under the same names, the run continues, as in Megatron-LM, but Isotron prints a note.
(WORK / "corpus.txt").write_text((ROOT / "tests/data/corpus.txt").read_text()[:3200])
isotron("preprocess", "--input", WORK / "corpus.txt", "--input-format", "paragraphs",
        "--output-prefix", WORK / "corpus", "--append-eod", "--overwrite", *TOKENIZER)
said = run("--load", straight, "--ckpt-step", 5)
assert re.findall("note: .*", said) == ["note: the data files have changed since the checkpoint: the samples or their "
                                        "order change"], said

# A number of minutes whose nanoseconds overflow 64 bits is a long duration, not a short one.
assert "exiting" not in run("--exit-duration-in-mins", 2**31 - 1, "--train-iters", 2)
