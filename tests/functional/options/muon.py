"""The matrices of a weight that Muon updates, and their updates, computed from singular values: each Newton-Schulz step
applies a polynomial to every singular value."""
import re

import numpy as np

SIMPLE = (3.4445, -4.7750, 2.0315)
STEPS = {
    "simple": [SIMPLE] * 9,
    "quintic": [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                (2.8769, -3.1427, 1.2046),
                (2.8366, -3.0525, 1.2012)] * 9,
    "polar_express": [(8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250),
                      (3.2856, -2.4153, 0.4853),
                      (2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585),
                      (1.8564, -1.2132, 0.3568)] + [(1.8750, -1.2500, 0.3750)] * 9,
    "cans": [(8.4703, -25.1081, 18.6293), (4.1828, -3.1087, 0.5806), (3.9619, -2.9541, 0.5630),
             (3.2866, -2.4647, 0.5074)]
            + [(2.2737, -1.6447, 0.4162)] * 9,
    "aol": [(4.0098, -7.0585, 2.4635), (3.4585, -5.5479, 2.5959), (2.7573, -3.2939, 1.4254),
            (2.7215, -3.0494, 1.3169)] * 9,
    "deepseekv4": [SIMPLE] * 8 + [(2, -1.5, 0.5)] * 9,
    "cubic5": [(3.3656576, -3.3420992, 0), (2.5744352, -1.4957376, 0), (2.5368962, -1.4312570, 0),
               (2.4418906, -1.2764040, 0),
               (2.2230472, -0.9630650, 0)]}
SCALE = {"spectral": lambda out, into: max(out, into), "unit_rms_norm": lambda out, into: out / into,
         "shape_scaling": lambda out, into: max(1, out / into)}


def updates(name, w):
    """Whether Muon updates the weight. Megatron-LM excludes in_proj, and a convolution has three dimensions there."""
    unlike = re.search(r"(mixer\.in_proj|conv1d)\.", name) or name in ("embedding.word_embeddings.weight",
                                                                      "output_layer.weight")
    return w.ndim == 2 and not unlike


def shards(o, m, name, rows, columns):
    """The rows and columns of each matrix. blockwise: those on one tensor-parallel rank."""
    ranks = o.int("tensor-model-parallel-size", 1) if o.text("muon-tp-mode", "duplicated") == "blockwise" else 1
    groups = np.split(rows, m.experts) if ".experts." in name else [rows]
    if re.search(r"(linear_proj|linear_fc2|out_proj)\.", name):
        return [(r, c) for r in groups for c in np.split(columns, ranks)]
    if "in_proj." in name:  # a rank has rows of each part
        d = m.delta
        parts = np.split(rows, np.cumsum((d.qk, d.qk, d.v, d.v, d.heads)))
        return [(r, columns) for r in map(np.concatenate, zip(*(np.split(part, ranks) for part in parts)))]
    if "linear_qkv." in name and "muon-no-split-qkv" not in o:
        by_group = rows.reshape(m.groups, -1, m.head)
        gates = ["attention-output-gate"] * ("attention-output-gate" in o)
        queries = np.split(by_group[:, :-2], 1 + len(gates), axis=1)
        groups = [x.ravel() for x in (*queries, by_group[:, -2], by_group[:, -1])]
    parts = 2 if m.gated and "linear_fc1." in name else 1  # a rank has rows of the gate and of the projection
    ranks = ranks if re.search(r"linear_(qkv|q|kv|fc1)\.", name) else 1
    return [(r.ravel(), columns) for group in groups for r in np.split(group.reshape(parts, -1), ranks, axis=1)]


def orthogonal(o, x):
    """Divides the singular values of x by their norm, applies the polynomials to them, and returns x with the new
    values."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s /= max(np.sqrt((s * s).sum()), 1e-15)
    steps = STEPS[o.text("muon-coefficient-type", "quintic")][:o.int("muon-num-ns-steps", 5)]
    assert len(steps) == o.int("muon-num-ns-steps", 5)
    for a, b, c in steps:
        s = s * (a + b * s**2 + c * s**4)
    return u * s @ v * SCALE[o.text("muon-scale-mode", "spectral")](*x.shape)**0.5 * o.float("muon-extra-scale-factor",
                                                                                             1.0)


def update(o, m, name, momentum, g):
    """Updates the momentum, and returns the direction of the update."""
    beta = o.float("muon-momentum", 0.9)
    momentum[:] = beta * momentum + (1 - beta) * g
    x = beta * momentum + (1 - beta) * g if "muon-nesterov" in o else momentum
    out = np.empty_like(x)
    for at in shards(o, m, name, *map(np.arange, x.shape)):
        out[np.ix_(*at)] = orthogonal(o, x[np.ix_(*at)])
    return out
