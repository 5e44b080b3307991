"""Support for layers that predict additional tokens (MTP) in golden.py. transformers omits these layers, so this module
builds them from the layers of its models (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2)."""
import torch
from torch.nn.functional import cross_entropy
from transformers.masking_utils import create_causal_mask


def layers(o):
    """Returns the options of a model that also has the layers for additional tokens after its other layers."""
    more = 1 if o.get("mtp-use-repeated-layer") else o.get("mtp-num-layers", 0)
    freq = o.get("moe-layer-freq")
    return o | {"num-layers": o["num-layers"] + more} | (
        {"moe-layer-freq": freq[:-1] + f",{freq[-2]}" * more + "]"} if freq and more else {})


def add(model, o):
    """Converts the last layers to layers that predict additional tokens, by adding norms and the projection."""
    h, last = o["hidden-size"], model.model.layers[o["num-layers"]:]
    model.config.num_hidden_layers = o["num-layers"]
    for layer in last:
        norm = lambda: type(model.model.norm)(h, o["norm-epsilon"]).double()
        layer.enorm, layer.hnorm = norm(), norm()
        layer.eh_proj = torch.nn.Linear(2 * h, h, bias=False, dtype=torch.float64)
        layer.shared_head = torch.nn.ModuleDict({"norm": norm()})


def ahead(x, k):
    """Returns the elements k positions later, followed by zeros."""
    return torch.cat([x[:, k:], torch.zeros_like(x[:, :k])], dim=1)


def losses(o):
    """Returns a function like golden.losses that also returns the losses of additional tokens, without their factor."""
    def of(model, x):
        decoder, tokens, labels, mask = model.model, x["tokens"][:, :-1], x["tokens"][:, 1:], x["loss_mask"]
        place = torch.arange(tokens.shape[1])[None]
        state = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        visible = create_causal_mask(config=model.config, inputs_embeds=state, attention_mask=None, cache=None,
                                     position_ids=place)
        logits = model.lm_head(state)

        def mean(z, k):
            each = cross_entropy(z.transpose(1, 2), ahead(labels, k), reduction="none")
            return (each * ahead(mask, k)).sum() / ahead(mask, k).sum()
        found = {"lm loss": mean(logits, 0)}
        for k in range(1, o["mtp-num-layers"] + 1):
            layer = decoder.layers[o["num-layers"] + (0 if o.get("mtp-use-repeated-layer") else k - 1)]
            token = layer.enorm(decoder.embed_tokens(ahead(tokens, k)))
            state = layer.eh_proj(torch.cat([token, layer.hnorm(state)], dim=-1))
            state = layer(state, attention_mask=visible, position_ids=place,
                          position_embeddings=decoder.rotary_emb(state, place))
            state = layer.shared_head["norm"](state)
            found[f"mtp_{k}_loss"] = mean(model.lm_head(state), k)
        return logits, found
    return of


def factor(o):
    """Returns the factor of each loss of additional tokens in the gradient."""
    return o.get("mtp-loss-scaling-factor", 0.1) / o["mtp-num-layers"]


def copies(saved):
    """Returns the copies of the embedding and the output layer that files contain for each layer of multi-token
    prediction."""
    layers = [name.removesuffix("enorm.weight") for name in saved if name.endswith(".enorm.weight")]
    words = saved.get("model.embed_tokens.weight")  # a model without these layers may use another name
    output = saved.get("lm_head.weight", words)
    return {layer + name: x.clone() for layer in layers
            for name, x in {"embed_tokens.weight": words, "shared_head.head.weight": output}.items()}
