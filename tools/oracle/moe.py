"""Support for MoE models in golden.py: Hugging Face's file layout, and features of Megatron-LM that transformers lacks
(router losses: megatron/core/transformer/moe/moe_utils.py; balancing biases: finalize_model_grads.py)."""

import torch

ROUTER_STD = 0.5  # of the initial weights, for clear choices
CLEAR = 1e-6  # if scores were closer than this, rounding could change the choice
# the ends of the names of routers
ROUTERS = ("mlp.gate", "mlp.router", "feed_forward.router", "mixer.gate", "moe.router")
EXPERT_NAMES = (".mlp.", "gate_proj", "up_proj", "down_proj")


def is_vector(name, p):
    """Returns whether a tensor contains the biases of packed experts. They form a matrix, but have no weight decay."""
    return p.dim() < 2 or name.endswith("_proj_bias")


def buffers(model):
    """Returns the buffers that files contain: balancing biases, and the constants of xIELU."""
    kept = "e_score_correction_bias", "act_fn.beta", "act_fn.eps"
    return {n: b for n, b in model.named_buffers() if n.endswith(kept)}


def on_disk(family, tensors):
    """Returns the tensors with the names and shapes that save_pretrained writes. Each expert has separate tensors,
    unless the family packs them."""
    if getattr(family, "packed", False):
        return tensors
    if hasattr(family, "on_disk"):
        return family.on_disk(tensors)
    block, gate, up, down = getattr(family, "expert_names", EXPERT_NAMES)
    result, names = {}, getattr(family, "file_names", {})
    for name, x in tensors.items():
        name = names.get(name, name)
        layer, _, which = name.rpartition(".mlp.experts.")
        if not layer:
            result[name.replace(".mlp.", block) if ".mlp." in name else name] = x
            continue
        for e, w in enumerate(x):
            halves = dict(zip((gate, up), w.chunk(2))) if which == "gate_up_proj" else {down: w}
            for part, y in halves.items():
                result[f"{layer}{block}experts.{e}.{part}.weight"] = y.contiguous()
    return result


class Routers:
    """Records the losses of a model's routers, the number of tokens of each expert, and the margin of the choices."""

    def __init__(self, model, o):
        self.o, self.margin, self.seen = o, float("inf"), []
        self.sigmoid = o.get("moe-router-score-function") == "sigmoid"
        self.modules = [m for n, m in model.named_modules() if n.endswith(ROUTERS) and hasattr(m, "top_k")]
        for m in self.modules:
            m.register_forward_hook(lambda m, args, out: self.seen.append((m, out[0], out[2]) if len(out) > 2 else (
                m, out[1], out[1].topk(m.top_k).indices)))

    def losses(self, b, s):
        """Returns the losses of the last pass, which had [b, s] tokens, and checks its choices."""
        o, total = self.o, 0.0
        for m, logits, chosen in self.seen:
            self.look(m, logits.detach())
            logits = logits.view(b, s, -1)
            total = total + o.get("moe-z-loss-coeff", 0) * logits.logsumexp(-1).square().mean()
            if o.get("moe-router-load-balancing-type") == "seq_aux_loss":
                experts, k, p = o["num-experts"], o["moe-router-topk"], logits.softmax(-1)
                tokens = torch.zeros_like(p).scatter(-1, p.topk(k, dim=-1).indices, 1).sum(1)
                total = total + o["moe-aux-loss-coeff"] * (experts / (k * s * s) * (tokens * p.sum(1)).sum(-1)).mean()
        return total

    def look(self, m, logits):
        def clear(scores, k):
            best = scores.sort(dim=-1, descending=True).values
            self.margin = min(self.margin, (best[..., k - 1] - best[..., k]).min().item())
        k = self.o["moe-router-topk"]
        scores = logits.sigmoid() + getattr(m, "e_score_correction_bias", 0) if self.sigmoid else logits
        groups = self.o.get("moe-router-num-groups")
        if groups:
            each, keep = scores.unflatten(-1, (groups, -1)), self.o["moe-router-group-topk"]
            totals = each.topk(self.o.get("moe-router-group-score-topk", k // keep), dim=-1).values.sum(-1)
            clear(totals, keep)
            lost = torch.ones_like(totals).scatter(-1, totals.topk(keep, dim=-1).indices, 0).bool()
            scores = each.masked_fill(lost[..., None], -torch.inf).flatten(-2)
        clear(scores, k)
        if self.margin < CLEAR:
            raise SystemExit(f"a choice of experts hangs on {self.margin:.1e}: take another seed")

    def update_biases(self):
        """After a step, updates the biases in favour of experts with fewer tokens than the mean."""
        for m, logits, chosen in self.seen:
            if self.o.get("moe-router-enable-expert-bias"):
                tokens = torch.bincount(chosen.flatten(), minlength=logits.shape[-1]).to(logits.dtype)
                m.e_score_correction_bias += self.o["moe-router-bias-update-rate"] * torch.sign(tokens.mean() - tokens)
        self.seen.clear()
