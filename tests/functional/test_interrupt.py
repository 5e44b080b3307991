"""Ctrl-C loses nothing: the run says at once that it stops, saves, and exits with status 130; the resumed run ends as the one that was
never stopped. An evaluation stops too, and a second Ctrl-C ends the process at once. SIGTERM does the same with --exit-signal-handler
(status 143); --exit-interval and --exit-duration-in-mins stop where they say, with status 0."""
import signal
import time

from harness import *

data = corpus()
straight = WORK / "straight"
LONG = ["--train-iters", 150, "--lr-decay-iters", 150]
pretrain(data, straight, *LONG)


def start(*words):
    process = subprocess.Popen([PROGRAM, "pretrain", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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
    assert process.returncode == status and f"{number.name}: stopping after this step" in err, (name, process.returncode, out, err)
    reached = int((folder / "latest_checkpointed_iteration.txt").read_text())
    assert 10 <= reached < 150, f"{name}: saved at {reached}"
    pretrain(data, folder, *LONG, "--load", folder)
    assert_same_bytes(straight, folder, 150, name)
    print(f"{name}: stopped at {reached}, resumed = straight")


interrupted("sigint", signal.SIGINT, 130)
interrupted("sigterm", signal.SIGTERM, 143, "--exit-signal-handler")

folder = WORK / "interval"
out = pretrain(data, folder, *LONG, "--exit-interval", 7)
assert "--exit-interval" in out and [p.name for p in folder.glob("iter_*")] == ["iter_0000007"], out

# A step that would take minutes: the first signal is answered at once, the second ends the process.
folder = WORK / "twice"
(WORK / "ramp.conf").write_text("".join(line + "\n" for line in CONF.split("\n") if "-iters" not in line and "global" not in line))
process = start("--config", WORK / "ramp.conf", *data, "--save", folder, "--step-batch-size-schedule", "0:8 256:80000", "--train-samples", 80008)
wait_for(process, "iteration        1/")
time.sleep(0.2)  # the second step has begun
process.send_signal(signal.SIGINT)
assert "SIGINT: stopping after this step" in process.stderr.readline() and process.poll() is None
process.send_signal(signal.SIGINT)
assert process.wait(timeout=60) == -signal.SIGINT and "at once" in process.stderr.read() and not list(folder.glob("iter_*"))
print("a second signal ends the process")

# An evaluation of minutes stops, and what was trained is saved.
folder = WORK / "evaluation"
split = [*data[:-1], "80,20,0", "--eval-iters", 20000, "--eval-interval", 2, "--train-iters", 4]
process = start(*BASE[1:], *split, "--save", folder)
wait_for(process, "iteration        2/")
time.sleep(0.2)
process.send_signal(signal.SIGINT)
out, err = process.communicate(timeout=60)
assert process.returncode == 130 and "validation loss" not in out and [p.name for p in folder.glob("iter_*")] == ["iter_0000002"], (out, err)
print("an evaluation stops")
