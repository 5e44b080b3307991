"""The reference trainer for `isotron finetune`: reads a task's samples from files, trains a BERT with a head for
classes or choices over epochs, and computes accuracies.

Formats, clean-up of texts and the order of samples follow Megatron-LM's tasks/{glue,race} and
tasks/{data_utils,finetune_utils}.py; the model follows Devlin et al., 2018, and Megatron-LM's core/models/bert."""
import copy
import dataclasses
import glob
import json
import os
import pathlib
import re

import numpy as np

import decoder
import encoder
from gradients import Var, backward, tanh
from samples import permutation
from trainer import Options, Trainer, largest_batch

CLASSES = {"MNLI": ["contradiction", "entailment", "neutral"], "QQP": ["0", "1"], "RACE": []}
CHOICES, LONGEST_QUESTION = 4, 128


# ---- files ----

class Vocabulary:
    """The word pieces of a vocab.txt, followed by the tokens of the options."""
    def __init__(self, o):
        pieces = pathlib.Path(o.text("vocab-file", "pieces.txt")).read_text().split("\n")[:-1]
        extra = [f"<extra_id_{i}>" for i in range(o.int("vocab-extra-ids", 0))]
        self.ids = {piece: i for i, piece in enumerate([*pieces, *o.list("tokenizer-special-tokens"), *extra])}
        self.cased = o.text("tokenizer-type") == "BertWordPieceCase"

    def encode(self, text):
        text = re.sub(r"\s+", " ", text)
        for _ in range(3):
            text = text.replace(" . ", ". ")
        return [i for word in re.findall(r"\w+|[^\w\s]", text if self.cased else text.lower()) for i in self.pieces(word)]

    def pieces(self, word):
        """Splits a word into pieces, each of which is the longest one that matches."""
        found, begin = [], 0
        while begin < len(word):
            ends = (end for end in range(len(word), begin, -1) if ("##" if begin else "") + word[begin:end] in self.ids)
            end = next(ends, None)
            if end is None:
                return [self.ids["[UNK]"]]
            found.append(self.ids[("##" if begin else "") + word[begin:end]])
            begin = end
        return found


def read_lines(task, path):
    """Returns (label, texts) for each sample of a file: one or two texts, or for RACE two texts per choice."""
    lines = [line.split("\t") for line in pathlib.Path(path).read_text().splitlines()]
    if task == "MNLI":
        return [(c[-1].strip(), c[8:10]) for c in lines[1:]]
    if task == "QQP":
        return [(c[-1].strip(), c[3:5]) for c in lines[1:]]
    return [(c[0].strip(), c[1:]) for c in lines]


def read_questions(path):
    for file in sorted(glob.glob(f"{path}/*.txt")) if os.path.isdir(path) else [path]:
        for text in map(json.loads, open(file)):
            for question, options, answer in zip(text["questions"], text["options"], text["answers"]):
                asked = [question.replace("_", x) if "_" in question else f"{question} {x}" for x in options]
                yield "ABCD".index(answer), [(x, text["article"]) for x in asked]


@dataclasses.dataclass
class Batch:
    """Tokens and types are [rows, s]; lengths, labels and weights are [rows]. A question has a row for each choice."""
    tokens: np.ndarray
    types: np.ndarray
    positions: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    weights: np.ndarray


def row_of(v, o, texts):
    """Returns tokens, types and length of [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. A text that is too long is truncated
    before the last [SEP]."""
    ids, s = [v.encode(t) for t in texts], o.int("seq-length")
    if o.text("task") == "RACE":
        ids[0] = ids[0][:LONGEST_QUESTION]
    tokens, types = [v.ids["[CLS]"]], [0]
    for k, x in enumerate(ids):
        tokens, types = tokens + x + [v.ids["[SEP]"]], types + [k] * (len(x) + 1)
    if len(tokens) > s:
        tokens, types = tokens[:s - 1] + [v.ids["[SEP]"]], types[:s - 1] + [len(ids) - 1]
    fill = s - len(tokens)
    return tokens + [v.ids["[PAD]"]] * fill, types + [0] * fill, len(tokens)


class Set:
    """The samples of several files."""
    def __init__(self, o, v, paths, classes):
        task = o.text("task")
        self.samples = []
        for path in paths:
            found = read_questions(path) if task == "RACE" else [(classes.index(c), [texts]) for c, texts in read_lines(task, path)]
            self.samples += [(label, [row_of(v, o, texts) for texts in rows]) for label, rows in found]

    def __len__(self):
        return len(self.samples)

    def batch(self, samples):
        """Makes a batch. A sample None is padding and has weight 0."""
        rows = [(*row, self.samples[i or 0][0], float(i is not None)) for i in samples for row in self.samples[i or 0][1]]
        tokens, types, lengths, labels, weights = map(np.array, zip(*rows))
        return Batch(tokens, types, np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape), lengths, labels, weights)


# ---- the model ----

