"""AdamW for bf16 parameters with fp32 masters and bf16 moments, because torch's fused AdamW cannot mix types. The
update is that of torch (Loshchilov & Hutter) times the clip factor, compiled for each shape into one pass over memory.
Gradients of microbatches are summed in fp32 after each parameter's backward, or in bf16 by autograd.
If this file is run as a program, it compares the compiled and the plain update with torch.optim.AdamW. The exit status
is 77 if torch is missing."""
import sys

try:
    import torch
except ImportError:
    print("skipped: this python has no torch")
    sys.exit(77)


def update(weight, master, grad, first, second, scale, correction1, correction2, lr, betas, eps, decay):
    """Updates the fp32 master, its bf16 copy `weight` and the moments in place. scale and corrections are 0-dim
    tensors."""
    g = grad.float() * scale
    m = torch.lerp(first.float(), g, 1 - betas[0])
    v = second.float() * betas[1] + g * g * (1 - betas[1])
    p = master * (1 - lr * decay) - lr * (m / correction1) / ((v / correction2).sqrt() + eps)
    for kept, now in ((master, p), (weight, p), (first, m), (second, v)):
        kept.copy_(now)


class AdamW:
    """`groups` contains (parameters, weight decay) pairs. Gradients are in p.grad or, with sums_in_fp32, in
    self.sum."""

    def __init__(self, groups, lr, betas, eps, sums_in_fp32, moments=torch.bfloat16, compiled=True):
        self.lr, self.betas, self.eps, self.number = lr, betas, eps, 0
        self.decay = {p: decay for params, decay in groups for p in params}
        self.params = list(self.decay)
        self.master = {p: p.detach().to(torch.float32, copy=True) for p in self.params}
        self.first = {p: torch.zeros_like(p, dtype=moments, requires_grad=False) for p in self.params}
        self.second = {p: torch.zeros_like(p, dtype=moments, requires_grad=False) for p in self.params}
        self.sum = {p: torch.zeros_like(p, dtype=torch.float32, requires_grad=False)
                    for p in self.params} if sums_in_fp32 else None
        self.begins = True
        torch._dynamo.config.recompile_limit = 64  # one kernel for each shape
        self.update = torch.compile(update, dynamic=False) if compiled else update
        for p in self.params if sums_in_fp32 else []:
            p.register_post_accumulate_grad_hook(self.collect)

    def collect(self, p):
        """Adds a microbatch's gradient to the sum immediately, so that bf16 gradients exist for only one layer at a
        time."""
        (self.sum[p].copy_ if self.begins else self.sum[p].add_)(p.grad)
        p.grad = None

    def next_microbatch(self):
        self.begins = False

    def grad(self, p):
        return self.sum[p] if self.sum else p.grad

    @torch.no_grad()
    def step(self, largest_norm):
        self.number += 1
        norms = torch._foreach_norm([self.grad(p) for p in self.params], 2, dtype=torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(norms))
        tensor = lambda x: torch.full_like(norm, x)
        factors = (torch.clamp(largest_norm / (norm + 1e-6), max=1.0),
                   *(tensor(1 - b ** self.number) for b in self.betas))
        for p in self.params:
            operands = (p, self.master[p], self.grad(p), self.first[p], self.second[p])
            self.update(*(x.detach().view(-1) for x in operands), *factors, self.lr, self.betas,
                        self.eps, self.decay[p])
        self.begins = True
        for p in self.params:
            p.grad = None
        return norm


# ---- check ----

def trained(make, steps, microbatches):
    """Returns the parameters after `steps` steps of `microbatches` microbatches each, with random gradients."""
    draw = torch.Generator().manual_seed(1)
    noise = lambda *shape: torch.randn(*shape, generator=draw)
    params = [torch.nn.Parameter(noise(*shape)) for shape in ((1100, 1000), (64, 3), (64,), (1, 5))]
    optimizer = make(params)
    for i in range(steps):
        for k in range(microbatches):
            sum((p * noise(*p.shape) * (i + 1)).sum() for p in params).backward()
            if hasattr(optimizer, "next_microbatch"):
                optimizer.next_microbatch()
        if hasattr(optimizer, "next_microbatch"):
            optimizer.step(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return params


def check():
    """Compares both updates. The bound for fp32: an update is at most 2 lr, and each of its few roundings is at most
    half a unit in the last place. The bound for bf16 moments: an update is at most 10 lr, and its relative error is
    that of the moments, 2^-8 from m and half of that from the root of v."""
    steps, lr, betas = 4, 1e-2, (0.9, 0.95)
    for sums in (True, False):
        torch_groups = lambda p: [{"params": [x for x in p if x.dim() > 1], "weight_decay": 0.1},
                                  {"params": [x for x in p if x.dim() == 1], "weight_decay": 0.0}]
        want = trained(lambda p: torch.optim.AdamW(torch_groups(p), lr=lr, betas=betas, eps=1e-8), steps, 2)
        for compiled in (False, True):
            for moments, bound in ((torch.float32, 2e-6), (torch.bfloat16, steps * 10 * lr * 1.5 * 2**-8)):
                groups = lambda p: [(g["params"], g["weight_decay"]) for g in torch_groups(p)]
                got = trained(lambda p: AdamW(groups(p), lr, betas, 1e-8, sums, moments, compiled), steps, 2)
                worst = max((a - b).abs().max().item() for a, b in zip(got, want))
                assert worst < bound, (sums, compiled, moments, worst, bound)
    bf16 = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]
    optimizer = AdamW([(bf16, 0.0)], 1e-3, betas, 1e-8, True, compiled=False)
    for _ in range(8): # each step is smaller than a bf16 ulp of the parameter, so only the masters change
        bf16[0].sum().backward()
        optimizer.step(1e9)
    assert abs(optimizer.master[bf16[0]][0].item() - (1 - 8e-3)) < 1e-4 and bf16[0][0].item() == 0.9921875, bf16
    print("peer_adamw: the update is AdamW's")


if __name__ == "__main__":
    check()
