"""Makes golden cases: what PyTorch and Hugging Face transformers compute in float64 for 20 training steps.

    python3 tools/oracle/golden.py [--out golden] [--set key=value ...] [case ...]

Without a case all are made. --set overrides an option of run.conf, to make cases of other shapes. The optimizer step and
the learning-rate schedule follow Megatron-LM (per-token loss; see `train`). A case must pass witness.py.
"""

import argparse
import copy
import datetime
import hashlib
import json
import math
import platform
import tempfile
from pathlib import Path

import called
import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers

import moe
import sinks
import witness
from float64 import Float64

LLAMA = {"position-embedding-type": "rope", "normalization": "RMSNorm", "swiglu": True, "disable-bias-linear": True}
LLAMA3_CONTEXT = 8192  # Megatron-LM fixes it, and the factors 1 and 4
UNTIED = {"untie-embeddings-and-output-weights": True}

TRAINING = {
    "lr": 1e-2, "min-lr": 1e-3, "lr-decay-style": "cosine", "lr-warmup-iters": 3, "lr-decay-iters": 18,
    "weight-decay": 0.1, "adam-beta1": 0.9, "adam-beta2": 0.95, "adam-eps": 1e-8, "clip-grad": 1.75,
    "micro-batch-size": 2, "global-batch-size": 4, "train-iters": 20, "hidden-dropout": 0, "attention-dropout": 0,
    "calculate-per-token-loss": True, "seed": 1234,
}


def shape(layers, hidden, heads, ffn, seq, vocab, groups=None, kv_channels=None):
    o = {"num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads, "seq-length": seq,
         "max-position-embeddings": seq, "vocab-size": vocab, "make-vocab-size-divisible-by": 8, "norm-epsilon": 1e-5}
    if ffn:
        o["ffn-hidden-size"] = ffn
    if groups:
        o |= {"group-query-attention": True, "num-query-groups": groups}
    if kv_channels:
        o["kv-channels"] = kv_channels
    return o


