"""Functions that declare the rows of the table (rows.py).

A row is a function that runs a Program and raises Wrong on an error. `fields` are the options that it tests, `families`
the models with which it tests them. Four kinds take one line each:

  witnessed  a run has the numbers of the reference trainer (trainer.py): it begins in one layout and is resumed in another
  scheduled  the same, for rates and updates, which do not depend on the family: BERT and T5 run on one rank, without a break
  rounded    a run is close to the reference trainer, and not bitwise equal to a run without the option
  shown      the output shows the option, and the numbers are bitwise equal to those of a run without it

low_precision declares the rows that pretrain and finetune (task_rows.py) share."""
import dataclasses
import functools
import pathlib
import re
import sys
from typing import Callable

from program import bits, compare, expect, joined, merged
from trainer import Options, Trainer

BASE = """--num-layers 2 --hidden-size 16 --num-attention-heads 4 --seq-length 16 --vocab-size 40 --tokenizer-type NullTokenizer
  --make-vocab-size-divisible-by 8 --data-path text --split 70,20,10 --lane fp64 --micro-batch-size 2 --global-batch-size 4 --lr 1e-2
  --train-iters 4 --log-interval 1 --eval-iters 1 --eval-interval 2 --init-method-std 0.3 --hidden-dropout 0 --attention-dropout 0
  --log-params-norm""".split()
ENCODER = "--init-method-std 0.2 --adam-eps 1e-4 --hidden-size 8 --kv-channels 4 --ffn-hidden-size 16 --seq-length 32"
ENCODER += " --tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt"
BASES = {"gpt": BASE, "bert": merged(BASE, f"--model bert {ENCODER}".split(), "vocab-size"),
         "t5": merged(BASE, f"--model t5 {ENCODER} --num-layers 1 --decoder-num-layers 3 --decoder-seq-length 24 --vocab-extra-ids 12".split(),
                      "vocab-size")}
GPT, BERT, T5, NOT_T5, NOT_BERT, ENCODERS, ALL = (f.split() for f in ("gpt", "bert", "t5", "gpt bert", "gpt t5", "bert t5", "gpt bert t5"))
ONE = ""
CUT = "--ranks 4 --tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel"
STAGES = "--ranks 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer"
ROUNDS = re.compile("fp8-.*|no-fp8-wgrad|te-precision-config-file|attention-backend|grad-reduce-in-bf16"
                    "|use-precision-aware-optimizer"
                    "|(main-grads|exp-avg|exp-avg-sq)-dtype|first-last-layers-bf16|num-layers-at-(start|end)-in-bf16")
THOROUGH = "--thorough" in sys.argv  # also whole runs, on one rank and in each layout
ROWS = []


@dataclasses.dataclass
class Row:
    fields: list
    check: Callable  # takes a Program, and whether to stop after its first run
    words: str = ""
    family: str = "gpt"

    @property
    def name(self):
        more = f" and {len(self.fields) - 1} more" if len(self.fields) > 1 else ""
        return f"{self.family}: {self.fields[0]}{more}" + (f" [{self.words}]" if self.words else "")


def row(fields, words="", families=ALL):
    def add(check):
        ROWS.extend(Row(fields.split(), check, words.strip(), family) for family in families)
        return check
    return add


@functools.cache
def results(*words):
    return Trainer(words).run()


def reference(*words):
    """Returns the results of the reference trainer, which are the same for options that only affect rounding."""
    o = Options(words)
    rounds = [name for name in o if ROUNDS.fullmatch(name) or name == "lane" and o.text(name) != "fp16"]
    return results(*merged(words, [], " ".join(rounds)))


@functools.cache
def plain(program, *words):
    return bits(program.pretrain(words))


