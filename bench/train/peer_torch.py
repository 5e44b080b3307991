#!/usr/bin/env python3
"""Times PyTorch's training step of a configuration of bench/train, the peer of `bench/race step`.

usage: bench/train/peer_torch.py --config bench/train/NAME.conf [--steps N] [--seconds S] [--warmup N]
                                 [--micro-batch-size N] [--batch N] [--no-compile] [--shard]

Every layer is compiled. Attention runs in cuDNN or, if cuDNN rejects it, in PyTorch's flash attention; the result names
the backend. As in Isotron, BERT and T5 have padding masks, and T5's relative bias is one mask for all layers of a
stack; if cuDNN rejects a mask, the memory-efficient attention is used. As in Isotron, parameters are bf16 with fp32
masters. If moments are fp32, the optimizer is PyTorch's fused AdamW, and gradients of microbatches are summed in fp32.
If the configuration requires 16-bit moments, the optimizer is the compiled AdamW of peer_adamw.py. In that case,
main-grads-dtype selects how gradients are summed: in fp32 after each parameter's backward, or by autograd in bf16.
Without this key, sums are in fp32 if 40 GB then remain for activations, and otherwise in bf16. The gradient's norm is
clipped as in Isotron. There is no recomputation. Prints one line of JSON: the median time of steps that are each
followed by a synchronization, and the mean time of the same number of steps without synchronization between them.

--batch replaces the configuration's batch by one microbatch of this many samples.

Under torchrun, each rank has a separate GPU and processes the batch of the configuration, which must be one microbatch.
Gradients are reduced by DistributedDataParallel, in bf16 and overlapped with the backward pass. With --shard, FSDP2
shards fp32 parameters and moments, all-gathers parameters in bf16 and reduces gradients in fp32."""
import argparse
import json
import math
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from cli import Command, Failed, count

command = Command(__doc__, "torch")
command.add_argument("--config", required=True)
command.add_argument("--steps", type=count, default=20)
command.add_argument("--seconds", type=float, default=0)
command.add_argument("--warmup", type=count, default=5)
command.add_argument("--micro-batch-size", type=count)
command.add_argument("--batch", type=count)
command.add_argument("--no-compile", action="store_true")
command.add_argument("--shard", action="store_true")
command.parse_args()

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import peer_adamw

CUDA = torch.cuda.is_available()
RANK, RANKS, LOCAL_RANK = (int(os.environ.get(name, value)) for name, value in (("RANK", 0), ("WORLD_SIZE", 1),
                                                                                ("LOCAL_RANK", 0)))


# ---- configuration ----

