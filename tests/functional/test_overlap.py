"""Switches that overlap communication with computation change no bit: on and late (NCCL's stand-in with late results) equals off."""
import os
import pathlib

from harness import PROGRAM, WORK, assert_same_bytes, corpus, pretrain

CASES = [  # layout, switch off, switch on
    ("--pipeline-model-parallel-size 2 --global-batch-size 16", "--no-overlap-p2p-communication", ""),
    ("--pipeline-model-parallel-size 2 --pipeline-schedule zero-bubble", "--no-overlap-p2p-communication", ""),
    ("--pipeline-model-parallel-size 2 --pipeline-schedule gpipe", "--no-overlap-p2p-communication", ""),
    ("--pipeline-model-parallel-size 2 --num-layers 4 --num-virtual-stages-per-pipeline-rank 2 --recompute-granularity full"
     " --recompute-method uniform --recompute-num-layers 1", "--no-overlap-p2p-communication", ""),
]
data = corpus()
library = ["--nccl-library", pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"]
os.environ["HOST_NCCL_DELAY_US"] = "300"
for i, (layout, off, on) in enumerate(CASES):
    common = f"--ranks 2 --cpu-threads 1 --train-iters 3 {layout} ".split()
    pretrain(data, WORK / f"off{i}", *common, *off.split())
    for name, more in (("threads", []), ("nccl", library)):
        pretrain(data, WORK / f"{name}{i}", *common, *on.split(), *more)
        assert_same_bytes(WORK / f"off{i}", WORK / f"{name}{i}", 3, f"{layout}: {name}")
