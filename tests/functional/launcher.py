"""Starts one process per rank, with the variables that torchrun sets. Unlike torchrun, it does not kill the other
processes when one ends; only a stopped process (SIGSTOP) is killed when all others have ended. Signals are forwarded to
all processes. The exit status is that of the lowest rank that failed.

usage: launcher.py RANKS PROGRAM [ARGUMENT ...]"""
import os
import signal
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def variables(rank, ranks, port):
    return {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def start(words, variables, **options):
    return subprocess.Popen([str(w) for w in words],
                            env={**os.environ, **{k: str(v) for k, v in variables.items()}}, **options)


def is_stopped(process):
    with open(f"/proc/{process.pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


if __name__ == "__main__":
    ranks, port = int(sys.argv[1]), free_port()
    processes = [start(sys.argv[2:], variables(rank, ranks, port)) for rank in range(ranks)]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: [p.send_signal(number) for p in processes])
    while running := [p for p in processes if p.poll() is None]:
        if len(running) < ranks and all(is_stopped(p) for p in running):
            [p.kill() for p in running]
        time.sleep(0.01)
    statuses = [p.returncode for p in processes]
    print("exit statuses of the ranks:", *statuses, flush=True)
    sys.exit(next((s if s > 0 else 128 - s for s in statuses if s), 0))
