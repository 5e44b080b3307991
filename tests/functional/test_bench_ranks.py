"""bench train on several ranks: every layout trains on the same tokens as one rank, and the parts of a step add up to
the whole. A rank with more work is named. The gate compares runs with the same number of ranks."""
import os
import shutil

from harness import *

bench_conf(num_layers=4, hidden_size=64, seq_length=32, vocab_size=256, disable_bias_linear="true",
           global_batch_size=8, lane="fp64", peak_tflops=2)
LIBRARY = pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"
EXPERTS = ["--num-experts", 4, "--moe-router-topk", 2, "--moe-aux-loss-coeff", 0]


def train(*options, steps=3, launcher=(), expect=0):
    words = [*launcher, PROGRAM, "bench", "train", "--config", WORK / "bench.conf", "--steps", steps, "--warmup", 1,
             "--json", WORK / "step.json"]
    done = subprocess.run([str(word) for word in [*words, *options]], capture_output=True, text=True)
    assert done.returncode == expect, (options, done.stdout, done.stderr)
    return json.loads((WORK / "step.json").read_text()), done.stdout + done.stderr


one, _ = train()
with_experts, _ = train(*EXPERTS)
# Options, and the number of communicators of a rank: one for each group, and one for each direction between neighbours.
for options, communicators in (
        # tensor, data, world
        (["--tensor-model-parallel-size", 2, "--sequence-parallel", "--use-distributed-optimizer"], 3),
        # data, messages in both directions, tied embeddings, world
        (["--pipeline-model-parallel-size", 2, "--num-layers-per-virtual-pipeline-stage", 1], 1 + 4 + 1 + 1),
        (["--context-parallel-size", 2, "--use-megatron-fsdp", "--num-distributed-optimizer-instances", 2], 5),
        ([*EXPERTS, "--expert-model-parallel-size", 2, "--moe-token-dispatcher-type", "alltoall"], 3)):
    step, out = train("--ranks", 4, "--nccl-library", LIBRARY, *options)
    assert all(rank["communicators"] == rank["planned_communicators"] == communicators
               for rank in step["rank"]), (options, step["rank"])
    same = with_experts if "--num-experts" in options else one
    assert step["loss"] == same["loss"], (options, step["loss"], same["loss"])
    assert step["step_flops"] == same["step_flops"], (options, step["loss"], same["loss"])
    assert step["tokens"] == same["tokens"], (options, step["loss"], same["loss"])
    assert step["ranks"] == len(step["rank"]) == 4 and step["devices"] == 1, step
    assert step["transport"] == "NCCL 2.28.9, threads", step["transport"]
    assert abs(sum(step["family_ms"].values()) - step["step_ms"]["mean"]) < 1e-3 * step["step_ms"]["mean"], step
    assert min(step["family_ms"].values()) >= 0 < step["family_ms"]["communication"], step["family_ms"]
    busy = sum(rank["busy_ms"] for rank in step["rank"]) / 4
    assert 0 < busy < step["step_ms"]["mean"] and "blas_gflops" not in step["gemm"], step
    assert abs(step["mfu"] * step["step_ms"]["median"] / same["mfu"] / same["step_ms"]["median"] - 1) < 1e-4, step

# Communication: the bytes of a ring all-reduce of all gradients, and the time that the others wait for a slow member.
step, out = train("--ranks", 2)
assert "\nop (calls of all ranks) " in out and "\nGFLOP/s of rank 0 " in out, out
assert step["transport"] == "through host memory, threads", step
assert all(rank["communicators"] == 0 for rank in step["rank"]), step
dp = step["communication"]["dp"]
parameters = (256 + 32) * 64 + 4 * (12 * 64 * 64 + 4 * 64) + 2 * 64
assert dp["calls"] == 1 and abs(dp["megabytes"] * 1e6 / (8 * parameters) - 1) < 1e-5, dp
# a reduce-scatter and an all-gather, of padded shards
shared = train("--ranks", 2, "--use-distributed-optimizer")[0]["communication"]["dp"]
assert shared["calls"] == 2 and 1 <= shared["megabytes"] / dp["megabytes"] < 1.02, (shared, dp)
assert abs(sum(group["exposed_ms"] for group in step["communication"].values())
           - step["family_ms"]["communication"]) < 1e-4, step
os.environ["HOST_NCCL_FAULT"] = "slow:1:5"
step, out = train("--tensor-model-parallel-size", 2, "--nccl-library", LIBRARY)
del os.environ["HOST_NCCL_FAULT"]
tp = step["communication"]["tp"]
assert 5 * tp["calls"] < tp["exposed_ms"] <= 1.001 * tp["flight_ms"], (tp, step["step_ms"])
assert abs(tp["busbw"] * tp["flight_ms"] / tp["megabytes"] - 1) < 1e-4, tp
step, out = train("--pipeline-model-parallel-size", 4)
assert 0 < step["family_ms"]["bubble"] <= step["communication"]["pp"]["exposed_ms"] * 1.001, step["family_ms"]
assert "pipeline bubble" in out, step["family_ms"]
messages = 3 * 2 * 8  # between 4 ranks, both ways, of 8 microbatches
assert abs(step["communication"]["pp"]["megabytes"] * 1e6 / (messages * 32 * 64 * 8 / 4)
           - 1) < 1e-5, step["communication"]

# One rank has three of the four layers, and the other has the output layer. Other programs on the machine may hide the
# imbalance.
for attempt in range(5):
    step, out = train("--pipeline-model-parallel-size", 2, "--decoder-first-pipeline-num-layers", 3,
                      "--hidden-size", 128)
    first, last = (rank["busy_ms"] for rank in step["rank"])
    assert ("(rank 1) to" in out and "(rank 0); the rest" in out) == (first > last), (first, last, out)
    if first > 1.3 * last:
        break
else:
    sys.exit(f"the rank with three layers took {first} ms, and the other {last} ms")

# The gate compares runs with the same number of ranks, and refuses other runs before the first step.
train("--ranks", 2, steps=8)
base = json.loads((WORK / "step.json").read_text())
base["samples_ms"] = [1e3 * ms for ms in base["samples_ms"]]
base["step_ms"]["median"] *= 1e3
(WORK / "base.json").write_text(json.dumps(base))
_, out = train("--ranks", 2, "--baseline", WORK / "base.json", steps=8)
assert "verdict: PASS" in out, out
out = isotron("bench", "train", "--config", WORK / "bench.conf", "--ranks", 4,
              "--baseline", WORK / "base.json", expect=2)
assert '"ranks" is 4 here and 2 in' in out and "step 0" not in out, out
done = subprocess.run([PROGRAM, "bench", "train", "--config", str(WORK / "bench.conf"),
                       *"--ranks 2 --steps 2 --pairs 6 --against".split(), PROGRAM],
                      capture_output=True, text=True)
assert done.returncode in (0, 1, 4) and "pair 6 of 6" in done.stdout and "verdict: " in done.stdout, done

if shutil.which("mpirun"):
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", 2]
    step, out = train(launcher=mpirun)
    assert step["loss"] == one["loss"] and step["transport"].endswith(", processes"), out
    assert out.count("step: median") == 1, out
    _, out = train("--baseline", WORK / "base.json", launcher=mpirun, expect=2)
    assert '"transport" is' in out and "step 0" not in out, out
    _, out = train("--against", PROGRAM, launcher=mpirun, expect=2)
    assert "use --ranks without a launcher" in out, out
print("bench train: ranks")
