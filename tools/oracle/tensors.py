"""Reads and writes safetensors files, and creates weights that are equal on every machine. Uses only the standard
library, because the test of convert also uses this file.

A tensor is (type, shape, bytes)."""

import array
import json
import math
import zlib


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, []
    at = 0
    for name, (kind, shape, content) in sorted(tensors.items()):
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(content)]}
        data.append(content)
        at += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def read(path):
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items()}


def weight(name, shape):
    """Returns pseudorandom numbers in [-0.5, 0.5), or near 1 for the gain of a norm. float32 represents each number
    exactly."""
    seed, mask = zlib.crc32(name.encode()), 2**32 - 1
    middle = 0.5 if name.endswith("weight") and ("norm" in name or ".ln_" in name) else -0.5
    numbers = array.array("f")
    for i in range(math.prod(shape)):
        x = (seed + i * 40503) * 2654435761 & mask
        x = (x ^ x >> 15) * 2246822519 & mask
        numbers.append((x >> 16) / 65536 + middle)
    return "F32", shape, numbers.tobytes()
