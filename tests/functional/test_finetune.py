"""A pretrained BERT is fine-tuned. It learns labels of texts and answers to questions, but not shuffled labels. All
layouts and a resumed run have the same losses and accuracies as a run on one rank. Each sample of the validation files
counts once. Bad files, options and checkpoints are refused."""
import random
import re
import signal

from harness import *

TOKENS = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", ROOT / "tests/data/tokenizer/bert.json"]
draw = random.Random(1)
GOOD, BAD = "good great fine happy".split(), "bad poor sad wrong".split()
OTHER = "the house day river book people water".split()


def text(words):
    out = [draw.choice(OTHER) for _ in range(draw.randint(3, 7))]
    return " ".join(out[:2] + [draw.choice(words)] + out[2:])


def write(name, lines):
    (WORK / name).parent.mkdir(exist_ok=True)
    (WORK / name).write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
    return WORK / name


def labelled(n):
    return [(label, text(GOOD if label == "pos" else BAD)) for label in draw.choices(["pos", "neg"], k=n)]


def question():
    right = draw.randrange(4)
    options = [text(GOOD if i == right else BAD) for i in range(4)]
    return json.dumps({"article": text(OTHER), "questions": [draw.choice(["what is _ ?", "which day ?"])],
                       "options": [options], "answers": ["ABCD"[right]]})


def tabs(rows):
    return ["\t".join(row) for row in rows]


train = labelled(256)
shuffled = list(zip(draw.sample([label for label, _ in train], len(train)), [t for _, t in train]))
LABELS = ["--task", "labels", "--train-data", write("train.tsv", tabs(train)),
          "--valid-data", write("valid.tsv", tabs(labelled(37)))]
SHUFFLED = ["--task", "labels", "--train-data", write("shuffled.tsv", tabs(shuffled)), "--valid-data", LABELS[-1]]
for folder, n in (("race", 26), ("race-valid", 13)):
    write(f"{folder}/a.txt", [question() for _ in range(n)])
RACE = ["--task", "RACE", "--train-data", WORK / "race", "--valid-data", WORK / "race-valid"]
KINDS = {"contradiction": BAD, "entailment": GOOD, "neutral": OTHER}
MNLI_LINES = ["\t".join(["h"] * 12)] + ["\t".join([str(i), *"abcdefg", text(OTHER), text(KINDS[kind]), "x", kind])
                                        for i, kind in enumerate([*KINDS] * 8)]
QQP_LINES = ["\t".join(["h"] * 6)] + ["\t".join([str(i), "1", "2", text(OTHER), text(BAD if i % 2 else GOOD),
                                                 str(i % 2)]) for i in range(24)]
MNLI = ["--task", "MNLI", "--train-data", write("mnli.tsv", MNLI_LINES), "--valid-data", WORK / "mnli.tsv"]
QQP = ["--task", "QQP", "--train-data", write("qqp.tsv", QQP_LINES), "--valid-data", WORK / "qqp.tsv"]

(WORK / "text.txt").write_text((ROOT / "tests/data/corpus.txt").read_text())
isotron("preprocess", "--input", WORK / "text.txt", "--input-format", "paragraphs", "--output-prefix", WORK / "text",
        "--split-sentences", *TOKENS)
SIZES = ["--model", "bert", "--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 2, "--seq-length", 32,
         "--max-position-embeddings", 32]
PRETRAIN = ["--data-path", WORK / "text_text_sentence", "--split", "100,0,0", "--micro-batch-size", 8, "--lr", 5e-3,
            "--train-iters", 60, "--init-method-std", 0.1, "--eval-iters", 0, "--save-interval", 60]
pretrained = isotron("pretrain", *SIZES, *TOKENS, *PRETRAIN, "--hidden-dropout", 0, "--attention-dropout", 0,
                     "--save", WORK / "bert")
FROM = ["--pretrained-checkpoint", WORK / "bert", "--use-checkpoint-args"]


