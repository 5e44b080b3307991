#!/usr/bin/env python3
"""Times PyTorch's training step for a configuration of bench/train, as the peer of `bench/race step`.

usage: bench/train/peer_torch.py --config bench/train/NAME.conf [--steps N] [--seconds S] [--warmup N]
                                 [--micro-batch-size N] [--batch N] [--no-compile] [--shard]

Every layer is compiled. Attention runs in the first backend that accepts its shape: cuDNN, flash attention or the
memory-efficient attention; the result names the backend. As in Isotron, BERT and T5 have padding masks, and T5's
relative bias is one mask for all layers of a stack; if cuDNN rejects a mask, the memory-efficient attention is used.
Tokens reach their experts and return by gathers, without atomics, in both passes. As in Isotron, parameters are bf16
with fp32 masters. If moments are fp32, the optimizer is PyTorch's fused AdamW, and gradients of microbatches are summed
in fp32. If the configuration requires 16-bit moments, the optimizer is the compiled AdamW of peer_adamw.py. In that
case, main-grads-dtype selects how gradients are summed: in fp32 after each parameter's backward, or by autograd in
bf16. Without this key, sums are in fp32 if 40 GB then remain for activations, and otherwise in bf16. The gradient's
norm is clipped as in Isotron. There is no recomputation. Prints one line of JSON: the median time of steps that are
each followed by a synchronization, and the mean time of the same number of steps without synchronization between them.

--batch replaces the configuration's batch with one microbatch of this many samples.

Under torchrun, each rank has a separate GPU and processes the batch of the configuration, which must be one microbatch.
Gradients are reduced by DistributedDataParallel, in bf16 and overlapped with the backward pass. With --shard, FSDP2
shards fp32 parameters and moments, all-gathers parameters in bf16 and reduces gradients in fp32."""
import argparse
import functools
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

