#!/usr/bin/env python3
"""Times generation with PyTorch, the peer of `isotron bench infer`: a Llama with random weights and a static KV cache
in bf16. Layers are compiled, and a decoding step is a CUDA graph.

usage: bench/infer/peer_torch.py [--layers N] [--json FILE]

The model has the shape of Llama 3.1 8B; --layers (32) changes its depth. Weights are bf16, or fp8 with a scale for each
row. In fp8, the inputs of torch._scaled_mm are quantized, too; for one token, only the weights are. Several prompts are
read in passes of about 8192 tokens. Times are medians of several runs. Writes one line of JSON."""
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from cli import Command

command = Command(__doc__, "torch")
command.add_argument("--layers", type=int, default=32)
command.add_argument("--json", type=pathlib.Path)
options = command.parse_args()

import torch
from torch.nn import functional as F

HIDDEN, HEADS, GROUPS, WIDTH, FFN, VOCAB = 4096, 32, 8, 128, 14336, 128256
PASS_TOKENS = 8192  # of several prompts
LARGEST = 448  # of an e4m3 number
# (requests, tokens of a prompt, new tokens, weights). 384 requests of 2000 tokens are what fits into 140 GB.
CASES = [(1, 1024, 128, "bf16"), (1, 4096, 2, "bf16"), (256, 1024, 256, "bf16"),
         (1, 1024, 128, "fp8"), (1, 4096, 2, "fp8"), (384, 1000, 1000, "fp8")]


def weight(*shape):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)


def ones():
    return torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)


def quantized(w, kind):
    """Returns the weight w of a linear layer: a tensor for bf16, or (values, a scale for each row)."""
    if kind == "bf16": return w
    scale = w.abs().amax(1).float() / LARGEST
    return (w.float() / scale[:, None]).to(torch.float8_e4m3fn), scale


def layer_weights(kind):
    linear = lambda *shape: quantized(weight(*shape), kind)
    return {"qkv": linear((HEADS + 2 * GROUPS) * WIDTH, HIDDEN), "proj": linear(HIDDEN, HEADS * WIDTH),
            "fc1": linear(2 * FFN, HIDDEN), "fc2": linear(HIDDEN, FFN), "norm1": ones(), "norm2": ones()}


def linear(x, w):
    if isinstance(w, torch.Tensor): return F.linear(x, w)
    values, scale = w
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) == 1: return F.linear(x, values.to(x.dtype)) * scale.to(x.dtype)
    row_scale = rows.abs().amax(1, keepdim=True).float() / LARGEST
    y = torch._scaled_mm((rows / row_scale).to(values.dtype), values.t(), scale_a=row_scale, scale_b=scale[None],
                         out_dtype=x.dtype, use_fast_accum=True)
    return y.view(*x.shape[:-1], -1)


torch.manual_seed(1)
EMBEDDING, HEAD, NORM = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN), ones()
ANGLES = torch.outer(torch.arange(max(prompt + new for _, prompt, new, _ in CASES) + 64, device="cuda").float(),
                     1 / 500000 ** (torch.arange(0, WIDTH, 2, device="cuda").float() / WIDTH))
COS, SIN = (torch.cat([x] * 2, 1).bfloat16() for x in (ANGLES.cos(), ANGLES.sin()))


def norm(x, scale):
    return F.rms_norm(x, (HIDDEN,), scale, 1e-5)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def project(x, layer, cos, sin):
    b, s, _ = x.shape
    q, k, v = linear(norm(x, layer["norm1"]), layer["qkv"]).split([HEADS * WIDTH, GROUPS * WIDTH, GROUPS * WIDTH], -1)
    heads = lambda y, n: y.view(b, s, n, WIDTH).transpose(1, 2)
    return rotate(heads(q, HEADS), cos, sin), rotate(heads(k, GROUPS), cos, sin), heads(v, GROUPS)


def finish(x, y, layer):
    x = x + linear(y, layer["proj"])
    gate, up = linear(norm(x, layer["norm2"]), layer["fc1"]).chunk(2, -1)
    return x + linear(F.silu(gate) * up, layer["fc2"])


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
    q = q.reshape(len(x), GROUPS, HEADS // GROUPS, WIDTH)  # the heads that share keys, like positions
    if len(x) == 1:
        y = ((q @ keys.transpose(2, 3)).float() * WIDTH**-0.5 + mask).softmax(-1).bfloat16() @ values
    else:
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask.bfloat16().expand(1, 1, q.shape[2], -1))
    return finish(x, y.reshape(len(x), 1, HEADS * WIDTH), layer)


def choose(x):
    return F.linear(norm(x[:, -1:], NORM), HEAD).argmax(-1)


class Model:
    """Layers, and a cache for some requests."""

    def __init__(self, layers, requests, positions):
        shape = (requests, GROUPS, positions, WIDTH)
        self.layers = [(layer, *(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)))
                       for layer in layers]
        self.at = torch.arange(positions, device="cuda")
        self.token = torch.zeros(requests, 1, device="cuda", dtype=torch.long)
        self.position = torch.zeros(1, device="cuda", dtype=torch.long)

    def read(self, tokens, first):
        """Reads prompts, which become the cached tokens of the requests from `first` on."""
        (count, n), x = tokens.shape, F.embedding(tokens, EMBEDDING)
        for layer, keys, values in self.layers:
            x = prompt_layer(x, layer, keys[first:first + count], values[first:first + count], COS[:n], SIN[:n])
        self.token[first:first + count] = choose(x)
        self.position.fill_(n)

    def read_all(self, tokens):
        count = max(1, PASS_TOKENS // tokens.shape[1]) if len(tokens) > 1 else 1
        for first in range(0, len(tokens), count): self.read(tokens[first:first + count], first)

    def step(self):
        """Computes the token after the cached tokens, for each request."""
        mask = torch.where(self.at <= self.position, 0.0, float("-inf"))
        x = F.embedding(self.token, EMBEDDING)
        for layer, keys, values in self.layers:
            x = token_layer(x, layer, keys, values, COS[self.position], SIN[self.position], self.position, mask)
        self.token.copy_(choose(x))
        self.position += 1

    def step_graph(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles the model
            for _ in range(2): self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph


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
def measure(layers, requests, prompt, new, weights):
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    # fuses the conversion of weights with a product by one row
    torch._inductor.config.coordinate_descent_tuning = weights != "bf16"
    model = Model(layers, requests, -(-(prompt + new) // 64) * 64)
    graph = model.step_graph()
    tokens = torch.randint(VOCAB, (requests, prompt), device="cuda")
    model.read_all(tokens[:PASS_TOKENS // prompt])  # compiles the model
    prompt_us = median_us(lambda: model.read_all(tokens), 9 if requests == 1 else 1)
    token_us = median_us(graph.replay, min(new - 1, 100))
    case = f"{requests}x{prompt}"
    return [{"name": f"prefill/{case}", "weights": weights, "us": prompt_us},
            {"name": f"decode/{case}", "weights": weights, "us": token_us},
            {"name": f"all/{case}+{new}", "weights": weights,
             "tokens_per_second": 1e6 * requests * new / (prompt_us + (new - 1) * token_us)}]


rows, of = [], None
for case in CASES:
    if case[-1] != of: layers, of = None, case[-1]
    if layers is None: layers = [layer_weights(of) for _ in range(options.layers)]
    rows += measure(layers, *case)
    print(rows[-3:], file=sys.stderr, flush=True)
line = json.dumps({"bench": "infer", "peer": f"PyTorch {torch.__version__}", "device": torch.cuda.get_device_name(),
                   "rows": rows})
print(line)
if options.json: options.json.write_text(line + "\n")