def finetune(*words, expect=0):
    return isotron("finetune", *words, "--micro-batch-size", 2, "--global-batch-size", 8, "--lr", 3e-3,
                   "--lr-warmup-fraction", 0.1, "--log-format", "short", expect=expect)


def records(*words):
    """Fine-tunes. Returns the losses of the steps, the evaluations, and the output."""
    log = WORK / "log.jsonl"
    log.unlink(missing_ok=True)
    out = finetune(*words, "--log-jsonl", log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [x["lm_loss"] for x in lines if "lm_loss" in x], [x for x in lines if x.get("kind") == "validation"], out


def told(out):
    """Returns the lines about the task and its files."""
    return dict(re.findall(r"^(task|training|validation): +(.*)$", out, re.M))


# The model learns the labels that can be learnt, but not shuffled labels.
losses, evaluations, out = records(*LABELS, *FROM, "--epochs", 5)
assert [e["epoch"] for e in evaluations] == [1, 2, 3, 4, 5] and evaluations[-1]["accuracy"] > 0.96, evaluations
assert all(e["total"] == 37 for e in evaluations), out
assert re.search(r"\nepoch 5 \| validation accuracy (1.0000, 37|0.9730, 36) of 37 \| loss 0.\d{4}\n", out), out
assert "no classification_head: this part is initialized from --seed 1234" in out, out
assert "lm_head, output_layer, binary_head are omitted" in out, out
assert told(out) == {"task": "labels, 2 classes: neg, pos", "training": "256 samples; 5 epochs of 32 steps",
                     "validation": f"37 samples in {LABELS[-1]}"}, out
assert records(*SHUFFLED, *FROM, "--epochs", 5)[1][-1]["accuracy"] < 0.9

# Layouts with dropout. The last microbatch of the validation file is not full. A question counts as one sample in the
# loss.
DROPOUT = [*RACE, *FROM, "--epochs", 1, "--fp64", "--hidden-dropout", 0.1, "--attention-dropout", 0.1, "--keep-last"]
one, (evaluation,), out = records(*DROPOUT)
assert len(one) == 4 and evaluation["total"] == 13, (one, evaluation)
assert told(out) == {"task": "RACE, 4 choices per question, and each choice is a sample",
                     "training": "26 questions; 1 epoch of 4 steps", "validation": f"13 questions in {RACE[-1]}"}, out
for layout in (["--tensor-model-parallel-size", 2, "--sequence-parallel"], ["--ranks", 2],
               ["--pipeline-model-parallel-size", 2],
               ["--context-parallel-size", 2],
               ["--ranks", 4, "--use-megatron-fsdp", "--tensor-model-parallel-size", 2]):
    other, (same,), _ = records(*DROPOUT, *layout)
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-12, (layout, one, other)
    assert abs(same["loss"] - evaluation["loss"]) < 1e-12, (layout, same)
    assert (same["correct"], same["total"]) == (evaluation["correct"], 13), (layout, same)
whole = records(*DROPOUT, "--micro-batch-size", 8)[0]
assert max(abs(a - b) for a, b in zip(one, whole)) < 1e-12, (one, whole)
assert len(records(*[word for word in DROPOUT if word != "--keep-last"])[0]) == 3

# Steps update all parameters except a bias that all choices of a question share: it does not change their
# probabilities.
finetune(*RACE, *FROM, "--epochs", 1, "--save", WORK / "choices", "--save-interval", 1)
first, last = (set(content(WORK / "choices", step).splitlines()) for step in (1, 3))
assert [line.split()[-2] for line in first & last] == ["multichoice_head.bias"], first & last

# Dropout only before the classification head. It is off by default here, because its default is --hidden-dropout.
STILL = [*LABELS, *FROM, "--epochs", 1, "--hidden-dropout", 0, "--attention-dropout", 0]
default, none, half = (records(*STILL, *words)[0] for words in ([], ["--classifier-dropout", 0],
                                                                ["--classifier-dropout", 0.5]))
assert default == none and all(a != b for a, b in zip(none, half)), (default, none, half)
assert records(*STILL, "--hidden-dropout", 0.1)[0] != records(*STILL, "--hidden-dropout", 0.1,
                                                              "--classifier-dropout", 0)[0]

# A run that is resumed in the middle or at the end of an epoch is bitwise equal to an uninterrupted run.
RUN = [*LABELS, *FROM, "--epochs", 2, "--hidden-dropout", 0.1]
finetune(*RUN, "--save", WORK / "a", "--save-interval", 20)
for step in (20, 32):
    out = finetune(*RUN, "--load", WORK / "a", "--ckpt-step", step, "--save", WORK / f"from-{step}")
    assert "left out" not in out and f"at iteration {step}" in out, out
    assert_same_bytes(WORK / "a", WORK / f"from-{step}", 64, f"resumed at {step}")
last = records(*RUN, "--load", WORK / "a", "--finetune", "--epochs", 1)[1]
# An evaluation needs only the weights.
finetune(*RUN, "--save", WORK / "weights", "--no-save-optim")
again = records(*LABELS[:2], *LABELS[4:], "--load", WORK / "weights", "--use-checkpoint-args", "--epochs", 0)[1]
assert len(again) == 1 and again[0]["epoch"] == 0 and again[0]["total"] == 37, again
# A note says that the samples have changed.
for lines, changed in (train, False), (train[::-1], True):
    write("train.tsv", tabs(lines))
    out = finetune(*RUN, "--load", WORK / "a")
    assert "already at step 64 of 64: " in out and ("note: the data files have changed" in out) == changed, out
write("train.tsv", tabs(train))

# A signal ends the run after the current step, which is saved. The exit status is that of a program ended by the
# signal.
for number, options in {signal.SIGINT: [], signal.SIGTERM: ["--exit-signal-handler"]}.items():
    words = [*RUN, "--epochs", 1000, "--micro-batch-size", 8, "--lr", 1e-3, "--save", WORK / number.name, *options]
    with subprocess.Popen([PROGRAM, "finetune", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        next(line for line in process.stdout if "iteration        1/" in line)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, (number, process.returncode, err)
    assert f"{number.name}: stopping after this step" in err, (number, process.returncode, err)
    assert 1 <= int((WORK / number.name / "latest_checkpointed_iteration.txt").read_text()) < 32000, out

# The formats of GLUE, with several validation files.
losses, evaluations, out = records(*MNLI, write("mnli-2.tsv", MNLI_LINES), *FROM, "--epochs", 1,
                                   "--save", WORK / "mnli")
assert "3 classes: contradiction, entailment, neutral" in out and (evaluations[0]["total"], len(losses)) == (48, 3), out
assert "2 classes: 0, 1" in finetune(*QQP, *FROM, "--epochs", 1)
megatron = isotron("finetune", *QQP, *FROM, "--epochs", 1, "--micro-batch-size", 8, "--lr", 1e-3)
correct, percent = re.search(r" >> \|epoch: 1\| overall: correct / total = (\d+) / 24 = ([\d.]+) %", megatron).groups()
assert abs(float(percent) - 100 * int(correct) / 24) <= 5e-5, megatron
said = finetune(*QQP, *SIZES, *TOKENS, "--epochs", 1, "--seed", 7)
assert "\n  no --pretrained-checkpoint: all weights are initialized from --seed 7\n" in said, said


# Error messages about files name the file and the line.
def refused(message, *words):
    out = finetune(*words, expect=2)
    assert message in out, (message, out)


def refused_lines(message, task, lines):
    refused(message, "--task", task, "--train-data", write("wrong.tsv", lines), "--valid-data", WORK / "wrong.tsv",
            *FROM, "--epochs", 1)


refused_lines("wrong.tsv', line 3: the line has 5 columns, but must have 6", "QQP", [*QQP_LINES[:2], "1\t2\t3\ta\tb"])
refused_lines("wrong.tsv', line 2: the line has 7 columns, but must have 6", "QQP",
              [QQP_LINES[0], "1\t2\t3\ta\tb\tc\t1"])
refused_lines("wrong.tsv', line 2: the line has 3 columns, but must have at least 11", "MNLI",
              [MNLI_LINES[0], "1\t2\t3"])
refused_lines("wrong.tsv', line 4: the label 'unsure' is not one of the 3 classes", "MNLI",
              [*MNLI_LINES[:3], MNLI_LINES[3].replace("neutral", "unsure")])
refused_lines("wrong.tsv' has no samples", "MNLI", MNLI_LINES[:1])
refused_lines("wrong.tsv', line 2: byte 0xe9 at offset 15 is not UTF-8", "labels",
              ["good\ta text", "caf\udce9\ta text"])
refused_lines("line 1: a line must have a label", "labels", ["a text without a label"])
refused_lines("line 2: a text has no tokens", "labels", ["a\tword", "b\t "])
refused_lines("have the label 'a'", "labels", ["a\tword", "a\tother"])
refused_lines("line 1: an answer is not A, B, C or D", "RACE", [question().replace('"answers": ["', '"answers": ["E')])
refused_lines("line 2: ", "RACE", [question(), "{"])
refused("line 1: the label 'sideways' is not one of the 2 classes", *LABELS, write("other.tsv", ["sideways\tword"]),
        *FROM, "--epochs", 1)
refused("--task expects one of none, MNLI, QQP, RACE, labels, not 'SST'", "--task", "SST", *LABELS[2:],
        *FROM, "--epochs", 1)
refused("Fine-tuning needs --task", *LABELS[2:], *FROM, "--epochs", 1)
refused("--train-iters", *LABELS, *FROM, "--epochs", 1, "--train-iters", 5)
refused("--valid-data lists a file twice", *MNLI, WORK / "mnli-2.tsv", WORK / "mnli.tsv", *FROM, "--epochs", 1)
refused("--class-labels lists a class twice", *LABELS, *FROM, "--epochs", 1, "--class-labels", "c", "prose", "c")
refused("--class-labels has no effect without --task labels", *MNLI, *FROM, "--epochs", 1, "--class-labels", "a", "b")
refused("the checkpoint in", *LABELS, "--pretrained-checkpoint", WORK / "bert", *SIZES, "--hidden-size", 64,
        *TOKENS, "--epochs", 1)
refused("'classification_head.weight' ('whole') has the shape [3, 32], but in this model it has the shape [2, 32]",
        *QQP, "--pretrained-checkpoint", WORK / "mnli", "--use-checkpoint-args", "--epochs", 1)
for family in "gpt", "t5":
    refused(f"isotron: --task supports only BERT: set --model bert instead of {family}.", *LABELS, *SIZES,
            "--model", family, *TOKENS, "--epochs", 1)
isotron("pretrain", *SIZES, "--model", "gpt", *TOKENS, "--mock-data", *PRETRAIN[4:], "--train-iters", 1,
        "--save", WORK / "gpt", "--save-interval", 1)
for words in ["--load"], ["--pretrained-checkpoint"], ["--use-checkpoint-args", *LABELS, "--epochs", 1,
                                                       "--load"], ["--model", "bert", "--load"]:
    out = isotron("finetune", *words, WORK / "gpt", expect=2)
    assert out == (f"isotron: '{WORK / 'gpt'}' contains a 'gpt' model, but a task fine-tunes a BERT model: "
                   "load a checkpoint of --model bert\n"), out
assert isotron("finetune", expect=2).startswith("isotron: 12 problems with the options; the first is: isotron finetune"
                                                " supports only BERT: set --model bert instead of gpt.\n")
refused("needs the tokens [CLS] and [SEP]", *LABELS, *SIZES, "--tokenizer-type", "ByteLevelTokenizer", "--epochs", 1)
refused("lower --global-batch-size, or add --keep-last", *LABELS[:3], write("few.tsv", ["a\tword", "b\tword"]),
        *LABELS[4:], *FROM, "--epochs", 1)
