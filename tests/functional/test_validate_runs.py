"""isotron validate: a run that a signal ends writes its reports and leaves no process, stages that cannot run are
reported, and invalid arguments are refused. No run judges rates, so other tests may run at the same time."""
import signal
import time

from validating import *

# After a signal, the reports contain the completed stages and the interrupted one, and no process remains.


def family(pid):
    """Returns the descendants of a process."""
    try:
        own = [int(k) for task in os.listdir(f"/proc/{pid}/task")
               for k in open(f"/proc/{pid}/task/{task}/children").read().split()]
    except OSError:
        return []
    return own + [p for k in own for p in family(k)]


def start(options, launcher=(), **more):
    words = [*launcher, PROGRAM, "validate", "--seconds", 60, *reports(), *options]
    process = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "NO_COLOR": "1"}, **more)
    atexit.register(process.kill)
    return process


for number, processes, ended, stage, later, launcher in (  # processes: that are there when the signal comes
        (signal.SIGINT, 1, [], "compute", ["training"], []),
        (signal.SIGHUP, 1, ["inventory"], "compute", ["training"], []),
        (signal.SIGTERM, 3, ["inventory"], "hang", [], []),
        (signal.SIGINT, 3, ["inventory"], "hang", [], []),
        (signal.SIGINT, 2, ["inventory"], "compute", ["training"], MPI)):
    if launcher and not shutil.which("mpirun"):
        continue
    for path in reports()[1::2]:
        path.unlink(missing_ok=True)
    process = start(["--only", *ended, stage, *later, *([] if launcher else ["--ranks", 2])], launcher)
    begun = "".join(process.stdout.readline() for _ in ended)
    while len(pids := family(process.pid)) < processes:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    row, status = (number, stage, launcher, out, err), 128 + number
    # mpirun exits without waiting for its processes
    while launcher and any(os.path.exists(f"/proc/{p}") for p in pids):
        time.sleep(0.01)
    assert process.returncode == status or launcher, (row, process.returncode)
    assert [p for p in pids if os.path.exists(f"/proc/{p}")] == [] and (launcher or not err), row
    stages = read_reports(status, begun + out)
    verdicts = dict.fromkeys(ended, "PASS") | dict.fromkeys([stage, *later], "INTERRUPTED")
    assert {n: s["verdict"] for n, s in stages.items()} == verdicts, row
    assert f"{stage}: interrupted during: " in stages[stage]["not_certified"][-1] and stages[stage]["seconds"] > 0, row
    assert all(stages[n]["not_certified"] == [f"{n}: the run was interrupted"] for n in later), row
    assert f"verdict: INTERRUPTED, {len(ended)} of 9 stages pass; " in out, row
    assert f"; {stage}: not certified because it was interrupted" in out, row
assert "has the verdict INTERRUPTED" in isotron("validate", "--good", WORK / "v.json", "--only", "inventory", expect=2)

# A second signal ends the process immediately: here it has written one report, and waits for a reader of another (a
# pipe).
os.mkfifo(WORK / "pipe")
(WORK / "v.json").unlink()
process = start(["--only", "compute", "--junit", WORK / "pipe"])
while not family(process.pid):
    time.sleep(0.01)
pids = family(process.pid)
process.send_signal(signal.SIGINT)
while not (WORK / "v.json").exists():
    time.sleep(0.01)
process.send_signal(signal.SIGINT)
assert process.wait(timeout=60) == -signal.SIGINT and not list(WORK.glob("*.tmp.*"))

