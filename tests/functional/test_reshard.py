"""A checkpoint does not depend on the layout: other layouts can load a checkpoint of one rank, save it again with the
same content, and continue along the same loss curve (fp64, harness.Rounding). An asynchronous save writes the same
bytes as a synchronous one."""
from harness import *

data = corpus()
RANKS = {
    "tp2": ["--tensor-model-parallel-size", 2],
    "tp2 with sequence parallelism": ["--tensor-model-parallel-size", 2, "--sequence-parallel"],
    "pp2": ["--pipeline-model-parallel-size", 2],
    "dp4": ["--ranks", 4],
    "dp2 that share the optimizer": ["--ranks", 2, "--use-distributed-optimizer"],
    "dp4 in two instances": ["--ranks", 4, "--use-distributed-optimizer", "--num-distributed-optimizer-instances", 2],
    "dp2 that share everything": ["--ranks", 2, "--use-megatron-fsdp"],
    "tp2 pp2 dp2": ["--ranks", 8, "--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2],
}


model = ["--num-layers", 2, "--micro-batch-size", 1, "--softmax-type", "learnable"]
options = ["--lane", "fp64", *model]
straight, beside = WORK / "straight", WORK / "beside"
pretrain(data, straight, *options, "--save-interval", 3, "--log-jsonl", WORK / "straight.jsonl")
pretrain(data, beside, *options, "--save-interval", 3, "--async-save")
for iteration in (3, 6, 9, 12):
    assert_same_bytes(straight, beside, iteration, "--async-save")
print("beside the run = straight")

pretrain(data, WORK / "single", *model, "--lane", "fp32", "--log-jsonl", WORK / "single.jsonl")
expected, saved = records(WORK / "straight.jsonl"), content(straight, 6)
rounding = Rounding(expected, records(WORK / "single.jsonl"))
for name, layout in RANKS.items():
    again, log = WORK / name, WORK / f"{name}.jsonl"
    load = [*options, *layout, "--load", straight, "--ckpt-step", 6]
    pretrain(data, again, *load, "--train-iters", 6, "--lr-decay-iters", 12)
    assert content(again, 6) == saved, f"{name}: the content has changed"
    pretrain(data, WORK / f"{name}-on", *load, "--async-save", "--log-jsonl", log)
    got = records(log)
    assert [r["iteration"] for r in got] == list(range(7, 13)), f"{name}: {got}"
    rounding.check(got, expected, name)
    isotron("inspect", "--checkpoint", WORK / f"{name}-on", "--verify")
