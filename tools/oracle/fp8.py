#!/usr/bin/env python3
"""Writes tests/data/fp8.txt: FP8 scales from an independent implementation of Transformer Engine's recipes.

usage: tools/oracle/fp8.py

The file has the following lines, with numbers in hexadecimal (the bits of floats):
    scale FLOAT FLOAT FLOAT                amax, largest value, and scale of a tensor from its amax
    delayed LENGTH MOST_RECENT LARGEST     followed by STEPS lines:
    step AMAX SCALE                        the amax of a step and the scale of the next step"""
import math
import random
import struct
from pathlib import Path

from cli import Command

command = Command(__doc__, "torch")
command.parse_args()

import torch

STEPS = 10
FLT_MAX = torch.finfo(torch.float32).max
lines = []


def bits(x):
    return f"{struct.unpack('<I', struct.pack('<f', x))[0]:08x}"


def f32(x):
    return torch.tensor(x, dtype=torch.float32)


def scale_of(amax, largest, old):
    if not (amax > 0) or math.isinf(amax):
        return old
    scale = (f32(largest) / f32(amax)).item()
    return FLT_MAX if math.isinf(scale) else scale


random.seed(8)
SPECIAL = [0.0, math.inf, 1e-40, 1e-37, FLT_MAX]
for largest in (448.0, 57344.0):
    for amax in SPECIAL + [10 ** random.uniform(-6, 4) for _ in range(16)]:
        amax = f32(amax).item()
        lines.append(f"scale {bits(amax)} {bits(largest)} {bits(scale_of(amax, largest, 1.0))}")

for length in (1, 2, 4, 16):
    for recent in (0, 1):
        largest = 448.0 * 2.0 ** -random.randint(0, 2)
        lines.append(f"delayed {length:x} {recent} {bits(largest)}")
        history, scale = torch.zeros(length), 1.0
        for step in range(STEPS):
            amax = random.choice([0.0, math.inf, 1e-40] + [10 ** random.uniform(-3, 3) for _ in range(5)])
            history[0] = f32(amax)
            scale = scale_of((history[0] if recent else history.max()).item(), largest, scale)
            history = torch.roll(history, -1)
            history[0] = 0
            lines.append(f"step {bits(f32(amax).item())} {bits(scale)}")

Path("tests/data/fp8.txt").write_text("\n".join(lines) + "\n")
