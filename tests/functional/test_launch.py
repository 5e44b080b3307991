"""Ranks that are processes connected by TCP are bitwise equal to ranks that are threads. Only process 0 prints,
including errors of other processes. The variables of torchrun and of srun are supported."""
import os
import socket
import time

import launcher
from harness import *

data = corpus()
LAYOUT = ["--tensor-model-parallel-size", 2, "--use-distributed-optimizer"]
RUN = [PROGRAM, *BASE, *data, *LAYOUT]


def world(words, variables=launcher.variables, ranks=4):
    """Runs all ranks. Returns the exit status and the output of each. `words` may be a function of the rank."""
    port = launcher.free_port()
    processes = [launcher.start(words(r) if callable(words) else words, variables(r, ranks, port),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for r in range(ranks)]
    for p in processes:
        atexit.register(p.kill)
    return [(out, p.returncode) for p in processes for out in p.communicate(timeout=60)[:1]]


def assert_quiet(done, status, claim):
    assert all(code == status for _, code in done) and not any(out for out, _ in done[1:]), f"{claim}: {done}"
    return done[0][0]


def by_srun(rank, ranks, port):
    return {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": ranks, "SLURM_LOCALID": rank,
            "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": 1, "MASTER_PORT": port}


# ---- the curve and the checkpoint equal those of threads
isotron(*BASE, *data, *LAYOUT, "--ranks", 4, "--save", WORK / "threads", "--log-jsonl", WORK / "threads.jsonl")
for name, variables in {"torchrun": launcher.variables, "srun": by_srun}.items():
    out = assert_quiet(world([*RUN, "--save", WORK / name, "--log-jsonl", WORK / f"{name}.jsonl"], variables), 0, name)
    assert "transport:  through host memory, by TCP\n" in out and "layout:     4 ranks: tensor 2, data 2" in out, out
    assert losses(WORK / f"{name}.jsonl") == losses(WORK / "threads.jsonl"), name
    assert_same_bytes(WORK / "threads", WORK / name, 12, name)

# ---- every axis and schedule
for line in (ROOT / "tests/functional/layouts/smoke.list").read_text().splitlines():
    if "fp64 --ranks 4" in line:
        case, lane, *options = line.replace("--ranks 4 ", "").split()
        out = assert_quiet(world([PROGRAM, "parity", ROOT / "golden" / case, "--lane", lane, *options]), 0, line)
        assert "verdict: pass" in out, out

out = assert_quiet(world([PROGRAM, "bench", "comm", "--seconds", "1e-3", "--min-bytes", 64, "--max-bytes", "1M",
                          "--step-factor", 16, "--dtype", "fp32", "--json", WORK / "comm.json"], ranks=2),
                   0, "bench comm")
result = json.loads((WORK / "comm.json").read_text())
assert result["transport"] == "through host memory, by TCP, processes", result["transport"]
assert len(result["rows"]) >= 24, result["transport"]
assert not any(row[place]["wrong"] for row in result["rows"] for place in ("out_of_place", "in_place")
               if place in row), result["rows"]

# ---- errors: in all processes, in one before all are connected, in variables
started = time.monotonic()
assert "--tensor-model-parallel-size 3" in assert_quiet(world([*RUN, "--tensor-model-parallel-size", 3]), 2, "options")
out = assert_quiet(world(lambda rank: RUN if rank != 2 else [*RUN, "--train-iters", "many"]), 2, "one process")
assert "isotron: process 2: --train-iters" in out, out
out = assert_quiet(world(lambda rank: RUN if rank != 2 else [*RUN, "--lr", "1e-2"]), 2, "one differs")
assert "--lr is 0.003 on process 0, but differs on other processes" in out, out
isotron("preprocess", "--input", WORK / "corpus.txt", "--input-format", "paragraphs",
        "--output-prefix", WORK / "other", *TOKENIZER)
out = assert_quiet(world(lambda rank: RUN if rank != 2 else [*RUN, "--data-path", WORK / "other_text_document"]),
                   2, "other data")
assert "the processes have different data" in out, out
out = assert_quiet(world([*RUN, "--ranks", 3]), 2, "ranks")
assert "--ranks 3 differs from the 4 processes that the launcher started" in out, out
out = assert_quiet(world([PROGRAM, "finetune", "--model", "bert", "--ranks", 3]), 2, "ranks of finetune")
assert "--ranks 3 differs from the 4 processes that the launcher started" in out, out
out = assert_quiet(world(RUN, lambda *_: {"RANK": 0, "WORLD_SIZE": 2}, 1), 2, "half")
assert "RANK is set, but MASTER_ADDR is not" in out, out
assert time.monotonic() - started < 10, "processes wait for others that have failed"

# mpirun of another MPI
if shutil.which("mpirun"):
    out = assert_quiet(world(RUN, lambda *_: {"PMI_RANK": 0, "PMI_SIZE": 2}, 1), 2, "another MPI")
    assert "2 processes, but MPI connects 1" in out or "was built without MPI" in out, out

with socket.create_server(("127.0.0.1", 0)) as other:
    done = world(RUN, lambda *_: launcher.variables(0, 2, other.getsockname()[1]), 1)
    assert "is in use: set MASTER_PORT" in assert_quiet(done, 2, "port"), done

# ---- signals: one process receives it, and all processes save and stop
for number, status, options in ((2, 130, []), (15, 143, ["--exit-signal-handler"])):
    folder, port, long = WORK / f"signal {number}", launcher.free_port(), ["--train-iters", 400,
                                                                           "--lr-decay-iters", 400]
    processes = [launcher.start([*RUN, *long, *options, "--save", folder], launcher.variables(r, 4, port),
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for r in range(4)]
    for p in processes:
        atexit.register(p.kill)
    while "iteration       10/" not in processes[0].stdout.readline():
        assert processes[0].poll() is None
    processes[3].send_signal(number)
    assert [p.wait() for p in processes] == [status] * 4, [p.returncode for p in processes]
    assert int((folder / "latest_checkpointed_iteration.txt").read_text()) >= 10
