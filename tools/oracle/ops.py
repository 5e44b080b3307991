#!/usr/bin/env python3
"""Writes tests/data/ops.safetensors: the forward and backward results of single operations, computed by PyTorch in
float64.

usage: tools/oracle/ops.py [FILE]

Tensors are named <case>/in/<operand>, <case>/out/<operand> and <case>/grad/<operand>. Operands and shapes are those of
kernels/ops.def, and <case>/in/d<y> is the gradient of the output y. Float tensors are F64, and positions, ids and
labels are I64. The metadata entry "cases" is a JSON object that contains, for each case, "op" (the name in
kernels/ops.def) and the attributes (with names as in kernels/attr.h). For optimizers (adamw, sgd), the input is grad
[steps, n], and the outputs are their state after every step [steps, n]. Rotary cases also have in/inv_freq [dim/2],
which transformers computes from the case's base, dim and scaling."""
import json
import math
from pathlib import Path

from cli import Command

command = Command(__doc__, "torch transformers safetensors")
command.add_argument("path", nargs="?", type=Path, default=Path("tests/data/ops.safetensors"))
command.parse_args()

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.activations import ACT2FN, XIELUActivation
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as rotate_interleaved
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3_next.modeling_qwen3_next import (torch_chunk_gated_delta_rule,
                                                                torch_recurrent_gated_delta_rule)
from transformers.models.t5.modeling_t5 import T5Attention

from float64 import Float64

TENSORS, CASES = {}, {}


def draw(*shape, mean=0.0, std=1.0):
    return (mean + std * torch.randn(shape)).requires_grad_()


def record(case, op, attributes, inputs, outputs, incoming=None):
    """Stores a case. With `incoming` {output name: gradient}, also stores the gradients of all float inputs."""
    CASES[case] = {"op": op, **attributes}
    for name, x in inputs.items():
        TENSORS[f"{case}/in/{name}"] = x
    for name, x in outputs.items():
        TENSORS[f"{case}/out/{name}"] = x
    if incoming:
        wanted = {n: x for n, x in inputs.items() if x.is_floating_point() and x.requires_grad}
        grads = torch.autograd.grad([outputs[n] for n in incoming], list(wanted.values()), list(incoming.values()))
        for name, g in zip(wanted, grads):
            TENSORS[f"{case}/grad/{name}"] = g
        for name, g in incoming.items():
            TENSORS[f"{case}/in/d{name}"] = g


def linear():
    for case, bias in (("linear", False), ("linear_bias", True)):
        inputs = {"x": draw(5, 2, 7), "w": draw(9, 7)} | ({"bias": draw(9)} if bias else {})
        record(case, "linear", {}, inputs, {"y": F.linear(inputs["x"], inputs["w"], inputs.get("bias"))},
               {"y": torch.randn(5, 2, 9)})


def norm():
    for rms in (False, True):
        for one_plus in (False, True):
            x, gain = draw(3, 2, 11, mean=0.5), draw(11, mean=0.0 if one_plus else 1.0, std=0.3)
            inputs = {"x": x, "gain": gain} | ({} if rms else {"bias": draw(11)})
            scale = gain + 1 if one_plus else gain
            y = F.rms_norm(x, (11,), scale, 1e-5) if rms else F.layer_norm(x, (11,), scale, inputs["bias"], 1e-5)
            record(("rms" if rms else "layer") + "norm" + ("_1p" if one_plus else ""), "norm",
                   {"rms": rms, "one_plus": one_plus, "eps": 1e-5}, inputs, {"y": y}, {"y": torch.randn(3, 2, 11)})


def activation():
    def swiglu(x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    kinds = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": F.gelu,
             "quick_gelu": ACT2FN["quick_gelu"], "squared_relu": lambda x: F.relu(x).square(), "swiglu": swiglu}
    for kind, f in kinds.items():
        # sizes that leave a remainder
        x = torch.cat([torch.randn(4, 2, 10), torch.linspace(-30, 30, 20).view(1, 2, 10)]).requires_grad_()
        y = f(x)
        record(kind, "activation", {"kind": kind}, {"x": x}, {"y": y}, {"y": torch.randn(y.shape)})


