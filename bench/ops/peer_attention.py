#!/usr/bin/env python3
"""Times PyTorch's causal attention in bf16, the peer of `bench/race attention`.

usage: bench/ops/peer_attention.py --shapes FILE.json [--seconds S] [--deterministic]

FILE contains a list of {"name", "op": attention or attention_grad, "shape": [s, b, g, r, d]}: s positions, b samples, g
groups of r query heads of width d. Operands are random, in the layout [b, s, heads, d] of a projection's output. There
are so many sets of operands that the next set is never in a cache. Attention runs in cuDNN or, if cuDNN rejects it, in
PyTorch's flash attention; each row names the backend. cuDNN's backward pass is rejected with --deterministic
(torch.use_deterministic_algorithms). As in `bench ops`, a row is the median of rounds of at least 5 ms each. Depending
on --seconds, 3 to 21 rounds run. Prints one line of JSON."""
import json
import math
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from cli import Command

command = Command(__doc__, "torch")
command.add_argument("--shapes", type=pathlib.Path, required=True)
command.add_argument("--seconds", type=float, default=0.07)
command.add_argument("--deterministic", action="store_true")
command.parse_args()

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION,
            "flash": SDPBackend.FLASH_ATTENTION} if CUDA else {"of a CPU": SDPBackend.FLASH_ATTENTION}
ROTATION, ROUND, ROUNDS, LEAST = 256 << 20, 5e-3, 21, 3


def operands(shape):
    """q, k, v and the gradient of the result, each a view [b, heads, s, d]."""
    s, b, groups, each, width = shape
    make = lambda heads: torch.randn(b, s, heads, width, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
    q, k, v = (make(heads).requires_grad_() for heads in (groups * each, groups, groups))
    return q, k, v, make(groups * each)


def forward(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


def calls_of(op, shape):
    """Returns a call for each set of operands. The calls discard their results."""
    s, b, groups, each, width = shape
    count = min(64, -(-ROTATION // (2 * s * b * groups * width * (2 * each + 2))))
    sets = [operands(shape) for _ in range(count)]
    if op == "attention":
        return [lambda x=x: forward(*x[:3]) for x in sets]
    results = [forward(*x[:3]) for x in sets]
    return [lambda x=x, y=y: torch.autograd.grad(y, x[:3], x[3], retain_graph=True) for x, y in zip(sets, results)]


def wait():
    if CUDA:
        torch.cuda.synchronize()


def round_of(calls, n, begin=0):
    wait()
    start = time.perf_counter()
    for i in range(n):
        calls[(begin + i) % len(calls)]()
    wait()
    return (time.perf_counter() - start) / n


def measure(calls, seconds):
    one = round_of(calls, len(calls))
    spent = one * len(calls)
    while spent < seconds / 2:
        one = round_of(calls, 1)
        spent += one
    n = min(1000, math.ceil(ROUND / one))
    rounds = max(LEAST, min(ROUNDS, int(seconds / (one * n))))
    return statistics.median(round_of(calls, n, i * n) for i in range(rounds)), rounds


def row_of(wanted, seconds):
    refused = None
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel([backend]):
                time_of_call, rounds = measure(calls_of(wanted["op"], wanted["shape"]), seconds)
            return {"name": wanted["name"], "us": time_of_call * 1e6, "rounds": rounds, "path": name,
                    "refused": refused}
        except RuntimeError as e:
            refused = f"{name}: {str(e).splitlines()[0][:160]}"
    return {"name": wanted["name"], "refused": refused}


def main(a):
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(a.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # filling helps to find bugs, but is slow
    rows = [row_of(wanted, a.seconds) for wanted in json.loads(a.shapes.read_text())]
    print(json.dumps({"device": torch.cuda.get_device_name() if CUDA else "CPU", "torch": torch.__version__,
                      "cuda": torch.version.cuda,
                      "cudnn": torch.backends.cudnn.version() if CUDA else None, "rows": rows}))


command.run(main)
