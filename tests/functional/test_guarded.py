"""On a device whose memory the host cannot access (guarded.c), the program trains, saves, reports and generates the
same as on the CPU. The search for the first wrong op can read and replace tensors there."""
import os

from harness import *

GUARDED = os.environ["GUARDED_PROGRAM"]


def run(program, *words, expect=0, **environment):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, errors="replace",
                          env={**os.environ, **environment})
    assert done.returncode == expect, f"{program} {' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


def reported(out):
    """Returns the lines of steps and evaluations, without times."""
    lines = [line.split("|") for line in out.splitlines() if "params norm" in line or "validation loss" in line]
    return [[field for field in line if "norm" in field or "zeros" in field or "loss" in field] for line in lines]


# ---- runs with all optional reports
data = [*corpus()[:2], "--split", "80,20,0"]
RUNS = {"dense": [], "experts": ["--num-experts", 4, "--disable-bias-linear", "--moe-aux-loss-coeff", 0.01,
                                 "--moe-z-loss-coeff", 0.01],
        "chunks": ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "linear",
                   "--cross-entropy-chunk-size", 5],
        "async": ["--async-save"], "ranks": ["--ranks", 2, "--use-distributed-optimizer"],
        "muon": ["--optimizer", "muon", "--ranks", 2, "--tensor-model-parallel-size", 2]}
for name, options in RUNS.items():
    here, there = [(WORK / f"{name}-{side}", WORK / f"{name}-{side}.jsonl") for side in ("here", "there")]
    words = [*BASE, *data, "--bf16", "--log-params-norm", "--log-num-zeros-in-grad", "--eval-interval", 4,
             "--eval-iters", 1, *options]
    outs = [run(program, *words, "--save", save, "--log-jsonl", log) for program, (save, log) in ((PROGRAM, here),
                                                                                                  (GUARDED, there))]
    assert reported(outs[0]) and reported(outs[0]) == reported(outs[1]), f"{name}: {outs}"
    assert losses(here[1]) == losses(there[1]), name
    assert_same_bytes(here[0], there[0], 12, name)

# ---- generation from prompts of different lengths
run(PROGRAM, "convert", "--from-hf", ROOT / "tests/data/hf/t5-original", "--save", WORK / "t5")
WRITER, T5 = ["experts-there", "--prompt", "the", "a device"], ["t5", "--tokenizer-type", "NullTokenizer",
                                                                "--vocab-size", 61, "--prompt", "4 5", "6 7 8 9"]
for (model, *prompts), options in ((WRITER, ["--top-k", 1]), (WRITER, ["--temperature", 0.9, "--top-p", 0.8]),
                                   (T5, ["--bf16", "--top-k", 1])):
    words = ["generate", "--load", WORK / model, *prompts, "--tokens-to-generate", 9, "--logprobs", *options]
    here, there = run(PROGRAM, *words), run(GUARDED, *words)
    assert here == there and "new 3" in here, f"{here}\n{there}"

# ---- an op that one rank skips is found, and the step is correct once its tensor is replaced
(WORK / "list").write_text("fp64 --tensor-model-parallel-size 2\n")
for op, phase in {"bias": "forward of linear (inside: bias)", "norm_grad": "backward of norm_grad",
                  "adamw": "update of adamw"}.items():
    out = run(GUARDED, "parity", ROOT / "golden" / "gpt2-layouts", "--sweep", WORK / "list", expect=1, GUARDED_SKIPS=op)
    assert phase in out and "(confirmed" in out, f"{op}: {out}"
