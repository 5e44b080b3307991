"""Support for attention sinks in golden.py: uses the attention of transformers' gpt-oss in models of other families."""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

AttentionInterface.register("sinks", eager_attention_forward)
AttentionMaskInterface.register("sinks", eager_mask)


def implementation(o):
    return "eager" if o.get("softmax-type", "vanilla") == "vanilla" else "sinks"


def add(model, o):
    """Adds sinks to each layer, as parameters or zeros, under their name in gpt-oss."""
    if o.get("softmax-type", "vanilla") == "vanilla":
        return
    for layer in model.model.layers:
        zeros = torch.zeros(o["num-attention-heads"], dtype=torch.float64)
        if o["softmax-type"] == "learnable":
            layer.self_attn.sinks = torch.nn.Parameter(zeros)
        else:
            layer.self_attn.register_buffer("sinks", zeros, persistent=False)
