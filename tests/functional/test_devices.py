"""A checkpoint can move between the CPU, one GPU and several ranks on GPUs: its content does not change, and the
resumed run follows the CPU's loss curve (fp64, harness.Rounding)."""
from harness import *

ON_GPU, OPTIONS[:] = list(OPTIONS), []  # what follows names the device itself
data = corpus()
MODEL = ["--num-layers", 2, "--micro-batch-size", 1, "--save-interval", 3]
FOUR = ["--tensor-model-parallel-size", 2, "--sequence-parallel", "--pipeline-model-parallel-size", 2]
SHARDED = ["--ranks", 4, "--use-megatron-fsdp"]
LEGS = {"one GPU": ON_GPU, "four ranks on GPUs": [*ON_GPU, *FOUR], "the CPU": [],
        "four ranks that share everything": [*ON_GPU, *SHARDED]}


def content(folder, iteration):
    return isotron("inspect", "--checkpoint", folder, "--ckpt-step", iteration, "--hash")


pretrain(data, WORK / "straight", "--lane", "fp64", *MODEL, "--train-iters", 15, "--log-jsonl", WORK / "straight.jsonl")
pretrain(data, WORK / "single", "--lane", "fp32", *MODEL, "--train-iters", 15, "--log-jsonl", WORK / "single.jsonl")
expected = records(WORK / "straight.jsonl")
rounding = Rounding(expected, records(WORK / "single.jsonl"), terms=8 * 32)
last, done = WORK / "straight", 3
for name, layout in LEGS.items():
    again, log, end = WORK / name, WORK / f"{name}.jsonl", done + 3
    load = ["--lane", "fp64", *MODEL, *layout, "--load", last, "--ckpt-step", done, "--lr-decay-iters", 15]
    pretrain(data, WORK / f"{name}, loaded", *load, "--train-iters", done)
    assert content(WORK / f"{name}, loaded", done) == content(last, done), f"{name}: the content has changed"
    pretrain(data, again, *load, "--train-iters", 15, "--exit-interval", end, "--log-jsonl", log)
    got = records(log)
    assert [r["iteration"] for r in got] == list(range(done + 1, end + 1)), f"{name}: {got}"
    rounding.check(got, expected, name)
    last, done = again, end
