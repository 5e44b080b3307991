#!/usr/bin/env python3
"""Times generation with PyTorch, the peer of `isotron bench infer`: a Llama in bf16 with random weights and a static
KV cache. Layers are compiled, and a decoding step is a CUDA graph.

usage: bench/infer/peer_torch.py [--layers N] [--context N] [--prompt N] [--json FILE]

The model has the shape of Llama 3.1 8B; --layers (32) changes its depth. A decoding step follows --context (1024)
tokens; the prompt has --prompt (4096) tokens. Both times are medians of several runs. Writes one line of JSON."""
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from cli import Command

command = Command(__doc__, "torch")
command.add_argument("--layers", type=int, default=32)
command.add_argument("--context", type=int, default=1024)
command.add_argument("--prompt", type=int, default=4096)
command.add_argument("--json", type=pathlib.Path)
options = command.parse_args()

import torch
from torch.nn import functional as F

HIDDEN, HEADS, GROUPS, WIDTH, FFN, VOCAB = 4096, 32, 8, 128, 14336, 128256
NEW = 256  # positions of the cache after the context
torch.manual_seed(1)


def weight(*shape):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)


def ones():
    return torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)


LAYERS = [{"qkv": weight((HEADS + 2 * GROUPS) * WIDTH, HIDDEN), "proj": weight(HIDDEN, HEADS * WIDTH),
           "fc1": weight(2 * FFN, HIDDEN), "fc2": weight(HIDDEN, FFN), "norm1": ones(), "norm2": ones()}
          for _ in range(options.layers)]
EMBEDDING, HEAD, NORM = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN), ones()
ANGLES = torch.outer(torch.arange(max(options.prompt, options.context + NEW), device="cuda").float(),
                     1 / 500000 ** (torch.arange(0, WIDTH, 2, device="cuda").float() / WIDTH))
COS, SIN = (torch.cat([x] * 2, 1).bfloat16() for x in (ANGLES.cos(), ANGLES.sin()))


def norm(x, scale):
    return F.rms_norm(x, (HIDDEN,), scale, 1e-5)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def project(x, layer, cos, sin):
    b, s, _ = x.shape
    q, k, v = F.linear(norm(x, layer["norm1"]), layer["qkv"]).split([HEADS * WIDTH, GROUPS * WIDTH, GROUPS * WIDTH], -1)
    heads = lambda y, n: y.view(b, s, n, WIDTH).transpose(1, 2)
    return rotate(heads(q, HEADS), cos, sin), rotate(heads(k, GROUPS), cos, sin), heads(v, GROUPS)


def finish(x, y, layer):
    x = x + F.linear(y, layer["proj"])
    gate, up = F.linear(norm(x, layer["norm2"]), layer["fc1"]).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, layer["fc2"])


@torch.compile(dynamic=False)
def prompt_layer(x, layer, keys, values, cos, sin):
    b, s, _ = x.shape
    q, k, v = project(x, layer, cos, sin)
    keys[:, :, :s], values[:, :, :s] = k, v
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return finish(x, y.transpose(1, 2).reshape(b, s, HEADS * WIDTH), layer)


@torch.compile(dynamic=False)
def token_layer(x, layer, keys, values, cos, sin, position, mask):
    q, k, v = project(x, layer, cos, sin)
    keys.index_copy_(2, position, k)
    values.index_copy_(2, position, v)
    q = q.reshape(len(x), GROUPS, HEADS // GROUPS, WIDTH)
    scores = (q @ keys.transpose(2, 3)).float() * WIDTH**-0.5 + mask
    return finish(x, (scores.softmax(-1).bfloat16() @ values).reshape(len(x), 1, HEADS * WIDTH), layer)


def caches(positions):
    return [[torch.zeros(1, GROUPS, positions, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
            for _ in LAYERS]


def choose(x):
    return F.linear(norm(x[:, -1:], NORM), HEAD).argmax(-1)


def read_prompt(tokens, cache):
    x, n = F.embedding(tokens, EMBEDDING), tokens.shape[1]
    for layer, (keys, values) in zip(LAYERS, cache):
        x = prompt_layer(x, layer, keys, values, COS[:n], SIN[:n])
    return choose(x)


class Decoder:
    """A CUDA graph that computes the token after the cached tokens."""

    def __init__(self, cache):
        self.cache, self.at = cache, torch.arange(cache[0][0].shape[2], device="cuda")
        self.token, self.position = (torch.zeros(shape, device="cuda", dtype=torch.long) for shape in ((1, 1), 1))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # compiles the model
            for _ in range(2): self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def step(self):
        mask = torch.where(self.at <= self.position, 0.0, float("-inf"))
        x = F.embedding(self.token, EMBEDDING)
        for layer, (keys, values) in zip(LAYERS, self.cache):
            x = token_layer(x, layer, keys, values, COS[self.position], SIN[self.position], self.position, mask)
        self.token.copy_(choose(x))
        self.position += 1


def median_us(run, count):
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


@torch.no_grad()
def measure():
    cache = caches(options.context + NEW)
    decoder = Decoder(cache)
    decoder.token.copy_(read_prompt(torch.randint(VOCAB, (1, options.context), device="cuda"), cache))
    decoder.position.fill_(options.context)
    token_us = median_us(decoder.graph.replay, 100)
    prompt, cache = torch.randint(VOCAB, (1, options.prompt), device="cuda"), caches(options.prompt)
    for _ in range(3): read_prompt(prompt, cache)
    return [{"name": f"decode/1x{options.context}", "us": token_us},
            {"name": f"prefill/1x{options.prompt}", "us": median_us(lambda: read_prompt(prompt, cache), 9)}]


line = json.dumps({"bench": "infer", "peer": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name(),
                   "rows": measure()})
print(line)
if options.json: options.json.write_text(line + "\n")
