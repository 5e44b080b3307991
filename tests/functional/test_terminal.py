"""On a terminal, verdicts are coloured, and a line that never wraps shows the current step, or the current stage of
validate. Redirected output is plain."""
import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import time

from harness import *


STATUS = re.compile(r"\r\033\[K([^\r]*)(?=\r\033)")  # a line of the log ends with \r\n


def resize(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def at_terminal(words, columns=200, then=None, stdout=None, **env):
    """Runs the program on a terminal and returns its output. With `then`, the terminal is resized to that number of
    columns when the run shows a step. When it shows a step after that, the run is stopped."""
    main, terminal = pty.openpty()
    resize(main, columns)
    clean = {name: value for name, value in os.environ.items() if name not in ("TERM", "NO_COLOR", "COLUMNS")}
    process = subprocess.Popen([PROGRAM, *map(str, words)], stdin=terminal, stdout=stdout or terminal,
                               stderr=terminal, text=True, env=clean | {"TERM": "xterm"} | env)
    os.close(terminal)
    said = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while more := os.read(main, 4096):
            said += more
            shown = STATUS.findall(said.decode(errors="replace"))
            if then and shown:
                resize(main, then)
            if then and len(shown and shown[-1]) == then - 1:
                process.terminate()
                then = None  # a second signal ends it immediately
    os.close(main)
    plain = process.communicate()[0]
    return said.decode(), plain


# The line of the current step is cut to the width of the terminal, also when that changes; without a width, to COLUMNS.
words = [*BASE, *corpus(), "--train-iters", 12, "--log-interval", 6, "--global-batch-size", 128]
WHOLE = r"step (\d+)/12 \| loss [\d.]+ \| \d+ tokens/s \| 0:00:\d\d left"
for columns, then, env in ((200, None, {}), (0, None, {"COLUMNS": "30"}), (40, 20, {}), (1, None, {})):
    said, _ = at_terminal([*words, "--train-iters", 10**5] if then else words, columns, then, **env)
    shown, width = STATUS.findall(said), (columns or int(env["COLUMNS"])) - 1
    if then:
        assert len(shown[0]) == width and len(shown[-1]) == then - 1, said
        continue
    assert shown and max(map(len, shown)) <= width, said
    assert all("step "[:width].startswith(line[:len("step ")]) for line in shown), said
    assert width < 60 or re.fullmatch(WHOLE, shown[0]), said
    assert re.search(r"step 6/12 \| loss \S+ \| \d+ tokens/s \| \S+ left \| grad norm", " ".join(said.split())), said
    assert "iteration " not in said, said
said, plain = at_terminal(words, stdout=subprocess.PIPE)  # the log in a file keeps Megatron-LM's lines
steps = [int(k) for k in re.findall(rf"\r\033\[K{WHOLE}", said)]
assert steps and steps[0] > 1 and steps == sorted(steps) and {6, 12}.isdisjoint(steps), said
assert said.endswith("\r\033[K"), said
assert " iteration        6/      12 | consumed samples" in plain and "\033" not in plain, plain
assert "step " not in plain, plain
words[-1] = 8
assert "\033" not in at_terminal(words, TERM="dumb")[0]
assert " iteration        6/" in at_terminal([*words, "--log-format", "megatron"])[0]
said = isotron(*words)
assert "\033" not in said and " iteration        6/" in said, said

# Verdicts are green, yellow and red, but only on a terminal without NO_COLOR (an empty value counts as unset) and
# TERM=dumb.
GREEN, YELLOW, RED = 32, 33, 31
for name, rate in (("a", 1), ("b", 2)):
    (WORK / f"{name}.jsonl").write_text(f'{{"kind": "run"}}\n{{"iteration": 1, "lm_loss": {rate}}}\n')
OPS = ["bench", "ops", "--filter", "^norm/rms-narrow$", "--dtype", "fp32", "--seconds", 1e-9, "--cpu-threads", 1]
isotron(*OPS, "--json", WORK / "result.json")
(WORK / "one.list").write_text("gpt2-tiny fp64\n")
VALIDATE = ["validate", "--only", "compute", "--seconds", 1]
for colour, verdict, words in (
        (GREEN, "equal", ["compare", WORK / "a.jsonl", WORK / "a.jsonl"]),
        (RED, "differ", ["compare", WORK / "a.jsonl", WORK / "b.jsonl"]),
        (GREEN, "pass", ["parity", ROOT / "golden/gpt2-tiny", "--fp64"]),
        (RED, "FAIL", ["parity", ROOT / "golden/gpt2-tiny", "--fp64", "--lr", 0.02]),
        (YELLOW, "weak", ["parity", ROOT / "golden/gpt2-tiny", "--lane", "fp16", "--loss-scale", 1e-5]),
        (GREEN, "pass", ["parity", ROOT / "golden/gpt2-tiny", "--sweep", WORK / "one.list"]),
        (GREEN, "PASS", VALIDATE),
        (YELLOW, "INCONCLUSIVE", [*OPS, "--baseline", WORK / "result.json"])):
    said, _ = at_terminal(words)
    assert f"\033[{colour}m{verdict}\033[0m" in said and len(re.findall("\033.[0-9]*m", said)) % 2 == 0, (words, said)
    if words == VALIDATE:  # only where a word is a verdict
        shown = STATUS.findall(said)
        assert "compute: equal results" in said, said
        assert any(re.fullmatch(r"compute 1/1 \| \d s \| run \d of 1 s \| GEMMs in \w+", line) for line in shown), said
        assert "\r\033[Kcompute      \033[32m" in said, said
said, _ = at_terminal([*VALIDATE[:-1], 60], 40, 20)
shown = STATUS.findall(said)
assert len(shown[-1]) == 19 and "compute 1/1 | 0 s | run 0 of 60 s | GEMMs"[:39] in shown, said
assert "\033[33mINTERRUPTED\033[0m, 0 of 9 stages pass; " in " ".join(said.split()), said

# The line shows the seconds since the stage began and since the run began.
begun = time.monotonic()
said, _ = at_terminal(["validate", "--only", "compute", "memory", "--seconds", 4, "--json", WORK / "v.json"])
most = time.monotonic() - begun
took = {stage["name"]: stage["seconds"] for stage in json.loads((WORK / "v.json").read_text())["stages"]}
clocks = [[(int(a), int(b)) for a, b in re.findall(rf"\033\[K{stage} \| (\d+) s \| run (\d+) of 4 s", said)]
          for stage in ("compute 1/2", "memory 2/2")]
for (stage, seconds), shown, before in zip(took.items(), clocks, (0, took["compute"])):
    assert shown and shown == sorted(shown), (stage, said)
    assert all(a <= seconds and int(before) <= b - a <= b <= most for a, b in shown), (stage, took, most, shown)
assert clocks[0][-1][0] >= took["compute"] - 2, (took, clocks)

for env in ({"NO_COLOR": "1"}, {"NO_COLOR": "false"}, {"TERM": "dumb"}):
    assert "\033" not in at_terminal(["compare", WORK / "a.jsonl", WORK / "a.jsonl"], **env)[0], env
assert "\033" in at_terminal(["compare", WORK / "a.jsonl", WORK / "a.jsonl"], NO_COLOR="")[0]
assert "\033" not in isotron("compare", WORK / "a.jsonl", WORK / "a.jsonl")

# Text and tables fit the width. A word that is longer is not broken.
PLAIN, STAGES = [*BASE[1:], "--mock-data"], ["--num-layers", 8, "--ranks", 8, "--pipeline-model-parallel-size", 4]
IDLE = ["--no-rope-fusion", "--no-masked-softmax-fusion", "--no-bias-swiglu-fusion", "--no-bias-dropout-fusion",
        "--no-mmap-bin-files"]
for words in (["plan", *PLAIN, *STAGES, "--device-memory-gib", 1, "--search"],
              ["pretrain", *PLAIN, *STAGES, *IDLE, "--check-options"],
              ["pretrain", *PLAIN, "--train-iters", 4], ["pretrain", "--help"], ["pretrain", "--help", "fusion"],
              ["--help"], VALIDATE):
    for columns in (80, 120):
        said = re.sub("\033.[0-9;]*[mK]|[^\n]*\r(?!\n)", "", at_terminal(words, columns)[0])
        lines = [line.rstrip() for line in said.splitlines()]
        assert not [line for line in lines if len(line) > columns and " " in line.strip()], (words, columns, said)
print("a terminal has colours and a line of its width; a pipe has neither")
