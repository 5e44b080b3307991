"""The forward passes of BERT and T5 for the options, in float64. Layers are those of decoder.py, but queries see all
keys of a sample.

BERT: Devlin et al., 2018, and Megatron-LM core/models/bert. T5: Raffel et al., 2020, and Megatron-LM core/models/T5."""
import math

import numpy as np

from decoder import Pass, Tensors, nll
from gradients import tanh


def has_pairs(o):
    return "bert-no-binary-head" not in o


def stack_tensors(m):
    """Returns the parameters of a BERT without its heads."""
    o, h, out = m.o, m.hidden, Tensors(m)
    types = o.int("num-token-types", 2 if has_pairs(o) else 0)
    out.embeddings()
    if types:
        out["embedding.tokentype_embeddings.weight"] = (types, h), out.embedding
    out.stack("encoder", m.layers)
    return out


def bert_tensors(m):
    o, h, out = m.o, m.hidden, stack_tensors(m)
    out.linear("lm_head.dense", h, h, out.std, True)
    out.norm("lm_head.layer_norm", h)
    out.output()
    out["output_layer.bias"] = (o.int("vocab-size"),), (0.0,)
    if has_pairs(o):
        out.linear("pooler.dense", h, h, out.std, True)
        out.linear("binary_head", 2, h, out.std, True)
    return out


def t5_tensors(m):
    o, out = m.o, Tensors(m)
    out.embeddings()
    for name, layers in ("encoder", m.layers), ("decoder", m.depth):
        if m.position == "relative":
            buckets = o.int("relative-attention-num-buckets", 32)
            out[f"{name}_relative_pos_emb.relative_attention_bias.weight"] = (buckets, m.heads), out.std
        out.stack(name, layers, name == "decoder")
    out.output()
    if m.tied and not m.scales_output:
        out["output_layer.bias"] = (o.int("vocab-size"),), (0.0,)
    return out


def within(lengths, keys):
    """[b, 1, 1, key]"""
    return (np.arange(keys) < lengths[:, None])[:, None, None]


def places(tokens):
    return np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)


class Bert(Pass):
    def hidden(self):
        tokens, types = self.batch.tokens, self.batch.types
        positions, (b, s) = places(tokens), tokens.shape
        seen = np.broadcast_to(within(self.batch.lengths, s), (b, 1, s, s))
        x = self.embedded(tokens, positions, types * (self.o.int("num-token-types", 2) > 1))
        return self.stack(x, "encoder", self.m.layers, positions, lambda layer: seen)

    def losses(self):
        """Returns the loss of the masked tokens, and the loss of the next-sentence task."""
        m, batch, x = self.m, self.batch, self.hidden()
        curve = "gelu-erf" if m.gated or m.named in ("gelu", "xielu") else m.named
        y = self.norm(self.curve(self.linear(x, "lm_head.dense"), curve), "lm_head.layer_norm")
        found = [nll(self.output(y), batch.labels, batch.mask)]
        if "binary_head.weight" in self.w:
            pooled = tanh(self.linear(x[:, :1], "pooler.dense"))
            found.append(nll(self.linear(pooled, "binary_head"), batch.swapped[:, None], np.ones((len(x.value), 1))))
        return found


class T5(Pass):
    def losses(self):
        m, batch = self.m, self.batch
        outer, inner = places(batch.encoder_tokens), places(batch.tokens)
        t, s = outer.shape[1], inner.shape[1]
        known = within(batch.encoder_lengths, t)
        x = self.embedded(batch.encoder_tokens, outer)
        encoded = self.stack(x, "encoder", m.layers, outer, lambda layer: known, self.bias("encoder", t, True))

        def across(y, name):
            b = len(inner)
            split = lambda x: x.reshape(b, -1, m.heads, m.head)
            kv = self.linear(encoded, f"{name}.linear_kv").reshape(b, t, m.heads, 2, m.head)
            return self.attended(name, split(self.linear(y, f"{name}.linear_q")), kv[:, :, :, 0], kv[:, :, :, 1], known)
        causal = np.tril(np.ones((s, s), bool))[None, None]
        x = self.embedded(batch.tokens, inner, site="decoder.embedding.dropout")
        x = self.stack(x, "decoder", m.depth, inner, lambda layer: causal, self.bias("decoder", s, False), across)
        return [nll(self.output(x), batch.labels, batch.mask)]

    def bias(self, stack, length, both):
        """Returns the relative bias [1, heads, query, key] of each head, looked up by the bucket of the distance."""
        if self.m.position != "relative":
            return None
        o, place = self.o, np.arange(length)
        n, most = o.int("relative-attention-num-buckets", 32), o.int("relative-attention-max-distance", 128)
        back = place[:, None] - place
        first = (back < 0) * (n // 2) if both else 0
        n = n // 2 if both else n
        distance = np.abs(back) if both else np.maximum(back, 0)
        near = n // 2
        far = np.log(np.maximum(distance, near) / near) / math.log(most / near) * (n - near)
        bucket = first + np.where(distance < near, distance, np.minimum(near + far.astype(int), n - 1))
        return self.w[f"{stack}_relative_pos_emb.relative_attention_bias.weight"][bucket].transpose(2, 0, 1).reshape(1, self.m.heads, length, length)