def read_experts(take, number, true, ffn):
    e = argparse.Namespace(n=number("num-experts"), topk=number("moe-router-topk", 2),
                           ffn=number("moe-ffn-hidden-size", ffn),
                           shared=number("moe-shared-expert-intermediate-size", 0),
                           scaling=float(take("moe-router-topk-scaling-factor", 1)))
    score, balance = take("moe-router-score-function", "softmax"), take("moe-router-load-balancing-type", "aux_loss")
    e.sigmoid, e.by_sample, e.loss = score == "sigmoid", balance == "seq_aux_loss", float(take("moe-aux-loss-coeff", 0))
    assert score == "softmax" or e.sigmoid and e.topk > 1, score
    assert balance in ("aux_loss", "seq_aux_loss"), balance
    e.biased = true("moe-router-enable-expert-bias")
    e.rate = float(take("moe-router-bias-update-rate", 1e-3)) if e.biased else 0
    assert e.sigmoid or not e.biased, "an expert bias needs sigmoid scores here"
    e.groups, e.group_topk = number("moe-router-num-groups", 1), number("moe-router-group-topk", 1)
    e.group_scores = number("moe-router-group-score-topk", e.topk // e.group_topk)
    return e


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
    c.groups = number("num-query-groups", c.heads) if true("group-query-attention") else c.heads
    c.width, c.qk_norm, c.mla = number("kv-channels", c.hidden // c.heads), true("qk-layernorm"), None
    if true("multi-latent-attention"):
        assert c.qk_norm and take("rope-type") == "rope", "latent attention needs qk-layernorm and rope-type = rope"
        c.mla = argparse.Namespace(q_rank=number("q-lora-rank"), kv_rank=number("kv-lora-rank"),
                                   plain=number("qk-head-dim"), rotated=number("qk-pos-emb-head-dim"),
                                   value=number("v-head-dim"))
    c.key_width, c.value_width, c.rotated = (c.mla.plain + c.mla.rotated, c.mla.value,
                                             c.mla.rotated) if c.mla else 3 * (c.width,)
    c.scale = float(take("softmax-scale", c.key_width ** -0.5))
    activation = take("activation", "swiglu" if true("swiglu") else "gelu")
    assert activation in ("gelu", "swiglu", "geglu-tanh"), activation
    c.gated, c.silu = activation != "gelu", activation == "swiglu"
    rms = take("normalization", "LayerNorm") == "RMSNorm"
    c.norm = functools.partial(nn.RMSNorm if rms else nn.LayerNorm, eps=1e-5)
    c.ffn = number("ffn-hidden-size", 4 * c.hidden)
    c.experts = read_experts(take, number, true, c.ffn) if "num-experts" in known else None
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

def rotate(x, cos, sin, interleaved=False):
    """Applies RoPE to x [b,s,n,d]; elements i and i + d/2 are a pair or, if interleaved, 2i and 2i + 1."""
    left, right = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def attend(q, k, v, mask, scale):
    """Returns the context [b,s,heads*width]. Without a mask, attention is causal."""
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask,
                                       is_causal=mask is None, scale=scale, enable_gqa=q.shape[2] != k.shape[2])
    return y.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.scale, self.parts = c.scale, (c.heads, c.groups, c.groups)
        self.qkv = nn.Linear(c.hidden, sum(self.parts) * c.width, bias=c.bias)
        self.q_norm, self.k_norm = (c.norm(c.width) if c.qk_norm else nn.Identity() for _ in range(2))
        self.out = nn.Linear(c.heads * c.width, c.hidden, bias=c.bias)

    def forward(self, x, table, mask):
        q, k, v = self.qkv(x).unflatten(2, (sum(self.parts), -1)).split(self.parts, dim=2)
        q, k = self.q_norm(q), self.k_norm(k)
        if table is not None:
            q, k = rotate(q, *table), rotate(k, *table)
        return self.out(attend(q, k, v, mask, self.scale))


class CrossAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.scale = c.heads, c.scale
        width = c.heads * c.width
        self.q, self.kv = (nn.Linear(c.hidden, n * width, bias=c.bias) for n in (1, 2))
        self.out = nn.Linear(width, c.hidden, bias=c.bias)

    def forward(self, x, encoded, mask):
        k, v = self.kv(encoded).unflatten(2, (2 * self.heads, -1)).chunk(2, dim=2)
        return self.out(attend(self.q(x).unflatten(2, (self.heads, -1)), k, v, mask, self.scale))


class LatentAttention(nn.Module):
    """DeepSeek's attention. Heads have a plain part and a rotated part; all heads share the key's rotated part."""
    def __init__(self, c):
        super().__init__()
        assert c.rope and not c.bias, "latent attention needs RoPE and no biases here"
        self.heads, self.scale, self.m = c.heads, c.scale, c.mla
        linear = functools.partial(nn.Linear, bias=False)
        self.q_latent, self.kv_latent = linear(c.hidden, c.mla.q_rank), linear(c.hidden, c.mla.kv_rank + c.mla.rotated)
        self.q_norm, self.kv_norm = c.norm(c.mla.q_rank), c.norm(c.mla.kv_rank)
        self.q = linear(c.mla.q_rank, c.heads * c.key_width)
        self.kv = linear(c.mla.kv_rank, c.heads * (c.mla.plain + c.mla.value))
        self.out = linear(c.heads * c.mla.value, c.hidden)

    def forward(self, x, table, mask):
        by_head = lambda y, *parts: y.unflatten(2, (self.heads, -1)).split(parts, dim=-1)
        q, q_rotated = by_head(self.q(self.q_norm(self.q_latent(x))), self.m.plain, self.m.rotated)
        latent, k_rotated = self.kv_latent(x).split((self.m.kv_rank, self.m.rotated), dim=-1)
        k, v = by_head(self.kv(self.kv_norm(latent)), self.m.plain, self.m.value)
        q = torch.cat((q, rotate(q_rotated, *table, interleaved=True)), dim=-1)
        k_rotated = rotate(k_rotated[:, :, None], *table, interleaved=True).expand(-1, -1, self.heads, -1)
        return self.out(attend(q, torch.cat((k, k_rotated), dim=-1), v, mask, self.scale))


class Mlp(nn.Module):
    def __init__(self, c, ffn):
        super().__init__()
        self.gated, self.gate = c.gated, F.silu if c.silu else lambda x: F.gelu(x, approximate="tanh")
        self.up = nn.Linear(c.hidden, ffn * (2 if c.gated else 1), bias=c.bias)
        self.down = nn.Linear(ffn, c.hidden, bias=c.bias)

    def forward(self, x):
        x = self.up(x)
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            return self.down(self.gate(gate) * value)
        return self.down(F.gelu(x, approximate="tanh"))


def rows_of(tokens, order, place, k):
    """Returns k copies of each token, grouped by expert: copy i is row place[i], and row j is copy order[j]."""
    return tokens[order // k]


def sums_of(rows, order, place, k):
    """Returns the sum of each token's rows. This function is the transpose of rows_of."""
    return rows[place].unflatten(0, (-1, k)).sum(1)


class Dispatch(torch.autograd.Function):
    """Returns there(x, ...), where `there` is one of the two functions above and `back` is the other one."""
    @staticmethod
    def forward(ctx, x, order, place, k, there, back):
        ctx.save_for_backward(order, place)
        ctx.k, ctx.back = k, back
        return there(x, order, place, k)

    @staticmethod
    def backward(ctx, grad):
        return ctx.back(grad, *ctx.saved_tensors, ctx.k), None, None, None, None, None


class AddLoss(torch.autograd.Function):
    """Returns a copy of x. The backward pass adds the gradient of `loss`, as if it were part of the model's loss."""
    @staticmethod
    def forward(ctx, x, loss):
        ctx.save_for_backward(loss)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones_like(ctx.saved_tensors[0])


class Experts(nn.Module):
    """SwiGLU experts without capacities, and optionally a shared expert. With softmax scores, a token's probabilities
    are a softmax over its experts' logits; sigmoid scores are divided by their sum. The router computes in fp32."""
    def __init__(self, c):
        super().__init__()
        assert c.gated and c.silu and not c.bias, "experts need SwiGLU without biases here"
        self.e = e = c.experts
        self.router = nn.Linear(c.hidden, e.n, bias=False)
        self.up = nn.Parameter(torch.empty(e.n, 2 * e.ffn, c.hidden))
        self.down = nn.Parameter(torch.empty(e.n, c.hidden, e.ffn))
        self.shared = Mlp(c, e.shared) if e.shared else None
        self.loss = e.loss / (c.batch // c.micro)
        for name in ("counts", "rises"):  # an expert's tokens in this step, and its bias divided by the rate
            self.register_buffer(name, torch.zeros(e.n, dtype=torch.int64) if e.biased else None, persistent=False)

    def update_bias(self):
        self.rises += torch.sign(self.counts.sum() - self.e.n * self.counts)
        self.counts.zero_()

    def count(self, expert, samples):
        """Returns the number of tokens [samples,experts] of each sample's experts."""
        return (expert.view(samples, -1, 1) == torch.arange(self.e.n, device=expert.device)).sum(1)

    def choose(self, scores):
        """Returns the experts [tokens,topk] with the highest scores, plus bias, in the groups with the highest sums."""
        e = self.e
        if e.biased:
            scores = scores + e.rate * self.rises
        if e.groups > 1:
            grouped = scores.unflatten(1, (e.groups, -1))
            best = grouped.topk(e.group_scores).values.sum(-1).topk(e.group_topk).indices
            refused = torch.ones_like(grouped[:, :, 0], dtype=torch.bool).scatter(1, best, False)
            scores = grouped.masked_fill(refused[:, :, None], -math.inf).flatten(1)
        return scores.topk(e.topk).indices

    def balance(self, scores, expert, samples):
        """Returns the loss that balances the experts of each sample. It ignores biases and groups."""
        e = self.e
        if e.biased or e.groups > 1:
            expert = scores.topk(e.topk).indices
        p = scores / (scores.sum(-1, keepdim=True) + 1e-20) if e.sigmoid else scores.softmax(-1)
        counts = self.count(expert, samples)
        share = counts / counts.sum(-1, keepdim=True)
        return e.n * (share * p.view(samples, -1, e.n).mean(1)).sum(-1).mean()

    def forward(self, x):
        e, tokens = self.e, x.flatten(0, 1)
        scores = F.linear(tokens.float(), self.router.weight.float())
        scores = scores.sigmoid() if e.sigmoid else scores
        expert = self.choose(scores.detach())
        counts = self.count(expert, 1)[0]
        if e.biased:
            self.counts += counts
        probs = scores.gather(1, expert)
        probs = probs / (probs.sum(-1, keepdim=True) + 1e-20) if e.sigmoid else probs.softmax(-1)
        if e.loss:
            probs = AddLoss.apply(probs, self.loss * self.balance(scores, expert, len(x) if e.by_sample else 1))
        order = expert.flatten().argsort(stable=True)
        place = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
        ends = counts.cumsum(0).int()
        rows = Dispatch.apply(tokens, order, place, e.topk, rows_of, sums_of)
        gate, value = torch._grouped_mm(rows, self.up.mT, ends).chunk(2, dim=-1)
        chosen = (e.scaling * probs).flatten()[order, None].to(x.dtype)
        rows = torch._grouped_mm(F.silu(gate) * value * chosen, self.down.mT, ends)
        y = Dispatch.apply(rows, order, place, e.topk, sums_of, rows_of).view_as(x)
        return y if self.shared is None else y + self.shared(x)


class Layer(nn.Module):
    def __init__(self, c, cross=False):
        super().__init__()
        self.input_norm, self.mlp_norm = c.norm(c.hidden), c.norm(c.hidden)
        self.attention = (LatentAttention if c.mla else Attention)(c)
        self.mlp = Experts(c) if c.experts else Mlp(c, c.ffn)
        self.cross_norm, self.cross = (c.norm(c.hidden), CrossAttention(c)) if cross else (None, None)

    def forward(self, x, table, mask=None, encoded=None, encoded_mask=None):
        x = x + self.attention(self.input_norm(x), table, mask)
        if self.cross is not None:
            x = x + self.cross(self.cross_norm(x), encoded, encoded_mask)
        return x + self.mlp(self.mlp_norm(x))


class Head(nn.Module):
    """Computes the final norm, the logits and the loss."""
    def __init__(self, c):
        super().__init__()
        self.norm = c.norm(c.hidden)

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
        power = torch.arange(0, c.rotated, 2).float() / c.rotated
        angle = torch.outer(torch.arange(c.seq).float(), c.base ** -power)
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
        self.encoder_norm = c.norm(c.hidden)
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
        self.biased = [part for part in self.model.modules() if isinstance(part, Experts) and part.e.biased]
        self.optimizer = make_optimizer(c, a, self.params)

    def step(self, batches):
        total = 0
        for batch in batches:
            loss = self.on_ranks(*batch)
            (loss / len(batches)).backward()
            self.optimizer.next_microbatch()
            total = total + loss.detach()
        self.optimizer.step(1.0)
        for experts in self.biased:
            experts.update_bias()
        return total / len(batches)


def choose_attention(c, device):
    """Returns the backends in the order in which they are tried, and a description for the result."""
    if not CUDA:
        return [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], "of a CPU"
    if c.model != "gpt":
        return [SDPBackend.CUDNN_ATTENTION,
                SDPBackend.EFFICIENT_ATTENTION], "cuDNN, or the memory-efficient backend if cuDNN refuses"
    random = lambda heads, width: torch.randn(1, heads, c.seq, width, device=device, dtype=torch.bfloat16,
                                              requires_grad=True)
    said = ""
    for backend, name in ((SDPBackend.CUDNN_ATTENTION, "cuDNN"), (SDPBackend.FLASH_ATTENTION, "flash"),
                          (SDPBackend.EFFICIENT_ATTENTION, "memory-efficient")):
        try:
            with sdpa_kernel([backend]):
                F.scaled_dot_product_attention(random(c.heads, c.key_width), random(c.groups, c.key_width),
                                               random(c.groups, c.value_width), is_causal=True,
                                               enable_gqa=c.groups != c.heads).sum().backward()
            return [backend], name + said
        except RuntimeError as e:
            said += f", because {name} says: {str(e).splitlines()[0][:120]}"
    raise Failed(f"no attention{said}")


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
    if RANKS > 1 and (c.batch != c.micro or c.narrow or c.experts and c.experts.biased):
        raise Failed("several ranks require one microbatch per step, fp32 moments, and experts without biases")
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
