"""Support for encoders in golden.py: batches of masked sentence pairs, BERT's two losses, and the batches and losses of
fine-tuning tasks."""
import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.bert.modeling_bert import eager_attention_forward
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

MASK = 3  # the id that replaces a masked token


def rotated(module, q, k, *args, **kwargs):
    """Attention with RoPE, which transformers' BERT lacks."""
    dim = q.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    angles = (torch.arange(q.shape[2])[:, None] * frequencies).repeat(1, 2)[None]
    return eager_attention_forward(module, *apply_rotary_pos_emb(q, k, angles.cos(), angles.sin()), *args, **kwargs)


AttentionInterface.register("rotated", rotated)
AttentionMaskInterface.register("rotated", eager_mask)


class Nothing(torch.nn.Module):
    """Replaces an embedding that the model must not have with one whose rows are zero."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden

    def forward(self, ids):
        return torch.zeros(*ids.shape, self.hidden)


def implementation(o):
    return "rotated" if o.get("position-embedding-type") == "rope" else "eager"


def adapt(model, o):
    embeddings = model.base_model.embeddings
    if o.get("position-embedding-type") == "rope":
        embeddings.position_embeddings = Nothing(o["hidden-size"])
    if o.get("bert-no-binary-head") and "num-token-types" not in o:
        embeddings.token_type_embeddings = Nothing(o["hidden-size"])
    if "activation" not in o and not o.get("task"):  # Megatron-LM's head has the erf form, and its MLP the tanh form
        model.cls.predictions.transform.transform_act_fn = torch.nn.GELU()


def clear_padding(model):
    """Sets the rows of positions up to the position of padding to zero, because no other token uses these rows."""
    positions = model.base_model.embeddings.position_embeddings
    if getattr(positions, "padding_idx", None) is not None:
        with torch.no_grad():
            positions.weight[:positions.padding_idx + 1] = 0


def make_batches(o, rng, pad):
    """Returns tokens that depend on the previous tokens. All samples except one end with padding (the token `pad`)."""
    steps, batch, seq, vocab = o["train-iters"], o["global-batch-size"], o["seq-length"], o["vocab-size"]
    successors, shape = rng.integers(MASK + 1, vocab, (vocab, 3)), (steps, batch, seq)
    labels = rng.integers(MASK + 1, vocab, shape)
    for s in range(1, seq):
        likely = successors[labels[..., s - 1], rng.choice(3, (steps, batch), p=[0.6, 0.3, 0.1])]
        labels[..., s] = np.where(rng.random((steps, batch)) < 0.9, likely, labels[..., s])
    lengths = rng.integers(seq // 3, seq + 1, (steps, batch, 1))
    lengths[:, 0] = seq
    there = np.arange(seq) < lengths
    masked = there & (rng.random(shape) < 0.3)
    masked[..., 1] = True  # each sample has at least one masked token
    types = there & (np.arange(seq) >= lengths * rng.uniform(0.3, 0.7, lengths.shape)) & (o.get("num-token-types") != 1)
    tokens = np.where(masked, np.where(rng.random(shape) < 0.8, MASK, rng.integers(MASK + 1, vocab, shape)), labels)
    arrays = {"tokens": np.where(there, tokens, pad),
              "labels": labels * masked, "types": types, "padding_mask": there,
              "is_random": rng.integers(0, 2, (steps, batch))}
    return {n: torch.from_numpy(x.astype(np.int64))
            for n, x in arrays.items()} | {"loss_mask": torch.from_numpy(masked.astype(np.float32))}


def task_batches(o, rng):
    """Returns samples whose class mostly depends on their second token. A question has a sample for each choice, and
    its class is the index of the right choice."""
    choices = 4 if o["task"] == "RACE" else 1
    steps, questions, seq, vocab = o["train-iters"], o["global-batch-size"], o["seq-length"], o["vocab-size"]
    classes = choices if choices > 1 else len(o["class-labels"].split())
    shape = (steps, questions * choices, seq)
    lengths = rng.integers(seq // 3, seq + 1, (steps, questions * choices, 1))
    lengths[:, 0] = seq
    there = np.arange(seq) < lengths
    tokens = rng.integers(MASK + 1, vocab, shape)
    right = tokens[:, ::choices, 1] % classes
    arrays = {"tokens": tokens * there,
              "types": there & (np.arange(seq) >= lengths * rng.uniform(0.3, 0.7, lengths.shape)),
              "padding_mask": there, "classes": np.repeat(right, choices, axis=1)}
    return {n: torch.from_numpy(x.astype(np.int64)) for n, x in arrays.items()}


def task_losses(model, x):
    """Returns an empty tensor, because a task has no logits of tokens, and the loss."""
    inputs = {"input_ids": x["tokens"], "attention_mask": x["padding_mask"], "token_type_ids": x["types"]}
    choices = 4 if "MultipleChoice" in type(model).__name__ else 1
    if choices > 1:
        inputs = {n: v.unflatten(0, (-1, choices)) for n, v in inputs.items()}
    return torch.zeros(0), {"lm loss": torch.nn.functional.cross_entropy(model(**inputs).logits,
                                                                         x["classes"][::choices])}


def without_effect(model):
    """Returns the names of parameters whose gradient is zero up to rounding, such as the bias that all choices
    share."""
    return ["classifier.bias"] if "MultipleChoice" in type(model).__name__ else []


def losses(model, x):
    """Returns the logits, and the losses under Megatron-LM's names."""
    out = model(input_ids=x["tokens"], attention_mask=x["padding_mask"], token_type_ids=x["types"])
    logits = out.logits if hasattr(out, "logits") else out.prediction_logits
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), x["labels"], reduction="none")
    found = {"lm loss": (each * x["loss_mask"]).sum() / x["loss_mask"].sum()}
    if not hasattr(out, "logits"):
        found["sop loss"] = torch.nn.functional.cross_entropy(out.seq_relationship_logits, x["is_random"])
    return logits, found