def read_conf(path):
    """Reads `key = value` lines. Fails if a key is unknown, because ignoring it could change the model silently."""
    known = {}
    for line in pathlib.Path(path).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            key, value = (part.strip() for part in line.split("=", 1))
            known[key] = value
    take = known.pop
    number = lambda key, otherwise=None: int(take(key, otherwise))
    true = lambda key: take(key, "false") == "true"
    c = argparse.Namespace(model=take("model", "gpt"))
    encoder = "encoder-" if c.model == "t5" else ""
    c.layers, c.hidden, c.heads = number(f"{encoder}num-layers"), number("hidden-size"), number("num-attention-heads")
    c.seq, c.vocab = number(f"{encoder}seq-length"), number("vocab-size")
    c.decoder_layers, c.decoder_seq = number("decoder-num-layers", 0), number("decoder-seq-length", 0)
    assert c.model in ("gpt", "bert") or c.model == "t5" and c.decoder_layers and c.decoder_seq, c.model
    c.scale = float(take("softmax-scale", (c.hidden // c.heads) ** -0.5))
    c.groups = number("num-query-groups", c.heads) if true("group-query-attention") else c.heads
    activation = take("activation", "swiglu" if true("swiglu") else "gelu")
    assert activation in ("gelu", "swiglu", "geglu-tanh"), activation
    c.gated, c.silu, c.rms = activation != "gelu", activation == "swiglu", take("normalization",
                                                                                "LayerNorm") == "RMSNorm"
    c.ffn = number("ffn-hidden-size", 4 * c.hidden)
    c.experts, c.topk = number("num-experts", 0), number("moe-router-topk", 2)
    c.bias, c.tied = not true("disable-bias-linear"), not true("untie-embeddings-and-output-weights")
    positions = take("position-embedding-type", "learned_absolute")
    assert (positions == "relative") == (c.model == "t5"), "a T5 has relative positions here, and only a T5"
    c.rope, c.base = positions == "rope", float(take("rotary-base", 10000))
    c.positions = number("max-position-embeddings", c.seq)
    c.micro, c.batch = number("micro-batch-size"), number("global-batch-size")
    c.lr, c.beta2, c.decay = float(take("lr")), float(take("adam-beta2")), float(take("weight-decay"))
    c.narrow = take("exp-avg-dtype", "fp32") == "bf16"
    assert take("exp-avg-sq-dtype", "fp32") == ("bf16" if c.narrow else "fp32")
    c.gradients = take("main-grads-dtype", "auto")
    assert c.gradients == "auto" or c.narrow, "main-grads-dtype requires 16-bit moments here"
    assert c.gradients in ("auto", "fp32", "bf16"), c.gradients
    true("use-precision-aware-optimizer")
    assert float(take("hidden-dropout")) == 0 and float(take("attention-dropout")) == 0, "no dropout here"
    assert take("lane") == "bf16", "the peer computes in bf16"
    for key in ("train-iters", "mock-data"):
        take(key, None)
    if known:
        raise Failed(f"{path}: not understood: {', '.join(known)}")
    assert c.positions == c.seq and c.batch % c.micro == 0
    c.vocab = (c.vocab + 127) // 128 * 128
    return c


# ---- model ----

def rotate(x, cos, sin):
    """Applies RoPE to x [b,s,n,d]; elements i and i + d/2 are a pair."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Experts(nn.Module):
    """SwiGLU experts without capacities. Probabilities are a softmax over the chosen experts' logits, in fp32."""
    def __init__(self, c):
        super().__init__()
        assert c.gated and c.silu and not c.bias, "experts need SwiGLU without biases here"
        self.router = nn.Linear(c.hidden, c.experts, bias=False)
        self.up = nn.Parameter(torch.empty(c.experts, 2 * c.ffn, c.hidden))
        self.down = nn.Parameter(torch.empty(c.experts, c.hidden, c.ffn))
        self.topk = c.topk

    def forward(self, x):
        tokens = x.flatten(0, 1)
        logits, expert = F.linear(tokens.float(), self.router.weight.float()).topk(self.topk)
        order = expert.flatten().argsort(stable=True)
        counts = (expert.flatten()[:, None] == torch.arange(len(self.up), device=x.device)).sum(0)
        ends = counts.cumsum(0).int()
        gate, value = torch._grouped_mm(tokens[order // self.topk], self.up.mT, ends).chunk(2, dim=-1)
        chosen = logits.softmax(-1).flatten()[order, None].to(x.dtype)
        y = torch._grouped_mm(F.silu(gate) * value * chosen, self.down.mT, ends)
        return y[order.argsort()].view(-1, self.topk, x.shape[-1]).sum(1).view_as(x)


class Layer(nn.Module):
    def __init__(self, c, cross=False):
        super().__init__()
        self.width, self.heads, self.groups, self.gated = c.hidden // c.heads, c.heads, c.groups, c.gated
        self.gate, self.scale = F.silu if c.silu else lambda x: F.gelu(x, approximate="tanh"), c.scale
        norm = nn.RMSNorm if c.rms else nn.LayerNorm
        self.input_norm, self.mlp_norm = norm(c.hidden, eps=1e-5), norm(c.hidden, eps=1e-5)
        self.qkv = nn.Linear(c.hidden, (c.heads + 2 * c.groups) * self.width, bias=c.bias)
        self.out = nn.Linear(c.hidden, c.hidden, bias=c.bias)
        if c.experts:
            self.experts = Experts(c)
        else:
            self.up = nn.Linear(c.hidden, c.ffn * (2 if c.gated else 1), bias=c.bias)
            self.down = nn.Linear(c.ffn, c.hidden, bias=c.bias)
        if cross:
            self.cross_norm = norm(c.hidden, eps=1e-5)
            self.cross_q, self.cross_out = (nn.Linear(c.hidden, c.hidden, bias=c.bias) for _ in range(2))
            self.cross_kv = nn.Linear(c.hidden, 2 * c.hidden, bias=c.bias)

    def attention(self, x, table, mask):
        b, s, h = x.shape
        heads = self.qkv(x).view(b, s, self.heads + 2 * self.groups, self.width)
        q, k, v = heads.split((self.heads, self.groups, self.groups), dim=2)
        if table is not None:
            q, k = rotate(q, *table), rotate(k, *table)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask,
                                           is_causal=mask is None, scale=self.scale,
                                           enable_gqa=self.groups != self.heads)
        return self.out(y.transpose(1, 2).reshape(b, s, h))

    def cross_attention(self, x, encoded, mask):
        q = self.cross_q(x).unflatten(2, (self.heads, self.width))
        k, v = self.cross_kv(encoded).unflatten(2, (2 * self.heads, self.width)).chunk(2, dim=2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask,
                                           scale=self.scale)
        return self.cross_out(y.transpose(1, 2).flatten(2))

    def mlp(self, x):
        x = self.up(x)
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            return self.down(self.gate(gate) * value)
        return self.down(F.gelu(x, approximate="tanh"))

    def forward(self, x, table, mask=None, encoded=None, encoded_mask=None):
        x = x + self.attention(self.input_norm(x), table, mask)
        if encoded is not None:
            x = x + self.cross_attention(self.cross_norm(x), encoded, encoded_mask)
        return x + (self.experts if hasattr(self, "experts") else self.mlp)(self.mlp_norm(x))


class Head(nn.Module):
    """Computes the final norm, the logits and the loss."""
    def __init__(self, c):
        super().__init__()
        self.norm = (nn.RMSNorm if c.rms else nn.LayerNorm)(c.hidden, eps=1e-5)

    def forward(self, x, weight, labels):
        logits = F.linear(self.norm(x), weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.hidden)
        self.positions = None if c.rope else nn.Embedding(c.positions, c.hidden)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.head = Head(c)
        self.output = None if c.tied else nn.Parameter(torch.empty(c.vocab, c.hidden))
        width = c.hidden // c.heads
        angle = torch.outer(torch.arange(c.seq).float(), c.base ** (-torch.arange(0, width, 2).float() / width))
        self.register_buffer("cos", angle.cos()[:, None].bfloat16() if c.rope else None, persistent=False)
        self.register_buffer("sin", angle.sin()[:, None].bfloat16() if c.rope else None, persistent=False)
        start(self, c)

    def draw(self, c, device, generator):
        """Returns random arguments of forward()."""
        tokens = draw_tokens(c, c.seq + 1, device, generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def forward(self, tokens, labels):
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        table = (self.cos, self.sin) if self.cos is not None else None
        for layer in self.layers:
            x = layer(x, table)
        return self.head(x, self.tokens.weight if self.output is None else self.output, labels)


def start(model, c):
    for name, p in model.named_parameters():
        if p.dim() > 1:
            deep = name.endswith(("out.weight", "down.weight", "down"))
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * c.layers) if deep else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(p)


def draw_tokens(c, columns, device, generator):
    return torch.randint(0, c.vocab, (c.micro, columns), device=device, generator=generator)


def padding_mask(columns, lengths):
    """Returns a mask [b,1,1,columns] that is true for keys that are not padding."""
    return (torch.arange(columns, device=lengths.device) < lengths[:, None])[:, None, None]


class BertHead(nn.Module):
    """Computes the final norm, the logits of all positions and of the sentence, and the sum of both losses."""
    def __init__(self, c):
        super().__init__()
        self.norm, self.dense_norm = nn.LayerNorm(c.hidden), nn.LayerNorm(c.hidden)
        self.dense, self.pooler = nn.Linear(c.hidden, c.hidden), nn.Linear(c.hidden, c.hidden)
        self.bias, self.classes = nn.Parameter(torch.zeros(c.vocab)), nn.Linear(c.hidden, 2)

    def forward(self, x, weight, labels, order):
        x = self.norm(x)
        sentence = self.classes(torch.tanh(self.pooler(x[:, 0])))
        logits = F.linear(self.dense_norm(F.gelu(self.dense(x))), weight, self.bias)
        return F.cross_entropy(logits.flatten(0, 1).float(),
                               labels.flatten()) + F.cross_entropy(sentence.float(), order)


class Bert(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens, self.positions, self.types = (nn.Embedding(n, c.hidden) for n in (c.vocab, c.positions, 2))
        self.layers, self.head = nn.ModuleList(Layer(c) for _ in range(c.layers)), BertHead(c)
        start(self, c)

    def draw(self, c, device, generator):
        tokens, labels = (draw_tokens(c, c.seq, device, generator) for _ in range(2))
        types = (torch.arange(c.seq, device=device) >= c.seq // 2).long().expand(c.micro, -1)
        return tokens, types, torch.full((c.micro,), c.seq,
                                         device=device), labels, torch.arange(c.micro, device=device) % 2

    def forward(self, tokens, types, lengths, labels, order):
        x = self.tokens(tokens) + self.positions.weight + self.types(types)
        mask = padding_mask(tokens.shape[1], lengths)
        for layer in self.layers:
            x = layer(x, None, mask)
        return self.head(x, self.tokens.weight, labels, order)


class RelativeBias(nn.Module):
    """The bias [heads,s,s] of T5; it has one parameter for each head and bucket of distances."""
    def __init__(self, c, columns, both, buckets=32, largest=128):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, c.heads))
        at = torch.arange(columns)
        far = at[None] - at[:, None]
        half = buckets // 2 if both else buckets
        bucket, far = ((far > 0).long() * half, far.abs()) if both else (0, -far.clamp(max=0))
        exact = half // 2
        log = exact + (torch.log(far.clamp(min=1) / exact) / math.log(largest / exact)
                       * (half - exact)).long().clamp(max=half - exact - 1)
        self.register_buffer("bucket", bucket + torch.where(far < exact, far, log), persistent=False)

    def forward(self):
        return self.weight[self.bucket].permute(2, 0, 1)


class T5(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.hidden)
        self.encoder = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.decoder = nn.ModuleList(Layer(c, cross=True) for _ in range(c.decoder_layers))
        self.encoder_bias, self.decoder_bias = RelativeBias(c, c.seq, True), RelativeBias(c, c.decoder_seq, False)
        self.encoder_norm = (nn.RMSNorm if c.rms else nn.LayerNorm)(c.hidden, eps=1e-5)
        self.head, self.output = Head(c), None if c.tied else nn.Parameter(torch.empty(c.vocab, c.hidden))
        start(self, c)

    layers = property(lambda self: [*self.encoder, *self.decoder])

    def draw(self, c, device, generator):
        tokens = draw_tokens(c, c.decoder_seq + 1, device, generator)
        return (draw_tokens(c, c.seq, device, generator), torch.full((c.micro,), c.seq, device=device),
                tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def forward(self, encoder_tokens, lengths, tokens, labels):
        x, seen = self.tokens(encoder_tokens), padding_mask(encoder_tokens.shape[1], lengths)
        mask = self.encoder_bias()[None].masked_fill(~seen, -math.inf)
        for layer in self.encoder:
            x = layer(x, None, mask)
        encoded, x = self.encoder_norm(x), self.tokens(tokens)
        later = torch.ones(2 * tokens.shape[1:], dtype=torch.bool, device=tokens.device).triu(1)
        mask = self.decoder_bias()[None].masked_fill(later, -math.inf)
        for layer in self.decoder:
            x = layer(x, None, mask, encoded, seen)
        return self.head(x, self.tokens.weight if self.output is None else self.output, labels)


MODELS = {"gpt": Model, "bert": Bert, "t5": T5}


# ---- step ----

class Fused:
    """PyTorch's fused AdamW on fp32 masters, with fp32 sums of gradients."""
    words = "fused AdamW, fp32 masters, moments and sums of gradients"

    def __init__(self, groups, c):
        masters = {p: p.detach().float().requires_grad_() for params, _ in groups for p in params}
        self.params, self.masters, self.begins = list(masters), list(masters.values()), True
        self.adam = torch.optim.AdamW([{"params": [masters[p] for p in params], "weight_decay": decay}
                                       for params, decay in groups],
                                      lr=c.lr, betas=(0.9, c.beta2), eps=1e-8, fused=True)
        for p in self.masters:
            p.grad = torch.zeros_like(p)

    def next_microbatch(self):
        (torch._foreach_copy_ if self.begins else torch._foreach_add_)([p.grad for p in self.masters],
                                                                       [p.grad for p in self.params])
        self.begins = False
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self, largest_norm):
        nn.utils.clip_grad_norm_(self.masters, largest_norm, foreach=True)
        self.adam.step()
        self.begins = True
        torch._foreach_copy_(self.params, self.masters)


class Sharded:
    """PyTorch's fused AdamW on FSDP2's fp32 shards."""
    words = "fused AdamW, FSDP2's fp32 shards of parameters, moments and gradients"

    def __init__(self, groups, c):
        self.params = [p for params, _ in groups for p in params]
        self.adam = torch.optim.AdamW([{"params": params, "weight_decay": decay} for params, decay in groups],
                                      lr=c.lr, betas=(0.9, c.beta2), eps=1e-8, fused=True)

    def next_microbatch(self):
        pass

    def step(self, largest_norm):
        nn.utils.clip_grad_norm_(self.params, largest_norm, foreach=True)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def make_optimizer(c, a, params):
    groups = [([p for p in params if p.dim() > 1], c.decay), ([p for p in params if p.dim() == 1], 0.0)]
    if not c.narrow:
        return (Sharded if a.shard else Fused)(groups, c)
    sums = c.gradients != "bf16"
    if c.gradients == "auto" and CUDA:  # parameters and moments in bf16, masters and sums in fp32 are 14 bytes each
        sums = torch.cuda.get_device_properties(0).total_memory - 14 * sum(p.numel() for p in params) > 40e9
    adam = peer_adamw.AdamW(groups, c.lr, (0.9, c.beta2), 1e-8, sums, compiled=not a.no_compile)
    adam.words = f"compiled AdamW, fp32 masters, bf16 moments, {'fp32' if sums else 'bf16'} sums of gradients"
    return adam


def shard(model):
    """Makes each layer a unit of FSDP2. The last layer is not resharded after the forward pass, because the backward
    pass begins with it."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=layer is not model.layers[-1])
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)


class Trainer:
    def __init__(self, c, a, device):
        with device:
            self.model = self.on_ranks = MODELS[c.model](c)
        if a.shard:
            shard(self.model)
        else:
            self.model.bfloat16()
            if RANKS > 1:
                self.on_ranks = nn.parallel.DistributedDataParallel(self.model, device_ids=[LOCAL_RANK]
                                                                    if CUDA else None,
                                                                    gradient_as_bucket_view=True, bucket_cap_mb=100)
        self.params = list(self.model.parameters())
        self.optimizer = make_optimizer(c, a, self.params)

    def step(self, batches):
        total = 0
        for batch in batches:
            loss = self.on_ranks(*batch)
            (loss / len(batches)).backward()
            self.optimizer.next_microbatch()
            total = total + loss.detach()
        self.optimizer.step(1.0)
        return total / len(batches)


def choose_attention(c, device):
    """Returns the backends in the order in which they are tried, and a description for the result."""
    if not CUDA:
        return [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], "of a CPU"
    if c.model != "gpt":
        return [SDPBackend.CUDNN_ATTENTION,
                SDPBackend.EFFICIENT_ATTENTION], "cuDNN, or the memory-efficient backend if cuDNN refuses"
    shape = lambda heads: torch.randn(1, heads, c.seq, c.hidden // c.heads, device=device, dtype=torch.bfloat16,
                                      requires_grad=True)
    try:
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            F.scaled_dot_product_attention(shape(c.heads), shape(c.groups), shape(c.groups), is_causal=True,
                                           enable_gqa=c.groups != c.heads).sum().backward()
        return [SDPBackend.CUDNN_ATTENTION], "cuDNN"
    except RuntimeError as e:
        return [SDPBackend.FLASH_ATTENTION], f"flash, because cuDNN says: {str(e).splitlines()[0][:120]}"


# ---- measuring ----

def now():
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


def agreed(wish):
    """Returns whether `wish` is true on all ranks."""
    if RANKS == 1:
        return wish
    votes = torch.tensor(int(wish), device="cuda" if CUDA else "cpu")
    torch.distributed.all_reduce(votes)
    return votes.item() == RANKS


def measure(trainer, a, c, device):
    gpu = torch.Generator(device=device).manual_seed(1 + RANK)
    n = c.batch // c.micro
    draws = [trainer.model.draw(c, device, gpu) for _ in range(2 * n)]
    steps = [draws[:n], draws[n:]]
    start = now()
    trainer.step(steps[0])
    first = now() - start
    for i in range(1, a.warmup):
        trainer.step(steps[i % 2])
    times, begin = [], now()
    while len(times) < a.steps and agreed(len(times) < 3 or not a.seconds or now() - begin < a.seconds):
        start, i = now(), len(times)
        loss = trainer.step(steps[i % 2])
        times.append(1e3 * (now() - start))
        if RANK == 0:
            print(f"step {i}: {times[-1]:.1f} ms", file=sys.stderr, flush=True)
    start = now()
    for i in range(len(times)):
        trainer.step(steps[i % 2])
    together = 1e3 * (now() - start) / len(times)
    return first, times, together, loss.item()


def main(a):
    c = read_conf(a.config)
    c.micro, c.batch = a.micro_batch_size or a.batch or c.micro, a.batch or c.batch
    if RANKS > 1 and (c.batch != c.micro or c.narrow):
        raise Failed("several ranks require one microbatch per step, and fp32 moments")
    if a.shard and RANKS == 1:
        raise Failed("--shard needs several ranks: start it with torchrun")
    device = torch.device("cuda", LOCAL_RANK) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    if RANKS > 1:
        torch.distributed.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(1)
    backends, attention = choose_attention(c, device)
    trainer = Trainer(c, a, device)
    for part in [] if a.no_compile else [*trainer.model.layers, trainer.model.head]:
        part.compile()
    with sdpa_kernel(backends, set_priority=True):
        first, times, together, loss = measure(trainer, a, c, device)
    median, tokens = statistics.median(times), RANKS * c.batch * c.seq
    if RANKS > 1:
        torch.distributed.destroy_process_group()
    if RANK == 0:
        print(json.dumps({
            "device": torch.cuda.get_device_name() if CUDA else "CPU", "torch": torch.__version__,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version() if CUDA else None,
            "attention": attention, "compile": "none" if a.no_compile else "block, default",
            "optimizer": trainer.optimizer.words, "ranks": RANKS,
            "parallel": "none" if RANKS == 1 else "FSDP2" if a.shard else "DDP",
            "parameters": sum(p.numel() for p in trainer.params), "micro_batch_size": c.micro,
            "global_batch_size": RANKS * c.batch, "steps": len(times), "tokens": tokens,
            "step_ms": {"median": median, "min": min(times), "max": max(times)}, "back_to_back_ms": together,
            "tokens_per_second": tokens / median * 1e3, "first_step_seconds": first, "loss": loss,
            "memory_mb": torch.cuda.max_memory_allocated() / 2**20 if CUDA else None,
            "allocation_retries": torch.cuda.memory_stats().get("num_alloc_retries") if CUDA else None}))


command.run(main)
