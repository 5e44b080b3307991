"""bench train on several ranks: every layout trains on the tokens of one rank, and the parts of a step add up to it. A rank with more
work is named. The gate compares runs of ranks."""
import os
import shutil

from harness import *

(WORK / "bench.conf").write_text("""
num-layers = 4
hidden-size = 64
num-attention-heads = 4
seq-length = 32
vocab-size = 256
hidden-dropout = 0
attention-dropout = 0
disable-bias-linear = true
micro-batch-size = 1
global-batch-size = 8
train-iters = 10
lr = 0.001
mock-data = true
lane = fp64
peak-tflops = 2
""")
LIBRARY = pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"
EXPERTS = ["--num-experts", 4, "--moe-router-topk", 2, "--moe-aux-loss-coeff", 0]


def train(*options, steps=3, launcher=(), expect=0):
    words = [*launcher, PROGRAM, "bench", "train", "--config", WORK / "bench.conf", "--steps", steps, "--warmup", 1, "--json", WORK / "step.json"]
    done = subprocess.run([str(word) for word in [*words, *options]], capture_output=True, text=True)
    assert done.returncode == expect, (options, done.stdout, done.stderr)
    return json.loads((WORK / "step.json").read_text()), done.stdout + done.stderr


one, _ = train()
with_experts, _ = train(*EXPERTS)
for options in (["--tensor-model-parallel-size", 2, "--sequence-parallel", "--use-distributed-optimizer", "--nccl-library", LIBRARY],
                ["--pipeline-model-parallel-size", 2, "--num-layers-per-virtual-pipeline-stage", 1],
                ["--context-parallel-size", 2, "--use-megatron-fsdp"],
                [*EXPERTS, "--expert-model-parallel-size", 2, "--moe-token-dispatcher-type", "alltoall"]):
    step, out = train("--ranks", 4, *options)
    same = with_experts if "--num-experts" in options else one
    assert step["loss"] == same["loss"] and step["step_flops"] == same["step_flops"] and step["tokens"] == same["tokens"], (options, step["loss"], same["loss"])
    assert step["ranks"] == len(step["rank"]) == 4 and step["devices"] == 1, step
    assert ("NCCL" in step["transport"]) == (LIBRARY in options) and "threads" in step["transport"], step["transport"]
    assert abs(sum(step["family_ms"].values()) - step["step_ms"]["mean"]) < 1e-3 * step["step_ms"]["mean"], step
    busy = sum(rank["busy_ms"] for rank in step["rank"]) / 4
    assert 0 < busy < step["step_ms"]["mean"] and "blas_gflops" not in step["gemm"], step
    assert abs(step["mfu"] * step["step_ms"]["median"] / same["mfu"] / same["step_ms"]["median"] - 1) < 1e-4, step

# Communication: the bytes of a ring's all-reduce of all gradients, and what a slow member makes the others wait.
step, out = train("--ranks", 2)
dp = step["communication"]["dp"]
parameters = (256 + 32) * 64 + 4 * (12 * 64 * 64 + 4 * 64) + 2 * 64
assert dp["calls"] == 1 and abs(dp["megabytes"] * 1e6 / (8 * parameters) - 1) < 1e-5, dp
assert abs(sum(group["exposed_ms"] for group in step["communication"].values()) - step["family_ms"]["communication"]) < 1e-4, step
os.environ["HOST_NCCL_FAULT"] = "slow:1:5"
step, out = train("--tensor-model-parallel-size", 2, "--nccl-library", LIBRARY)
del os.environ["HOST_NCCL_FAULT"]
tp = step["communication"]["tp"]
assert 5 * tp["calls"] < tp["exposed_ms"] <= 1.001 * tp["flight_ms"] and tp["exposed_ms"] > 0.5 * step["step_ms"]["mean"], (tp, step["step_ms"])
assert abs(tp["busbw"] * tp["flight_ms"] / tp["megabytes"] - 1) < 1e-4, tp
step, out = train("--pipeline-model-parallel-size", 4)
assert 0 < step["family_ms"]["bubble"] <= step["communication"]["pp"]["exposed_ms"] * 1.001 and "pipeline bubble" in out, step["family_ms"]

# A rank with three of the four layers, and the output layer on the other.
step, out = train("--pipeline-model-parallel-size", 2, "--decoder-first-pipeline-num-layers", 3, "--hidden-size", 128)
first, last = (rank["busy_ms"] for rank in step["rank"])
assert first > 1.3 * last and "(rank 1) to" in out and "(rank 0); the rest" in out, (first, last, out)

# The gate: the same ranks are compared, others are refused before a step.
train("--ranks", 2, steps=8)
(WORK / "step.json").rename(WORK / "base.json")
_, out = train("--ranks", 2, "--baseline", WORK / "base.json", "--allow", "1000%", steps=8)
assert "verdict: PASS" in out, out
out = isotron("bench", "train", "--config", WORK / "bench.conf", "--ranks", 4, "--baseline", WORK / "base.json", expect=2)
assert '"ranks" is 4 here and 2 in' in out and "step 0" not in out, out
out = isotron("bench", "train", "--config", WORK / "bench.conf", "--ranks", 2, "--steps", 2, "--against", PROGRAM, "--pairs", 6, "--allow", "1000%")
assert "verdict: PASS" in out, out

if shutil.which("mpirun"):
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", 2]
    step, out = train(launcher=mpirun)
    assert step["loss"] == one["loss"] and "MPI processes" in step["transport"] and out.count("step: median") == 1, out
    _, out = train("--baseline", WORK / "base.json", launcher=mpirun, expect=2)
    assert '"transport" is' in out and "step 0" not in out, out
    _, out = train("--against", PROGRAM, launcher=mpirun, expect=2)
    assert "use --ranks without mpirun" in out, out
print("bench train: ranks")
