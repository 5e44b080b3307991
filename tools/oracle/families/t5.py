"""T5: Hugging Face's original and v1.1, and Megatron-LM's T5 with learned positions, LayerNorm and biases, which
transformers lacks.

`T5` is an independent implementation of all three variants that follows the papers. It is the oracle for Megatron-LM's
T5, and an independent check of the others."""
import math

import torch
import transformers
from torch.nn.functional import cross_entropy, gelu, layer_norm, relu, rms_norm

ORIGINAL = {"position-embedding-type": "relative", "normalization": "RMSNorm", "norm-epsilon": 1e-6,
            "disable-bias-linear": True, "softmax-scale": 1, "activation": "relu"}
V1_1 = ORIGINAL | {"activation": "geglu-tanh", "untie-embeddings-and-output-weights": True}


def shape(encoder, decoder, hidden, heads, ffn, encoder_seq, decoder_seq, vocab, kv=None, buckets=None, distance=None):
    o = {"model": "t5", "encoder-num-layers": encoder, "decoder-num-layers": decoder, "hidden-size": hidden,
         "num-attention-heads": heads, "ffn-hidden-size": ffn, "encoder-seq-length": encoder_seq,
         "decoder-seq-length": decoder_seq, "vocab-size": vocab, "make-vocab-size-divisible-by": 8,
         "norm-epsilon": 1e-5, "max-position-embeddings": max(encoder_seq, decoder_seq), "clip-grad": 1.0}
    more = {"kv-channels": kv, "relative-attention-num-buckets": buckets, "relative-attention-max-distance": distance}
    return o | {name: n for name, n in more.items() if n}


CASES = {
    # used by sweeps over layouts: sizes except the vocabulary are divisible by 2 and 4
    "t5-original": (shape(2, 2, 32, 4, 48, 16, 8, 61, kv=6, buckets=8,
                          distance=12) | ORIGINAL | {"micro-batch-size": 1}, {}),
    "t5-v1_1": (shape(3, 5, 24, 4, 40, 24, 16, 53, kv=8, buckets=10, distance=14) | V1_1 | {"micro-batch-size": 2,
                                                                                            "seed": 7}, {}),
    "t5-megatron": (shape(2, 4, 32, 4, 64, 16, 24, 61) | {"micro-batch-size": 1, "global-batch-size": 8,
                                                          "activation": "gelu-tanh",
                                                         "seed": 2}, {}),
    "t5-awkward": (shape(3, 2, 30, 3, 41, 37, 29, 59, kv=7, buckets=13, distance=9) | ORIGINAL | {
        "micro-batch-size": 1, "global-batch-size": 3, "clip-grad": 0.5, "seed": 11,
        "make-vocab-size-divisible-by": 128}, {"init": "float64"}),
}
LEAST_BUCKET_DISTANCE = 1e-6  # between a logarithm and an integer; otherwise, rounding could change the bucket


def is_hugging_face(o):
    return o.get("position-embedding-type") == "relative"


def buckets(o, queries, keys, bidirectional):
    """Returns the bucket for the distance of each pair of positions (Raffel et al. 2020; mesh_tensorflow)."""
    n, most = o.get("relative-attention-num-buckets", 32), o.get("relative-attention-max-distance", 128)
    found = torch.zeros(queries, keys, dtype=torch.int64)
    if bidirectional:
        n //= 2
    for q in range(queries):
        for k in range(keys):
            distance, first = (abs(k - q), n * (k > q)) if bidirectional else (max(q - k, 0), 0)
            exact = n // 2
            if distance >= exact:
                place = math.log(distance / exact) / math.log(most / exact) * (n - exact)
                if 0 < abs(place - round(place)) < LEAST_BUCKET_DISTANCE and place < n - exact:
                    raise SystemExit(f"the bucket of distance {distance} hangs on rounding: take other sizes")
                distance = min(exact + int(place), n - 1)
            found[q, k] = first + distance
    return found