# name: (Hugging Face family, Megatron-LM options, {init: dtype of the initial weights, mask: whether to make a loss_mask})
CASES = {
    "gpt2-tiny": ("gpt2", shape(2, 16, 2, None, 16, 64) | {
        "micro-batch-size": 4, "clip-grad": 1.0}, {"init": "float64"}),
    "gpt2-awkward": ("gpt2", shape(5, 30, 3, 41, 37, 131) | {
        "max-position-embeddings": 40, "make-vocab-size-divisible-by": 128, "micro-batch-size": 1, "global-batch-size": 3,
        "adam-beta2": 0.999, "clip-grad": 0.5, "seed": 7}, {"mask": True}),
    "llama-gqa": ("llama", shape(2, 36, 6, 40, 19, 61, groups=2) | LLAMA | UNTIED, {}),
    "llama3-rope-scaled": ("llama", shape(2, 32, 2, 44, 23, 67, groups=1) | LLAMA | {
        "rotary-base": 500000, "use-rope-scaling": True, "rope-scaling-factor": 4.0, "micro-batch-size": 1,
        "clip-grad": 0.25, "seed": 3}, {"mask": True}),
    "qwen2-like": ("qwen2", shape(3, 24, 4, 40, 17, 70, groups=2) | LLAMA | {
        "add-qkv-bias": True, "rotary-base": 1000000, "norm-epsilon": 1e-6}, {}),
    "qwen3-like": ("qwen3", shape(2, 28, 4, 36, 21, 59, groups=2, kv_channels=10) | LLAMA | UNTIED | {
        "qk-layernorm": True, "rotary-base": 1000000, "norm-epsilon": 1e-6, "micro-batch-size": 1, "global-batch-size": 5},
        {"init": "float64"}),
    "mistral-like": ("mistral", shape(2, 32, 4, 40, 33, 53, groups=2) | LLAMA | UNTIED | {
        "window-size": "6,0", "clip-grad": 0.3}, {}),
    "llama-bias-tied": ("llama", shape(2, 30, 3, 37, 18, 57) | LLAMA | {
        "disable-bias-linear": False, "lr-warmup-iters": 0, "lr-decay-iters": 20, "clip-grad": 1.0}, {}),
    "stablelm-partial-rotary": ("stablelm", shape(2, 32, 2, 36, 20, 63) | LLAMA | UNTIED | {
        "normalization": "LayerNorm", "rotary-percent": 0.25}, {}),
    "nemotron-1p": ("nemotron", shape(2, 36, 3, 50, 22, 55, groups=1) | LLAMA | UNTIED | {
        "normalization": "LayerNorm", "swiglu": False, "squared-relu": True, "apply-layernorm-1p": True,
        "rotary-percent": 0.5}, {}),
    "mistral-sinks": ("mistral", shape(4, 32, 8, 48, 16, 61, groups=2) | LLAMA | UNTIED | {
        "window-size": "5,0", "softmax-type": "learnable", "micro-batch-size": 1, "global-batch-size": 8, "seed": 5}, {}),
    # for sweeps over layouts: sizes that 2, 4 and 8 divide, but not the vocabulary
    "llama-layouts": ("llama", shape(4, 32, 8, 48, 16, 61, groups=2) | LLAMA | {
        "micro-batch-size": 1, "global-batch-size": 8}, {}),
    "gpt2-layouts": ("gpt2", shape(4, 32, 4, 48, 16, 61) | {
        "micro-batch-size": 1, "global-batch-size": 8, "clip-grad": 1.0}, {"mask": True}),
    "qwen2-deep": ("qwen2", shape(8, 32, 8, 48, 32, 67, groups=4) | LLAMA | UNTIED | {
        "add-qkv-bias": True, "micro-batch-size": 1, "global-batch-size": 8, "norm-epsilon": 1e-6}, {}),
    "mixtral-layouts": ("mixtral", shape(4, 32, 4, 24, 16, 61, groups=2) | LLAMA | UNTIED | {
        "num-experts": 8, "moe-router-topk": 2, "moe-router-load-balancing-type": "seq_aux_loss", "moe-aux-loss-coeff": 0.05,
        "moe-z-loss-coeff": 0.02, "micro-batch-size": 1, "global-batch-size": 8, "seed": 11}, {}),
    "mixtral-like": ("mixtral", shape(2, 24, 4, 20, 13, 47, groups=2) | LLAMA | UNTIED | {
        "num-experts": 8, "moe-router-topk": 2, "moe-router-load-balancing-type": "seq_aux_loss", "moe-aux-loss-coeff": 0.05,
        "moe-z-loss-coeff": 0.02, "clip-grad": 2.5}, {}),
    "mixtral-masked": ("mixtral", shape(2, 16, 2, 12, 11, 41, groups=1) | LLAMA | UNTIED | {
        "num-experts": 5, "moe-router-topk": 2, "moe-router-load-balancing-type": "seq_aux_loss", "moe-aux-loss-coeff": 0.1,
        "moe-z-loss-coeff": 0.04, "micro-batch-size": 1}, {"mask": True}),
    "qwen2-moe-like": ("qwen2_moe", shape(3, 24, 4, 36, 11, 43, groups=2) | LLAMA | {
        "add-qkv-bias": True, "norm-epsilon": 1e-6, "num-experts": 6, "moe-router-topk": 3, "moe-router-pre-softmax": True,
        "moe-layer-freq": "[0,1,1]", "moe-ffn-hidden-size": 10, "moe-shared-expert-intermediate-size": 14,
        "moe-shared-expert-gate": True, "micro-batch-size": 1, "global-batch-size": 3}, {"mask": True}),
    "qwen3-moe-windows": ("qwen3_moe", shape(3, 24, 6, 32, 14, 41, groups=3, kv_channels=4) | LLAMA | {
        "qk-layernorm": True, "norm-epsilon": 1e-6, "num-experts": 4, "moe-router-topk": 2, "moe-layer-freq": "[1,0,1]",
        "moe-ffn-hidden-size": 8, "window-size": "4,0", "micro-batch-size": 1, "global-batch-size": 3}, {}),
    "glm4-moe-like": ("glm4_moe", shape(2, 32, 4, 40, 14, 51, groups=2) | LLAMA | UNTIED | {
        "rotary-percent": 0.5, "add-qkv-bias": True, "qk-layernorm": True, "num-experts": 12, "moe-router-topk": 4,
        "moe-router-score-function": "sigmoid", "moe-router-num-groups": 4, "moe-router-group-topk": 2,
        "moe-router-topk-scaling-factor": 1.5, "moe-router-enable-expert-bias": True, "moe-router-bias-update-rate": 0.01,
        "moe-layer-freq": "[0,1]", "moe-ffn-hidden-size": 12, "moe-shared-expert-intermediate-size": 24}, {}),
}


