"""Ctrl-C loses nothing: the run saves, exits with status 0, and the resumed run ends as the one that was never stopped.
SIGTERM does the same with --exit-signal-handler, --exit-interval and --exit-duration-in-mins stop where they say."""
import signal
import time

from harness import *

data = corpus()
straight = WORK / "straight"
LONG = ["--train-iters", 150, "--lr-decay-iters", 150]
pretrain(data, straight, *LONG)


def interrupted(name, number, *options):
    folder = WORK / name
    words = [*BASE, *data, "--save", folder, *LONG, *options]
    process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "iteration       10/" in line:
            process.send_signal(number)
            break
    rest = process.stdout.read()
    assert process.wait() == 0, f"{name}: exit status {process.returncode}\n{rest}"
    reached = int((folder / "latest_checkpointed_iteration.txt").read_text())
    assert 10 <= reached < 150, f"{name}: saved at {reached}"
    pretrain(data, folder, *LONG, "--load", folder)
    assert_same_bytes(straight, folder, 150, name)
    print(f"{name}: stopped at {reached}, resumed = straight")


interrupted("sigint", signal.SIGINT)
interrupted("sigterm", signal.SIGTERM, "--exit-signal-handler")

folder = WORK / "interval"
out = pretrain(data, folder, *LONG, "--exit-interval", 7)
assert "--exit-interval" in out and [p.name for p in folder.glob("iter_*")] == ["iter_0000007"], out
