"""A second, independent forward pass: numpy, float64, a few lines a module, no PyTorch and no Hugging Face code.

It reads only the case and names of tensors (families/*.py). So its agreement with the oracle proves three things: that the oracle
computed in float64, that the weights on disk are the ones it used, and that the options in run.conf describe the model it built.
Formulas: the GPT-2 and Llama papers; meaning and defaults of the options: Megatron-LM (megatron/training/arguments.py)."""
import json
import math

import numpy as np
from safetensors.numpy import load_file

from families import CASES, FAMILIES

LLAMA3_CONTEXT, LLAMA3_LOW, LLAMA3_HIGH = 8192, 1, 4  # constants of Megatron-LM's --use-rope-scaling


def norm(o, x, gain, bias):
    if o.get("normalization", "LayerNorm") == "LayerNorm":
        x = x - x.mean(-1, keepdims=True)
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + o["norm-epsilon"])
    return y * (gain + 1 if o.get("apply-layernorm-1p") else gain) + (0 if bias is None else bias)


def erf(z):
    """Of real numbers, and of complex ones next to them (`slope`)."""
    value = np.vectorize(math.erf, otypes=[float])(z.real)
    return value + 2j / np.sqrt(np.pi) * np.exp(-(z.real**2)) * z.imag if np.iscomplexobj(z) else value


def activation(o, up, gate):
    if o.get("swiglu"):
        return gate / (1 + np.exp(-gate)) * up
    if o.get("squared-relu"):
        return np.where(up.real > 0, up, 0) ** 2
    if o.get("activation") == "gelu-erf":
        return 0.5 * up * (1 + erf(up / np.sqrt(2)))
    return gelu_tanh(up) if gate is None else gelu_tanh(gate) * up


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def is_gated(o):
    return o.get("swiglu") or o.get("activation") == "geglu-tanh"


def capped(x, bound):
    return x if bound is None else bound * np.tanh(x / bound)


