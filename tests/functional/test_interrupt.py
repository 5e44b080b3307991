"""Ctrl-C loses no work: the run reports immediately that it will stop, saves, and exits with status 130. The resumed
run ends like an uninterrupted one. Ctrl-C also stops an evaluation, and a second Ctrl-C ends the process immediately.
With --exit-signal-handler, SIGTERM does the same (status 143). --exit-interval and --exit-duration-in-mins stop the run
as requested, with status 0. After other ends (ENDS), the files are as formats.md specifies; test_faults.py covers full
disks, lost ranks and lost data."""
import os
import re
import resource
import signal
import time

from harness import *

data = corpus()
straight = WORK / "straight"
LONG = ["--train-iters", 150, "--lr-decay-iters", 150]
pretrain(data, straight, *LONG)


def start(*words):
    process = subprocess.Popen([PROGRAM, "pretrain", *map(str, words)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    sys.exit(f"'{text}' was not printed; exit status {process.wait()}\n{process.stderr.read()}")


def interrupted(name, number, status, *options):
    folder = WORK / name
    process = start(*BASE[1:], *data, "--save", folder, *LONG, *options)
    wait_for(process, "iteration       10/")
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == status, (name, process.returncode, out, err)
    assert f"{number.name}: stopping after this step" in err, (name, process.returncode, out, err)
    reached = int((folder / "latest_checkpointed_iteration.txt").read_text())
    assert 10 <= reached < 150, f"{name}: saved at {reached}"
    pretrain(data, folder, *LONG, "--load", folder)
    assert_same_bytes(straight, folder, 150, name)
    print(f"{name}: stopped at {reached}, resumed = straight")


interrupted("sigint", signal.SIGINT, 130)
interrupted("sigterm", signal.SIGTERM, 143, "--exit-signal-handler")

folder = WORK / "interval"
out = pretrain(data, folder, *LONG, "--exit-interval", 7)
assert "exiting at iteration 7 because of --exit-interval\n" in out, out
assert [path.name for path in folder.glob("iter_*")] == ["iter_0000007"], out

# With a clock that runs 6000 times as fast, 60 minutes last 0.6 s of real time.
begin, words = time.monotonic(), ["--exit-duration-in-mins", 60, "--train-iters", 10**6, "--lr-decay-iters", 10**6,
                                  "--log-interval", 1000]
fast = os.environ | {"DRILL_CLOCK": f"{time.monotonic_ns()} 6000"}
done = subprocess.run([os.environ["DRILL_PROGRAM"], *map(str, [*BASE, *data, "--save", WORK / "duration", *words])],
                      capture_output=True, text=True, env=fast)
assert done.returncode == 0, (done.stdout, done.stderr)
assert "--exit-duration-in-mins: stopping after this step" in done.stdout, (done.stdout, done.stderr)
assert time.monotonic() - begin >= 0.6 and len(list((WORK / "duration").glob("iter_*"))) == 1, done.stdout
print("a run ends after its minutes")

# In a step that would take minutes, the first signal is acknowledged immediately, and the second ends the process.
folder = WORK / "twice"
(WORK / "ramp.conf").write_text("".join(line + "\n" for line in CONF.split("\n") if "-iters" not in line
                                        and "global" not in line))
process = start("--config", WORK / "ramp.conf", *data, "--save", folder, "--step-batch-size-schedule", "0:8 256:80000",
                "--train-samples", 80008)
wait_for(process, "iteration        1/")
time.sleep(0.2)  # the second step has begun
process.send_signal(signal.SIGINT)
assert "SIGINT: stopping after this step" in process.stderr.readline() and process.poll() is None
process.send_signal(signal.SIGINT)
assert process.wait(timeout=60) == -signal.SIGINT and "stopping immediately" in process.stderr.read()
assert not list(folder.glob("iter_*"))
print("a second signal ends the process")

# An evaluation that would take minutes stops, and the trained steps are saved.
folder = WORK / "evaluation"
split = [*data[:-1], "80,20,0", "--eval-iters", 20000, "--eval-interval", 2, "--train-iters", 4]
process = start(*BASE[1:], *split, "--save", folder)
wait_for(process, "iteration        2/")
time.sleep(0.2)
process.send_signal(signal.SIGINT)
out, err = process.communicate(timeout=60)
assert process.returncode == 130 and "validation loss" not in out, (out, err)
assert [p.name for p in folder.glob("iter_*")] == ["iter_0000002"], (out, err)
print("an evaluation stops")

# Later evaluations read the same samples as without the interruption.
words = [*data[:-1], "80,20,0", "--eval-iters", 400, "--eval-interval", 2, "--train-iters", 4]


def evaluations(log):
    rows = map(json.loads, log.read_text().splitlines())
    return [(r["iteration"], r["loss"]) for r in rows if r.get("kind") == "validation"]


pretrain(words, WORK / "evaluated", "--log-jsonl", WORK / "evaluated.jsonl")
process = start(*BASE[1:], *words, "--save", WORK / "again")
wait_for(process, "iteration        2/")
process.send_signal(signal.SIGINT)
out, err = process.communicate(timeout=60)
assert process.returncode == 130 and "validation loss" not in out, (out, err)
pretrain(words, WORK / "again", "--load", WORK / "again", "--log-jsonl", WORK / "again.jsonl")
wanted = evaluations(WORK / "evaluated.jsonl")
assert len({loss for _, loss in wanted}) == 3, (wanted, evaluations(WORK / "again.jsonl"))
assert evaluations(WORK / "again.jsonl") == wanted[1:], (wanted, evaluations(WORK / "again.jsonl"))
print("an interrupted evaluation uses up its samples")

# ---- other ends ----

SHORT, LAST, SIZE = ["--train-iters", 12, "--save-interval", 4], 12, 4 << 20
NAN = """--num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32
  --vocab-size 128 --tokenizer-type NullTokenizer --mock-data --micro-batch-size 1 --global-batch-size 2
  --train-iters 60 --lr 900000 --min-lr 900000 --clip-grad 0 --hidden-dropout 0 --attention-dropout 0
  --eval-iters 0 --log-interval 1 --save-interval 2 --most-recent-k 1""".split()


def spoilt(name, *places):
    """Makes a copy of the data with ids outside the vocabulary."""
    for end in (".bin", ".idx"):
        shutil.copy(f"{data[1]}{end}", WORK / f"{name}{end}")
    tokens = bytearray((WORK / f"{name}.bin").read_bytes())
    for at in places or range(len(tokens) // 2):
        tokens[2 * at:2 * at + 2] = b"\xff\xee"
    (WORK / f"{name}.bin").write_bytes(tokens)
    return WORK / name


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, SIZE))


def steps_in(folder):
    return sorted(int(p.name[5:]) for p in folder.glob("iter_*"))


pretrain(data, WORK / "short", *SHORT, "--log-jsonl", WORK / "short.jsonl")
header, *lines = (WORK / "short.jsonl").read_text().splitlines(True)
(WORK / "long.jsonl").write_text(json.dumps({"kind": "run", "iteration": 0,
                                             "pad": "x" * (SIZE - 2 * len(header) - 6 * len(lines[0]))}) + "\n")
shutil.copy(f"{data[1]}.bin", WORK / "alone.bin")
LATER = ["--data-path", spoilt("later", 1000), *data[2:]]
NONE, DONE, REGULAR = "nothing", "the steps that were done", "the last regular checkpoint"
ENDS = {  # options, exit status, message, what is left
    "option": ([*data, "--train-iterz", 3], 2, "did you mean --train-iters", NONE),
    "value": ([*data, "--min-lr", 1], 2, "--min-lr 1 is above", NONE),
    "tokenizer": ([*data, "--tokenizer-type", "NullTokenizer", "--vocab-size", 64], 2,
                  "made with another tokenizer", NONE),
    "absent": (["--data-path", WORK / "absent"], 2, "cannot open", NONE),
    "alone": (["--data-path", WORK / "alone"], 2, "alone.idx", NONE),
    "wrong": (["--data-path", spoilt("wrong")], 2, "the vocabulary has only 512 tokens", NONE),
    "later": (LATER, 2, "the vocabulary has only 512 tokens", DONE),
    "later, pruned": ([*LATER, "--most-recent-k", 1, "--async-save"], 2, "the vocabulary has only 512 tokens", DONE),
    "validation": (["--train-data-path", data[1], "--valid-data-path", WORK / "wrong", "--eval-iters", 1,
                    "--eval-interval", 6], 2,
                   "the vocabulary has only 512 tokens", DONE),
    "log closed": ([*data, "--log-jsonl", "/dev/full"], 3, "No space left on device", NONE),
    "log full": ([*data, "--log-jsonl", WORK / "long.jsonl"], 3, "File too large", DONE),
    "loss": (NAN, 1, "is not finite", REGULAR),
    "loss, async": ([*NAN, "--async-save"], 1, "is not finite", REGULAR),
    "loss, ranks": ([*NAN, "--ranks", 2, "--use-distributed-optimizer"], 1, "is not finite", REGULAR),
    "loss, nothing regular": ([*NAN, "--save-interval", 50], 1, "is not finite", NONE),
}
for name, (words, status, message, leaves) in ENDS.items():
    folder = WORK / f"end {name}"
    words = [*(["pretrain"] if words[0] == NAN[0] else [*BASE, *SHORT]), *words, "--save", folder, "--load", folder]
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, preexec_fn=limit_files)
    said, left = done.stdout + done.stderr, steps_in(folder)
    assert done.returncode == status and message in said, (name, done.returncode, said)
    failed = int(re.findall(r"iteration +(\d+)/", said)[-1]) + 1 if leaves != NONE else 0
    if leaves == NONE:
        assert not left and "saved checkpoint" not in said, (name, left, said)
    elif leaves == DONE:
        assert 4 < left[-1] in (failed - 1, failed), (name, failed, left)
        assert left[:-1] in ([], [*range(4, left[-1], 4)]), (name, failed, left)
    else:
        assert left == [(failed - 1) // 2 * 2], (name, failed, left, said)
        assert f"the newest checkpoint is that of iteration {left[0]}." in said, (name, failed, left, said)
        assert f"(samples {2 * failed - 2} to {2 * failed - 1})" in said, said
        again = isotron(*words, expect=1)  # the failing samples are read again
        assert f"iteration {failed} is not finite" in again and steps_in(folder) == left, (name, again)
    if name == "later":  # a run that has done no step saves none
        isotron(*BASE, *SHORT, *words[words.index("--data-path"):words.index("--save")], "--load", folder,
                "--save", WORK / "elsewhere", expect=2)
        assert not steps_in(WORK / "elsewhere")
    if not name.startswith("loss"):  # the mended command
        pretrain(data, folder, *SHORT, "--load", folder)
        assert_same_bytes(WORK / "short", folder, LAST, name)
    print(f"{name}: leaves {leaves}, {left}")

# If a checkpoint has another vocabulary, the error names the difference and the remedy.
said = isotron(*BASE, *data, *SHORT, "--tokenizer-type", "NullTokenizer", "--vocab-size", 64, "--load", WORK / "short",
               "--save", WORK / "short", expect=2)
assert "NullTokenizer has 64 tokens, but the model in" in said, said
assert "to the tokenizer used in training, ByteLevelTokenizer" in said, said
assert "for a new model, choose other folders" in said, said
