"""Runs `isotron pretrain` in separate folders and compares the results with the reference trainer."""
import dataclasses
import json
import math
import pathlib
import re
import subprocess
import tempfile

import numpy as np

import fim
import samples
from trainer import Options

U = {"fp64": 2.0**-53, "exact": 2.0**-20, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
# If only arithmetic rounds, the bound is 8 u max(kappa, sqrt(K)) (docs/reference/numerics.md). K is the length of the
# longest sum, the one in the gradient norm; kappa is less than sqrt(K), which test_options.py measures. If every stored
# activation is rounded, a loss is a mean of numbers with errors of a few u, and the error of a norm is that of its
# largest elements.
TERMS = 2**13
ARITHMETIC = 8 * math.sqrt(TERMS)
BOUND = {"fp64": ARITHMETIC, "fp32": ARITHMETIC, "exact": 64, "fp16": 8, "bf16": 8, "fp8": 1}
EXACT = {"iteration", "consumed_samples", "consumed_tokens", "batch_size", "skipped", "num_zeros", "loss_scale"}
SCHEDULED = {"learning_rate", "weight_decay"}
CLOCK = {"seconds", "tokens_per_second", "tflops"}
DEADLINE_S = 60


class Wrong(Exception):
    """Raised if a run did not do what its options specify."""


def expect(true, what):
    if not true:
        raise Wrong(what)


def merged(base, words, without=""):
    """Returns the options of `base`, overridden by `words`, as a list."""
    o = Options(base) | Options(words)
    return [x for name, values in o.items() if name not in without.split() for x in (f"--{name}", *values)]


@dataclasses.dataclass
class Run:
    records: list
    evaluations: list  # (iteration, kind, {name: loss})
    text: str


def write_pieces(folder, pieces, **named):
    """Writes a Hugging Face tokenizer with the word pieces of a vocab.txt. `named` are tokens such as eos_token."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    files = {"tokenizer_config": named, "tokenizer": {
        "added_tokens": [{"id": i, "content": p, **special} for i, p in enumerate(pieces)
                         if p[0] == "[" and p != "["],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": None,
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", pieces.index("[SEP]")],
                           "cls": ["[CLS]", pieces.index("[CLS]")]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {p: i for i, p in enumerate(pieces)}}}}
    pathlib.Path(folder).mkdir()
    for name, content in files.items():
        pathlib.Path(f"{folder}/{name}.json").write_text(json.dumps(content))


def write_datasets():
    """Writes datasets and their vocabulary. A document has 0 to 5 sequences, and a sequence has 2 to 12 tokens, the
    last of which is 39."""
    rng = np.random.default_rng(7)
    for name, n in (("text", 60), ("more", 40), ("third", 30)):
        sequences = [np.append(rng.integers(0, 39, k), 39) for k in rng.integers(2, 12, n)]
        first = np.cumsum([0, *[2, 3, 0, 5, 1, 2, 4] * n])
        samples.write_dataset(name, sequences, [*first[first < n - 1], n])
    sentences = [rng.integers(0, 39, n) for n in (520, 9, 520, 7, 513, 512, 8) * 6]
    samples.write_dataset("long", sentences, [k // 5 * 7 + (0, 1, 2, 4, 5)[k % 5] for k in range(5 * 6)] + [42])
    samples.write_dataset("code", fim.documents())
    pathlib.Path("paths").write_text("0.3 text\n0.5 more\t0.2 third\n")
    pathlib.Path("paths.json").write_text('{"train": "2 text 1 third", "valid": [0.7, "more"], "test": null}')
    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(20)), *(f"##{i}" for i in range(15))]
    words.insert(9, "[PAD]")  # not 0, and inside texts too
    pathlib.Path("vocab.txt").write_text("".join(f"{word}\n" for word in words))
    write_pieces("pieces", words, bos_token="w3", eos_token="w5", pad_token="[PAD]")


class Program:
    """Runs the program in the working folder, which contains the datasets. `command` is the program, possibly with
    arguments that plant a bug."""
    def __init__(self, command, base):
        self.command, self.base = tuple(map(str, command)), base

    def __eq__(self, other):
        return self.command == other.command

    def __hash__(self):
        return hash(self.command)

    def call(self, *words, status=0):
        try:
            done = subprocess.run([*self.command, *map(str, words)], capture_output=True, text=True, errors="replace",
                                  timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"hangs: {' '.join(map(str, words))}") from None
        text = done.stdout + done.stderr
        said = next((line for line in done.stderr.splitlines() if line.strip() and not line.startswith("note: ")), "nothing")
        expect(done.returncode == status, f"exit status {done.returncode}, not {status}: {said}")
        return text

    def words(self, words="", without=""):
        return merged(self.base, words.split(), without)

    def logged(self, command, *words, status=0, log="log.jsonl"):
        """Returns the records of the log, and the output of the program."""
        log = pathlib.Path(log)
        log.unlink(missing_ok=True)
        text = self.call(command, *words, "--log-jsonl", log, status=status)
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [], text

    def pretrain(self, words, *more, status=0, log="log.jsonl"):
        rows, text = self.logged("pretrain", *words, *more, status=status, log=log)
        records = [r for r in rows if "kind" not in r]
        evaluations = [(r["iteration"], r["kind"], told_losses(r)) for r in rows if r.get("kind") in ("validation", "test")]
        found = re.findall(r"loss at iteration (\d+) on (\w+) set \| (.*)", text)
        found = [(int(i), kind, dict(re.findall(r"(\w+) loss value: (\S+) \|", line))) for i, kind, line in found]
        logged = [(i, kind, {name[:-5]: f"{x:.6E}" for name, x in losses.items()}) for i, kind, losses in evaluations]
        expect(logged == found or "validation loss at" in text and not found, f"evaluations {logged} in the log and not {found}")
        return Run(records, evaluations, text)

    def fresh(self):
        """Makes a new folder for checkpoints and returns its path."""
        return tempfile.mkdtemp(dir=".", prefix="save-")


def told_losses(record):
    """Returns the losses of an evaluation record. `loss` is their sum; if there is only one loss, it has no separate
    key."""
    found = {key: x for key, x in record.items() if key.endswith("_loss")} or {"lm_loss": record["loss"]}
    expect(math.isclose(sum(found.values()), record["loss"], rel_tol=1e-15), f"a loss of {record['loss']} is not the sum of {found}")
    expect(math.isclose(math.exp(found["lm_loss"]), record["perplexity"], rel_tol=1e-14), f"another perplexity: {record}")
    return found


def lane(words):
    o = Options(words)
    if "fp8-format" in o:
        return "fp8"
    return next((name for name in U if name in o), o.text("lane", "fp32"))


def same_number(key, a, b, of):
    if key in EXACT:
        return a == b
    if a is None or not math.isfinite(a):
        return False
    if key in SCHEDULED:
        return abs(a - b) <= 16 * U["fp64"] * abs(b)
    return abs(a - b) <= BOUND[of] * U[of] * (1 if key == "lm_loss" or BOUND[of] == ARITHMETIC else 8) * abs(b)


def compare(run, expected, words):
    """Compares the numbers of a run with those of the reference trainer."""
    records, evaluations = expected
    of = lane(words)
    steps = [r["iteration"] for r in run.records]
    expect(steps == [r["iteration"] for r in records], f"steps {steps} and not {[r['iteration'] for r in records]}")
    for got, want in zip(run.records, records):
        keys = got.keys() - CLOCK - ({"grad_norm", "clip"} if want["skipped"] else set())
        expect(keys == want.keys(), f"logged {sorted(keys)} and not {sorted(want)}")
        for key in sorted(want):
            expect(same_number(key, got[key], want[key], of), f"{key} of step {got['iteration']}: {got[key]} and not {want[key]}")
    found = [(i, kind) for i, kind, _ in run.evaluations]
    names = [(i, kind) for i, kind, _ in evaluations]
    expect(found == names, f"evaluations {found} and not {names}")
    for (i, kind, got), (_, _, want) in zip(run.evaluations, evaluations):
        expect(got.keys() == want.keys(), f"losses {sorted(got)} and not {sorted(want)}")
        for key in want:
            expect(same_number(key, got[key], want[key], of), f"{key} of the {kind} at step {i}: {got[key]} and not {want[key]}")


def joined(*runs):
    return Run(sum((r.records for r in runs), []), sum((r.evaluations for r in runs), []), "".join(r.text for r in runs))


def bits(run):
    return [{k: v for k, v in r.items() if k not in CLOCK} for r in run.records], run.evaluations
