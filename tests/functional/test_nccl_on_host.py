"""Training with --nccl-library communicates through that library. Checkpoints are bitwise equal to those of the host
transport, also with registered buffers. An error of the library or of one of its calls ends the run."""
import os
import pathlib
import time

from harness import PROGRAM, WORK, assert_same_bytes, corpus, pretrain

data = corpus()
layout = ["--ranks", 4, "--tensor-model-parallel-size", 2, "--use-distributed-optimizer"]
library = ["--nccl-library", pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"]

pretrain(data, WORK / "host", *layout)
os.environ["HOST_NCCL_DELAY_US"] = "50"
pretrain(data, WORK / "nccl", *layout, *library)
assert_same_bytes(WORK / "host", WORK / "nccl", 12, "the NCCL transport")

pretrain(data, WORK / "windows", *layout, *library, "--use-nccl-ub")
assert_same_bytes(WORK / "host", WORK / "windows", 12, "registered buffers")
sharded = ["--ranks", 4, "--tensor-model-parallel-size", 2, "--use-megatron-fsdp", "--overlap-param-gather"]
pretrain(data, WORK / "host3", *sharded)
pretrain(data, WORK / "windows3", *sharded, *library, "--use-nccl-ub")
assert_same_bytes(WORK / "host3", WORK / "windows3", 12, "registered buffers of ZeRO-3")
assert "--use-nccl-ub has no effect without" in pretrain(data, WORK / "one", "--use-nccl-ub")
activations = [*layout, "--sequence-parallel", "--interleaved-microbatches", 2]
pretrain(data, WORK / "host2", *activations)
pretrain(data, WORK / "windows2", *activations, *library, "--use-nccl-ub")
assert_same_bytes(WORK / "host2", WORK / "windows2", 12, "registered activations")

os.environ["HOST_NCCL_FAULT"] = "window"
alone = ["--ranks", 2, "--tensor-model-parallel-size", 2, "--sequence-parallel"]  # only activations are registered
for name, options in ("layout", layout), ("sharded", sharded), ("alone", alone):
    pretrain(data, WORK / f"{name} without", *options, *library)
    report = pretrain(data, WORK / f"{name} refused", *options, *library, "--use-nccl-ub", expect=3)
    assert "ncclCommWindowRegister fails on rank" in report and "planted fault in a window" in report, report


def report_of(fault):
    """Runs with a fault in the library and the default deadline of 10 minutes. Returns the report."""
    os.environ["HOST_NCCL_FAULT"] = fault
    begin = time.monotonic()
    report = pretrain(data, WORK / "fault", *layout, *library, expect=3)
    assert time.monotonic() - begin < 10, "an error of NCCL is reported late"
    return report


report = report_of("error:3")
assert "planted fault in operation 3" in report, report
report = report_of("refuse:5")
assert "COMM FAULT nccl" in report and "unhandled system error; planted fault" in report, report
assert ", operation 5 of ranks" in report, report