class T5(torch.nn.Module):
    """An independent T5. Parameters have Hugging Face's names. Only Megatron-LM's T5 has `lm_head.bias` and
    `position_embeddings`."""

    def __init__(self, o):
        super().__init__()
        self.o, self.hugging_face = o, is_hugging_face(o)
        self.tied, self.gated = not o.get("untie-embeddings-and-output-weights"), o["activation"].startswith("geglu")
        hidden, inner, ffn = o["hidden-size"], self.heads() * self.width(), o["ffn-hidden-size"]
        self.add("shared", (o["vocab-size"], hidden))
        if not self.hugging_face:
            self.add("position_embeddings", (o["max-position-embeddings"], hidden))
        for stack in ("encoder", "decoder"):
            for i in range(o[f"{stack}-num-layers"]):
                at = f"{stack}.block.{i}.layer"
                blocks = ["SelfAttention"] + ["EncDecAttention"] * (stack == "decoder")
                for j, block in enumerate(blocks):
                    for part in "qkv":
                        self.linear(f"{at}.{j}.{block}.{part}", inner, hidden)
                    self.linear(f"{at}.{j}.{block}.o", hidden, inner)
                    self.norm(f"{at}.{j}.layer_norm")
                if i == 0 and self.hugging_face:
                    self.add(f"{at}.0.SelfAttention.relative_attention_bias",
                             (o.get("relative-attention-num-buckets", 32), self.heads()))
                for part in ("wi_0", "wi_1") if self.gated else ("wi",):
                    self.linear(f"{at}.{len(blocks)}.DenseReluDense.{part}", ffn, hidden)
                self.linear(f"{at}.{len(blocks)}.DenseReluDense.wo", hidden, ffn)
                self.norm(f"{at}.{len(blocks)}.layer_norm")
            self.norm(f"{stack}.final_layer_norm")
        if not self.tied:
            self.add("lm_head", (o["vocab-size"], hidden))
        elif not self.hugging_face:
            self.add("lm_head", (o["vocab-size"],), "bias")

    def heads(self):
        return self.o["num-attention-heads"]

    def width(self):
        return self.o.get("kv-channels", self.o["hidden-size"] // self.heads())

    def add(self, name, dims, kind="weight"):
        module = self
        for part in name.split("."):
            if part not in dict(module.named_children()):
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(kind, torch.nn.Parameter(torch.zeros(dims, dtype=torch.float64)))

    def linear(self, name, rows, columns):
        self.add(name, (rows, columns))
        if not self.o.get("disable-bias-linear"):
            self.add(name, (rows,), "bias")

    def norm(self, name):
        self.add(name, (self.o["hidden-size"],))
        if self.o.get("normalization") != "RMSNorm":
            self.add(name, (self.o["hidden-size"],), "bias")

    def get(self, name):
        return dict(self.named_parameters()).get(name)

    def project(self, name, x):
        y = x @ self.get(f"{name}.weight").T
        return y if self.get(f"{name}.bias") is None else y + self.get(f"{name}.bias")

    def normed(self, name, x):
        w, b = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        return rms_norm(x, w.shape, w, self.o["norm-epsilon"]) if b is None else layer_norm(x, w.shape, w, b,
                                                                                            self.o["norm-epsilon"])

    def attend(self, name, x, source, scores):
        """scores [b or 1, heads, queries, keys] are added to the scaled products of queries and keys."""
        split = lambda y: y.unflatten(-1, (self.heads(), -1)).transpose(1, 2)
        q, k, v = (split(self.project(f"{name}.{part}", y)) for part, y in (("q", x), ("k", source), ("v", source)))
        scale = self.o.get("softmax-scale", self.width() ** -0.5)
        y = (scale * q @ k.transpose(2, 3) + scores).softmax(-1) @ v
        return self.project(f"{name}.o", y.transpose(1, 2).flatten(2))

    def feed_forward(self, name, x):
        if self.gated:
            return self.project(f"{name}.wo", gelu(self.project(f"{name}.wi_0", x),
                                                   approximate="tanh") * self.project(f"{name}.wi_1", x))
        act = relu if self.o["activation"] == "relu" else lambda y: gelu(y, approximate="tanh")
        return self.project(f"{name}.wo", act(self.project(f"{name}.wi", x)))

    def stack(self, name, ids, hidden_keys, encoded=None, hidden_encoded=None):
        """hidden_* are masks of 0 and -inf that are added to the scores."""
        x = self.get("shared.weight")[ids]
        if self.hugging_face:
            table = self.get(f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
            near = table[buckets(self.o, *2 * ids.shape[1:], bidirectional=encoded is None)].permute(2, 0, 1)[None]
        else:
            near, x = 0, x + self.get("position_embeddings.weight")[: ids.shape[1]]
        for i in range(self.o[f"{name}-num-layers"]):
            at = f"{name}.block.{i}.layer"
            y = self.normed(f"{at}.0.layer_norm", x)
            x = x + self.attend(f"{at}.0.SelfAttention", y, y, near + hidden_keys)
            if encoded is not None:
                x = x + self.attend(f"{at}.1.EncDecAttention", self.normed(f"{at}.1.layer_norm", x),
                                    encoded, hidden_encoded)
            j = 1 if encoded is None else 2
            x = x + self.feed_forward(f"{at}.{j}.DenseReluDense", self.normed(f"{at}.{j}.layer_norm", x))
        return self.normed(f"{name}.final_layer_norm", x)

    def forward(self, input_ids, attention_mask, decoder_input_ids):
        absent = torch.where(attention_mask.bool(), 0.0, -torch.inf)[:, None, None]
        future = torch.full(2 * decoder_input_ids.shape[1:], -torch.inf).triu(1)
        encoded = self.stack("encoder", input_ids, absent)
        x = self.stack("decoder", decoder_input_ids, future, encoded, absent)
        if not self.tied:
            return self.project("lm_head", x)
        y = x @ self.get("shared.weight").T
        return y * self.o["hidden-size"] ** -0.5 if self.hugging_face else y + self.get("lm_head.bias")


def model(o):
    if not is_hugging_face(o):
        return T5(o)
    gate = "gated-gelu" if o["activation"] == "geglu-tanh" else "relu"
    untied = o.get("untie-embeddings-and-output-weights", False)
    config = transformers.T5Config(
        vocab_size=o["vocab-size"], d_model=o["hidden-size"],
        d_kv=o.get("kv-channels", o["hidden-size"] // o["num-attention-heads"]),
        d_ff=o["ffn-hidden-size"], num_layers=o["encoder-num-layers"], num_decoder_layers=o["decoder-num-layers"],
        num_heads=o["num-attention-heads"], relative_attention_num_buckets=o.get("relative-attention-num-buckets", 32),
        relative_attention_max_distance=o.get("relative-attention-max-distance", 128), dropout_rate=0.0,
        layer_norm_epsilon=o["norm-epsilon"], feed_forward_proj=gate, tie_word_embeddings=not untied, use_cache=False)
    config._attn_implementation = "eager"
    found = transformers.T5ForConditionalGeneration(config).double().train()
    if untied:  # transformers 5 ties the weights regardless of this setting
        found.lm_head = torch.nn.Linear(o["hidden-size"], o["vocab-size"], bias=False, dtype=torch.float64)
    return found


def batches(o, rng, tokens):
    """tokens(positions) draws token ids. Padding is on the right. One sample has no padding, and another has only one
    token."""
    steps, batch, s, t = o["train-iters"], o["global-batch-size"], o["encoder-seq-length"], o["decoder-seq-length"]
    lengths, ends = rng.integers(1, s + 1, (steps, batch)), rng.integers(0, t + 1, (steps, batch))
    lengths[0, :2], ends[0, :2], ends[:, -1] = (s, 1), (t, 1), t
    return {"enc_tokens": torch.from_numpy(tokens(s)),
            "enc_mask": (torch.arange(s) < torch.from_numpy(lengths)[..., None]).long(),
            "dec_tokens": torch.from_numpy(tokens(t + 1)),
            "loss_mask": (torch.arange(t) < torch.from_numpy(ends)[..., None]).float()}


def losses(model, x):
    more = {} if isinstance(model, T5) else {"use_cache": False}
    y = model(input_ids=x["enc_tokens"], attention_mask=x["enc_mask"],
              decoder_input_ids=x["dec_tokens"][:, :-1], **more)
    y = y if isinstance(model, T5) else y.logits
    each = cross_entropy(y.transpose(1, 2), x["dec_tokens"][:, 1:], reduction="none")
    return y, {"lm loss": (each * x["loss_mask"]).sum() / x["loss_mask"].sum()}


def witness(o, init, x):
    """Computes the loss, gradients and logits of the first step with the independent T5."""
    found = T5(o)
    with torch.no_grad():
        for name, p in found.named_parameters():
            p.copy_(init.pop(name))
    if init:
        raise ValueError(f"the model has no {sorted(init)}")
    y, parts = losses(found, x)
    loss = parts["lm loss"]
    names, params = zip(*found.named_parameters())
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, params))), y.detach()