def hf_config(family, o):
    hidden, heads, eps = o["hidden-size"], o["num-attention-heads"], o["norm-epsilon"]
    tied = not o.get("untie-embeddings-and-output-weights", False)
    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=o["vocab-size"], n_positions=o["max-position-embeddings"], n_embd=hidden, n_layer=o["num-layers"],
            n_head=heads, n_inner=o.get("ffn-hidden-size"), activation_function="gelu_new", layer_norm_epsilon=eps,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None)
    rope = {"rope_type": "default", "rope_theta": float(o.get("rotary-base", 10000)),
            "partial_rotary_factor": o.get("rotary-percent", 1.0)}
    if o.get("use-rope-scaling"):
        rope |= {"rope_type": "llama3", "factor": o["rope-scaling-factor"], "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": LLAMA3_CONTEXT}
    bias = not o["disable-bias-linear"]
    eps_name = {"stablelm": "layer_norm_eps", "nemotron": "norm_eps"}.get(family, "rms_norm_eps")
    extra = {"attention_bias": bias, "mlp_bias": bias} if family in ("llama", "nemotron") else moe.hf_options(family, o)
    if family == "mistral":  # Hugging Face counts the token itself, Megatron-LM the tokens before it
        extra["sliding_window"] = int(o["window-size"].split(",")[0]) + 1
    if family == "qwen3_moe":  # of every layer
        extra |= {"use_sliding_window": True, "sliding_window": int(o["window-size"].split(",")[0]) + 1}
    return transformers.AutoConfig.for_model(
        family, vocab_size=o["vocab-size"], hidden_size=hidden, intermediate_size=o["ffn-hidden-size"],
        num_hidden_layers=o["num-layers"], num_attention_heads=heads,
        num_key_value_heads=o["num-query-groups"] if o.get("group-query-attention") else heads,
        head_dim=o.get("kv-channels", hidden // heads), max_position_embeddings=2 * LLAMA3_CONTEXT,  # no table depends on it
        tie_word_embeddings=tied, rope_parameters=rope, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        **{eps_name: eps}, **extra)


def initialise(model, rng, zero_centred, dtype):
    """Random weights; biases and norm gains at least 0.05 away from 0 and from 1, so that leaving one out shows."""
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *moe.biases(model).items()]:
            if p.dim() > 1:
                value = rng.normal(0, moe.ROUTER_STD if name.endswith("mlp.gate.weight") else 0.1, tuple(p.shape))
            else:
                value = rng.uniform(0.05, 0.3, tuple(p.shape)) * rng.choice([-1, 1], tuple(p.shape))
                if "norm" in name or ".ln_" in name:
                    value += 0 if zero_centred or name.endswith("bias") else 1
            p.copy_(torch.from_numpy(value.astype(dtype).astype("float64")))


def make_batches(o, rng, masked):
    """Tokens of a Markov chain with a few likely successors, so that there is something to learn."""
    steps, batch, seq, vocab = o["train-iters"], o["global-batch-size"], o["seq-length"], o["vocab-size"]
    successors = rng.integers(0, vocab, (vocab, 3))
    tokens = rng.integers(0, vocab, (steps, batch, seq + 1))
    for s in range(seq):
        likely = successors[tokens[..., s], rng.choice(3, (steps, batch), p=[0.6, 0.3, 0.1])]
        tokens[..., s + 1] = np.where(rng.random((steps, batch)) < 0.9, likely, tokens[..., s + 1])
    batches = {"tokens": torch.from_numpy(tokens)}
    if masked:
        mask = (rng.random((steps, batch, seq)) < rng.uniform(0.3, 1, (steps, batch, 1))).astype(np.float32)
        mask[1, 0] = 0  # a sample without a single counted token
        batches["loss_mask"] = torch.from_numpy(mask)
    return batches