# nohup keeps it running.
process = start(["--only", "compute", "--seconds", 1], preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
while not family(process.pid):
    time.sleep(0.01)
process.send_signal(signal.SIGHUP)
assert "verdict: PASS" in process.communicate()[0] and process.returncode == 0

# A library has a different version from that in the good run.
ONLY = ["--ranks", 4, "--seconds", 1, "--only"]
validate(*ONLY, "inventory", *NCCL)
shutil.copy(WORK / "v.json", WORK / "good.json")
older = [*ONLY, "inventory", *NCCL, "--good", WORK / "good.json"]
named(validate(*older, HOST_NCCL_VERSION="22703", expect=1)[0]["inventory"], "NCCL",
      "it is '2.27.3', but was '2.28.9'", "DEGRADED")
validate(*older, "--allow-changes", HOST_NCCL_VERSION="22703")

# A stage that cannot run counts as a fault, and the other stages are still reported.
CASES = ("llama-layouts", "gpt2-layouts", "mixtral-layouts")
for case in CASES:
    shutil.copytree(ROOT / "golden" / case, WORK / "broken" / case)
    (WORK / "broken" / case / "run.conf").write_text("num-layers = none of them\n")
stages, said = validate(*ONLY, "inventory", "parity", "--golden", WORK / "broken", expect=1)
named(stages["parity"], "not known", "the stage could not run: ")
assert stages["inventory"]["verdict"] == "PASS", said

# Without golden cases, the program runs the stages that do not need them.
(WORK / "bin").mkdir()
lone = shutil.copy(PROGRAM, WORK / "bin")
for stages, status, words in ("inventory,compute", 0,
                              "verdict: PASS, 2 of 9 stages"), ("parity", 2, "or leave parity out of --only"):
    done = subprocess.run([lone, "validate", "--seconds", "1", "--only", stages], capture_output=True,
                          text=True, cwd=WORK)
    assert done.returncode == status and words in done.stdout + done.stderr, done

# A stage that judges nothing is inconclusive. A single stage gets all of the time.
stages, said = validate("--seconds", 1, "--only", "speed", expect=4)
stages, said = validate("--ranks", 1, "--seconds", 2, "--only", "collectives", "compute")
assert 1.9 < stages["compute"]["seconds"] < 10, said

# All layouts run if there is time; otherwise the report states how many ran.
for ranks, cells in ((4, 26), (3, 19)):
    stages, said = validate("--ranks", ranks, "--seconds", 60, "--only", "parity")
    assert f"{cells} of {cells} cells pass, of {cells} for " in stages["parity"]["summary"], said
    assert "no time" not in said, said
    assert ("layouts of more than 2 ranks" in said) == (ranks == 3), said
stages, said = validate("--ranks", 4, "--seconds", 1, "--only", "parity")
ran = int(stages["parity"]["summary"].split()[0])
assert ran >= 2, said
assert (ran == 26 or f"parity: {26 - ran} of the 26 cells for 4 ranks, for which there was no time" in said), said

# Opening a device takes longer than the deadline for an operation in the drills.
validate("--ranks", 2, "--seconds", 1, "--only", "hang", program=FAULTY, FAULTY="open 0 4000")

# Wrong arguments.
for case in CASES:
    shutil.copytree(ROOT / "golden" / case, WORK / "cut" / case)
    if case != "mixtral-layouts":
        shutil.copytree(ROOT / "golden" / case, WORK / "part" / case)
os.truncate(WORK / "cut/gpt2-layouts/oracle.safetensors", 100000)
(WORK / "empty.json").write_text("{}")
for words, message in (
        (["--only", "gpu"], "--only 'gpu': choose from inventory, "),
        (["--only", "inventory,gpu"], "--only 'gpu': choose from inventory, "),
        (["--only", "inventory,"], "--only '': choose from inventory, "),
        (["--seconds", 0], "--seconds must be from 1 to"),
        (["--seconds", 5, "--quick"], "--seconds and --quick are mutually exclusive"),
        (["--memory-share", "99%"], "--memory-share expects"),
        (["--memory-share", "0.9%"], "--memory-share expects"),
        (["--allow", "x"], "--allow expects a percentage"),
        (["--allow", "100%"], "--allow expects a percentage below 100%"),
        (["--only", "inventory", "--only=hang"], "--only is given 2 times"),
        (["--golden", WORK / "none"],
         f"'{WORK}/none/llama-layouts' is not a golden case: it has no run.conf. Set --golden"),
        (["--golden", WORK / "part"], f"'{WORK}/part/mixtral-layouts' is not a golden case: it has no run.conf"),
        (["--golden", WORK / "cut", "--only", "inventory"], "cut/gpt2-layouts/"),
        (["--ranks", 257, "--only", "inventory"], "257 ranks are too many: validate runs on at most 256"),
        (["--allow-changes"], "--allow-changes needs --good"),
        (["--good", WORK / "empty.json"], "is not a report of validate"),
        (["--good", WORK / "none.json"], "none.json"),
        (["--nccl-a", LIBRARY], "--nccl-a needs --nccl-b"),
        (["--nccl-b", LIBRARY], "--nccl-b needs --nccl-a or --nccl-library"),
        (["--ranks", 2, *NCCL, "--nccl-b", WORK / "empty.json"], "file too short. Specify the path of a libnccl.so.2"),
        (["--nccl-a", LIBRARY, "--nccl-library", LIBRARY, "--nccl-b", LIBRARY], "choose one"),
        *[([option, "/proc/report"], "cannot create a file in '/proc'") for option in ("--json", "--junit", "--html")],
        (["--json", WORK / "r", "--html", WORK / "r"], "are the same file"),
        (["--ranks", 2, "--nccl-library", "nowhere.so"], "NCCL cannot be loaded"),
        (["--num-layers", 2], "--num-layers"),
):
    said = isotron("validate", *words, expect=2)
    assert message in said, (words, said)
