"""bench scaling runs steps on 1, 2, ... ranks. The batch grows (weak) or stays constant (strong), and the named axis
gets the additional ranks. The efficiency is the number of tokens/s per rank, divided by that of the run with the fewest
ranks in the same round."""
import os
import re
import signal
import statistics
import time

from harness import *

bench_conf()


def scaling(*options, rounds, expect=0):
    out = isotron("bench", "scaling", "--config", WORK / "bench.conf", "--steps", 2, "--warmup", 1, "--rounds", rounds,
                  "--json", WORK / "scaling.json", *options, expect=expect)
    return out, json.loads((WORK / "scaling.json").read_text()) if expect == 0 else None


def check(result, ranks, batches):
    rows = result["rows"]
    assert [row["ranks"] for row in rows] == ranks and [row["global_batch_size"] for row in rows] == batches, rows
    rate = [[row["global_batch_size"] * 16 / ms * 1e3 / row["ranks"] for ms in row["samples_ms"]] for row in rows]
    for row, own in zip(rows, rate):
        assert len(own) == result["rounds"] and row["devices"] == 1, row
        efficiency = statistics.median(a / b for a, b in zip(own, rate[0]))
        assert abs(row["efficiency"]["median"] / efficiency - 1) < 1e-4, (row, efficiency)
        assert abs(row["step_ms"]["median"] / statistics.median(row["samples_ms"]) - 1) < 1e-5, row


out, weak = scaling("--ranks", 4, rounds=7)
check(weak, [1, 2, 4], [4, 8, 16])
assert weak["scaling"] == "weak" and weak["provenance"]["commit"] and "weak scaling over data parallelism" in out, out
assert [row["exposed"] > 0 for row in weak["rows"]] == [False, True, True], weak["rows"]
assert all(row["efficiency"]["low"] <= row["efficiency"]["median"] <= row["efficiency"]["high"]
           for row in weak["rows"][1:]), weak["rows"]
turns = [line.split(", ")[1].split(" rank")[0] for line in out.splitlines() if line.startswith("round")]
assert turns == ["1", "2", "4", "4", "2", "1"] * 3 + ["1", "2", "4"], turns
cores = int(weak["provenance"]["cores"])
assert ("4 ranks (4 threads) share" in out) == (cores < 4), out

# Without --global-batch-size the smallest run has one microbatch for each of its data-parallel ranks.
conf = (WORK / "bench.conf").read_text()
(WORK / "bench.conf").write_text("".join(x for x in conf.splitlines(True) if not x.startswith("global-batch-size")))
micro = int(re.search("^micro-batch-size = (.*)$", conf, re.M)[1])
_, two = scaling("--ranks", 4, "--min-ranks", 2, rounds=1)
check(two, [2, 4], [2 * micro, 4 * micro])
(WORK / "bench.conf").write_text(conf)

# The named axis grows from its given size. A rank has one thread, unless the option sets another number.
PIPELINE, CONTEXT = "--pipeline-model-parallel-size", "--context-parallel-size"
for axis, fixed in ("context", PIPELINE), ("pipeline", CONTEXT):
    _, grown = scaling("--strong", "--over", axis, "--ranks", 4, fixed, 2, "--cpu-threads", 2, rounds=1)
    check(grown, [2, 4], [4, 4])
    assert (grown["options"]["context_parallel_size"], grown["options"]["pipeline_model_parallel_size"],
            grown["threads"], weak["threads"]) == (2, 2, 2, 1), grown

out, strong = scaling("--strong", "--over", "tensor", "--ranks", 2, "--pipeline-model-parallel-size", 2,
                      "--ranks", 4, rounds=1)
check(strong, [2, 4], [4, 4])
assert strong["options"]["tensor_model_parallel_size"] == 2 and "needs --rounds 6" in out, out
assert "low" not in strong["rows"][1]["efficiency"], out

