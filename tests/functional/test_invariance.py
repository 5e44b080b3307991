"""Options that only divide the work differently leave results bitwise equal: recomputation of activations, the number
of threads and, with --batch-invariant-mode, the microbatch size, on one rank and with data parallelism. Options that
change the function must change results."""
from harness import *

data = corpus()


runs = {}


def run(*options):
    """Trains with these options, unless such a run already exists. Returns the folder of the run."""
    if options not in runs:
        runs[options] = WORK / f"run-{len(runs)}"
        pretrain(data, runs[options], *options)
    return runs[options]


def same(name, base, other, instead_of=()):
    assert_same_bytes(run(*base, *instead_of), run(*base, *other), 12, name)
    print(f"{name}: same bits")


for lane in ("fp64", "fp32", "bf16"):
    base = ["--lane", lane]
    full = ["--recompute-granularity", "full", "--recompute-method"]
    same(f"{lane}-uniform", base, [*full, "uniform", "--recompute-num-layers", 1])
    same(f"{lane}-uniform-2", base, [*full, "uniform", "--recompute-num-layers", 2])
    same(f"{lane}-block", base, [*full, "block", "--recompute-num-layers", 1])
    same(f"{lane}-selective", base, ["--recompute-granularity", "selective", "--recompute-modules", "core_attn", "mlp"])
    same(f"{lane}-threads", base, ["--cpu-threads", 3], instead_of=["--cpu-threads", 1])
    for micro in (1, 4, 8):
        invariant = [*base, "--batch-invariant-mode", "--calculate-per-token-loss"]
        same(f"{lane}-micro-{micro}", invariant, ["--micro-batch-size", micro])

# The order of samples over data-parallel ranks does not depend on the microbatch size. This includes a growing batch,
# the end of an epoch, evaluations, and a run that is resumed with another microbatch size.
INVARIANT = ["--batch-invariant-mode", "--calculate-per-token-loss", "--split", "60,40,0", "--eval-interval", 4]
(WORK / "growing.conf").write_text(CONF.replace("lr-warmup-iters = 2\n", "").replace("train-iters = 12",
                                                                                     "train-samples = 96").replace(
    "global-batch-size = 8", "global-batch-size = 16\nrampup-batch-size = 8 8 48"))
SETS = {
    "fp32": [],
    "bf16": ["--bf16"],
    "sharded optimizer": ["--use-distributed-optimizer"],
    "sharded parameters": ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params"],
    "pipeline stages": ["--pipeline-model-parallel-size", 2],
    "cyclic": ["--dataloader-type", "cyclic"],
    "cyclic, not sharded": ["--dataloader-type", "cyclic", "--no-data-sharding"],
    "growing batch": [],
    "evaluation": ["--eval-iters", 2],
}


def all_of(name, micro, *options):
    """Trains. Returns parameters and optimizer state, the records of steps, and the losses of evaluations."""
    save, log = WORK / f"{name}-{micro}", WORK / f"{name}-{micro}.jsonl"
    conf, ranks = "growing.conf" if "growing" in name else "run.conf", 4 if "pipeline" in name else 2
    output = isotron("pretrain", "--config", WORK / conf, *data[:2], *INVARIANT, "--ranks", ranks,
                     "--save", save, *options, "--micro-batch-size", micro, "--log-jsonl", log)
    steps = {r["iteration"]: (r["lm_loss"], r["grad_norm"], r["batch_size"]) for r in records(log)}
    return (isotron("inspect", "--checkpoint", save, "--hash"), steps,
            [line for line in output.splitlines() if "validation loss" in line])


for name, options in SETS.items():
    want = all_of(name, 1, *options)
    for micro in (2, 4):
        assert all_of(name, micro,
                      *options) == want, f"dp2, {name}: microbatches of {micro} leave other bits than those of 1"
    all_of(f"{name}, first half", 4, *options, "--exit-interval", 5)
    content, steps, _ = all_of(f"{name}, resumed", 1, *options, "--load", WORK / f"{name}, first half-4")
    assert content == want[0], f"dp2, {name}: resumed with another microbatch size, other bits"
    assert steps == {i: s for i, s in want[1].items() if i > 5} and steps, f"dp2, {name}: resumed, other losses"
    print(f"dp2, {name}: same bits")

try:
    assert_same_bytes(run(), run("--seed", 4321), 12, "another seed")
except AssertionError:
    print("another seed: other bits")
else:
    raise SystemExit("another seed gave the same bits: the comparison sees nothing")