def half(records):
    return records[len(records) // 2 - 1]["iteration"]


def resumed(program, words, steps, first, second):
    """Runs `steps` steps in one layout, saves a checkpoint, and resumes the run in another layout."""
    save = program.fresh()
    before = program.pretrain(words, *first.split(), "--save", save, "--save-interval", 1000, "--exit-interval", steps)
    return joined(before, program.pretrain(words, *second.split(), "--load", save))


def check_read(fields, run):
    """Raises Wrong if a note says that an option of the row has no effect."""
    names = fields.replace("_", "-").replace(" ", "|")
    expect(not re.search(rf"^note: (.*--({names})\b.*|\d+ options have) no effect", run.text, re.M),
           "a note says that an option of the row has no effect")


def legs(layouts):
    """Returns the layouts of the two halves of a resumed run (None if no run is resumed), and the layouts of whole
    runs. Without `layouts`, any layout may be used."""
    if layouts == (ONE,):
        return None, layouts
    first, second, *more = layouts * 2 if len(layouts) == 1 else layouts or (CUT, STAGES)
    return (first, second), (layouts or (ONE, CUT, STAGES)) if THOROUGH else more


def witnessed(fields, words="", without="", layouts=(), witness="", families=ALL, steps=3):
    """For `layouts`, see legs. witness: options for the reference trainer only, which the program derives itself.
    steps: steps before the resume; at least two must follow, because a step may leave state to the next one."""
    def check(program, quick):
        o = program.words(f"--train-iters {steps} {words}", without)
        expected, (halves, whole) = reference(*o, *witness.split()), legs(layouts)
        if quick:
            halves, whole = None, (layouts or (ONE,))[:1]
        runs = [program.pretrain(o, *layout.split()) for layout in whole]
        for run in runs + ([resumed(program, o, half(expected[0]), *halves)] if halves else []):
            compare(run, expected, o)
            check_read(fields, run)
    row(fields, words, families)(check)


def scheduled(fields, words, without=""):
    """Like witnessed, for options whose code all families share: only GPT runs in several layouts."""
    witnessed(fields, words, without, families=GPT, steps=4)
    witnessed(fields, words, without, (ONE,), families=ENCODERS, steps=4)


def rounded(fields, words, like="", without="", families=ALL):
    """`like` has the options of a second run, to which the results must not be bitwise equal."""
    def check(program, quick):
        o = program.words(words, without)
        run = program.pretrain(o)
        compare(run, reference(*o), o)
        expect(bits(run) != plain(program, *program.words(like, without)), f"not different from {like or 'without'}")
    row(fields, words, families)(check)


def shown(fields, words, pattern, count=None, families=ALL):
    """`pattern` is a regular expression that must match the output, and `count` is the number of matches."""
    def check(program, quick):
        run = program.pretrain(program.words(words))
        expect(bits(run) == plain(program, *program.words()), "numbers change")
        found = len(re.findall(pattern, run.text))
        expect(found == count if count is not None else found > 0, f"'{pattern}' is printed {found} times")
    row(fields, words, families)(check)


BF16 = "--lane bf16 "
MOMENTS = BF16 + "--use-precision-aware-optimizer "
DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
PRECISION = f"--te-precision-config-file {DATA}/precision.yaml "
FP8 = "--num-layers 3 --lane fp32 --lr 1e-3 --fp8-format hybrid "


def low_precision(rounded, fp8=FP8):
    """`rounded` is the function that declares such a row for the command."""
    tensorwise = fp8 + "--fp8-recipe tensorwise "
    ends = tensorwise + "--first-last-layers-bf16"
    rounded("lane", "--lane fp32")
    rounded("lane", BF16, like="--lane fp32")
    rounded("attention_backend", "--lane fp32 --attention-backend unfused", like="--lane fp32")
    rounded("batch_invariant_mode", "--lane fp32 --batch-invariant-mode", like="--lane fp32")
    rounded("grad_reduce_in_bf16", BF16 + "--grad-reduce-in-bf16", like=BF16)
    for name in ("main-grads", "exp-avg", "exp-avg-sq"):
        rounded(f"{name}-dtype".replace("-", "_"), MOMENTS + f"--{name}-dtype bf16", like=MOMENTS)
    rounded("fp8_format", fp8, like=fp8.replace("hybrid", "e4m3"))
    rounded("fp8_recipe", tensorwise, like=fp8)
    rounded("fp8_margin", fp8 + "--fp8-margin 3", like=fp8)
    rounded("fp8_amax_history_len fp8_amax_compute_algo", fp8 + "--fp8-amax-history-len 3 --fp8-amax-compute-algo max", like=fp8)
    rounded("te_precision_config_file", fp8 + PRECISION, like=fp8)
    rounded("fp8_wgrad", fp8 + "--no-fp8-wgrad", like=fp8)
    rounded("first_last_layers_bf16", ends, like=tensorwise)
    for end in ("start", "end"):
        rounded(f"num_layers_at_{end}_in_bf16", ends + f" --num-layers-at-{end}-in-bf16 0", like=ends)