BASE = {"vocab_size": 7, "d_model": 16, "d_kv": 3, "d_ff": 24, "num_layers": 2, "num_heads": 4}
SPELLINGS = {
    "defaults": {}, "more decoder layers": {"num_decoder_layers": 3},
    "few buckets": {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 3},
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "v1.1 of transformers 5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True,
                               "scale_decoder_outputs": False},
    "gated-silu": {"feed_forward_proj": "gated-silu"}, "gelu": {"feed_forward_proj": "gelu"},
    "gelu_new": {"feed_forward_proj": "gelu_new"}, "epsilon": {"layer_norm_epsilon": 1e-3},
    "parts of the activation": {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "is_gated_act": True},
    "no gate": {"feed_forward_proj": "gated-gelu", "is_gated_act": False}, "null gate": {"is_gated_act": None},
    "!unknown part": {"dense_act_fn": "mish"},
    "null ties": {"tie_word_embeddings": None}, "gated-swish": {"feed_forward_proj": "gated-swish"},
    "gated-erf": {"feed_forward_proj": "gated-gelu_python"},
    "quick": {"feed_forward_proj": "quick_gelu"}, "!gated-relu": {"feed_forward_proj": "gated-relu"},
    "!decoder": {"is_decoder": True},
    "!scaled and untied": {"tie_word_embeddings": False, "scale_decoder_outputs": True},
}
