"""On a GPU, runs are bitwise reproducible in every lane, with experts, dropout and ranks that share the GPU, with each
implementation of attention, and also with recomputation. They compute the same function as on the CPU: fp64 losses
agree up to rounding, with the same dropout."""
import re

from harness import *

ON_GPU, OPTIONS[:] = list(OPTIONS), []  # what follows names the device itself
data = corpus()
HEADS = ["--hidden-size", 256, "--seq-length", 128, "--attention-dropout", 0]  # of 64, as fused kernels want them
RING = ["--hidden-size", 256, "--seq-length", 512, "--attention-dropout", 0, "--ranks", 2, "--context-parallel-size", 2]
EXPERTS = ["--num-experts", 4, "--disable-bias-linear", "--moe-aux-loss-coeff", 0.01, "--moe-input-jitter-eps", 0.1]
MUON = ["--optimizer", "muon", "--lr", 1e-3]
RUNS = {
    "fp64": ["--fp64"],
    "fp32": [],
    "bf16": ["--bf16"],
    "fp16": ["--fp16", "--initial-loss-scale", 2**16],
    "bf16 heads of 64": ["--bf16", *HEADS],
    "bf16 unfused": ["--bf16", "--attention-backend", "unfused"],
    "bf16 experts": ["--bf16", *EXPERTS],
    "bf16 heads of 64, ranks": ["--bf16", *HEADS, "--ranks", 4, "--tensor-model-parallel-size", 2,
                                "--use-distributed-optimizer"],
    "bf16 ring": ["--bf16", *RING],
    "bf16 muon, ranks": ["--bf16", *MUON, "--ranks", 4, "--tensor-model-parallel-size", 2,
                         "--use-distributed-optimizer"],
    "bf16 experts, ranks": ["--bf16", *EXPERTS, "--ranks", 2, "--expert-model-parallel-size", 2,
                            "--moe-token-dispatcher-type", "alltoall"],
}
FULL = ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1]


def run(name, *options):
    """Trains. Returns the folder of checkpoints, the losses, and the number of replays of CUDA graphs."""
    save, log = WORK / name, WORK / f"{name}.jsonl"
    said = re.findall(r"^CUDA graphs replayed (\d+) times$",
                      pretrain(data, save, *options, "--log-jsonl", log), re.MULTILINE)
    return save, losses(log), sum(map(int, said))


for name, options in RUNS.items():
    once, its_losses, _ = run(name, *options, *ON_GPU)
    for variant, more in {"again": [], "recomputed": FULL}.items():
        other, other_losses, _ = run(f"{name}, {variant}", *options, *more, *ON_GPU)
        assert other_losses == its_losses, f"{name}, {variant}: {other_losses}, not {its_losses}"
        assert_same_bytes(once, other, 12, f"{name}, {variant}")
    print(f"{name}: the same bits again, and recomputed")

# A CUDA graph is bitwise equal to the same work op by op. There are graphs for a step's first microbatch, the other
# microbatches and the optimizer step; the first run of each is not captured. Cases: steps of one and of several
# microbatches, with clipping in some steps only, and with skipped steps.
STILL = ["--hidden-dropout", 0, "--attention-dropout", 0, "--micro-batch-size", 1]
RECORDED = {
    "fp32": [],
    "bf16": ["--bf16"],
    "bf16 heads of 64": ["--bf16", *HEADS[:4]],
    "bf16 one microbatch": ["--bf16", "--global-batch-size", 1],
    "bf16 sgd": ["--bf16", "--optimizer", "sgd", "--clip-grad", 0.1],
    "bf16 muon": ["--bf16", *MUON],
    "fp32 muon with lion": [*MUON, "--muon-fp32-matmul-prec", "high", "--muon-scalar-optimizer", "lion"],
    "fp16 skipped steps": ["--fp16", "--initial-loss-scale", 2**26, "--hysteresis", 1, "--log-num-zeros-in-grad"],
    "fp64 experts": ["--fp64", *EXPERTS[:5]],
}
for name, options in RECORDED.items():
    once, its_losses, never = run(f"{name}, op by op", *options, *STILL, *ON_GPU)
    other, other_losses, replays = run(f"{name}, recorded", *options, *STILL, "--cuda-graph-impl", "local", *ON_GPU)
    passes = 1 if "--global-batch-size" in options else 8
    expected = (12 - 1) + max(12 * (passes - 1) - 1, 0) + (12 - 1)
    assert (never, replays) == (0, expected), (f"{name}: CUDA graphs were replayed {never} and {replays} times, not 0 "
                                               f"and {expected}")
    assert other_losses == its_losses, f"{name}, recorded: {other_losses}, not {its_losses}"
    assert_same_bytes(once, other, 12, f"{name}, recorded")
    print(f"{name}: the same bits from CUDA graphs")

# Before the first step, the program reports which implementation of attention it uses and whether that is
# deterministic. The first loss does not depend on the order of sums in the backward pass.
first = {}
for name, options in {"same bits": [], "any order": ["--no-deterministic-mode"]}.items():
    log = WORK / f"{name}.jsonl"
    said = pretrain(data, WORK / name, "--bf16", *HEADS, *options, "--log-jsonl", log, *ON_GPU)
    first[name] = losses(log)[1]
    lines = [line for line in said[:said.index("iteration ")].splitlines() if line.startswith("attention")]
    assert [line.split(":")[0] for line in lines] == ["attention, forward", "attention, backward"], lines
    # on this architecture, cuDNN's graphs are validated, so it must be cuDNN
    who = [": cuDNN "] if ", sm_90," in said else [": cuDNN ", ": own kernels"]
    assert all(any(w in line for w in who) for line in lines), lines
    assert (", not deterministic" in lines[1]) == ("cuDNN " in lines[1].split(":")[1] and bool(options)), lines
    print(f"{name}: {lines[1]}")
assert first["same bits"] == first["any order"], first

# The report also includes the steps of a context-parallel ring.
said = pretrain(data, WORK / "ring", "--bf16", *RING, *ON_GPU)
lines = [line for line in said[:said.index("iteration ")].splitlines() if line.startswith("attention")]
assert {line.split(":")[0] for line in lines} == {"attention, forward", "attention, backward"}, lines
who = [": cuDNN "] if ", sm_90," in said else [": cuDNN ", ": own kernels"]
assert all(any(w in line for w in who) for line in lines), lines
print(f"ring: {lines}")

for name, options in {"dense": [], "experts": EXPERTS,
                      "muon": [*MUON, "--muon-fp32-matmul-prec", "high"]}.items():
    here, single, there = (WORK / f"{name} {place}.jsonl" for place in ("here", "here in fp32", "there"))
    run(here.stem, "--fp64", *options), run(single.stem, "--lane", "fp32", *options), run(there.stem, "--fp64",
                                                                                          *options, *ON_GPU)
    Rounding(records(here), records(single), terms=8 * 32).check(records(there), records(here), f"{name}, GPU and CPU")