def tensors(m, classes):
    out = encoder.stack_tensors(m)
    head, outputs = ("classification_head", classes) if classes else ("multichoice_head", 1)
    out.linear("pooler.dense", m.hidden, m.hidden, out.std, True)
    out.linear(head, outputs, m.hidden, out.std, True)
    return out


class Pass(encoder.Bert):
    """`samples` has the indices of the rows in the run."""
    def scores(self):
        """Returns logits [samples, classes or choices]."""
        head = "classification_head" if "classification_head.weight" in self.w else "multichoice_head"
        option = "classifier-dropout" if "classifier-dropout" in self.o else "hidden-dropout"
        x = self.dropped(tanh(self.linear(self.hidden()[:, 0], "pooler.dense")), head, option)
        z = self.linear(x, head)
        return z.reshape(-1, CHOICES) if head == "multichoice_head" else z

    def loss(self):
        """Returns the weighted loss of each sample, the number of correct answers, and the weights."""
        z, each = self.scores(), len(self.batch.labels)
        each //= len(z.value)
        labels, weights = self.batch.labels[::each], self.batch.weights[::each]
        nll = decoder.logsumexp(z) - z[np.arange(len(labels)), labels].reshape(-1, 1)
        return nll * weights[:, None], int(((z.value.argmax(-1) == labels) * weights).sum()), weights


# ---- the trainer ----

class TaskTrainer(Trainer):
    """Trains on a task. Batches, epochs and schedules count rows; a question has four rows."""
    def __init__(self, words, state=None):
        o = self.o = Options(words)
        v = Vocabulary(o)
        o.setdefault("vocab-size", [len(v.ids)])
        each = CHOICES if o.text("task") == "RACE" else 1
        self.classes = CLASSES.get(o.text("task"), o.list("class-labels"))
        if o.text("task") == "labels" and not self.classes:
            self.classes = sorted({label for path in o.list("train-data") for label, _ in read_lines("labels", path)})
        self.train = Set(o, v, o.list("train-data"), self.classes)
        self.valid = [Set(o, v, [path], self.classes) for path in o.list("valid-data")]
        batch, n = largest_batch(o), len(self.train)
        self.epoch = [*range(n), *[None] * (-n % batch)] if "keep-last" in o else [*range(n)][:n // batch * batch]
        o["train-iters"] = [o.int("epochs") * (len(self.epoch) // batch)]
        self.steps_of_epoch, self.steps = len(self.epoch) // batch, o.int("train-iters")
        for name in ("micro-batch-size", "global-batch-size"):
            if name in o:
                o[name] = [o.int(name) * each]
        self.choices, self.m, self.seed, self.micro = each, decoder.Shape(o), o.int("seed", 1234), o.int("micro-batch-size")
        self.fp16 = o.text("lane", "fp32") == "fp16"
        self.state = copy.deepcopy(state) if state else self.fresh()

    def tensors(self):
        return tensors(self.m, len(self.classes))

    def samples(self, begin, n):
        """Yields samples across epochs. The order of each epoch is a permutation of the training set, seeded with seed
        + the epoch's number."""
        for k in range(begin, begin + n):
            epoch, at = divmod(k, len(self.epoch))
            order = permutation(self.seed + epoch & 0xFFFFFFFF, len(self.train))  # as torch.manual_seed
            yield None if self.epoch[at] is None else order[at]

    def gradients(self, size):
        o, w, n, begin = self.o, self.variables(), size // self.micro, self.state.consumed
        batch = self.train.batch(self.samples(begin // self.choices, size // self.choices))
        y, _, weights = Pass(self.m, w, batch, begin + np.arange(size), self.seed).loss()
        total, of_microbatch = weights.sum(), np.repeat(weights.reshape(n, -1).sum(1), len(weights) // n)
        by_sample = "calculate-per-token-loss" in o or "keep-last" in o
        backward([(y, 1 / np.maximum(total + 0 * weights if by_sample else of_microbatch * n, 1)[:, None])])
        found = self.collected(w)
        found.pop("multichoice_head.bias", None)  # all choices share it, so it changes no probability, and stays 0
        return found, {"lm_loss": y.value.sum() / max(total, 1)}, {}

    def accuracy(self):
        """Returns {path: (loss, correct answers, samples)}."""
        w, found = self.variables(), {}
        for path, each in zip(self.o.list("valid-data"), self.valid):
            y, right, weights = Pass(self.m, w, each.batch(range(len(each)))).loss()
            found[path] = y.value.sum() / weights.sum(), right, int(weights.sum())
        return found

    def run(self, until=None, overflows=()):
        """Returns the records of the steps, and [(step, epoch, accuracy)]."""
        records, evaluations = [], []
        while self.state.iteration < self.steps and self.state.iteration != until:
            records.append(self.step(self.state.iteration + 1 in overflows))
            if self.state.iteration % self.steps_of_epoch == 0:
                evaluations.append((self.state.iteration, self.state.iteration // self.steps_of_epoch, self.accuracy()))
        if not self.steps:
            evaluations.append((self.state.iteration, 0, self.accuracy()))
        return records, evaluations