def learning_rate(o, k):
    """Megatron-LM's schedule (core/optimizer_param_scheduler.py) after k steps; like there, it counts samples."""
    n, warmup, decay = (i * o["global-batch-size"] for i in (k, o["lr-warmup-iters"], o["lr-decay-iters"]))
    low, high = o["min-lr"], o["lr"]
    if warmup > 0 and n <= warmup:
        return high * n / warmup
    if n > decay:
        return low
    ratio = (n - warmup) / (decay - warmup)
    scale = {"cosine": 0.5 * (math.cos(math.pi * ratio) + 1), "linear": 1 - ratio}[o["lr-decay-style"]]
    return low + scale * (high - low)


def train(model, o, all_tokens, masks):
    """AdamW as Megatron-LM runs it: p -= lr * (m_hat / (sqrt(v_hat) + eps) + wd * p), wd on tensors of 2 or more dims.

    Returns the curve, the gradients and logits of the first step, and the parameters PyTorch's own AdamW makes of
    the same gradients."""
    b1, b2, wd = o["adam-beta1"], o["adam-beta2"], o["weight-decay"]
    params = dict(model.named_parameters())
    m, v, peer = ({n: f(p.detach()) for n, p in params.items()} for f in (torch.zeros_like, torch.zeros_like, torch.clone))
    torch_adamw = torch.optim.AdamW(
        [{"params": [p for p in peer.values() if (p.dim() > 1) == decayed], "weight_decay": wd * decayed}
         for decayed in (True, False)], betas=(b1, b2), eps=o["adam-eps"], foreach=False)
    curve, first, routers = [], None, moe.Routers(model, o)
    for k, (tokens, mask) in enumerate(zip(all_tokens, masks)):
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        loss = (losses * mask).sum() / mask.sum()
        # Megatron-LM's weight of router losses: as if all positions counted, over the tokens that do count.
        balance = routers.losses(*tokens[:, 1:].shape) * (mask.numel() / mask.sum())
        grads = dict(zip(params, torch.autograd.grad(loss + balance, list(params.values()))))
        norm = math.sqrt(sum((g * g).sum().item() for g in grads.values()))
        clip = min(1.0, o["clip-grad"] / (norm + 1e-6))
        lr = learning_rate(o, k)
        curve.append({"loss": loss.item(), "grad_norm": norm, "clip": clip, "lr": lr})
        first = first or (grads, logits.detach())
        with torch.no_grad():
            for n, p in params.items():
                g = grads[n] * clip
                m[n] = b1 * m[n] + (1 - b1) * g
                v[n] = b2 * v[n] + (1 - b2) * g * g
                m_hat, v_hat = m[n] / (1 - b1 ** (k + 1)), v[n] / (1 - b2 ** (k + 1))
                p -= lr * (m_hat / (v_hat.sqrt() + o["adam-eps"]) + (wd * p if p.dim() > 1 else 0))
                peer[n].grad = g
        for group in torch_adamw.param_groups:
            group["lr"] = lr
        torch_adamw.step()
        routers.update_biases()
    return curve, *first, peer, routers.margin


