#!/usr/bin/env python3
"""Reads what the program writes with TensorBoard's own reader.

usage: tools/oracle/read_events.py FOLDER            prints {tag: [[step, value], ...]} of a run's event files
       tools/oracle/read_events.py --check PROGRAM   runs tests/unit/train/test_events.c's program and checks its file

Exit status 77: tensorboard is not installed (pip install tensorboard)."""
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from cli import Command, program

command = Command(__doc__)
one = command.add_mutually_exclusive_group(required=True)
one.add_argument("folder", nargs="?")
one.add_argument("--check", type=program)
options = command.parse_args()

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"skipped: {missing}; pip install tensorboard", file=sys.stderr)
    sys.exit(77)

# What WRITTEN in tests/unit/train/test_events.c holds, as float32 prints.
WRITTEN = {
    "lm loss": [[1, 10.5], [127, 0.10000000149011612], [128, -3.0000000095132306e-30]],
    "lm loss vs samples": [[300000000000, 1.0]],
    "grad-norm": [[0, math.inf]],
}


def read(folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


if options.check:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([options.check, folder], check=True)
        found = read(folder)
    assert found == WRITTEN, found
    print("TensorBoard reads", sum(map(len, found.values())), "scalars")
else:
    print(json.dumps(read(options.folder)))