def xielu():
    """The second case has alphas for which softplus is linear, and an eps that has an effect."""
    for case, alpha_p, alpha_n, beta, eps in (("xielu", 0.3, -0.7, 0.5, -1e-6), ("xielu_steep", 21.5, 30.0, 0.3, -0.6)):
        model = XIELUActivation(beta=beta, eps=eps, dtype=torch.float64)
        with torch.no_grad():
            model.alpha_p.fill_(alpha_p), model.alpha_n.fill_(alpha_n)
        x = torch.cat([draw(4, 2, 10), torch.linspace(-30, 30, 20).view(1, 2, 10)]).detach().requires_grad_()
        y = model(x)
        record(case, "xielu", {}, {"x": x, "alpha_p": model.alpha_p, "alpha_n": model.alpha_n,
                                   "beta": model.beta.view(1), "eps": model.eps.view(1)},
               {"y": y}, {"y": torch.randn(y.shape)})


def rope():
    s, b, g, r, d, positions = 6, 2, 2, 2, 12, 24
    for case, dim, interleaved, scaled in (("rope", d, False, False), ("rope_interleaved", d, True, False),
                                           ("rope_partial", 6, False, False),
                                           ("rope_partial_interleaved", 6, True, False),
                                           ("rope_llama3", d, False, True)):
        parameters = {"rope_type": "default", "rope_theta": 10000.0}
        if scaled:
            parameters = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        config = LlamaConfig(head_dim=dim, max_position_embeddings=16384, rope_parameters=parameters)
        init = ROPE_INIT_FUNCTIONS["llama3"] if scaled else LlamaRotaryEmbedding.compute_default_rope_parameters
        inv_freq, _ = init(config)
        angle = torch.arange(positions).double()[:, None] * inv_freq
        # the second sample has random positions
        position = torch.stack([torch.arange(s), torch.randint(0, positions, (s,))])
        x = draw(s, b, g, r, d)
        heads = x.permute(1, 0, 2, 3, 4).reshape(b, s, g * r, d)
        at = angle[position]
        if interleaved:
            turned = rotate_interleaved(heads[..., :dim], at.sin(), at.cos())
        else:
            full = torch.cat([at, at], dim=-1)
            turned, _ = apply_rotary_pos_emb(heads[..., :dim], heads[..., :dim], full.cos(), full.sin(),
                                             unsqueeze_dim=2)
        y = torch.cat([turned, heads[..., dim:]], dim=-1).view(b, s, g, r, d).permute(1, 0, 2, 3, 4)
        record(case, "rope", {"dim": dim, "interleaved": interleaved, "base": parameters["rope_theta"],
                               "scaling_factor": parameters.get("factor", 1.0)},
               {"x": x, "cos": angle.cos(), "sin": angle.sin(), "position": position, "inv_freq": inv_freq}, {"y": y},
               {"y": torch.randn(y.shape)})


def attention():
    off = -1  # WINDOW_OFF
    cases = {  # numbers of queries, keys, groups, query heads per group; first_query, window_left, window_right
        "attention_causal": (7, 7, 3, 1, 0, off, 0), "attention_gqa": (7, 7, 2, 3, 0, off, 0),
        "attention_mqa": (5, 5, 1, 4, 0, off, 0), "attention_window": (9, 9, 2, 2, 0, 3, 0),
        "attention_two_sided": (8, 8, 2, 1, 0, 2, 1), "attention_full": (6, 8, 2, 1, 0, off, off),
        "attention_offset": (3, 11, 2, 2, 8, off, 0), "attention_offset_window": (4, 11, 1, 2, 5, 2, 0)}
    for case, (s, t, g, r, first, left, right) in cases.items():
        b, d = 2, 5
        q, k, v = draw(s, b, g, r, d), draw(t, b, g, 1, d), draw(t, b, g, 1, d)
        where = torch.arange(s)[:, None] + first - torch.arange(t)[None, :]
        seen = ((where <= left) | (left == off)) & ((-where <= right) | (right == off))
        heads = [x.permute(1, 2, 3, 0, 4).flatten(1, 2) for x in (q, k, v)]
        scale = 1 / math.sqrt(d) if case != "attention_gqa" else 0.3
        y = F.scaled_dot_product_attention(*heads, attn_mask=seen, scale=scale, enable_gqa=True)
        score = torch.einsum("sbgrd,tbgd->bgrst", q, k[:, :, :, 0]) * scale
        lse = score.masked_fill(~seen, -torch.inf).logsumexp(-1)
        y = y.view(b, g, r, s, d).permute(3, 0, 1, 2, 4)
        record(case, "attention", {"scale": scale, "first_query": first, "window_left": left, "window_right": right},
               {"q": q, "k": k, "v": v}, {"y": y, "lse": lse}, {"y": torch.randn(y.shape)})


