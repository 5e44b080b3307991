"""The forward pass of the decoder that the options select, for [b, s] tokens in float64: GPT-2, Llama, Mixtral and
combinations.

The formulas are from the papers, the meaning of the options from Megatron-LM (megatron/training/arguments.py,
core/transformer)."""
import ast
import math
import re

import numpy as np

import delta_net
import draws
from gradients import Var, cdf, concatenate, exp, log, of, relu, sigmoid, tanh


def pattern(text, layers, of_number):
    """Parses a layer pattern, which is N or an expression of lists."""
    if re.fullmatch(r"\d+", text):
        return [of_number(i, int(text)) for i in range(layers)]
    return [bool(x) for x in eval_lists(text)]


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
        self.o, self.hidden, self.heads = o, o.int("hidden-size"), o.int("num-attention-heads")
        self.letters, *later = o.text("hybrid-layer-pattern", "").replace("|", "").split("/")
        self.layers = len(self.letters) or o.int("num-layers")
        self.ahead = o.int("mtp-num-layers", len(later))  # layers that predict further tokens
        self.parts = len(later[0]) if later else 1  # of such a layer. Without a pattern, it is like the last layer
        self.letters += "".join(later)
        self.family, self.depth = o.text("model", "gpt"), o.int("decoder-num-layers", self.layers)  # of the decoder
        self.head = o.int("kv-channels", self.hidden // self.heads)
        self.latent = "multi-latent-attention" in o or "+" in self.letters
        # the parts of a head in latent attention
        self.plain, self.turned = o.int("qk-head-dim", 128), o.int("qk-pos-emb-head-dim", 64)
        self.head = self.plain + self.turned if self.latent else self.head
        self.value = o.int("v-head-dim", 128) if self.latent else self.head
        self.groups = o.int("num-query-groups", 1) if "group-query-attention" in o else self.heads
        short = "swiglu", "squared-relu", "quick-geglu"
        self.named = next((x for x in short if x in o), o.text("activation", "gelu"))
        self.biased = "disable-bias-linear" not in o
        fused = self.biased and "no-bias-gelu-fusion" not in o
        self.activation = self.named if self.named != "gelu" else "gelu-tanh" if fused else "gelu-erf"
        self.gated = "glu" in self.activation
        usual = self.hidden * 8 // 3 // 64 * 64 if self.activation == "swiglu" else 4 * self.hidden
        self.ffn = o.int("ffn-hidden-size", usual)
        self.rms = o.text("normalization", "LayerNorm") == "RMSNorm"
        place = o.text("norm-placement", "pre")
        self.norms_sum = place == "post" and self.family == "bert"
        self.norms_embedding = self.norms_sum or "embedding-layernorm" in o
        self.norms_input, self.norms_output = place != "post", place != "pre" and not self.norms_sum
        self.parallel = o.text("parallel-residual", "none")
        self.position = o.text("position-embedding-type", "learned_absolute")
        self.tied = "untie-embeddings-and-output-weights" not in o
        self.scales_output = self.family == "t5" and self.tied and self.rms and not self.biased and (
            self.position == "relative" and o.float("softmax-scale", 0) == 1)  # Hugging Face's T5
        self.experts = o.int("num-experts", 0)
        self.wider = self.hidden / o.int("mup-base-hidden-size", self.hidden) if "use-mup" in o else 1
        self.repeated = "mtp-use-repeated-layer" in o
        layers = max(self.layers, self.depth)

        def each(option, otherwise, of_number):
            return pattern(o.text(option, otherwise), layers, of_number)
        self.has_experts = [bool(self.experts) and x for x in each("moe-layer-freq", "1", lambda i, n: i % n == 0)]
        if self.letters:
            self.has_experts = [x == "E" for x in self.letters]
        windowed = each("window-attn-skip-freq", f"[1]*{layers}", lambda i, n: (i + 1) % n != 0)
        self.rotated = [not x for x in each("no-rope-freq", f"[0]*{layers}", lambda i, n: (i + 1) % n == 0)]
        self.state, self.mamba_head = o.int("mamba-state-dim", 128), o.int("mamba-head-dim", 64)
        self.mamba_groups = o.int("mamba-num-groups", 8)
        self.mamba_heads = o.int("mamba-num-heads", 2 * self.hidden // self.mamba_head)
        self.least_step = o.float("mamba-dt-min", 0)
        self.delta = delta_net.Sizes(o)
        self.linear = [bool(x) for x in each("linear-attention-freq", f"[0]*{layers}", lambda i, n: (i + 1) % n != 0)]
        if self.letters or "experimental-attention-variant" not in o:
            self.linear = [x == "G" for x in self.letters or "*" * layers]
        reach = int(o.text("window-size", "-1,0").split(",")[0])
        self.reach = [reach if w and reach >= 0 else None for w in windowed]
        for each_layer in (self.has_experts, self.rotated, self.reach, self.linear):
            each_layer += each_layer[-1:] * (self.layers + self.ahead * self.parts - len(each_layer))

    def scope_ahead(self, k):
        return f"mtp.layers.{0 if self.repeated else k - 1}"

    def scope(self, layer):
        """Returns the scope of a decoder's layer, or of a layer that predicts further tokens or a part of it."""
        if layer < self.layers:
            return f"decoder.layers.{layer}"
        k, part = divmod(layer - self.layers, self.parts)
        return self.scope_ahead(k + 1) + (f".mtp_model_layer.layers.{part}" if self.letters else ".transformer_layer")

    def layers_ahead(self, k):
        return range(self.layers + (k - 1) * self.parts, self.layers + k * self.parts)


class Tensors(dict):
    """Returns the parameters of a model: {name: (shape, standard deviation or (constant,))}."""
    def __init__(self, m):
        super().__init__()
        self.m, self.o, std = m, m.o, m.o.float("init-method-std", 0.02)
        self.embedding = m.o.float("embedding-init-method-std", std)
        self.std = std / math.sqrt(m.wider)
        self.small = self.std / math.sqrt((1 if m.letters else 2) * m.layers)  # in all stacks

    def norm(self, name, width):
        if "disable-norm-weight" not in self.o:
            self[f"{name}.weight"] = (width,), (0.0 if "apply-layernorm-1p" in self.o else 1.0,)
        if not self.m.rms and "disable-norm-bias" not in self.o:
            self[f"{name}.bias"] = (width,), (0.0,)

    def linear(self, name, rows, columns, std, biased):
        self[f"{name}.weight"] = (rows, columns), std
        if biased:
            self[f"{name}.bias"] = (rows,), (0.0,)

    def mlp(self, name, ffn, biased):
        self.linear(f"{name}.linear_fc1", ffn * (1 + self.m.gated), self.m.hidden, self.std, biased)
        self.linear(f"{name}.linear_fc2", self.m.hidden, ffn, self.small, biased)
        if self.m.activation == "xielu":
            self[f"{name}.activation_func.alpha_p"] = (1,), (math.log(math.expm1(0.8)),)
            self[f"{name}.activation_func.alpha_n"] = (1,), (math.log(math.expm1(0.8 - 0.5)),)

    def experts(self, name):
        m, o, h = self.m, self.o, self.m.hidden
        ffn, shared = o.int("moe-ffn-hidden-size", m.ffn), o.int("moe-shared-expert-intermediate-size", 0)
        self[f"{name}.router.weight"] = (m.experts, h), self.std
        latent = o.int("moe-latent-size", h)
        self[f"{name}.experts.linear_fc1.weight"] = (m.experts * ffn * (1 + m.gated), latent), self.std
        self[f"{name}.experts.linear_fc2.weight"] = (m.experts * latent, ffn), self.small
        if m.biased:
            sizes = {"router": 1, "experts.linear_fc1": ffn * (1 + m.gated), "experts.linear_fc2": latent}
            for bias, size in sizes.items():
                self[f"{name}.{bias}.bias"] = (m.experts * size,), (0.0,)
        if shared:
            self.mlp(f"{name}.shared_experts", shared, False)
        if "moe-shared-expert-gate" in o:
            self[f"{name}.shared_experts.gate_weight"] = (1, h), self.std
        if latent != h:
            self.linear(f"{name}.fc1_latent_proj", latent, h, self.std, m.biased)
            self.linear(f"{name}.fc2_latent_proj", h, latent, self.small, m.biased)

    def embeddings(self):
        o, h = self.o, self.m.hidden
        self["embedding.word_embeddings.weight"] = (o.int("vocab-size"), h), self.embedding
        if self.m.position == "learned_absolute":
            longest = max(o.int("seq-length"), o.int("decoder-seq-length", 0))
            positions = o.int("max-position-embeddings", longest)
            self["embedding.position_embeddings.weight"] = (positions, h), self.embedding
        if self.m.norms_embedding:
            self.norm("embedding.layernorm", h)

    def latents(self, name):
        m, o = self.m, self.o
        kv, q = o.int("kv-lora-rank", 32), o.int("q-lora-rank", 0)
        down = [("q", q, q, m.heads * m.head)] * bool(q) + [("kv", kv, kv + m.turned, m.heads * (m.plain + m.value))]
        for which, rank, rows, up in down:
            self.linear(f"{name}.linear_{which}_down_proj", rows, m.hidden, self.std, False)
            if "qk-layernorm" in o:
                self.norm(f"{name}.{which}_layernorm", rank)
            self.linear(f"{name}.linear_{which}_up_proj", up, rank, self.std, False)
        if not q:
            self.linear(f"{name}.linear_q_proj", m.heads * m.head, m.hidden, self.std, False)

    def attention(self, name):
        m, o = self.m, self.o
        if m.latent:
            self.latents(name)
        else:
            heads = m.heads * (2 if "attention-output-gate" in o else 1) + 2 * m.groups
            self.linear(f"{name}.linear_qkv", heads * m.head, m.hidden, self.std,
                        m.biased or "add-qkv-bias" in o)
        if "qk-layernorm" in o and not m.latent:
            whole = "qk-layernorm-whole" in o
            self.norm(f"{name}.q_layernorm", m.head * (m.heads if whole else 1))
            self.norm(f"{name}.k_layernorm", m.head * (m.groups if whole else 1))
        if o.text("softmax-type", "vanilla") == "learnable":
            self[f"{name}.core_attention.softmax_offset"] = (m.heads,), self.std
        self.linear(f"{name}.linear_proj", m.hidden, m.heads * m.value, self.small,
                    m.biased or "add-attn-proj-bias" in o)

    def cross_attention(self, name):
        m, width = self.m, self.m.heads * self.m.head
        biased = m.biased or "add-qkv-bias" in self.o
        self.linear(f"{name}.linear_q", width, m.hidden, self.std, biased)
        self.linear(f"{name}.linear_kv", 2 * width, m.hidden, self.std, biased)
        self.linear(f"{name}.linear_proj", m.hidden, width, self.small, m.biased or "add-attn-proj-bias" in self.o)

    def mixer(self, name):
        m, bound = self.m, 0.5  # of a convolution with 4 taps
        x, bc, heads = m.mamba_heads * m.mamba_head, m.mamba_groups * m.state, (m.mamba_heads,)
        self.linear(f"{name}.in_proj", 2 * x + 2 * bc + m.mamba_heads, m.hidden, self.std, False)
        self[f"{name}.conv1d.weight"] = (x + 2 * bc, 4), Uniform(-bound, bound, lambda u: u)
        self[f"{name}.conv1d.bias"] = (x + 2 * bc,), Uniform(-bound, bound, lambda u: u)
        self[f"{name}.dt_bias"] = heads, Uniform(math.log(1e-3), math.log(0.1), lambda u: np.log(np.expm1(np.exp(u))))
        self[f"{name}.A_log"] = heads, Uniform(1, 16, np.log)
        self[f"{name}.D"] = heads, (1.0,)
        self[f"{name}.norm.weight"] = (x,), (1.0,)
        self.linear(f"{name}.out_proj", m.hidden, x, self.small, False)

    def layer(self, layer, i, crosses):
        m = self.m
        for before, scope, after, _ in branches(m, i, crosses):
            if m.norms_input and not (before == "pre_mlp_layernorm" and m.parallel == "one-norm"):
                self.norm(f"{layer}.{before}", m.hidden)
            if m.norms_output or m.norms_sum:
                self.norm(f"{layer}.{after}", m.hidden)
            if scope == "mixer":
                self.mixer(f"{layer}.{scope}")
            elif scope == "self_attention" and m.linear[i]:
                delta_net.tensors(self, f"{layer}.{scope}", Uniform)
            elif scope != "mlp":
                (self.cross_attention if scope == "cross_attention" else self.attention)(f"{layer}.{scope}")
            elif m.has_experts[i]:
                self.experts(f"{layer}.mlp")
            else:
                self.mlp(f"{layer}.mlp", m.ffn, m.biased or "add-mlp-bias" in self.o)

    def stack(self, name, layers, crosses=False):
        for i in range(layers):
            self.layer(f"{name}.layers.{i}", i, crosses)
        if not self.m.norms_sum:
            self.norm(f"{name}.final_layernorm", self.m.hidden)

    def layer_ahead(self, k):
        m, name = self.m, self.m.scope_ahead(k)
        self.norm(f"{name}.enorm", m.hidden)
        self.norm(f"{name}.hnorm", m.hidden)
        self.linear(f"{name}.eh_proj", m.hidden, 2 * m.hidden, self.std, False)
        for layer in m.layers_ahead(k):
            self.layer(m.scope(layer), layer, False)
        self.norm(f"{name}.final_layernorm", m.hidden)

    def output(self):
        if not self.m.tied:
            std = self.embedding if "use-mup" in self.o else self.std
            self["output_layer.weight"] = (self.o.int("vocab-size"), self.m.hidden), std
        if "add-output-layer-bias" in self.o:
            self["output_layer.bias"] = (self.o.int("vocab-size"),), (0.0,)


def branches(m, i, crosses):
    """Returns the branches of layer i: [(norm of the input, scope, norm of the output, dropout)]."""
    cross = ("pre_cross_attn_layernorm", "cross_attention", "post_cross_attn_layernorm", "cross_attention_dropout")
    attention = ("input_layernorm", "self_attention", "post_self_attn_layernorm", "attention_dropout")
    mlp = ("pre_mlp_layernorm", "mlp", "post_mlp_layernorm", "mlp_dropout")
    if m.letters:
        mixer = ("norm", "mixer", "post_norm", "mixer_dropout")
        return [{"M": mixer, "G": attention, "*": attention, "+": attention}.get(m.letters[i], mlp)]
    return [attention, *[cross] * crosses, mlp]


def tensors(m):
    out = Tensors(m)
    out.embeddings()
    out.stack("decoder", m.layers)
    for k in range(1, 2 if m.repeated else m.ahead + 1):
        out.layer_ahead(k)
    out.output()
    return out


class Uniform:
    """An initial value is of(x), with x drawn uniformly between `low` and `high`."""
    def __init__(self, low, high, of):
        self.low, self.high, self.of = low, high, of

    def draw(self, seed, name, n):
        return self.of(self.low + (self.high - self.low) * (draws.words(seed, name, np.arange(n)) + 0.5) * 2.0**-32)


def initial(tensors, seed):
    """Draws initial weights in float64 and rounds them to float32, as the program does in every precision."""
    made = {}
    for name, (shape, how) in tensors.items():
        n = int(np.prod(shape))
        z = (np.full(n, how[0]) if isinstance(how, tuple) else how.draw(seed, name, n) if isinstance(how, Uniform)
             else how * draws.normals(seed, name, n)).reshape(shape)
        made[name] = z.astype(np.float32).astype(np.float64)
    return made


def is_yarn(o):
    if "multi-latent-attention" in o:
        return o.text("rope-type", "yarn") == "yarn"
    return o.text("position-embedding-type", "") == "yarn"


def frequencies(o, head, windowed):
    dim = int(head * o.float("rotary-percent", 1.0))
    if windowed and "rope-local-base-freq" in o:
        return o.float("rope-local-base-freq") ** (-np.arange(0, dim, 2) / dim)
    base = o.float("rotary-base", 10000.0)
    if "rope-dynamic-factor" in o:
        f, original = o.float("rope-dynamic-factor"), o.float("rope-scaling-original-max-position-embeddings", 8192.0)
        base *= (f * max(o.int("seq-length") / original, 1) - f + 1) ** (dim / (dim - 2))
    f = base ** (-np.arange(0, dim, 2) / dim)
    if is_yarn(o):
        original = o.float("yarn-original-max-position-embeddings", 4096.0)
        ends = [dim / 2 * math.log(original / (2 * math.pi * turns), base) for turns in
                (o.float("yarn-beta-fast", 32.0), o.float("yarn-beta-slow", 1.0))]
        if "no-yarn-correction-range-round-to-int" not in o:
            ends = math.floor(ends[0]), math.ceil(ends[1])
        low, high = max(ends[0], 0), min(ends[1], dim - 1)
        divided = np.clip((np.arange(dim // 2) - low) / (high - low or 1e-3), 0, 1)
        f = (1 - divided) * f + divided * f / o.float("rotary-scaling-factor", 1.0)
    if "rope-long-factor" in o:
        original = o.int("rope-scaling-original-max-position-embeddings", 8192)
        which = "rope-long-factor" if o.int("seq-length") > original else "rope-short-factor"
        f = f / np.array([float(x) for x in o.list(which)])
    if "use-rope-scaling" in o:
        original, low, high = (o.float(f"rope-scaling-{name}", x) for name, x in
                               (("original-max-position-embeddings", 8192.0), ("low-freq-factor", 1.0),
                                ("high-freq-factor", 4.0)))
        keep = np.clip((original * f / (2 * np.pi) - low) / (high - low), 0, 1)
        f = keep * f + (1 - keep) * f / o.float("rope-scaling-factor", 8.0)
    return f / o.float("rotary-seq-len-interpolation-factor", 1.0)


def mscale(o, name, otherwise):
    return 0.1 * o.float(name, otherwise) * math.log(max(o.float("rotary-scaling-factor", 1.0), 1)) + 1


def amplitude(o, windowed):
    """Returns the factor by which LongRoPE and YaRN multiply rotated channels."""
    if windowed and "rope-local-base-freq" in o:
        return 1.0
    if is_yarn(o):
        return o.float("rope-attention-factor", mscale(o, "mscale", 1.0) / mscale(o, "mscale-all-dim", 0.0))
    if "rope-long-factor" not in o:
        return 1.0
    original = o.float("rope-scaling-original-max-position-embeddings", 8192.0)
    stretch = o.float("max-position-embeddings", o.int("seq-length")) / original
    usual = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return o.float("rope-attention-factor", usual)


def softmax(x):
    e = exp(x - x.value.max(-1, keepdims=True))
    return e / e.sum(-1)


def logsumexp(x):
    top = x.value.max(-1, keepdims=True)
    return log(exp(x - top).sum(-1)) + top


def limit_of(x):
    """Returns x, or 0 if x is infinite. The mask that x is multiplied by is then empty."""
    return 0.0 if math.isinf(x) else x


def best(scores, k):
    """Whether a score is among the k largest of its row."""
    return scores >= np.sort(scores, axis=-1)[..., -k, None]


def slopes(heads, most):
    """Returns ALiBi's slopes [heads, 1, 1]. If `heads` is not a power of two, they are selected from the slopes of the
    next power of two."""
    n = 1 << (heads - 1).bit_length()
    all = 2.0 ** (-np.arange(1, n + 1) * most / n)
    return (all if n == heads else np.concatenate([all[1::2], all[::2]])[:heads])[:, None, None]


class Pass:
    """One forward pass. Without a seed, it is an evaluation, which uses no random numbers. `samples` [b] has the
    indices of the samples in the run."""
    def __init__(self, m, weights, batch, samples=None, seed=None, counts=None):
        self.m, self.o, self.w, self.batch, self.samples, self.seed = m, m.o, weights, batch, samples, seed
        self.router_losses = []  # (kind, layer, Var)
        self.chosen = {}  # layer: number of tokens of each expert
        self.most = {}  # name of attention: the largest score of each head, at least 0
        self.counts = counts if counts is not None else {}  # in the step so far, for global_aux_loss

    def linear(self, x, name):
        bias = self.w.get(f"{name}.bias")
        y = x @ self.w[f"{name}.weight"].transpose(1, 0)
        return y if bias is None else y + bias

    def norm(self, x, name, epsilon=None):
        o, epsilon = self.o, epsilon or self.o.float("norm-epsilon", 1e-5)
        if not self.m.rms:
            x = x - x.mean(-1)
        y = x * ((x * x).mean(-1) + epsilon) ** -0.5
        if "disable-norm-weight" not in o:
            y = y * (self.w[f"{name}.weight"] + (1.0 if "apply-layernorm-1p" in o else 0.0))
        return y if self.m.rms or "disable-norm-bias" in o else y + self.w[f"{name}.bias"]

    def dropped(self, x, name, option):
        """Applies dropout. A random number is identified by the index of its element in the run; a sample's attention
        probabilities [b, heads, query, key] are indexed as part of a square matrix."""
        rate, shape = self.o.float(option, 0.1), x.shape[1:]
        if self.seed is None or rate == 0:
            return x
        if option == "attention-dropout":
            longest = max(shape[1:])
            index = draws.elements(self.samples, (shape[0], longest, longest))[..., :shape[1], :shape[2]]
        else:
            index = draws.elements(self.samples, shape)
        return x * draws.dropout(self.seed, name, rate, index)

    def rotated(self, x, layer, positions):
        """Rotates pairs of channels of x [b, s, heads, d] by position * frequency."""
        windowed = self.m.reach[layer] is not None
        f = frequencies(self.o, self.m.turned if self.m.latent else self.m.head, windowed)
        n, o = len(f), self.o
        together = "no-mla-rotary-interleaved" not in o if self.m.latent else "rotary-interleaved" in o
        angle = (positions[:, :, None] * f)[:, :, None, :]
        pairs = (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if together else (slice(0, n), slice(n, 2 * n))
        a, b, rest = x[..., pairs[0]], x[..., pairs[1]], x[..., 2 * n:]
        cos, sin = (amplitude(self.o, windowed) * function(angle) for function in (np.cos, np.sin))
        turned = [a * cos - b * sin, a * sin + b * cos]
        if together:
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
        if "attention-chunk-size" in self.o and self.m.rotated[layer]:
            inside = np.arange(s) - self.batch.first_key[:, :, None]  # [b, query, key]
            chunk = inside // self.o.int("attention-chunk-size")
            seen = seen & (chunk == np.diagonal(chunk, axis1=1, axis2=2)[:, :, None])
        return (seen & (np.arange(s) >= self.batch.first_key[:, :, None]))[:, None]

    def latent_heads(self, x, name, layer, positions):
        """The same as heads, with MLA: all heads share the rotated part of the key."""
        m, rank = self.m, self.o.int("kv-lora-rank", 32)
        epsilon = self.o.float("latent-norm-epsilon", 0.0)
        normed = lambda x, which: self.norm(x, f"{name}.{which}_layernorm", epsilon) if "qk-layernorm" in self.o else x
        down = self.linear(x, f"{name}.linear_kv_down_proj")
        if "q-lora-rank" in self.o:
            q = self.linear(normed(self.linear(x, f"{name}.linear_q_down_proj"), "q"), f"{name}.linear_q_up_proj")
        else:
            q = self.linear(x, f"{name}.linear_q_proj")
        q = q.reshape(*x.shape[:2], m.heads, m.head)
        kv = self.linear(normed(down[..., :rank], "kv"), f"{name}.linear_kv_up_proj").reshape(*x.shape[:2], m.heads, -1)
        turned = self.rotated(down[..., rank:].reshape(*x.shape[:2], 1, m.turned), layer, positions)
        turned = turned[:, :, np.zeros(m.heads, int)]
        q = concatenate([q[..., :m.plain], self.rotated(q[..., m.plain:], layer, positions)])
        return self.tempered(q, positions, "", 0), concatenate([kv[..., :m.plain], turned]), kv[..., m.plain:]

    def tempered(self, q, positions, prefix, first):
        """Multiplies queries [b, s, heads, d] by the temperatures of their positions."""
        if f"{prefix}rope-temperature-scale" not in self.o:
            return q
        steps = np.floor((positions + first) / self.o.float(f"{prefix}rope-temperature-floor", 8192.0))
        return q * (1 + self.o.float(f"{prefix}rope-temperature-scale") * np.log(1 + steps))[:, :, None, None]

    def heads(self, x, name, layer, positions):
        """Returns queries, keys and values, each [b, s, heads, d]."""
        m = self.m
        if m.latent:
            return self.latent_heads(x, name, layer, positions)
        b, s, per = *x.shape[:2], m.heads // m.groups
        qkv = self.linear(x, f"{name}.linear_qkv").reshape(b, s, m.groups, -1, m.head)
        q, k, v = qkv[:, :, :, :per].reshape(b, s, m.heads, m.head), qkv[:, :, :, -2], qkv[:, :, :, -1]
        last = "qk-layernorm-after-rope" in self.o
        if "qk-layernorm" in self.o and not last:
            together = lambda x: x.reshape(b, s, -1) if "qk-layernorm-whole" in self.o else x
            q = self.norm(together(q), f"{name}.q_layernorm").reshape(b, s, m.heads, m.head)
            k = self.norm(together(k), f"{name}.k_layernorm").reshape(b, s, m.groups, m.head)
        turns = m.position in ("rope", "yarn") and m.rotated[layer]
        if "qk-l2-norm" in self.o and (turns or "qk-l2-norm-rope-layers-only" not in self.o):
            q, k = (x / ((x * x).mean(-1) + self.o.float("norm-epsilon", 1e-5)) ** 0.5 for x in (q, k))
        if turns:
            q, k = self.rotated(q, layer, positions), self.rotated(k, layer, positions)
        if last:
            q, k = self.norm(q, f"{name}.q_layernorm"), self.norm(k, f"{name}.k_layernorm")
        q = self.tempered(q, positions, *(("", 0) if turns else ("no-", 1)))
        group = np.arange(m.heads) // per
        return q, k[:, :, group], v[:, :, group]

    def gates(self, x, name):
        """Returns the factors of the heads' outputs [b, s, heads * d]."""
        if "attention-output-gate" not in self.o:
            return 1.0
        m, (b, s), per = self.m, x.shape[:2], self.m.heads // self.m.groups
        qkv = self.linear(x, f"{name}.linear_qkv").reshape(b, s, m.groups, 2 * per + 2, m.head)
        return sigmoid(qkv[:, :, :, per:2 * per].reshape(b, s, m.heads * m.head))

    def attended(self, name, q, k, v, seen, bias=None, gates=1.0):
        """Computes attention. seen [b, 1, query, key] marks the visible keys, and `bias` is added to the scores."""
        m = self.m
        b, s = q.shape[:2]
        q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        longer = mscale(self.o, "mscale-all-dim", 0.0) if m.latent else 1
        usual = longer ** 2 / math.sqrt(m.head)
        if "use-mup" in self.o and not m.latent:
            usual = self.o.float("mup-base-head-dim", 1) ** 0.5 * m.head ** -self.o.float("mup-attn-scale-power", 1)
        score = q @ k.transpose(0, 1, 3, 2) * self.o.float("softmax-scale", usual)
        self.most[name] = np.where(seen, score.value, 0).max((0, 2, 3)).clip(0)  # [heads]
        cap = self.o.float("attn-logit-softcapping", math.inf)
        score = score if cap == math.inf else tanh(score / cap) * cap
        score = score if bias is None else score + bias
        if m.position == "alibi":
            distance = abs(np.arange(s) - np.arange(s)[:, None])
            score = score - slopes(m.heads, self.o.float("alibi-bias-max", 8.0)) * distance
        top = np.where(seen, score.value, -np.inf).max(-1, keepdims=True)
        p = exp((score - top) * seen) * seen
        total, kind = p.sum(-1), self.o.text("softmax-type", "vanilla")
        if kind != "vanilla":
            sink = of(np.zeros(m.heads)) if kind == "off-by-one" else self.w[f"{name}.core_attention.softmax_offset"]
            total = total + exp(sink.reshape(1, m.heads, 1, 1) - top)
        p = self.dropped(p / total, name, "attention-dropout")
        y = (p @ v).transpose(0, 2, 1, 3).reshape(b, s, m.heads * m.value)
        return self.linear(y * gates, f"{name}.linear_proj")

    def activated(self, x, routed=False):
        if not self.m.gated:
            return self.curve(x)
        half = x.shape[-1] // 2
        gate, up = x[..., :half], x[..., half:]
        limit = self.o.float("activation-func-clamp-value", math.inf)
        if routed or self.m.activation != "swiglu":
            gate = gate * (gate.value <= limit) + limit_of(limit) * (gate.value > limit)
            up = up * (abs(up.value) <= limit) + limit_of(limit) * np.sign(up.value) * (abs(up.value) > limit)
        return self.curve(gate) * (up + self.o.float("glu-linear-offset", 0.0))

    def curve(self, x, name=None):
        return {"gelu-tanh": lambda: x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0),
                "gelu-erf": lambda: x * cdf(x), "quick-gelu": lambda: x * sigmoid(x * 1.702),
                "swiglu": lambda: x * sigmoid(x), "squared-relu": lambda: relu(x) * relu(x),
                "relu": lambda: relu(x)}[(name or self.m.activation).replace("geglu", "gelu")]()

    def xielu(self, x, name):
        """arXiv 2411.13010. beta and eps are not trained."""
        softplus = lambda a: log(exp(self.w[f"{name}.{a}"]) + 1.0)
        beta, eps = (self.w.get(f"{name}.{key}", of(value)).value for key, value in (("beta", 0.5), ("eps", -1e-6)))
        low, positive = x.value < eps, x.value > 0
        tail = exp(x * low + eps * ~low) - 1.0 - x
        return x * beta + x * x * positive * softplus("alpha_p") + tail * ~positive * (softplus("alpha_n") + beta)

    def mlp(self, x, name):
        x = self.linear(x, f"{name}.linear_fc1")
        x = self.xielu(x, f"{name}.activation_func") if self.m.activation == "xielu" else self.activated(x)
        return self.linear(x, f"{name}.linear_fc2")

    # ---- experts: tokens [t, h], ordered by position, then by sample ----

    def router_loss(self, logits, layer, kind, chosen, b):
        """Returns a router loss without its coefficient. chosen [t, experts] marks the experts with the highest scores,
        without biases."""
        experts, t = self.m.experts, len(logits.value)
        if kind == "z_loss":
            return (logsumexp(logits) ** 2).mean(0)
        p = self.scores(logits)
        p = p / (p.sum(-1) + 1e-20)
        count = chosen.reshape(-1, b, experts).sum(0) if kind == "seq_aux_loss" else chosen.sum(0, keepdims=True)
        if kind == "global_aux_loss":
            count = self.counts[layer] = self.counts.get(layer, 0) + count
        share = count / count.sum(-1, keepdims=True)  # [b or 1, experts]
        return (p.reshape(-1, b, experts) * share).sum() * (experts / t)

    def scores(self, logits):
        kind = self.o.text("moe-router-score-function", "softmax")
        if kind == "sqrtsoftplus":
            return log(exp(logits) + 1.0) ** 0.5
        return sigmoid(logits) if kind == "sigmoid" else softmax(logits)

    def route(self, logits, layer):
        """Returns probabilities [t, experts], which are 0 for experts that are not chosen, and the mask of chosen
        experts."""
        o, k = self.o, self.o.int("moe-router-topk", 2)
        scaling, kinds = o.float("moe-router-topk-scaling-factor", 1.0), o.list("moe-router-load-balancing-type")
        bias = self.w.get(f"{self.m.scope(layer)}.mlp.router.expert_bias")
        biased, bias = bias is not None, 0 if bias is None else bias.value
        sinkhorn = "sinkhorn" in kinds
        if sinkhorn:
            chosen = best(sinkhorn_shares(logits.value) if self.seed is not None else logits.value, k)
            return (sigmoid(logits) if k == 1 else softmax(logits)) * chosen * scaling, chosen
        quantile = "quantile_balancing" in kinds
        if o.text("moe-router-score-function", "softmax") == "softmax":
            p, first = softmax(logits), "moe-router-pre-softmax" in o
            compared = p if (first or biased) and not quantile else logits
            chosen = best(self.limited(compared.value + bias, k), k)
            p = p * chosen
            return (p if first else p / p.sum(-1)) * scaling, chosen
        if o.text("moe-router-score-function") == "sparsemixer":
            p, chosen = self.mixed(logits, k)
            return p * scaling, chosen
        score = self.scores(logits)
        chosen = best(self.limited((logits.value if quantile else score.value) + bias, k), k)
        score = score * chosen
        return (score / (score.sum(-1) + 1e-20) if k > 1 else score) * scaling, chosen

    def mixed(self, logits, k):
        """The probability of a choice is from a softmax over the experts that have similar logits and were not chosen
        before."""
        p, rest = 0, logits.value.copy()
        for _ in range(k):
            choice, top = best(rest, 1), rest.max(-1, keepdims=True)
            band = 2 * self.o.float("moe-router-sparsemixer-eps", 0.01) * np.maximum(abs(logits.value), top)
            near = (top - logits.value <= band) & np.isfinite(rest)
            share = exp((logits - top) * near) * near
            p, rest = share / share.sum(-1) * choice + p, np.where(choice, -np.inf, rest)
        return p, np.isinf(rest)

    def limited(self, choice, k):
        """Sets the scores of experts outside the best groups to -inf."""
        if "moe-router-num-groups" not in self.o:
            return choice
        n, keep = self.o.int("moe-router-num-groups"), self.o.int("moe-router-group-topk")
        parts = choice.reshape(len(choice), n, -1)
        totals = np.sort(parts, axis=-1)[..., -self.o.int("moe-router-group-score-topk", k // keep):].sum(-1)
        return np.where(best(totals, keep)[..., None], parts, -np.inf).reshape(choice.shape)

    def quantiles(self, logits, layer):
        """Returns the biases with which these logits would give each expert an equal share of the tokens."""
        t, n, k = *logits.shape, self.o.int("moe-router-topk", 2)
        biased = logits + self.w[f"{self.m.scope(layer)}.mlp.router.expert_bias"].value
        above = logits - np.sort(biased, axis=1)[:, n - k - 1, None]
        return -np.sort(above, axis=0)[t - 1 - t * k // n]

    def forced(self, logits, site, s):
        """Replaces logits by random numbers or adds random biases to them. The gradient passes to the logits
        unchanged."""
        bias, n = self.o.float("moe-router-force-biased", 0.0), self.m.experts
        replaced = "moe-router-force-load-balancing" in self.o
        if self.seed is None or not (bias or replaced):
            return logits
        index = draws.elements(self.samples, (s, n)).transpose(1, 0, 2).reshape(-1, n)
        if not replaced:
            index = index // (s * n) * n * (bias > 0) + np.arange(n)
        drawn = draws.normals(self.seed, site, index.max() + 1)[index] * (abs(bias) or 1.0)
        return logits + drawn - (logits.value if replaced else 0.0)

    def kept(self, p, chosen):
        """Returns the mask of the choices that fit into the capacity of each expert."""
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
        o, m, name = self.o, self.m, f"{self.m.scope(layer)}.mlp"
        b, s, h = x.shape
        eps = o.float("moe-input-jitter-eps", 0.0)
        noisy = x
        if eps and self.seed is not None:
            noisy = x * draws.jitter(self.seed, f"{name}.router.jitter", eps, draws.elements(self.samples, (s, h)))
        flat = lambda y: y.transpose(1, 0, 2).reshape(s * b, y.shape[-1])
        logits = flat(self.linear(noisy, f"{name}.router"))
        logits = self.forced(logits, f"{name}.router.random", s)
        p, chosen = self.route(logits, layer)
        self.chosen[layer] = self.quantiles(logits.value, layer) if o.quantile_balancing else chosen.sum(0)
        alone = best(logits.value, o.int("moe-router-topk", 2))
        for kind, _ in router_losses(o):
            self.router_losses.append((kind, layer, self.router_loss(logits, layer, kind, alone, b)))
        p = p * self.kept(p, chosen)
        fc1, fc2 = (self.w[f"{name}.experts.linear_{fc}.weight"] for fc in ("fc1", "fc2"))
        narrow = o.int("moe-latent-size", h)
        fc1, fc2 = fc1.reshape(m.experts, -1, narrow), fc2.reshape(m.experts, narrow, -1)
        rows = flat(self.linear(x, f"{name}.fc1_latent_proj") if narrow != h else x).reshape(1, s * b, narrow)
        p = p.transpose(1, 0).reshape(m.experts, s * b, 1)
        before, after = (p, p.value > 0) if "moe-apply-probs-on-input" in o else (1.0, p)
        b1, b2 = (self.w[f"{name}.experts.linear_{fc}.bias"].reshape(m.experts, 1, -1) if m.biased else 0.0
                  for fc in ("fc1", "fc2"))
        rows = (self.activated(rows * before @ fc1.transpose(0, 2, 1) + b1, True) @ fc2.transpose(0, 2, 1) + b2) * after
        y = rows.sum(0).reshape(s, b, narrow).transpose(1, 0, 2)
        y = self.linear(y, f"{name}.fc2_latent_proj") if narrow != h else y
        if f"{name}.shared_experts.linear_fc1.weight" not in self.w:
            return y
        shared, gate = self.mlp(x, f"{name}.shared_experts"), self.w.get(f"{name}.shared_experts.gate_weight")
        return y + (shared if gate is None else shared * sigmoid(x @ gate.transpose(1, 0)))

    # ---- Mamba-2 ----

    def convolved(self, x, name):
        """Convolves each channel of x [b, s, c] over the current token and earlier ones of the same document."""
        (b, s, c), weight = x.shape, self.w[f"{name}.weight"]
        total, taps = self.w.get(f"{name}.bias", of(np.zeros(c))).reshape(1, 1, c), weight.shape[1]
        for back in range(taps):
            seen = (np.arange(s) - back >= self.batch.first_key)[:, :, None]  # [b, s, 1]
            earlier = x[:, np.maximum(np.arange(s) - back, 0)]
            total = total + earlier * seen * weight[:, taps - 1 - back].reshape(1, 1, c)
        return total * sigmoid(total)

    def scanned(self, x, b, c, dt, name):
        """Runs the recurrence over x [b, s, heads, d], with b and c [b, s, heads, n] and dt [b, s, heads]."""
        w, heads = self.w, x.shape[2]
        least = self.m.least_step
        step = relu(log(exp(dt + w[f"{name}.dt_bias"]) + 1) - least) + least
        kept = exp(exp(w[f"{name}.A_log"]) * step * -1)
        state, out, samples = None, [], x.shape[0]
        for t in range(x.shape[1]):
            scaled = x[:, t] * step[:, t].reshape(-1, heads, 1)
            added = scaled.reshape(samples, heads, -1, 1) * b[:, t].reshape(samples, heads, 1, -1)
            continues = (self.batch.first_key[:, t] < t)[:, None, None, None]
            state = added if t == 0 else state * kept[:, t].reshape(-1, heads, 1, 1) * continues + added
            y = (state * c[:, t].reshape(-1, heads, 1, c.shape[-1])).sum(-1)
            y = y.reshape(samples, heads, -1) + x[:, t] * w[f"{name}.D"].reshape(1, heads, 1)
            out.append(y.reshape(samples, 1, *x.shape[2:]))
        return concatenate(out, 1)

    def mamba(self, x, name):
        m, heads, groups, n = self.m, self.m.mamba_heads, self.m.mamba_groups, self.m.state
        b, s, inner = *x.shape[:2], heads * m.mamba_head
        z = self.linear(x, f"{name}.in_proj")
        mixed, group = self.convolved(z[:, :, inner:-heads], f"{name}.conv1d"), np.arange(heads) // (heads // groups)
        each = [mixed[:, :, i:i + groups * n].reshape(b, s, groups, n)[:, :, group]
                for i in (inner, inner + groups * n)]
        y = self.scanned(mixed[:, :, :inner].reshape(b, s, heads, m.mamba_head), *each, z[:, :, -heads:], name)
        gate = z[:, :, :inner]
        y = (y.reshape(b, s, inner) * (gate * sigmoid(gate))).reshape(b, s, groups, -1)
        y = (y * ((y * y).mean(-1) + 1e-5) ** -0.5).reshape(b, s, inner) * self.w[f"{name}.norm.weight"]
        return self.linear(y, f"{name}.out_proj")

    # ---- the model ----

    def embedded(self, tokens, positions, types=None, site="embedding.dropout"):
        w, m = self.w, self.m
        x = w["embedding.word_embeddings.weight"][tokens]
        x = x * (math.sqrt(m.hidden) if "scale-embedding" in self.o else self.o.float("embedding-multiplier", 1.0))
        if m.position == "learned_absolute":
            x = x + w["embedding.position_embeddings.weight"][positions]
        if "embedding.tokentype_embeddings.weight" in w:
            x = x + w["embedding.tokentype_embeddings.weight"][types]
        x = x * self.o.float("mup-embedding-mult", 1)
        return self.dropped(self.norm(x, "embedding.layernorm") if m.norms_embedding else x, site, "hidden-dropout")

    def stack(self, x, name, layers, positions, seen, bias=None, across=None):
        """Runs the layers. `seen` has the visible keys for each layer, and across(x, scope) computes the
        cross-attention."""
        for i in range(layers):
            x = self.layer(x, f"{name}.layers.{i}", i, positions, seen, bias, across)
        return x if self.m.norms_sum else self.norm(x, f"{name}.final_layernorm")

    def layer(self, x, layer, i, positions, seen, bias=None, across=None):
        m, residual, below, normed = self.m, self.o.float("residual-multiplier", 1.0), x, None

        def sublayer(y, scope):
            if scope == "cross_attention":
                return across(y, f"{layer}.{scope}")
            if scope == "mixer":
                return self.mamba(y, f"{layer}.{scope}")
            if scope == "self_attention":
                name = f"{layer}.{scope}"
                if m.linear[i]:
                    return delta_net.forward(self, y, name)
                return self.attended(name, *self.heads(y, name, i, positions), seen(i), bias, self.gates(y, name))
            return self.moe(y, i) if m.has_experts[i] else self.mlp(y, f"{layer}.mlp")
        for before, scope, after, dropout in branches(m, i, across is not None):
            y = x if m.parallel == "none" else below
            if m.norms_input and not (m.parallel == "one-norm" and normed):
                normed = self.norm(y, f"{layer}.{before}")
            y = sublayer(normed if m.norms_input else y, scope)
            y = self.norm(y, f"{layer}.{after}") if m.norms_output else y
            x = x + self.dropped(y * residual, f"{layer}.{dropout}", "hidden-dropout")
            x = self.norm(x, f"{layer}.{after}") if m.norms_sum else x
        return x

    def cut(self, x):
        """With --mtp-detach-heads, returns x without its history, so that no gradient flows through it."""
        return Var(x.value) if "mtp-detach-heads" in self.o else x

    def output(self, x, cut=lambda w: w):
        w, cap = self.w, self.o.float("final-logit-softcapping", math.inf)
        x = x / self.o.float("logits-scaling", math.sqrt(self.m.hidden) if self.m.scales_output else 1.0)
        if "use-mup" in self.o:
            chosen = self.o.float("mup-output-mult", 1)
            x = x * (chosen if chosen != 1 else 1 / self.m.wider)
        z = x @ cut(w.get("output_layer.weight", w["embedding.word_embeddings.weight"])).transpose(1, 0)
        z = z if "output_layer.bias" not in w else z + cut(w["output_layer.bias"])
        return z if cap == math.inf else tanh(z / cap) * cap

    def states(self):
        batch = self.batch
        x = self.embedded(batch.tokens, batch.positions)
        return self.stack(x, "decoder", self.m.layers, batch.positions, self.visible)

    def logits(self):
        return self.output(self.states())

    def state_ahead(self, x, k):
        """Returns the states that predict the token k + 1 positions ahead, given the states x that predict the token k
        positions ahead."""
        m, batch, name = self.m, self.batch, self.m.scope_ahead(k)
        token = self.embedded(batch.later(batch.tokens, k), batch.positions, site=f"{name}.embedding.dropout")
        x = self.cut(x) if k == 1 else x
        x = concatenate([self.norm(self.cut(token), f"{name}.enorm"), self.norm(x, f"{name}.hnorm")])
        x = self.linear(x, f"{name}.eh_proj")
        for layer in m.layers_ahead(k):
            x = self.layer(x, m.scope(layer), layer, batch.positions, self.visible)
        return self.norm(x, f"{name}.final_layernorm")

    def losses(self):
        """For each loss, returns the sum over the tokens of each sample that the mask counts. Sets `accepted` to the
        numbers of further tokens that are predicted correctly."""
        batch, x = self.batch, self.states()
        found, self.accepted = [nll(self.output(x), batch.labels, batch.mask)], []
        for k in range(1, self.m.ahead + 1):
            x = self.state_ahead(x, k)
            z, labels, mask = self.output(x, self.cut), batch.later(batch.labels, k), batch.later(batch.mask, k)
            found.append(nll(z, labels, mask))
            self.accepted.append((mask * (z.value.argmax(-1) == labels)).sum())
        return found


def nll(z, labels, weights):
    """Returns the weighted sum of the cross-entropies of each sample, given the logits z [b, s, classes]."""
    b, s = np.indices(labels.shape)
    return ((logsumexp(z) - z[b, s, labels].reshape(*b.shape, 1)) * weights[:, :, None]).sum((1, 2))


def router_losses(o):
    """Returns (name, coefficient) of each enabled router loss."""
    coefficients = [float(x) for x in o.list("moe-aux-loss-coeff")]
    found = [(kind, c) for kind, c in zip(o.list("moe-router-load-balancing-type", ["aux_loss"]), coefficients) if c]
    z = o.float("moe-z-loss-coeff", 0.0)
    return found + ([("z_loss", z)] if z else [])


def sinkhorn_shares(logits):
    """Returns exp(logits), with rows and columns scaled alternately until all row sums and all column sums are equal
    (Sinkhorn)."""
    cost, tolerance, epsilon = np.exp(logits), 1e-4, 1e-8
    t, n = cost.shape
    d1 = np.ones(n)
    while True:
        d0 = 1 / (t * ((cost * d1).sum(1) + epsilon))
        before, d1 = d1, 1 / (n * ((cost * d0[:, None]).sum(0) + epsilon))
        if np.abs(d1 - before).mean() <= tolerance:
            return d1 * cost * d0[:, None]
