"""The exact lane has one rank's bits also where several tensor-parallel ranks share a group's keys: the gradients of these are
summed before a norm and RoPE round them. The same holds with one norm over all heads, and where logits are computed in chunks. The sizes
divide into no blocks of 64, and the gradient is clipped."""
from harness import *

data = corpus()
MODEL = ["--lane", "exact", "--calculate-per-token-loss", "--hidden-size", 48, "--num-attention-heads", 8, "--num-query-groups", 2,
         "--ffn-hidden-size", 40, "--qk-layernorm", "--softmax-type", "learnable", "--train-iters", 4, "--lr-decay-iters", 4, "--clip-grad", 0.25]
CHUNKS = ["--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "linear", "--cross-entropy-chunk-size", 5]
CP = ["--context-parallel-size", 2, "--cp-comm-type"]
LAYOUTS = {
    "tp2": ["--tensor-model-parallel-size", 2],
    "tp4": ["--tensor-model-parallel-size", 4],
    "tp8 sp": ["--tensor-model-parallel-size", 8, "--sequence-parallel"],
    "tp4 cp2, ring, recomputed": ["--tensor-model-parallel-size", 4, *CP, "p2p", "--recompute-activations"],
    "chunks": [*CHUNKS],
    "tp4, chunks": [*CHUNKS, "--tensor-model-parallel-size", 4],
    "tp2 sp, chunks": [*CHUNKS, "--tensor-model-parallel-size", 2, "--sequence-parallel"],
    "tp4 cp2, all-to-all": ["--tensor-model-parallel-size", 4, "--sequence-parallel", *CP, "a2a"],
}


def run(name, *options):
    """-> the checkpoint's content and the steps' losses and norms"""
    save, log = WORK / name, WORK / f"{name}.jsonl"
    pretrain(data, save, *MODEL, *options, "--log-jsonl", log)
    steps = [(r["lm_loss"], r["grad_norm"], r["clip"]) for r in records(log)]
    return isotron("inspect", "--checkpoint", save, "--hash"), steps


def check(name, layouts, *options):
    content, steps = run(name, *options)
    assert all(clip < 1 for _, _, clip in steps), steps
    for layout, ranks in layouts.items():
        got, its_steps = run(f"{name}, {layout}", *options, *ranks)
        assert its_steps == steps, f"{name}, {layout}: {its_steps}, not {steps}"
        assert got == content, f"{name}, {layout}: other bits than one rank"
        print(f"{name}, {layout}: one rank's bits")


check("a norm of each head", LAYOUTS)
WHOLE = ("tp2", "tp4", "tp8 sp", "tp4 cp2, ring, recomputed")
check("a norm of all heads", {name: LAYOUTS[name] for name in WHOLE}, "--qk-layernorm-whole")