for words, why in ((["--ranks", 1], "and larger"), ([], "and larger"),
                   (["--ranks", 6, "--min-ranks", 4], "a multiple of --min-ranks (4)"),
                   (["--ranks", 8, "--over", "tensor"], "--num-attention-heads 4 is not a multiple"),
                   (["--ranks", 2, "--weak", "--strong"], "choose one"),
                   (["--ranks", 2048], "--ranks must be at most 1024"),
                   (["--ranks", 4, "--over", "pipeline"], "4 ranks: 2 layers cannot be divided"),
                   (["--ranks", 4, "--tensor-model-parallel-size", 2, "--min-ranks", 1],
                    "--min-ranks must be a multiple of 2"), (["--ranks", 2, "--rounds", 0], "--rounds"),
                   (["--ranks", 2, "--nccl-library", "/etc/passwd"], "NCCL cannot be loaded"),
                   (["--ranks", 2, "--global-batch-size", 2**63 - 1],
                    "--global-batch-size must be from 1 to 16777216, not 9223372036854775807"),
                   (["--ranks", 8, "--min-ranks", 4, "--micro-batch-size", 2**62], "--micro-batch-size must be from"),
                   (["--ranks", 2, "--tensor-model-parallel-size", 0],
                    "--tensor-model-parallel-size must be from 1 to"),
                   (["--ranks", 2, "--min-ranks", 2, "--context-parallel-size", -1],
                    "--context-parallel-size must be from 1 to"),
                   (["--ranks", 2, "--weak", "--strong", "--global-batch-size", 3, "--micro-batch-size", 3],
                    "choose one")):
    said = scaling(*words, rounds=1, expect=2)[0]
    assert why in said and "round 1" not in said and said.count("\n") == 1, (words, said)

# The product of the sizes overflows a 64-bit integer to 0.
said = scaling("--ranks", 4, "--min-ranks", 1, "--tensor-model-parallel-size", 2**32,
               "--pipeline-model-parallel-size", 2**32, rounds=1, expect=2)[0]
assert "--tensor-model-parallel-size must be from 1 to" in said, said
assert "--pipeline-model-parallel-size must be from 1 to" in said, said

# Notes are about the largest run: --nccl-library has no effect on one rank, but it has on two.
LIBRARY = pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"
assert "no effect" not in scaling("--ranks", 2, "--nccl-library", LIBRARY, rounds=1)[0]


def interrupted(end, steps, after):
    """Starts a run. After `after` lines of output, calls end(process, children) until the run ends. Returns the process
    and its children."""
    words = [PROGRAM, "bench", "scaling", "--config", WORK / "bench.conf", "--steps", steps, "--rounds", 100,
             "--ranks", 2, "--json", WORK / "ended.json"]
    run = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for _ in range(after):
        run.stdout.readline()
    seen = set()
    while run.poll() is None:
        seen |= (children := set(pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()))
        if children:
            end(run, children)
    run.stdout.read()
    return run, seen


def kill_children(run, children):
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    time.sleep(0.01)


# If a run fails, the results of the rounds before it are kept.
run, _ = interrupted(kill_children, steps=300, after=2)
ended = json.loads((WORK / "ended.json").read_text())
assert run.returncode == 2 and ended["rounds"] >= 1 and "ended by signal 9" in ended["error"], ended
check(ended, [1, 2], [4, 8])

# If the benchmark is killed, no process remains.
def kill(run, _):
    time.sleep(0.3)  # the child is the program now
    run.kill()
    run.wait()


run, children = interrupted(kill, steps=100000, after=0)
deadline = time.monotonic() + 5
while left := [c for c in children if pathlib.Path(f"/proc/{c}").exists()
               and "Z" not in pathlib.Path(f"/proc/{c}/stat").read_text().split()[2]]:
    assert time.monotonic() < deadline, left
    time.sleep(0.01)
print("bench scaling: batches, turns, efficiency")
