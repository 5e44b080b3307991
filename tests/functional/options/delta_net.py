"""Gated DeltaNet, one token at a time: the tensors and the forward pass of a layer."""
import math

import numpy as np

from gradients import concatenate, exp, log, sigmoid


class Sizes:
    def __init__(self, o):
        self.taps, self.key, self.value = (o.int(f"linear-{x}", y) for x, y in (
            ("conv-kernel-dim", 4), ("key-head-dim", 128), ("value-head-dim", 128)))
        self.keys, self.heads = o.int("linear-num-key-heads", 16), o.int("linear-num-value-heads", 32)
        self.qk, self.v = self.keys * self.key, self.heads * self.value


def tensors(out, name, uniform):
    """Adds a layer's tensors. uniform(low, high, of) draws initial values."""
    d, hidden, bound = out.m.delta, out.m.hidden, out.m.delta.taps ** -0.5
    out.linear(f"{name}.in_proj", 2 * (d.qk + d.v + d.heads), hidden, out.std, False)
    out[f"{name}.conv1d.weight"] = (2 * d.qk + d.v, d.taps), uniform(-bound, bound, lambda u: u)
    out[f"{name}.dt_bias"] = (d.heads,), (1.0,)
    out[f"{name}.A_log"] = (d.heads,), uniform(1, 16, np.log)
    out.norm(f"{name}.out_norm", d.value)
    out.linear(f"{name}.out_proj", hidden, d.v, out.small, False)


def unit(x):
    return x / ((x * x).sum(-1) + 1e-6) ** 0.5


def forward(model, x, name):
    d, w, (b, s) = model.m.delta, model.w, x.shape[:2]
    z = model.linear(x, f"{name}.in_proj")
    mixed = model.convolved(z[:, :, :2 * d.qk + d.v], f"{name}.conv1d")
    shared = np.arange(d.heads) // (d.heads // d.keys)
    q, k = (unit(mixed[:, :, i:i + d.qk].reshape(b, s, d.keys, d.key))[:, :, shared] for i in (0, d.qk))
    v = mixed[:, :, 2 * d.qk:].reshape(b, s, d.heads, d.value)
    gate, beta, alpha = (z[:, :, i:i + n] for i, n in zip(
        np.cumsum((2 * d.qk + d.v, d.v, d.heads)), (d.v, d.heads, d.heads)))
    decay = exp(exp(w[f"{name}.A_log"]) * log(exp(alpha + w[f"{name}.dt_bias"]) + 1) * -1)
    beta, state, out = sigmoid(beta), None, []
    for t in range(s):
        key, query = (a[:, t].reshape(b, d.heads, 1, d.key) for a in (k, q))
        old = 0.0
        if t:
            continues = (model.batch.first_key[:, t] < t)[:, None, None, None]
            state = state * decay[:, t].reshape(b, d.heads, 1, 1) * continues
            old = key @ state
        new = (v[:, t].reshape(b, d.heads, 1, d.value) - old) * beta[:, t].reshape(b, d.heads, 1, 1)
        added = key.transpose(0, 1, 3, 2) @ new
        state = state + added if t else added
        out.append((query @ state * (1 / math.sqrt(d.key))).reshape(b, 1, d.heads, d.value))
    y = model.norm(concatenate(out, 1), f"{name}.out_norm").reshape(b, s, d.v)
    return model.linear(y * (gate * sigmoid(gate)), f"{name}.out_proj")
