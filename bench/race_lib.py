"""What races have in common: turns of our program and a peer on the same GPU, each a process, with clocks and power beside them."""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from command import Command, count, finite, positive

SENSORS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "watts": "power.draw", "celsius": "temperature.gpu"}
BUSY = 90


# ---- options ----

def words(text):
    try:
        shlex.split(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be split into words: {str(e).lower()}") from None
    return text


def result_file(text):
    """Where a symlink leads, so that it stays."""
    path = os.path.realpath(text)
    folder = os.path.dirname(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"'{text}' is not a regular file")
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"there is no folder '{folder}'")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"the folder '{folder}' may not be written to")
    return path


class Options(Command):
    """Those that every race has. A wrong one is said in one sentence, before anything is measured."""

    def __init__(self, description, rounds, seconds, limit, ours_options):
        super().__init__(description)
        self.add_argument("--rounds", type=count, default=rounds)
        self.add_argument("--seconds", type=positive, default=seconds)
        self.add_argument("--limit", type=finite, default=limit)
        self.add_argument("--out", type=result_file)
        self.add_argument("--ours", default="build/cuda/isotron")
        self.add_argument("--ours-options", type=words, default=ours_options)
        self.add_argument("--python", type=words, default="python3")
        self.add_argument("--peer-options", type=words, default="")
        self.add_argument("--device", choices=["cuda", "cpu"], default="cuda")

    def parse_args(self):
        a = super().parse_args()
        if not shutil.which(a.ours):
            self.error(f"there is no program '{a.ours}' to race: build it (ci/build cuda), or name another with --ours")
        return a

    def need_python(self, a):
        """Of a race whose peer is PyTorch."""
        if a.python.strip() and not shutil.which(shlex.split(a.python)[0]):
            self.error(f"there is no program '{a.python}': name a Python that has PyTorch with --python")


# ---- turns ----

class Sensors:
    """What nvidia-smi sees between start and stop."""

    def __init__(self):
        self.rows = []
        query = ",".join(["utilization.gpu", *SENSORS.values()])
        self.child = None
        if shutil.which("nvidia-smi"):
            self.child = subprocess.Popen(["nvidia-smi", "-i", "0", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "200"],
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()

    def read(self):
        for line in self.child.stdout:
            try:
                self.rows.append([float(x) for x in line.split(",")])
            except ValueError:
                pass  # a sensor that this GPU does not have

    def stop(self):
        if self.child:
            self.child.terminate()
            self.thread.join()
            self.child.wait()
        busy = [row[1:] for row in self.rows if row[0] >= BUSY]
        return {name: spread([row[i] for row in busy]) for i, name in enumerate(SENSORS)} if busy else None


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def say(text):
    print(text, flush=True)


def run(command, environment, timeout):
    """Seconds, sensors and the process; its words go to our stderr."""
    sensors, start = Sensors(), time.monotonic()
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        text = lambda x: x.decode(errors="replace") if isinstance(x, bytes) else x or ""
        status, out, err = "the time limit", text(e.stdout), text(e.stderr)
    except OSError as e:
        status, out, err = "no process", "", str(e)
    return {"seconds": time.monotonic() - start, "sensors": sensors.stop()}, status, out, err


def turn(name, command, environment, timeout, result_of, words_of):
    """One process: {"seconds", "sensors", "result"}, or {..., "failed"} with its last words."""
    record, status, out, err = run(command, environment, timeout)
    if status != 0:
        record["failed"] = f"ended with {status}: {(err.strip() or out.strip())[-400:]}"
        say(f"  {name}: {record['failed']}")
        return record
    try:
        record["result"] = result_of(out)
        said = words_of(record)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        record.pop("result", None)
        record["failed"] = f"left something else than results: {e or type(e).__name__}"
        say(f"  {name}: {record['failed']}")
        return record
    say(f"  {name}: {said} ({record['seconds']:.0f} s)")
    return record


def in_turns(rounds, arms, deadline):
    """arms: [(turns so far, how one is taken with so many seconds left)]: each in every round, while there is time."""
    for _ in range(rounds):
        for turns, take in arms:
            left = deadline - time.monotonic()
            if left <= 0:
                turns.append({"left_out": "the time limit had passed"})
                say("  left out, the time limit has passed")
            else:
                turns.append(take(left))


# ---- where they run ----

def our_environment():
    """Some images export OPENBLAS_CORETYPE to force the kernels of another processor."""
    return {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}


def peer_environment():
    """Its packages bring their libraries."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    if "PEER_LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["PEER_LD_LIBRARY_PATH"]
    return environment


def last_line(out):
    return json.loads(out.strip().splitlines()[-1])


def ask(command, environment=None):
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
        return done.stdout.strip() if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        return None


def libraries(program):
    """The names of the CUDA libraries' files that the program loads, which end in their versions."""
    found = {}
    for line in (ask(["ldd", program]) or "").splitlines():
        name, _, path = line.strip().partition(" => ")
        if any(part in name for part in ("cudart", "cublasLt", "cudnn.", "nccl")) and path.startswith("/"):
            found[name.split(".so")[0]] = os.path.basename(os.path.realpath(path.split(" ")[0]))
    return found


def provenance(program, ours, peers, options):
    """ours, peers: turns. options: what else the numbers depend on."""
    results = [t["result"] for t in ours if "result" in t]
    others = [t["result"] for t in peers if "result" in t]
    facts = dict(results[0]["provenance"]) if results else {}
    if results:
        facts |= {"device": results[0]["device"], "our_libraries": libraries(program)}
    facts["driver"] = ask(["nvidia-smi", "-i", "0", "--query-gpu=driver_version", "--format=csv,noheader"])
    if others:
        facts |= {f"peer_{key}": others[0][key] for key in ("torch", "cuda", "cudnn") if key in others[0]}
    return facts | options


def write(path, result):
    """What is known so far outlives a limit from outside."""
    temporary = pathlib.Path(f"{path}.part")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)
