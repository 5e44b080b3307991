"""A fault ends a run within seconds, with an error message that names the fault and the rank, and no saved checkpoint
is lost. The resumed run is bitwise equal to an uninterrupted one, in losses and content."""
import concurrent.futures
import os
import random
import re
import resource
import signal
import time

from harness import *

DRILL = os.environ["DRILL_PROGRAM"]
RANKS, STEPS, EVERY, HIT = 4, 60, 5, 7  # it is hit after step HIT, with EVERY saved
data = corpus()
(WORK / "run.conf").write_text(CONF.replace("save-interval = 1000", f"save-interval = {EVERY}"))
LAYOUT = ["--ranks", RANKS, "--tensor-model-parallel-size", 2, "--use-distributed-optimizer"]
RUN = [*BASE, *data, *LAYOUT, "--lane", "fp64", "--num-layers", 1, "--micro-batch-size", 1, "--train-iters", STEPS,
       "--lr-decay-iters", STEPS, "--log-format", "megatron"]  # mpirun gives its ranks a terminal
SOON = ["--distributed-timeout-seconds-after-init", 2]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", RANKS]
OVER_TCP = [sys.executable, ROOT / "tests/functional/launcher.py", RANKS]
has_mpi = shutil.which("mpirun") is not None
started = time.monotonic()


def content(folder, step):
    return isotron("inspect", "--checkpoint", folder, "--ckpt-step", step, "--hash")


straight = WORK / "straight"
isotron(*RUN, "--save", straight, "--log-jsonl", WORK / "straight.jsonl")
LOSSES, CONTENT = losses(WORK / "straight.jsonl"), content(straight, STEPS)


def goes_on(folder, claim, *options):
    """Resumes the run from the checkpoints in the folder; it must end like the uninterrupted run."""
    log = folder.with_suffix(".jsonl")
    log.unlink(missing_ok=True)
    isotron(*RUN, "--load", folder, "--save", folder, "--log-jsonl", log, *options)
    got = losses(log)
    assert got and got == {i: LOSSES[i] for i in got} and STEPS in got, f"{claim}: other losses: {got}"
    assert content(folder, STEPS) == CONTENT, f"{claim}: another content"
    print(f"{time.monotonic() - started:5.1f} s  {claim}: {len(got)} steps again, the same curve", flush=True)


