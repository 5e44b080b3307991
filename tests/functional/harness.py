"""Functions that run the program on a small corpus and compare the files that it writes. Standard library only.

usage of a test: test_NAME.py [PROGRAM [options for all runs, such as --device cuda]]"""
import atexit
import filecmp
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/cpu/isotron"
OPTIONS = sys.argv[2:]
WORK = pathlib.Path(tempfile.mkdtemp(prefix="isotron-functional-"))
atexit.register(shutil.rmtree, WORK, ignore_errors=True)

TOKENIZER = ["--tokenizer-type", "ByteLevelTokenizer"]
# A small run with everything that could break determinism: dropout, GQA, several microbatches, an incomplete last
# epoch.
CONF = """
num-layers = 2
hidden-size = 48
num-attention-heads = 4
group-query-attention = true
num-query-groups = 2
seq-length = 32
position-embedding-type = rope
normalization = RMSNorm
swiglu = true
hidden-dropout = 0.1
attention-dropout = 0.1
micro-batch-size = 2
global-batch-size = 8
lr = 3e-3
lr-warmup-iters = 2
lr-decay-style = cosine
train-iters = 12
log-interval = 1
eval-iters = 0
save-interval = 1000
tokenizer-type = ByteLevelTokenizer
"""
# A small model for benchmarks.
BENCH = {"num-layers": 2, "hidden-size": 32, "num-attention-heads": 4, "seq-length": 16, "vocab-size": 100,
         "hidden-dropout": 0, "attention-dropout": 0, "micro-batch-size": 1, "global-batch-size": 4, "train-iters": 10,
         "lr": 0.001, "mock-data": "true"}
BASE = ["pretrain", "--config", WORK / "run.conf"]  # options on the line override the file


def isotron(*words, expect=0):
    """Runs the program and returns its output. If the exit status is not `expect`, the test fails and shows the
    output."""
    words = [*words, *OPTIONS] if words[0] in ("pretrain", "parity", "generate") else words
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, errors="replace")
    if done.returncode != expect:
        sys.exit(f"exit status {done.returncode}, not {expect}: "
                 f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def bench_conf(**changed):
    """Writes bench.conf, which has the options of BENCH with these changes."""
    options = BENCH | {name.replace("_", "-"): value for name, value in changed.items()}
    path = WORK / "bench.conf"
    path.write_text("".join(f"{name} = {value}\n" for name, value in options.items()))
    return path


def corpus(characters=3000):
    """Makes a dataset of English text; by default, the run above reads it about three times."""
    (WORK / "corpus.txt").write_text((ROOT / "tests/data/corpus.txt").read_text()[:characters])
    isotron("preprocess", "--input", WORK / "corpus.txt", "--input-format", "paragraphs",
            "--output-prefix", WORK / "corpus", "--append-eod", *TOKENIZER)
    (WORK / "run.conf").write_text(CONF)
    return ["--data-path", WORK / "corpus_text_document", "--split", "100,0,0"]


def pretrain(data, save, *options, expect=0):
    return isotron(*BASE, *data, "--save", save, *options, expect=expect)


def shards(folder, iteration):
    return sorted((folder / f"iter_{iteration:07}").glob("shard_*.bin"))


def assert_same_bytes(a, b, iteration, claim):
    """Asserts that parameters and optimizer state of two checkpoints are bitwise equal."""
    pairs = list(zip(shards(a, iteration), shards(b, iteration), strict=True))
    assert pairs, f"no checkpoint of iteration {iteration} in {a}"
    for x, y in pairs:
        assert filecmp.cmp(x, y, shallow=False), f"{claim}: iteration {iteration} differs in {x.name}"


def content(folder, iteration):
    """Returns the hashes of a checkpoint's tensors, which do not depend on the layout."""
    return isotron("inspect", "--checkpoint", folder, "--ckpt-step", iteration, "--hash")


def records(path):
    """Returns the records of steps in a log, without the header and the evaluations."""
    return [r for r in map(json.loads, open(path)) if "kind" not in r]


def losses(path):
    return {r["iteration"]: r["lm_loss"] for r in records(path)}


def assert_same_text(a, b, claim):
    """Asserts that two outputs of `generate --logprobs` in fp64 have the same tokens, and log-probabilities that are
    equal up to rounding."""
    a, b = ([line.rsplit("\t", 1) for line in text.splitlines()] for text in (a, b))
    assert [x[0] for x in a] == [x[0] for x in b] and any(len(x) == 2 for x in a), f"{claim}: {a}, {b}"
    assert all(abs(float(x[1]) - float(y[1])) < 1e-7 for x, y in zip(a, b) if len(x) == 2), f"{claim}: {a}, {b}"


class Rounding:
    """Bounds the difference between two fp64 runs whose sums are computed in different orders. An fp32 run shows how
    much rounding errors are amplified: if it differs from fp64 by x * 2^-24 (relative to the value of a field), the
    bound is 8 x * 2^-53. Two devices round each term of a sum differently, so for them x is at least sqrt(terms)."""

    def __init__(self, fp64, fp32, fields=("lm_loss",), terms=1):
        assert [r["iteration"] for r in fp64] == [r["iteration"] for r in fp32]
        amplified = {f: 2**24 * max(abs(a[f] - b[f]) / abs(b[f]) for a, b in zip(fp32, fp64)) for f in fields}
        self.bounds = {f: 8 * 2**-53 * max(math.sqrt(terms), times) for f, times in amplified.items()}

    def check(self, got, want, claim):
        want = {r["iteration"]: r for r in want}
        assert got, f"{claim}: no steps"
        seen = {}
        for r in got:
            for field, bound in self.bounds.items():
                a, b = r[field], want[r["iteration"]][field]
                assert abs(a - b) <= bound * abs(b), (f"{claim}: {field} {a} of step {r['iteration']}, not {b} within "
                                                      f"{bound:.1e}")
                seen[field] = max(seen.get(field, 0), abs(a - b) / abs(b))
        print(f"{claim}: " + ", ".join(f"{field} within {seen[field]:.1e}, bound {bound:.1e}"
                                       for field, bound in self.bounds.items()))
