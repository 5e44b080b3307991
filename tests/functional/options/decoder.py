"""The forward of the decoder selected by the options, for [b, s] tokens in float64: GPT-2, Llama, Mixtral and combinations.

The formulas are from the papers, the meaning of the options from Megatron-LM (megatron/training/arguments.py, core/transformer)."""
import ast
import math
import re

import numpy as np

import draws
from gradients import Var, cdf, concatenate, exp, log, of, relu, sigmoid, tanh


def pattern(text, layers, of_number):
    """Parses N, or an expression of lists."""
    return [of_number(i, int(text)) for i in range(layers)] if re.fullmatch(r"\d+", text) else [bool(x) for x in eval_lists(text)]


def eval_lists(text):
    def value(node):
        if isinstance(node, ast.BinOp):
            a, b = value(node.left), value(node.right)
            return a + b if isinstance(node.op, ast.Add) else a * b
        return ast.literal_eval(node)
    return value(ast.parse(text, mode="eval").body)


class Shape:
    """The sizes of a model, derived from its options."""
    def __init__(self, o):
        self.stack = "encoder" if o.text("model") == "bert" else "decoder"  # in the names of tensors
        self.o, self.layers, self.hidden, self.heads = o, o.int("num-layers"), o.int("hidden-size"), o.int("num-attention-heads")
        self.head = o.int("kv-channels", self.hidden // self.heads)
        self.groups = o.int("num-query-groups", 1) if "group-query-attention" in o else self.heads
        self.activation = "swiglu" if "swiglu" in o else "squared-relu" if "squared-relu" in o else o.text("activation", "gelu")
        self.biased = "disable-bias-linear" not in o
        if self.activation == "gelu":
            self.activation = "gelu-tanh" if self.biased and "no-bias-gelu-fusion" not in o else "gelu-erf"
        self.gated = "glu" in self.activation
        self.ffn = o.int("ffn-hidden-size", self.hidden * 8 // 3 // 64 * 64 if self.activation == "swiglu" else 4 * self.hidden)
        self.rms = o.text("normalization", "LayerNorm") == "RMSNorm"
        place = o.text("norm-placement", "pre")
        self.norms_input, self.norms_output = place != "post", place != "pre"
        self.parallel = o.text("parallel-residual", "none")
        self.position = o.text("position-embedding-type", "learned_absolute")
        self.experts = o.int("num-experts", 0)
        self.has_experts = pattern(o.text("moe-layer-freq", "1"), self.layers, lambda i, n: i % n == 0)
        self.has_experts = [bool(self.experts) and x for x in self.has_experts]
        windowed = pattern(o.text("window-attn-skip-freq", f"[1]*{self.layers}"), self.layers, lambda i, n: (i + 1) % n != 0)
        skipped = o.text("no-rope-freq", f"[0]*{self.layers}")
        self.rotated = [not x for x in pattern(skipped, self.layers, lambda i, n: (i + 1) % n == 0)]
        reach = int(o.text("window-size", "-1,0").split(",")[0])
        self.reach = [reach if w and reach >= 0 else None for w in windowed]


def tensors(m):
    """{name: (shape, standard deviation or (constant,))}"""
    o, h, out = m.o, m.hidden, {}
    std = o.float("init-method-std", 0.02)
    small, embedding = std / math.sqrt(2 * m.layers), o.float("embedding-init-method-std", std)

    def norm(name, width):
        out[f"{name}.weight"] = (width,), (0.0 if "apply-layernorm-1p" in o else 1.0,)
        if not m.rms:
            out[f"{name}.bias"] = (width,), (0.0,)

    def linear(name, rows, columns, std, biased):
        out[f"{name}.weight"] = (rows, columns), std
        if biased:
            out[f"{name}.bias"] = (rows,), (0.0,)

    def mlp(name, ffn, biased):
        linear(f"{name}.linear_fc1", ffn * (1 + m.gated), h, std, biased)
        linear(f"{name}.linear_fc2", h, ffn, small, biased)

    def experts(name):
        ffn, shared = o.int("moe-ffn-hidden-size", m.ffn), o.int("moe-shared-expert-intermediate-size", 0)
        out[f"{name}.router.weight"] = (m.experts, h), std
        out[f"{name}.experts.linear_fc1.weight"] = (m.experts * ffn * (1 + m.gated), h), std
        out[f"{name}.experts.linear_fc2.weight"] = (m.experts * h, ffn), small
        if shared:
            mlp(f"{name}.shared_experts", shared, False)
        if "moe-shared-expert-gate" in o:
            out[f"{name}.shared_experts.gate_weight"] = (1, h), std

    out["embedding.word_embeddings.weight"] = (o.int("vocab-size"), h), embedding
    if m.position == "learned_absolute":
        out["embedding.position_embeddings.weight"] = (o.int("max-position-embeddings", o.int("seq-length")), h), embedding
    for i in range(m.layers):
        layer = f"{m.stack}.layers.{i}"
        attention = f"{layer}.self_attention"
        if m.norms_input:
            norm(f"{layer}.input_layernorm", h)
        linear(f"{attention}.linear_qkv", (m.heads + 2 * m.groups) * m.head, h, std, m.biased or "add-qkv-bias" in o)
        if "qk-layernorm" in o:
            whole = "qk-layernorm-whole" in o
            norm(f"{attention}.q_layernorm", m.head * (m.heads if whole else 1))
            norm(f"{attention}.k_layernorm", m.head * (m.groups if whole else 1))
        if o.text("softmax-type", "vanilla") == "learnable":
            out[f"{attention}.core_attention.softmax_offset"] = (m.heads,), std
        linear(f"{attention}.linear_proj", h, m.heads * m.head, small, m.biased or "add-attn-proj-bias" in o)
        if m.norms_input and m.parallel != "one-norm":
            norm(f"{layer}.pre_mlp_layernorm", h)
        if m.norms_output:
            norm(f"{layer}.post_self_attn_layernorm", h)
            norm(f"{layer}.post_mlp_layernorm", h)
        if m.has_experts[i]:
            experts(f"{layer}.mlp")
        else:
            mlp(f"{layer}.mlp", m.ffn, m.biased)
    norm(f"{m.stack}.final_layernorm", h)
    if "untie-embeddings-and-output-weights" in o:
        out["output_layer.weight"] = (o.int("vocab-size"), h), std
    return out


def initial(shapes, seed):
    """Weights are drawn in float64 and rounded to float32 in every precision."""
    made = {}
    for name, (shape, how) in shapes.items():
        z = np.full(shape, how[0]) if isinstance(how, tuple) else how * draws.normals(seed, name, int(np.prod(shape))).reshape(shape)
        made[name] = z.astype(np.float32).astype(np.float64)
    return made


def frequencies(o, head, windowed):
    dim = int(head * o.float("rotary-percent", 1.0))
    if windowed and "rope-local-base-freq" in o:
        return o.float("rope-local-base-freq") ** (-np.arange(0, dim, 2) / dim)
    f = o.float("rotary-base", 10000.0) ** (-np.arange(0, dim, 2) / dim)
    if "rope-long-factor" in o:
        original = o.int("rope-scaling-original-max-position-embeddings", 8192)
        f = f / np.array([float(x) for x in o.list("rope-long-factor" if o.int("seq-length") > original else "rope-short-factor")])
    if "use-rope-scaling" in o:
        original, low, high = (o.float(f"rope-scaling-{name}", x) for name, x in
                               (("original-max-position-embeddings", 8192.0), ("low-freq-factor", 1.0), ("high-freq-factor", 4.0)))
        keep = np.clip((original * f / (2 * np.pi) - low) / (high - low), 0, 1)
        f = keep * f + (1 - keep) * f / o.float("rope-scaling-factor", 8.0)
    return f / o.float("rotary-seq-len-interpolation-factor", 1.0)


def amplitude(o):
    """The factor of LongRoPE on rotated channels."""
    if "rope-long-factor" not in o:
        return 1.0
    original = o.float("rope-scaling-original-max-position-embeddings", 8192.0)
    stretch = o.float("max-position-embeddings", o.int("seq-length")) / original
    return o.float("rope-attention-factor", math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0)


def softmax(x):
    e = exp(x - x.value.max(-1, keepdims=True))
    return e / e.sum(-1)


def logsumexp(x):
    top = x.value.max(-1, keepdims=True)
    return log(exp(x - top).sum(-1)) + top


def best(scores, k):
    """Whether a score is among the k largest of its row."""
    return scores >= np.sort(scores, axis=-1)[..., -k, None]


class Pass:
    """One forward pass. seed None: evaluation, without random numbers. samples [b]: their indices in the run."""
    def __init__(self, m, weights, batch, samples=None, seed=None, counts=None):
        self.m, self.o, self.w, self.batch, self.samples, self.seed = m, m.o, weights, batch, samples, seed
        self.router_losses = []  # (kind, Var)
        self.chosen = {}  # layer: number of tokens of each expert
        self.counts = counts if counts is not None else {}  # in the step so far, for global_aux_loss

    def linear(self, x, name):
        bias = self.w.get(f"{name}.bias")
        y = x @ self.w[f"{name}.weight"].transpose(1, 0)
        return y if bias is None else y + bias

    def norm(self, x, name):
        o = self.o
        if not self.m.rms:
            x = x - x.mean(-1)
        gain = self.w[f"{name}.weight"] + (1.0 if "apply-layernorm-1p" in o else 0.0)
        y = x * ((x * x).mean(-1) + o.float("norm-epsilon", 1e-5)) ** -0.5 * gain
        return y if self.m.rms else y + self.w[f"{name}.bias"]

    def dropped(self, x, name, option):
        rate = self.o.float(option, 0.1)
        if self.seed is None or rate == 0:
            return x
        return x * draws.dropout(self.seed, name, rate, draws.elements(self.samples, x.shape[1:]))

    def rotated(self, x, layer):
        """[b, s, heads, d]: pairs are rotated by position * frequency."""
        f = frequencies(self.o, self.m.head, self.m.reach[layer] is not None)
        n = len(f)
        angle = (self.batch.positions[:, :, None] * f)[:, :, None, :]
        pairs = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if "rotary-interleaved" in self.o else (slice(0, n), slice(n, 2 * n))
        a, b, rest = x[..., pairs[0]], x[..., pairs[1]], x[..., 2 * n:]
        cos, sin = (amplitude(self.o) * function(angle) for function in (np.cos, np.sin))
        turned = [a * cos - b * sin, a * sin + b * cos]
        if "rotary-interleaved" in self.o:
            shape = a.shape
            pair = concatenate([y.reshape(*shape, 1) for y in turned])
            return concatenate([pair.reshape(*shape[:-1], 2 * n), rest])
        return concatenate([*turned, rest])

    def visible(self, layer):
        """[b, 1, query, key]"""
        s = self.batch.tokens.shape[1]
        distance = np.arange(s)[:, None] - np.arange(s)[None, :]
        reach = self.m.reach[layer]
        seen = (distance >= 0) & (distance <= (s if reach is None else reach))
        return (seen & (np.arange(s) >= self.batch.first_key[:, :, None]))[:, None]

    def attention(self, x, layer):
        m, name = self.m, f"{self.m.stack}.layers.{layer}.self_attention"
        b, s, per = *x.shape[:2], m.heads // m.groups
        qkv = self.linear(x, f"{name}.linear_qkv").reshape(b, s, m.groups, per + 2, m.head)
        q, k, v = qkv[:, :, :, :per].reshape(b, s, m.heads, m.head), qkv[:, :, :, per], qkv[:, :, :, per + 1]
        if "qk-layernorm" in self.o:
            together = lambda x: x.reshape(b, s, -1) if "qk-layernorm-whole" in self.o else x
            q = self.norm(together(q), f"{name}.q_layernorm").reshape(b, s, m.heads, m.head)
            k = self.norm(together(k), f"{name}.k_layernorm").reshape(b, s, m.groups, m.head)
        if m.position == "rope" and m.rotated[layer]:
            q, k = self.rotated(q, layer), self.rotated(k, layer)
        group = np.arange(m.heads) // per
        q, k, v = q.transpose(0, 2, 1, 3), k[:, :, group].transpose(0, 2, 1, 3), v[:, :, group].transpose(0, 2, 1, 3)
        score = q @ k.transpose(0, 1, 3, 2) * self.o.float("softmax-scale", 1 / math.sqrt(m.head))
        cap = self.o.float("attn-logit-softcapping", math.inf)
        score = score if cap == math.inf else tanh(score / cap) * cap
        seen = self.visible(layer)
        top = np.where(seen, score.value, -np.inf).max(-1, keepdims=True)
        p = exp((score - top) * seen) * seen
        total, kind = p.sum(-1), self.o.text("softmax-type", "vanilla")
        if kind != "vanilla":
            sink = of(np.zeros(m.heads)) if kind == "off-by-one" else self.w[f"{name}.core_attention.softmax_offset"]
            total = total + exp(sink.reshape(1, m.heads, 1, 1) - top)
        p = self.dropped(p / total, name, "attention-dropout")
        return self.linear((p @ v).transpose(0, 2, 1, 3).reshape(b, s, m.heads * m.head), f"{name}.linear_proj")

    def activated(self, x):
        if self.m.gated:
            half = x.shape[-1] // 2
            return self.curve(x[..., :half]) * x[..., half:]
        return self.curve(x)

    def curve(self, x):
        return {"gelu-tanh": lambda: x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0),
                "gelu-erf": lambda: x * cdf(x), "quick-gelu": lambda: x * sigmoid(x * 1.702), "swiglu": lambda: x * sigmoid(x),
                "squared-relu": lambda: relu(x) * relu(x)}[self.m.activation.replace("geglu", "gelu")]()

    def mlp(self, x, name):
        return self.linear(self.activated(self.linear(x, f"{name}.linear_fc1")), f"{name}.linear_fc2")

    # ---- experts: tokens [t, h], ordered by position, then by sample ----

    def router_loss(self, logits, layer, kind, chosen, b):
        """The loss without its coefficient. chosen [t, experts]: the choices by scores alone."""
        experts, t = self.m.experts, len(logits.value)
        if kind == "z_loss":
            return (logsumexp(logits) ** 2).mean(0)
        p = softmax(logits)
        if self.o.text("moe-router-score-function", "softmax") == "sigmoid":
            s = sigmoid(logits)
            p = s / (s.sum(-1) + 1e-20)
        count = chosen.reshape(-1, b, experts).sum(0) if kind == "seq_aux_loss" else chosen.sum(0, keepdims=True)
        if kind == "global_aux_loss":
            count = self.counts[layer] = self.counts.get(layer, 0) + count
        share = count / count.sum(-1, keepdims=True)  # [b or 1, experts]
        return (p.reshape(-1, b, experts) * share).sum() * (experts / t)

    def route(self, logits, layer):
        """Probabilities [t, experts], 0 for experts that are not chosen, and the mask of chosen experts."""
        o, k = self.o, self.o.int("moe-router-topk", 2)
        scaling, kinds = o.float("moe-router-topk-scaling-factor", 1.0), o.list("moe-router-load-balancing-type")
        sinkhorn = "sinkhorn" in kinds
        if sinkhorn:
            chosen = best(sinkhorn_shares(logits.value) if self.seed is not None else logits.value, k)
            return (sigmoid(logits) if k == 1 else softmax(logits)) * chosen * scaling, chosen
        if o.text("moe-router-score-function", "softmax") == "softmax":
            chosen = best(self.limited(logits.value, k), k)
            p = softmax(logits) * chosen
            return (p if "moe-router-pre-softmax" in o else p / p.sum(-1)) * scaling, chosen
        score = sigmoid(logits)
        bias = self.w.get(f"decoder.layers.{layer}.mlp.router.expert_bias")
        chosen = best(self.limited(score.value + (0 if bias is None else bias.value), k), k)
        score = score * chosen
        return (score / (score.sum(-1) + 1e-20) if k > 1 else score) * scaling, chosen

    def limited(self, choice, k):
        """Sets the scores of experts outside the best groups to -inf."""
        if "moe-router-num-groups" not in self.o:
            return choice
        n, keep = self.o.int("moe-router-num-groups"), self.o.int("moe-router-group-topk")
        parts = choice.reshape(len(choice), n, -1)
        totals = np.sort(parts, axis=-1)[..., -(k // keep):].sum(-1)
        return np.where(best(totals, keep)[..., None], parts, -np.inf).reshape(choice.shape)

    def kept(self, p, chosen):
        """The choices that fit into the capacity of each expert."""
        factor = self.o.float("moe-expert-capacity-factor", 0.0)
        if factor == 0:
            return chosen
        t = len(chosen)
        room = min(math.ceil(t * self.o.int("moe-router-topk", 2) / self.m.experts * factor), t)
        by_position = self.o.text("moe-token-drop-policy", "probs") == "position"
        order = np.where(chosen, np.arange(t)[:, None] if by_position else -p.value, np.inf)
        rank = np.argsort(np.argsort(order, axis=0, kind="stable"), axis=0)
        return chosen & (rank < room)

    def moe(self, x, layer):
        o, m, name = self.o, self.m, f"decoder.layers.{layer}.mlp"
        b, s, h = x.shape
        eps = o.float("moe-input-jitter-eps", 0.0)
        noisy = x
        if eps and self.seed is not None:
            noisy = x * draws.jitter(self.seed, f"{name}.router.jitter", eps, draws.elements(self.samples, (s, h)))
        flat = lambda y: y.transpose(1, 0, 2).reshape(s * b, h)
        logits = flat(noisy) @ self.w[f"{name}.router.weight"].transpose(1, 0)
        p, chosen = self.route(logits, layer)
        self.chosen[layer] = chosen.sum(0)
        alone = best(logits.value, o.int("moe-router-topk", 2))
        for kind, _ in router_losses(o):
            self.router_losses.append((kind, self.router_loss(logits, layer, kind, alone, b)))
        p = p * self.kept(p, chosen)
        fc1, fc2 = (self.w[f"{name}.experts.linear_{fc}.weight"] for fc in ("fc1", "fc2"))
        fc1, fc2 = fc1.reshape(m.experts, -1, h), fc2.reshape(m.experts, h, -1)
        rows = self.activated(flat(x).reshape(1, s * b, h) @ fc1.transpose(0, 2, 1)) @ fc2.transpose(0, 2, 1)
        y = (rows * p.transpose(1, 0).reshape(m.experts, s * b, 1)).sum(0).reshape(s, b, h).transpose(1, 0, 2)
        if f"{name}.shared_experts.linear_fc1.weight" not in self.w:
            return y
        shared, gate = self.mlp(x, f"{name}.shared_experts"), self.w.get(f"{name}.shared_experts.gate_weight")
        return y + (shared if gate is None else shared * sigmoid(x @ gate.transpose(1, 0)))

    # ---- the model ----

    def embedded(self):
        w, m = self.w, self.m
        x = w["embedding.word_embeddings.weight"][self.batch.tokens]
        x = x * (math.sqrt(m.hidden) if "scale-embedding" in self.o else self.o.float("embedding-multiplier", 1.0))
        if m.position == "learned_absolute":
            x = x + w["embedding.position_embeddings.weight"][self.batch.positions]
        return x

    def branch(self, y, layer, norm, dropout):
        """The output of a sublayer, to be added to the stream."""
        y = self.norm(y, f"{layer}.{norm}") if self.m.norms_output else y
        return self.dropped(y * self.o.float("residual-multiplier", 1.0), f"{layer}.{dropout}", "hidden-dropout")

    def layer(self, x, i):
        m, layer = self.m, f"{self.m.stack}.layers.{i}"
        normed = self.norm(x, f"{layer}.input_layernorm") if m.norms_input else x
        after = x + self.branch(self.attention(normed, i), layer, "post_self_attn_layernorm", "attention_dropout")
        y = x if m.parallel != "none" else after
        y = normed if m.parallel == "one-norm" else self.norm(y, f"{layer}.pre_mlp_layernorm") if m.norms_input else y
        y = self.moe(y, i) if m.has_experts[i] else self.mlp(y, f"{layer}.mlp")
        return after + self.branch(y, layer, "post_mlp_layernorm", "mlp_dropout")

    def hidden(self):
        x = self.dropped(self.embedded(), "embedding.dropout", "hidden-dropout")
        for i in range(self.m.layers):
            x = self.layer(x, i)
        final = f"{self.m.stack}.final_layernorm"
        return self.norm(x, final) if f"{final}.weight" in self.w else x

    def logits(self):
        w = self.w
        z = self.hidden() @ w.get("output_layer.weight", w["embedding.word_embeddings.weight"]).transpose(1, 0)
        z, cap = z / self.o.float("logits-scaling", 1.0), self.o.float("final-logit-softcapping", math.inf)
        return z if cap == math.inf else tanh(z / cap) * cap

    def loss(self):
        """The sum over all tokens that the mask counts."""
        z, batch = self.logits(), self.batch
        b, s = np.indices(batch.labels.shape)
        nll = logsumexp(z) - z[b, s, batch.labels].reshape(*b.shape, 1)
        return (nll * batch.mask[:, :, None]).sum()


def router_losses(o):
    """[(name, coefficient)] of the enabled losses."""
    coefficients = [float(x) for x in o.list("moe-aux-loss-coeff")]
    found = [(kind, c) for kind, c in zip(o.list("moe-router-load-balancing-type", ["aux_loss"]), coefficients) if c]
    z = o.float("moe-z-loss-coeff", 0.0)
    return found + ([("z_loss", z)] if z else [])


def sinkhorn_shares(logits):
    """exp(logits), with rows and columns scaled alternately until each token and each expert has its share."""
    cost, tolerance, epsilon = np.exp(logits), 1e-4, 1e-8
    t, n = cost.shape
    d1 = np.ones(n)
    while True:
        d0 = 1 / (t * ((cost * d1).sum(1) + epsilon))
        before, d1 = d1, 1 / (n * ((cost * d0[:, None]).sum(0) + epsilon))
        if np.abs(d1 - before).mean() <= tolerance:
            return d1 * cost * d0[:, None]