def make(name, out, overrides, arguments):
    family, options, files = CASES[name]
    o = TRAINING | options | overrides
    rng = np.random.default_rng(o["seed"])
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    dtype, batches = files.get("init", "float32"), make_batches(o, rng, files.get("mask"))
    with Float64():
        model = transformers.AutoModelForCausalLM.from_config(
            hf_config(family, o), attn_implementation=sinks.implementation(o), dtype=torch.float64).train()
        sinks.add(model, o)
        model.config._experts_implementation = "eager"
        initialise(model, rng, o.get("apply-layernorm-1p"), dtype)
    save_init(family, model, folder, dtype)
    masks = batches.get("loss_mask", torch.ones(batches["tokens"][..., 1:].shape)).double()
    with Float64():
        curve, grads, logits, peer, margin = train(model, o, batches["tokens"], masks)
    params = {n: p.detach() for n, p in model.named_parameters()}
    oracle = {"grad/" + n: g for n, g in moe.on_disk(family, grads).items()} | {
        "param/" + n: p for n, p in moe.on_disk(family, params | moe.biases(model)).items()}
    if logits.nbytes <= 64 << 10:
        oracle["logits"] = logits.contiguous()
    (folder / "run.conf").write_text("".join(
        f"{k} = {str(v).lower() if isinstance(v, bool) else v}\n" for k, v in o.items() if v is not False))
    safetensors.torch.save_file(batches, folder / "batches.safetensors", {"format": "pt"})
    safetensors.torch.save_file(oracle, folder / "oracle.safetensors", {"format": "pt"})
    steps = ",\n".join("    " + json.dumps(step) for step in curve)
    (folder / "curve.json").write_text('{\n  "steps": [\n' + steps + "\n  ]\n}\n")
    checks = witness.check(folder)
    checks["parameters against torch.optim.AdamW"] = max(
        ((p - peer[n]).norm() / p.norm()).item() for n, p in params.items())
    for what, error in checks.items():
        if not error <= 1e-12:
            raise SystemExit(f"{name}: {what} differs by {error:.2e} relative: this is no oracle")
    sources = [Path(__file__).with_name(f).read_bytes() for f in ("golden.py", "moe.py", "sinks.py", "witness.py", "float64.py")]
    (folder / "provenance.json").write_text(json.dumps({
        "generator": "tools/oracle/golden.py", "arguments": arguments, "model": type(model).__name__,
        "source_sha256": hashlib.sha256(b"".join(sources)).hexdigest(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
                     "transformers": transformers.__version__, "safetensors": safetensors.__version__},
        "device": f"cpu, 1 thread, {torch.backends.cpu.get_cpu_capability()}", "dtype": "float64",
        "checks": checks, **({"router_margin": margin} if math.isfinite(margin) else {}), "date": datetime.date.today().isoformat()}, indent=2) + "\n")
    norms, used = [s["grad_norm"] for s in curve], sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: loss {curve[0]['loss']:.4f} -> {curve[-1]['loss']:.4f}, grad norm {min(norms):.3f}..{max(norms):.3f}, "
          f"clipped {sum(s['clip'] < 1 for s in curve)} of {len(curve)}, {used // 1024} KiB; "
          + ", ".join(f"{k} {e:.0e}" for k, e in checks.items())
          + (f"; no choice of experts closer than {margin:.1e}" if math.isfinite(margin) else ""))


def save_init(family, model, folder, dtype):
    """Exactly the file save_pretrained writes. From a copy: a model cast to float32 and back has lost its rotary table."""
    dtype = getattr(torch, dtype)
    with tempfile.TemporaryDirectory() as scratch:
        copy.deepcopy(model).to(dtype).save_pretrained(scratch)
        (folder / "init.safetensors").write_bytes((Path(scratch) / "model.safetensors").read_bytes())
    saved = safetensors.torch.load_file(folder / "init.safetensors")
    mine = moe.on_disk(family, {n: p.detach() for n, p in model.named_parameters()} | moe.biases(model))
    if saved.keys() != mine.keys():
        raise SystemExit(f"{folder.name}: save_pretrained and we disagree about the names {sorted(saved.keys() ^ mine.keys())}")
    for name, x in saved.items():
        if not torch.equal(x, mine[name].to(x.dtype)):
            raise SystemExit(f"{folder.name}: save_pretrained and we disagree about {name}")


def main():
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("golden"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("case", nargs="*", help=", ".join(CASES))
    parser.error = called.refuse
    args = parser.parse_args()
    unknown = [name for name in args.case if name not in CASES] + [item for item in args.set if "=" not in item]
    if unknown:
        called.refuse(f"there is no case and no KEY=VALUE '{unknown[0]}'; the cases are {', '.join(CASES)}")
    overrides = {}
    for item in args.set:
        key, value = item.split("=", 1)
        try:
            overrides[key] = json.loads(value)
        except json.JSONDecodeError:
            overrides[key] = value
    for name in args.case or CASES:
        make(name, args.out, overrides, [a for s in args.set for a in ("--set", s)] + [name])


if __name__ == "__main__":
    main()