def padded():
    """Attention with padding. Queries attend to keys within their sample's length: to all of them, or only to keys that
    are not later than the query."""
    for case, (s, t, g, r, right) in {"attention_padded": (6, 6, 2, 1, -1), "attention_padded_causal": (7, 7, 1, 2, 0),
                                      "attention_padded_cross": (4, 7, 1, 2, -1)}.items():
        b, d, lengths = 3, 4, torch.tensor([t, 1, t // 2])
        q, k, v = draw(s, b, g, r, d), draw(t, b, g, 1, d), draw(t, b, g, 1, d)
        where = torch.arange(t)[None, :] - torch.arange(s)[:, None]
        seen = ((where <= right) | (right == -1)) & (torch.arange(t) < lengths[:, None, None])
        heads = [x.permute(1, 2, 3, 0, 4).flatten(1, 2) for x in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads, attn_mask=seen[:, None], scale=0.4, enable_gqa=True)
        score = torch.einsum("sbgrd,tbgd->bgrst", q, k[:, :, :, 0]) * 0.4
        lse = score.masked_fill(~seen[:, None, None], -torch.inf).logsumexp(-1)
        record(case, "attention", {"scale": 0.4, "first_query": 0, "window_left": -1, "window_right": right},
               {"q": q, "k": k, "v": v, "lengths": lengths},
               {"y": y.view(b, g, r, s, d).permute(3, 0, 1, 2, 4), "lse": lse},
               {"y": torch.randn(s, b, g, r, d)})


def attention_sink():
    """A sink is computed as ordinary attention with an additional key. The key's value is 0, and its score is the
    head's sink (added through the mask). With the window, some queries attend to no other key."""
    for case, (s, g, r, left, right) in {"attention_sink": (7, 2, 3, -1, 0),
                                         "attention_sink_window": (9, 1, 4, 2, -2)}.items():
        b, d = 2, 5
        q, k, v, sink = draw(s, b, g, r, d), draw(s, b, g, 1, d), draw(s, b, g, 1, d), draw(g * r)
        where = torch.arange(s)[:, None] - torch.arange(s)[None, :]
        seen = ((where <= left) | (left == -1)) & (-where <= right)
        mask = torch.zeros(s, s).masked_fill(~seen, -torch.inf).expand(b, g * r, s, s)
        mask = torch.cat([mask, sink.view(1, -1, 1, 1).expand(b, -1, s, 1)], dim=-1)
        heads = [x.permute(1, 2, 3, 0, 4).flatten(1, 2) for x in (q, k, v)]
        keys, values = [F.pad(x.repeat_interleave(r, 1), (0, 0, 0, 1)) for x in heads[1:]]
        y = F.scaled_dot_product_attention(heads[0], keys, values, attn_mask=mask, scale=0.4)
        score = torch.einsum("sbgrd,tbgd->bgrst", q, k[:, :, :, 0]).flatten(1, 2) * 0.4
        lse = torch.logaddexp((score + mask[..., :-1]).logsumexp(-1), mask[..., -1]).view(b, g, r, s)
        record(case, "attention_sink", {"scale": 0.4, "first_query": 0, "window_left": left, "window_right": right},
               {"q": q, "k": k, "v": v, "sink": sink}, {"y": y.view(b, g, r, s, d).permute(3, 0, 1, 2, 4), "lse": lse},
               {"y": torch.randn(s, b, g, r, d)})


def buckets_of(distance, buckets, max_distance, bidirectional):
    return T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)


def relative_buckets():
    """Stores the distances at which buckets begin, and the buckets. They are computed in float32 as in the original
    code, and therefore not inside Float64. In some cases, a distance is exactly on the boundary between two buckets."""
    for buckets, max_distance, bidirectional in ((32, 128, True), (32, 128, False), (64, 1000, True),
                                                 (8, 64, False), (4, 18, False),
                                                 (6, 24, False), (10, 1215, False), (20, 1215, True),
                                                 (9, 50, False), (2, 2, False)):
        distance = torch.arange(-2000, 2001)
        bucket = buckets_of(distance, buckets, max_distance, bidirectional)
        begins = torch.cat([torch.tensor([True]), bucket[1:] != bucket[:-1]])
        record(f"buckets_{buckets}_{max_distance}_{bidirectional}", "relative_bucket",
               {"buckets": buckets, "max_distance": max_distance, "bidirectional": bidirectional},
               {"begins": torch.stack([distance[begins], bucket[begins]], dim=1)}, {})


def attention_bias():
    for case, (s, t, g, r, right, buckets, distance) in {"attention_bias": (9, 9, 2, 1, -1, 12, 8),
                                                         "attention_bias_causal": (11, 11, 1, 2, 0, 8, 6),
                                                         "attention_bias_cross": (5, 12, 1, 2, -1, 6, 20)}.items():
        b, d, lengths = 2, 4, torch.tensor([t, t // 2])
        q, k, v, table = draw(s, b, g, r, d), draw(t, b, g, 1, d), draw(t, b, g, 1, d), draw(buckets, g * r)
        where = torch.arange(t)[None, :] - torch.arange(s)[:, None]
        bias = F.embedding(buckets_of(where, buckets, distance, right != 0), table).permute(2, 0, 1)
        seen = ((where <= right) | (right == -1)) & (torch.arange(t) < lengths[:, None, None])
        heads = [x.permute(1, 2, 3, 0, 4).flatten(1, 2) for x in (q, k, v)]
        mask = bias + torch.zeros(b, 1, s, t).masked_fill(~seen[:, None], -torch.inf)
        y = F.scaled_dot_product_attention(*heads, attn_mask=mask, scale=1.0, enable_gqa=True)
        score = torch.einsum("sbgrd,tbgd->bgrst", q, k[:, :, :, 0]).flatten(1, 2)
        record(case, "attention_bias", {"scale": 1.0, "first_query": 0, "window_left": -1, "window_right": right,
                                        "bias_max_distance": distance, "bias_bidirectional": right != 0},
               {"q": q, "k": k, "v": v, "lengths": lengths, "bias": table},
               {"y": y.view(b, g, r, s, d).permute(3, 0, 1, 2, 4),
                "lse": (score + mask).logsumexp(-1).view(b, g, r, s)},
               {"y": torch.randn(s, b, g, r, d)})


def embedding():
    w, ids = draw(13, 6), torch.randint(0, 13, (2, 9))
    ids[0, 3:6] = ids[0, 0]  # the gradients of repeated ids are added
    y = F.embedding(ids, w).transpose(0, 1)
    record("embedding", "embedding", {}, {"id": ids, "w": w}, {"y": y}, {"y": torch.randn(y.shape)})


def cross_entropy():
    """dloss is the mask divided by the number of counted tokens. The columns that begin at `vocab` are padding."""
    for case, vocab in (("cross_entropy", 16), ("cross_entropy_padded", 13)):
        logits, label = draw(7, 2, 16, std=3.0), torch.randint(0, vocab, (2, 7))
        real = logits[..., :vocab].transpose(0, 1)
        loss = F.cross_entropy(real.flatten(0, 1), label.flatten(), reduction="none").view(2, 7)
        mask = (torch.rand(2, 7) < 0.6).double()
        record(case, "cross_entropy", {"vocab": vocab}, {"logits": logits, "label": label},
               {"loss": loss, "lse": real.logsumexp(-1)}, {"loss": mask / mask.sum()})


def topk_map(scores, k):
    return torch.zeros_like(scores).scatter(-1, scores.topk(k, dim=-1).indices, 1).bool()


def clear_choice(scores, k):
    """Asserts that no choice between two experts is a near tie."""
    best = scores.sort(dim=-1, descending=True).values
    assert k == scores.shape[-1] or (best[..., k - 1] - best[..., k]).min() > 1e-6


def route():
    """Computes routing densely. All scores are multiplied by a mask of the choices, and then the chosen experts are
    listed in order."""
    cases = {  # score, experts, k, groups, group_topk, group_scores, scaling, bias
        "route_topk_softmax": ("topk_softmax", 8, 2, 0, 0, 0, 1.0, False),
        "route_softmax": ("softmax", 7, 3, 0, 0, 0, 2.5, False),
        "route_sigmoid": ("sigmoid", 9, 3, 0, 0, 0, 1.5, True),
        "route_sigmoid_one": ("sigmoid", 9, 1, 0, 0, 0, 1.0, True),
        "route_sigmoid_groups": ("sigmoid", 12, 4, 4, 2, 2, 1.5, True),
        "route_softmax_groups": ("softmax", 12, 2, 6, 2, 1, 1.0, False),
        "route_sqrtsoftplus": ("sqrtsoftplus", 9, 3, 0, 0, 0, 2.5, True),
        "route_sqrtsoftplus_one": ("sqrtsoftplus", 9, 1, 0, 0, 0, 1.0, True),
        "route_best_of_groups": ("softmax", 12, 3, 4, 2, 1, 1.0, False),
        "route_sums_of_groups": ("sqrtsoftplus", 12, 3, 3, 2, 2, 1.5, True)}
    for case, (score, experts, k, groups, group_topk, group_scores, scaling, biased) in cases.items():
        logits, bias = draw(5, 3, experts), torch.randn(experts) * 0.3
        scores = {"topk_softmax": lambda x: x, "softmax": lambda x: x.softmax(-1),
                  "sigmoid": torch.sigmoid, "sqrtsoftplus": lambda x: F.softplus(x).sqrt()}[score](logits)
        choice = (scores + bias if biased else scores).detach()
        if groups:
            parts = choice.unflatten(-1, (groups, experts // groups))
            totals = parts.topk(group_scores, dim=-1).values.sum(-1)
            clear_choice(totals, group_topk)
            choice = parts.masked_fill(~topk_map(totals, group_topk)[..., None], -torch.inf).flatten(-2)
        clear_choice(choice, k)
        chosen = topk_map(choice, k)
        if score == "topk_softmax":
            probs = logits.masked_fill(~chosen, -torch.inf).softmax(-1)
        else:
            probs = scores * chosen
            if score in ("sigmoid", "sqrtsoftplus") and k > 1:
                probs = probs / probs.sum(-1, keepdim=True)
        probs = (probs * scaling)[chosen].view(5, 3, k)
        record(case, "route", {"score": score, "k": k, "groups": groups, "group_topk": group_topk,
                               "group_scores": group_scores, "scaling": scaling},
               {"logits": logits} | ({"bias": bias} if biased else {}), {"probs": probs},
               {"probs": torch.randn(5, 3, k)})


def sparsemixer():
    """Computes Phi-3.5-MoE's router in evaluation mode with transformers' code, which supports only k = 2."""
    from transformers.models.phimoe.modeling_phimoe import sparsemixer as route
    for case, jitter, std in (("route_sparsemixer", 0.2, 1.0), ("route_sparsemixer_narrow", 0.01, 3.0)):
        logits = draw(5, 3, 9, std=std)
        clear_choice(logits.detach(), 1), clear_choice(logits.detach(), 2)
        probs, chosen = route(logits, jitter, False)
        record(case, "route", {"score": "sparsemixer", "k": 2, "band": 2 * jitter, "scaling": 1.0},
               {"logits": logits}, {"probs": probs.gather(-1, chosen.argsort(-1))}, {"probs": torch.randn(5, 3, 2)})


def router_loss():
    """Computes Megatron-LM's formula experts / (k T^2) * sum_e tokens_e * sum_t p_te, where only the top k of the
    scores determine the counts of tokens."""
    s, b, experts, k = 6, 3, 8, 2
    scores = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid,
              "sqrtsoftplus": lambda x: F.softplus(x).sqrt()}
    for case, score, per_sample in (("balance", "softmax", False), ("balance_sigmoid", "sigmoid", False),
                                    ("balance_seq", "softmax", True), ("balance_sqrtsoftplus", "sqrtsoftplus", False)):
        logits = draw(s, b, experts)
        clear_choice(logits.detach(), k)
        p = scores[score](logits)
        p = p / p.sum(-1, keepdim=True)
        tokens, total, over = topk_map(logits.detach(),
                                       k).double(), (s if per_sample else s * b), ((0,) if per_sample else (0, 1))
        loss = (experts / (k * total**2) * (tokens.sum(over) * p.sum(over)).sum(-1)).mean()
        record(case, "router_loss", {"k": k, "score": score, "per_sample": per_sample}, {"logits": logits},
               {"loss": loss[None]}, {"loss": torch.randn(1)})
    logits = draw(s, b, experts, std=3.0)
    record("z_loss", "router_loss", {"z": True}, {"logits": logits},
           {"loss": logits.logsumexp(-1).square().mean()[None]},
           {"loss": torch.randn(1)})


def sinkhorn():
    """Computes the algorithm of Knight, "The Sinkhorn-Knopp algorithm", 2008, with the initial values, constants and
    stopping criterion of Megatron-LM's moe_utils.py."""
    logits = torch.randn(5, 3, 4) * 2
    cost = logits.flatten(0, 1).exp()
    rows, columns, change = None, torch.ones(4), 1.0
    while change > 1e-4:
        rows = 1 / (len(cost) * ((cost * columns).sum(1) + 1e-8))
        new = 1 / (4 * ((cost * rows[:, None]).sum(0) + 1e-8))
        columns, change = new, (new - columns).abs().mean().item()
    record("sinkhorn", "sinkhorn", {}, {"logits": logits}, {"scores": (rows[:, None] * cost * columns).view(5, 3, 4)})
    TENSORS["sinkhorn/in/dscores"] = torch.zeros(5, 3, 4)


def experts():
    """Computes every expert for every token. The results are weighted by probabilities, which are zero for experts that
    were not chosen or dropped the token."""
    s, b, h, f, n, k = 9, 2, 6, 5, 4, 2
    for case, capacity, pad, by_position in (("experts", 0, False, False), ("experts_drop", 7, False, False),
                                             ("experts_drop_last", 7, False, True), ("experts_pad", 10, True, False)):
        x, logits, fc1, fc2 = draw(s, b, h), draw(s, b, n), draw(n * 2 * f, h, std=0.3), draw(n * h, f, std=0.3)
        clear_choice(logits.detach(), k)
        flat = logits.flatten(0, 1)
        chosen = topk_map(flat.detach(), k)
        probs = flat.masked_fill(~chosen, -torch.inf).softmax(-1)
        if capacity:
            by = -torch.arange(s * b)[:, None].double() if by_position else probs.detach()
            order = by.expand(s * b, n).masked_fill(~chosen, -torch.inf).sort(dim=0, descending=True).indices
            kept = torch.zeros_like(chosen).scatter(0, order[:capacity], True) & chosen
            assert kept.sum() < chosen.sum()
            probs = probs * kept
        gate, up = torch.einsum("sbh,nfh->nsbf", x, fc1.view(n, 2 * f, h)).chunk(2, dim=-1)
        each = torch.einsum("nsbf,nhf->nsbh", F.silu(gate) * up, fc2.view(n, h, f))
        y = torch.einsum("nsbh,sbn->sbh", each, probs.view(s, b, n))
        record(case, "experts", {"k": k, "capacity": capacity, "pad": pad, "by_position": by_position},
               {"x": x, "logits": logits, "fc1": fc1, "fc2": fc2}, {"y": y}, {"y": torch.randn(s, b, h)})


def optimizer():
    rates, n = [0.0, 1e-2, 3e-2], 12
    for case, decay in (("adamw", 0.1), ("adamw_no_decay", 0.0), ("sgd_momentum", 0.1), ("sgd", 0.0)):
        start, grads = draw(n), torch.randn(3, n) * 0.1
        grads[:, 0] = 0  # weight decay also applies to a parameter without a gradient
        p = start.detach().clone().requires_grad_()
        if case.startswith("adamw"):
            attributes = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
            o = torch.optim.AdamW([p], betas=(0.9, 0.95), eps=1e-8, weight_decay=decay, foreach=False)
            state = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
        else:
            attributes = {"momentum": 0.9 if "momentum" in case else 0.0}
            o = torch.optim.SGD([p], weight_decay=decay, foreach=False, **attributes)
            state = {"momentum": "momentum_buffer"} if "momentum" in case else {}
        history = {name: [] for name in ("param", *state)}
        for lr, grad in zip(rates, grads):
            o.param_groups[0]["lr"], p.grad = lr, grad.clone()
            o.step()
            history["param"].append(p.detach().clone())
            for name, key in state.items():
                history[name].append(o.state[p][key].clone())
        record(case, case.split("_")[0], {"lr": rates, "weight_decay": decay, **attributes},
               {"param": start, "grad": grads}, {name: torch.stack(values) for name, values in history.items()})


def gated_delta_rule():
    """The second case is computed position by position, and its q and k are not normalized."""
    for case, f, chunk, s, b, normalize in (
            ("gated_delta_rule", torch_chunk_gated_delta_rule, 64, 70, 1, True),
            ("gated_delta_rule_recurrent", torch_recurrent_gated_delta_rule, 4, 11, 2, False)):
        hk, hv, dk, dv = 2, 6, 4, 3
        qkv = draw(s, b, 2 * hk * dk + hv * dv, std=0.4)
        inputs = {"qkv": qkv, "alpha": draw(s, b, hv), "beta": draw(s, b, hv), "a_log": draw(hv), "dt_bias": draw(hv)}
        q, k, v = (x.unflatten(2, (-1, d)).transpose(0, 1)
                   for x, d in zip(qkv.split([hk * dk, hk * dk, hv * dv], 2), (dk, dk, dv)))
        decay = -inputs["a_log"].exp() * F.softplus(inputs["alpha"] + inputs["dt_bias"])
        y, _ = f(q, k, v, decay.transpose(0, 1), inputs["beta"].sigmoid().transpose(0, 1),
                 initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=normalize)
        y = y.transpose(0, 1).flatten(2)
        record(case, "gated_delta_rule", {"key_heads": hk, "key_dim": dk, "value_dim": dv, "chunk": chunk,
                                          "normalize": normalize, "eps": 1e-6},
               inputs, {"y": y}, {"y": torch.randn(y.shape)})


def main(a):
    relative_buckets()
    with Float64():
        for make in (linear, norm, activation, xielu, rope, attention, attention_sink, padded, attention_bias,
                     embedding, cross_entropy, optimizer, route, sparsemixer, router_loss, sinkhorn, experts,
                     gated_delta_rule):
            torch.manual_seed(1234)
            make()
    save_file({n: x.detach().contiguous().clone() for n, x in TENSORS.items()}, a.path, {"cases": json.dumps(CASES)})
    print(f"{a.path}: {len(CASES)} cases, {len(TENSORS)} tensors, {a.path.stat().st_size / 1024:.0f} KiB")


command.run(main)
