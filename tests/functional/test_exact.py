"""The exact lane is bitwise equal to one rank even if several tensor-parallel ranks share the keys of a query group:
the gradients of these keys are summed before a norm and RoPE round them. The same holds with one norm over all heads,
and with logits computed in chunks. Sizes are not multiples of 64, and the gradient is clipped. T5 and BERT drop the
same elements in every layout, even with offloaded activations or with fewer queries than keys in cross-attention."""
from harness import *

data = corpus()
ANY = ["--lane", "exact", "--calculate-per-token-loss", "--hidden-size", 48, "--num-attention-heads", 8,
       "--ffn-hidden-size", 40, "--train-iters", 4, "--lr-decay-iters", 4, "--clip-grad", 0.25]
MODEL = [*ANY, "--num-query-groups", 2, "--qk-layernorm", "--softmax-type", "learnable"]
ENCODER = [*ANY, "--group-query-attention=false", "--num-query-groups", 1, "--tokenizer-type", "NullTokenizer",
           "--vocab-size", 200, "--seq-length", 24]
T5 = [*ENCODER, "--model", "t5", "--position-embedding-type", "relative", "--decoder-num-layers", 4]
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


def run(name, *options, data=data):
    """Returns the content of the checkpoint, and the losses and norms of the steps."""
    save, log = WORK / name, WORK / f"{name}.jsonl"
    pretrain(data, save, *options, "--log-jsonl", log)
    steps = [(r["lm_loss"], r["grad_norm"], r["clip"]) for r in records(log)]
    return isotron("inspect", "--checkpoint", save, "--hash"), steps


def check(name, layouts, *options, data=data):
    content, steps = run(name, *options, data=data)
    assert all(clip < 1 for _, _, clip in steps), steps
    for layout, ranks in layouts.items():
        got, its_steps = run(f"{name}, {layout}", *options, *ranks, data=data)
        assert its_steps == steps, f"{name}, {layout}: {its_steps}, not {steps}"
        assert got == content, f"{name}, {layout}: other bits than one rank"
        print(f"{name}, {layout}: one rank's bits")


check("a norm of each head", LAYOUTS, *MODEL)
WHOLE = ("tp2", "tp4", "tp8 sp", "tp4 cp2, ring, recomputed")
check("a norm of all heads", {name: LAYOUTS[name] for name in WHOLE}, *MODEL, "--qk-layernorm-whole")

ENCODERS = {
    "tp4 sp": ["--tensor-model-parallel-size", 4, "--sequence-parallel"],
    "pp2": ["--pipeline-model-parallel-size", 2],
    "tp2 cp2, all-to-all": ["--tensor-model-parallel-size", 2, *CP, "a2a"],
    "cp4, ring": ["--context-parallel-size", 4],
    "dp2, sharded": ["--ranks", 2, "--use-megatron-fsdp"],
}
OFFLOADED = {f"{n} layers offloaded": ["--cpu-offloading-num-layers", n] for n in (2, 5)}
MOCK = ["--mock-data"]
for name, decoder in {"a T5 with a short decoder": 16, "a T5 with a long decoder": 40}.items():
    check(name, ENCODERS | OFFLOADED, *T5, "--decoder-seq-length", decoder, data=MOCK)
check("a BERT", ENCODERS, *ENCODER, "--model", "bert", "--num-layers", 4, data=MOCK)