def frequencies(o, head_dim, windowed):
    dim = int(head_dim * o.get("rotary-percent", 1.0))
    if windowed and "rope-local-base-freq" in o:
        return o["rope-local-base-freq"] ** (-2 * np.arange(dim // 2) / dim)
    result = []
    for i in range(dim // 2):
        f = o.get("rotary-base", 10000) ** (-2 * i / dim) / o.get("rotary-seq-len-interpolation-factor", 1)
        if o.get("use-rope-scaling"):
            turns = LLAMA3_CONTEXT * f / (2 * np.pi)
            keep = min(max((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0), 1)
            f = keep * f + (1 - keep) * f / o["rope-scaling-factor"]
        result.append(f)
    return np.array(result)


def rotate(x, freq):
    """x [s, d]: the pair (x_i, x_{i+n}) is turned by position * freq_i."""
    n = len(freq)
    a, b, angle = x[:, :n], x[:, n : 2 * n], np.outer(np.arange(len(x)), freq)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle), x[:, 2 * n :]], 1)


def attention(o, q, k, v, head_dim, sinks, windowed):
    """q [s, heads * d], k and v [s, groups * d]; query head h reads group h / (heads / groups). sinks [heads]: logits of one
    key more, whose value is 0; None: there are none."""
    heads, s = o["num-attention-heads"], len(q)
    groups = o["num-query-groups"] if o.get("group-query-attention") else heads
    back = int(o["window-size"].split(",")[0]) if windowed else s
    distance = np.arange(s)[:, None] - np.arange(s)[None, :]
    seen = (distance >= 0) & (distance <= back)
    out = []
    for h in range(heads):
        g = h * groups // heads
        qh, kh, vh = (x[:, i * head_dim : (i + 1) * head_dim] for x, i in ((q, h), (k, g), (v, g)))
        if o.get("position-embedding-type") == "rope":
            qh, kh = (rotate(x, frequencies(o, head_dim, windowed)) for x in (qh, kh))
        score = capped(qh @ kh.T * o.get("softmax-scale", head_dim**-0.5), o.get("attn-logit-softcapping"))
        p = np.where(seen, np.exp(score - score.real.max(1, keepdims=True)), 0)
        rest = 0 if sinks is None else np.exp(sinks[h] - score.real.max(1, keepdims=True))
        out.append(p / (p.sum(1, keepdims=True) + rest) @ vh)
    return np.concatenate(out, axis=1)


def best(scores, k):
    """Which of the scores are among the k largest of their row."""
    real = scores.real
    return real >= np.sort(real, axis=-1)[..., -k, None]


def softmax(x):
    p = np.exp(x - x.real.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def route(o, logits, bias):
    """Probabilities [s, experts], 0 where an expert is not chosen."""
    k, scaling = o["moe-router-topk"], o.get("moe-router-topk-scaling-factor", 1)
    if o.get("moe-router-score-function") != "sigmoid":
        chosen, p = best(logits, k), softmax(logits)
        return scaling * chosen * (p if o.get("moe-router-pre-softmax") else p / (p * chosen).sum(-1, keepdims=True))
    score = 1 / (1 + np.exp(-logits))
    choice = (score + bias).real
    if "moe-router-num-groups" in o:
        n, keep = o["moe-router-num-groups"], o["moe-router-group-topk"]
        parts = choice.reshape(len(choice), n, -1)
        totals = np.sort(parts, axis=-1)[..., -(k // keep) :].sum(-1)
        choice = np.where(best(totals, keep)[..., None], parts, -np.inf).reshape(choice.shape)
    score = score * best(choice, k)
    return scaling * score / score.sum(-1, keepdims=True)


def router_losses(o, logits):
    """Coefficients included; of one sample, [s, experts]."""
    s, experts = logits.shape
    lse = logits.real.max(-1) + np.log(np.exp(logits - logits.real.max(-1, keepdims=True)).sum(-1))
    total = o.get("moe-z-loss-coeff", 0) * (lse**2).mean()
    if o.get("moe-router-load-balancing-type") == "seq_aux_loss":
        share = best(logits, o["moe-router-topk"]).sum(0) / (s * o["moe-router-topk"])
        total += o["moe-aux-loss-coeff"] * experts * (share * softmax(logits).mean(0)).sum()
    return total


class Weights(dict):
    """Tensors under Llama's names and in its layout. Knows which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


def has_window(o, n):
    return "window-size" in o and o.get("window-attn-skip-freq", [1] * o["num-layers"])[n]


def has_experts(o, n):
    return "num-experts" in o and o.get("moe-layer-freq", [1] * o["num-layers"])[n]


def logits(o, tensors, ids):
    """tensors: under Llama's names. ids [s] -> [s, vocab], and the losses of the routers"""
    w = Weights(tensors)
    head_dim = o.get("kv-channels", o["hidden-size"] // o["num-attention-heads"])
    biased = not o.get("disable-bias-linear", False)

    def normed(x, name):
        layer_norm = o.get("normalization", "LayerNorm") == "LayerNorm" and not name.endswith(("q_norm", "k_norm"))
        return norm(o, x, w[name + ".weight"], w[name + ".bias"] if layer_norm else None)

    def linear(x, name, bias=biased):
        return x @ w[name + ".weight"].T + (w[name + ".bias"] if bias else 0)

    def feed_forward(x, name):
        gate = linear(x, name + "gate_proj") if is_gated(o) else None
        return linear(activation(o, linear(x, name + "up_proj"), gate), name + "down_proj")

    def experts(x, mlp):
        scores, bias = x @ w[mlp + "gate.weight"].T, None
        if o.get("moe-router-enable-expert-bias"):
            bias = w[mlp + "gate.e_score_correction_bias"]
        p = route(o, scores, bias)
        y = sum(p[:, e, None] * feed_forward(x, f"{mlp}experts.{e}.") for e in range(o["num-experts"]))
        if "moe-shared-expert-intermediate-size" in o:
            shared = feed_forward(x, mlp + "shared_expert.")
            gated = o.get("moe-shared-expert-gate")
            y = y + (shared / (1 + np.exp(-(x @ w[mlp + "shared_expert_gate.weight"].T))) if gated else shared)
        return y, router_losses(o, scores)

    balance, by, sandwich = 0, o.get("residual-multiplier", 1), o.get("norm-placement") == "sandwich"
    x = w["model.embed_tokens.weight"][ids] * o.get("embedding-multiplier", np.sqrt(o["hidden-size"]) if o.get("scale-embedding") else 1)
    if o.get("position-embedding-type", "learned_absolute") == "learned_absolute":
        x = x + w["positions.weight"][: len(ids)]
    for n in range(o["num-layers"]):
        layer = f"model.layers.{n}."
        at, mlp = layer + "self_attn.", layer + "mlp."
        post = o.get("norm-placement") == "post"
        h = x if post else normed(x, layer + "input_layernorm")
        q, k, v = (linear(h, f"{at}{part}_proj", biased or o.get("add-qkv-bias")) for part in "qkv")
        if o.get("qk-layernorm"):
            q, k = (normed(y if o.get("qk-layernorm-whole") else y.reshape(-1, head_dim), at + name).reshape(y.shape)
                    for y, name in ((q, "q_norm"), (k, "k_norm")))
        sinks = {"vanilla": lambda: None, "off-by-one": lambda: np.zeros(o["num-attention-heads"]),
                 "learnable": lambda: w[at + "sinks"]}[o.get("softmax-type", "vanilla")]()
        y = linear(attention(o, q, k, v, head_dim, sinks, has_window(o, n)), at + "o_proj")
        attended = x + by * (normed(y, layer + "post_attention_layernorm") if sandwich or post else y)
        parallel = o.get("parallel-residual", "none")
        if post:
            h = attended
        elif parallel != "one-norm":
            h = normed(x if parallel == "two-norms" else attended,
                       layer + ("pre_feedforward_layernorm" if sandwich else "post_attention_layernorm"))
        x = attended
        if has_experts(o, n):
            y, extra = experts(h, mlp)
            balance += extra
        else:
            y = feed_forward(h, mlp)
        x = x + by * (normed(y, layer + "post_feedforward_layernorm") if sandwich or post else y)
    untied = o.get("untie-embeddings-and-output-weights")
    x = normed(x, "model.norm") @ w["lm_head.weight" if untied else "model.embed_tokens.weight"].T
    x = capped(x / o.get("logits-scaling", 1), o.get("final-logit-softcapping"))
    if w.keys() != w.read:
        raise ValueError(f"run.conf has no use for {sorted(w.keys() - w.read)}")
    return x, balance


def loss(o, w, tokens, mask):
    """tokens [b, s+1], mask [b, s] -> sum(token loss * mask) / sum(mask), and what is trained on: that and the routers' losses,
    which weigh b * s / sum(mask)"""
    total = balance = 0.0
    for row, keep in zip(tokens, mask):
        z, extra = logits(o, w, row[:-1])
        balance += extra / len(tokens)
        top = z.real.max(1)
        nll = top + np.log(np.exp(z - top[:, None]).sum(1)) - z[np.arange(len(z)), row[1:]]
        total += (nll * keep).sum()
    return total / mask.sum(), (total + balance * mask.size) / mask.sum()


def slope(o, w, direction, tokens, mask, step=1e-30):
    """The derivative of the loss along a direction, by the complex step (Squire and Trapp 1998): exact to rounding."""
    return loss(o, {n: x + 1j * step * direction[n] for n, x in w.items()}, tokens, mask)[1].imag / step


def value_of(text):
    """The value of an option: a number, a truth value, or else a text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def read_conf(path):
    return {k: value_of(v) for k, v in (line.split(" = ") for line in path.read_text().splitlines())}


def check(folder, seed=1):
    """Relative differences between the witness and the oracle at step 1, by name."""
    o = read_conf(folder / "run.conf")
    renamed = getattr(FAMILIES[CASES[folder.name][0]], "llama", lambda w, o: w)
    oracle, batches = load_file(folder / "oracle.safetensors"), load_file(folder / "batches.safetensors")
    w = {n: x.astype(np.float64) for n, x in load_file(folder / "init.safetensors").items()}
    tokens = batches["tokens"][0]
    mask = batches["loss_mask"][0].astype(np.float64) if "loss_mask" in batches else np.ones(tokens[:, 1:].shape)
    expected = json.loads((folder / "curve.json").read_text())["steps"][0]["loss"]
    rng = np.random.default_rng(seed)
    direction = {n: rng.normal(size=x.shape) * ("grad/" + n in oracle) for n, x in w.items()}  # a buffer has no gradient
    along = sum((oracle["grad/" + n] * d).sum() for n, d in direction.items() if "grad/" + n in oracle)
    size = np.sqrt(sum((oracle["grad/" + n] ** 2).sum() for n in w if "grad/" + n in oracle))
    w, direction = renamed(w, o), renamed(direction, o)
    result = {"loss against numpy": abs(loss(o, w, tokens, mask)[0] / expected - 1),
              "gradient against numpy": abs(slope(o, w, direction, tokens, mask) - along) / size}
    if "logits" in oracle:
        mine = np.stack([logits(o, w, row[:-1])[0] for row in tokens])
        result["logits against numpy"] = np.linalg.norm(mine - oracle["logits"]) / np.linalg.norm(oracle["logits"])
    return {what: float(error) for what, error in result.items()}