def disturbed(words, disturb=None, program=(PROGRAM,), **options):
    """Runs the program and calls disturb(process) after step HIT. Returns its output, its exit status, and the seconds
    since the disturbance or, without `disturb`, since the start."""
    begin = time.monotonic()
    p = subprocess.Popen([str(w) for w in (*program, *words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         stdin=subprocess.DEVNULL, text=True, errors="replace", **options)
    output = ""
    for line in p.stdout if disturb else ():
        output += line
        if f"iteration {HIT:8}/" in line:
            disturb(p)
            begin = time.monotonic()
            break
    output += p.stdout.read()
    return output, p.wait(), time.monotonic() - begin


def ends(claim, done, *parts, status=range(1, 256), seconds=10):
    """Checks how a run ended. Each part must have been printed; alternatives are separated by |."""
    output, code, took = done
    assert code in status, f"{claim}: exit status {code}\n{output}"
    assert took <= seconds, f"{claim}: took {took:.1f} s\n{output}"
    for part in parts:
        assert any(p in output for p in part.split("|")), f"{claim}: '{part}' is missing in:\n{output}"


# ---- processes: one of them is killed, stopped, or asked to stop
def process_of(launcher, rank):
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher.pid and f"RANK={rank}\0" in (folder / "environ").read_text():
                return int(folder.name)
        except OSError:
            pass  # it ended while we looked
    sys.exit(f"the launcher has no process for rank {rank}")


def processes(name, number, rank, *parts, launcher=MPIRUN, options=(), **expected):
    """Sends a signal to the process of a rank, or to the launcher if the rank is None."""
    folder = WORK / name
    hit = lambda p: os.kill(p.pid if rank is None else process_of(p, rank), number)
    ends(name, disturbed([*RUN, "--save", folder, *options], hit, [*launcher, PROGRAM]), *parts, **expected)
    goes_on(folder, f"{'MPI' if launcher is MPIRUN else 'TCP'}, {name}")


meanwhile = concurrent.futures.ThreadPoolExecutor()
stopped = meanwhile.submit(processes, "rank 1 stopped", signal.SIGSTOP, 1,
                           "COMM FAULT rank 1 has not been heard from for 6.",
                        "rank 1 does not answer", "exit statuses of the ranks: 3 -9 3 3", launcher=OVER_TCP)

STOPS = ["--exit-signal-handler"]
if has_mpi:
    processes("rank 1 killed", signal.SIGKILL, 1, "rank 1 with PID|ranks that did not: 1\n")
    processes("rank 2 stopped", signal.SIGSTOP, 2, "COMM FAULT rank ",
              "ranks that did not: 2\n|not in this operation: ranks 2\n", "rank 2 does not answer", options=SOON,
              status=[3])
    processes("rank 3 asked", signal.SIGTERM, 3, "SIGTERM: stopping after this step", options=STOPS, status=[143])
    processes("mpirun asked", signal.SIGUSR1, None, "SIGUSR1: stopping after this step", status=[138],
              options=[*STOPS, "--exit-signal", "SIGUSR1"])
    processes("mpirun interrupted", signal.SIGINT, None)

ENDED = "COMM FAULT rank {} has ended: its connection is closed"
processes("rank 0 killed", signal.SIGKILL, 0, ENDED.format(0), "exit statuses of the ranks: -9 3 3 3",
          launcher=OVER_TCP)
processes("rank 3 killed", signal.SIGKILL, 3, ENDED.format(3), "exit statuses of the ranks: 3 3 3 -9",
          launcher=OVER_TCP)
processes("all interrupted", signal.SIGINT, None, "SIGINT: stopping after this step", launcher=OVER_TCP, status=[130])


def pause(launcher):
    """Stops a process for longer than a tenth of the deadline."""
    rank_2 = process_of(launcher, 2)
    os.kill(rank_2, signal.SIGSTOP)
    time.sleep(1)
    os.kill(rank_2, signal.SIGCONT)


slow = disturbed([*RUN, "--distributed-timeout-seconds-after-init", 5, "--save", WORK / "slow"], pause,
                 [*OVER_TCP, PROGRAM])
ends("rank 2 slow", slow, "COMM WARNING rank ", "\n  for ranks: 2\n", status=[0])
assert content(WORK / "slow", STEPS) == CONTENT, "a slow rank changes the run"
stopped.result()

# ---- operations: one rank skips or delays a random one. If ranks then wait for each other in a cycle, any of them may
# report: it names the ranks that are missing in the operations for which the others wait
chance = random.Random(7)
OPERATIONS = 400  # of a rank in the first steps; a few dozen a step
DRILLS = [([], 0), ([], 0), ([], 0), ([], 30), (OVER_TCP, 0), *([(MPIRUN, 0), (MPIRUN, 30)] if has_mpi else [])]
for launcher, seconds in DRILLS:
    rank, nth = chance.randrange(RANKS), OPERATIONS + chance.randrange(60)
    name = f"rank {rank} {f'starts operation {nth} {seconds} s late' if seconds else f'leaves out operation {nth}'}"
    folder = WORK / name
    done = disturbed([*RUN, *SOON, "--save", folder], program=[*launcher, DRILL],
                     env={**os.environ, "DRILL": f"{rank} {nth} {seconds}"})
    named = rf"(ranks that did not:|not in this operation: ranks)( \d)* {rank}\b" + ("" if seconds
                                                                         else rf"|rank {rank} (starts|has returned)")
    ends(name, done, "COMM FAULT", status=[3])
    assert re.search(named, done[0]), f"{name}: nothing names the rank:\n{done[0]}"
    print(f"{time.monotonic() - started:5.1f} s  {name}: found")
goes_on(folder, "operations")

# ---- the disk is full: a small disk (as root), or a limit on the size of files
size = sum(f.stat().st_size for f in (straight / f"iter_{EVERY:07}").iterdir())
NOT_SAVED = f"the checkpoint of step {2 * EVERY} was not saved; earlier checkpoints are unchanged"


def small_disk(folder):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 3 // 2}", "tmpfs", folder], check=True)
    atexit.register(subprocess.run, ["umount", folder])


def full(name, text, *options, **limits):
    folder = WORK / name
    ends(name, disturbed([*RUN, "--save", folder, *options], **limits), text, NOT_SAVED, status=[3])
    assert [f.name for f in folder.glob("iter_*")] == [f"iter_{EVERY:07}"], f"{name}: {list(folder.iterdir())}"
    if not limits:
        subprocess.run(["mount", "-o", "remount,size=1G", folder], check=True)
    goes_on(folder, name)


def limit_files():
    largest = max(f.stat().st_size for f in shards(straight, EVERY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest - 1, largest - 1))


if os.geteuid() == 0:
    for name, options in {"full disk": [], "full disk beside the run": ["--async-save"]}.items():
        small_disk(WORK / name)
        full(name, "No space left on device", *options)
LAST = ["--async-save", "--exit-interval", 2 * EVERY]  # only the end of the run waits for it
for name, options in {"no longer files": [], "no longer files beside the run": ["--async-save"],
                      "no longer files at the end": LAST}.items():
    isotron(*RUN, "--save", WORK / name, "--exit-interval", EVERY)
    full(name, "File too large", "--load", WORK / name, *options, preexec_fn=limit_files)

# ---- a checkpoint is damaged: the error message names the file, and an intact checkpoint
def damaged(step):
    folder = WORK / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    for kept in (step - EVERY, step):
        shutil.copytree(straight / f"iter_{kept:07}", folder / f"iter_{kept:07}")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder, folder / f"iter_{step:07}"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a bit of a shard flipped": ("shard_00001.bin", flip, "do not match its hash"),
    "a shard cut short": ("shard_00002.bin", lambda f: os.truncate(f, f.stat().st_size - 1), "is damaged: it has"),
    "a shard deleted": ("shard_00003.bin", pathlib.Path.unlink, "No such file"),
    "a manifest deleted": ("manifest.json", pathlib.Path.unlink, "No such file"),
    "a manifest cut short": ("manifest.json", lambda f: os.truncate(f, f.stat().st_size // 2), "manifest.json"),
}
for name, (file, damage, text) in DAMAGE.items():
    folder, newest = damaged(STEPS - EVERY)
    damage(newest / file)
    intact = f"the newest other intact checkpoint is '{folder}/iter_{STEPS - 2 * EVERY:07}'"
    ends(name, disturbed([*RUN, "--load", folder, "--save", folder]), file, text, intact, status=[2])
    goes_on(folder, name, "--ckpt-step", STEPS - 2 * EVERY)
    isotron("inspect", "--checkpoint", folder, "--ckpt-step", STEPS - EVERY, "--verify")

# ---- the process is killed while it saves a checkpoint
folder = WORK / "killed"
for turn in range(4):
    words = [*RUN, "--load", folder, "--save", folder, "--save-interval", 1, *(["--async-save"] if turn % 2 else [])]
    complete = len(list(folder.glob("iter_*[0-9]")))
    process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL)
    while process.poll() is None and len(list(folder.glob("iter_*[0-9]"))) < complete + 2:
        time.sleep(0.001)
    while process.poll() is None and not list(folder.glob("iter_*.tmp")):
        pass
    time.sleep(chance.uniform(0, 0.01))
    process.kill()
    assert process.wait() == -signal.SIGKILL, f"killed in a save, turn {turn}: exit status {process.returncode}"
    print(f"  killed with {[f'{f.name}: {len(list(f.iterdir()))} files' for f in folder.glob('*.tmp')]}")
    isotron("inspect", "--checkpoint", folder, "--verify")
goes_on(folder, "killed in saves")

# ---- the data files are truncated during the run
folder, copy = WORK / "cut", WORK / "copy"
for end in (".bin", ".idx"):
    shutil.copy(f"{data[1]}{end}", f"{copy}{end}")
words = [str(copy) if w == data[1] else w for w in RUN]
ends("data cut short", disturbed([*words, "--save", folder], lambda p: os.truncate(f"{copy}.bin", 0)),
     "copy.bin' has lost bytes", status=[3])
goes_on(folder, "data cut short")
