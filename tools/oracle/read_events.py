#!/usr/bin/env python3
"""Checks the program's event files with TensorBoard's reader.

usage: tools/oracle/read_events.py PROGRAM

PROGRAM is the test program of tests/unit/train/test_events.c, which writes an event file.

The exit status is 77 if tensorboard is not installed (pip install tensorboard)."""
import math
import subprocess
import sys
import tempfile

from cli import Command, program

command = Command(__doc__)
command.add_argument("program", type=program)
options = command.parse_args()

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"skipped: {missing}; pip install tensorboard", file=sys.stderr)
    sys.exit(77)

# The content of WRITTEN in tests/unit/train/test_events.c, rounded to float32.
WRITTEN = {
    "lm loss": [[1, 10.5], [127, 0.10000000149011612], [128, -3.0000000095132306e-30]],
    "lm loss vs samples": [[300000000000, 1.0]],
    "grad-norm": [[0, math.inf]],
}


def read(folder):
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    text = events.Tensors("options/text_summary")
    assert [(e.step, e.tensor_proto.string_val[0]) for e in text] == [(7, b"| seed | `5` |")], text
    return {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([options.program, folder], check=True)
    found = read(folder)
assert found == WRITTEN, found
print("TensorBoard reads", sum(map(len, found.values())), "scalars")
