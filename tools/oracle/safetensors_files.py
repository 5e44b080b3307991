#!/usr/bin/env python3
"""Writes tests/data/safetensors: small files written by the safetensors library, and a file that the library never
writes.

usage: tools/oracle/safetensors_files.py"""
import json
import struct
from pathlib import Path

from cli import Command

command = Command(__doc__, "torch safetensors")
command.parse_args()

import safetensors.torch
import torch

OUT = Path("tests/data/safetensors")

# Element i of every tensor is i - 3 (i in unsigned tensors), which every dtype represents exactly.
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
          "i32": torch.int32, "u8": torch.uint8}


def ramp(shape, dtype):
    count = torch.Size(shape).numel()
    return torch.arange(count).sub(0 if dtype == torch.uint8 else 3).to(dtype).reshape(shape)


OUT.mkdir(parents=True, exist_ok=True)
every = {name: ramp((2, 3), dtype) for name, dtype in DTYPES.items()}
every |= {"empty": ramp((0, 4), torch.float32), "five": ramp((2, 1, 3, 1, 2), torch.float32)}
every |= {"name with \"quotes\" and \u00e9": ramp((1,), torch.float32)}
safetensors.torch.save_file(every, OUT / "every_dtype.safetensors", {"format": "pt"})
safetensors.torch.save_file({"scalar": ramp((), torch.float32)}, OUT / "scalar.safetensors")
safetensors.torch.save_file({"flag": torch.tensor([True])}, OUT / "bool.safetensors")
# A valid file that the library does not write: the data is not aligned to its elements.
data = struct.pack("<B2d", 7, 0.5, -2.0)
header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                     "b": {"dtype": "F64", "shape": [2], "data_offsets": [1, 17]}}).encode()
(OUT / "unaligned.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
sharded = OUT / "sharded"
sharded.mkdir(exist_ok=True)
names = {"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
         "c": "model-00002-of-00002.safetensors"}
for file in set(names.values()):
    safetensors.torch.save_file({k: ramp((len(k) + ord(k) - 96,), torch.float32)
                                 for k, f in names.items() if f == file},
                                sharded / file, {"format": "pt"})
(sharded / "model.safetensors.index.json").write_text(
    json.dumps({"metadata": {"total_size": 36}, "weight_map": names}, indent=2) + "\n")
