"""--optimizer-cpu-offload leaves runs on a CPU bitwise equal, in every lane and layout. The runs use clipping, loss
scaling, muP, and copies with and without overlap, and resume with or without the option. The plan states the moved
bytes. On a GPU, the CPU's update of a parameter differs from the GPU's by rounding."""
import math
import re

from harness import *

data = [*corpus(), "--log-interval", 1]
SCALES = ["--use-mup", "--mup-base-hidden-size", 24, "--decoupled-lr", 4e-3, "--clip-grad", 0.1]
ZERO = ["--ranks", 2, "--use-distributed-optimizer"]
EXPERTS = ["--num-experts", 4, "--disable-bias-linear", "--expert-model-parallel-size", 2]
RUNS = {
    # on the second rank, some weights that are not primary lie between primary ones
    "fp64": ["--fp64", *SCALES, "--log-params-norm", "--log-num-zeros-in-grad", "--ranks", 2,
             "--tensor-model-parallel-size", 2],
    "exact": ["--lane", "exact", "--calculate-per-token-loss", *ZERO],
    "bf16": ["--bf16", *SCALES, "--log-params-norm"],
    "bf16, two ranks": ["--bf16", *ZERO, "--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16",
                        "--main-grads-dtype", "bf16"],
    "fp16": ["--fp16", "--initial-loss-scale", 2**40, "--hysteresis", 1],  # the first steps overflow
    "sgd": ["--bf16", "--optimizer", "sgd"],
    "overlapped": ["--bf16", *ZERO, "--overlap-grad-reduce", "--overlap-param-gather", "--ddp-num-buckets", 3],
    "sharded": ["--bf16", "--ranks", 2, "--use-megatron-fsdp", *EXPERTS],
    "fp8": ["--bf16", *ZERO, "--fp8-format", "hybrid", "--fp8-recipe", "delayed", "--fp8-param-gather"],
    "stages": ["--bf16", "--ranks", 2, "--pipeline-model-parallel-size", 2, "--qk-clip", "--qk-clip-threshold", 1e-3],
    "detached heads": ["--mtp-num-layers", 1, "--mtp-detach-heads", "--clip-grad", 0.1],
}
FIELDS = ("iteration", "lm_loss", "grad_norm", "params_norm", "num_zeros", "loss_scale", "learning_rate")
OFFLOAD = "--optimizer-cpu-offload"
HALF = [OFFLOAD, "--optimizer-offload-fraction", 0.5]


def memory(out):
    """The MiB of the optimizer on the device and on the host; None if there is none."""
    plan = re.search(r"^ *memory.*", out, re.M)[0]
    amounts = [re.search(rf"(?<!offloaded ){what} ([\d.]+) ([KMG])iB", plan)
               for what in ("optimizer", "offloaded optimizer")]
    return [a and float(a[1]) * {"K": 2**-10, "M": 1, "G": 2**10}[a[2]] for a in amounts]


def run(name, *options, save=None):
    """Trains. Returns the content of the checkpoint, the logged numbers, and the memory."""
    log = WORK / f"{name}.jsonl"
    out = pretrain(data, save or WORK / name, *options, "--log-jsonl", log)
    logged = [{k: v for k, v in r.items() if k in FIELDS} for r in records(log)]
    return content(save or WORK / name, 12), logged, memory(out)


def check_on_gpu(name, options):
    """Compares the norm of the parameters after the first step, when
    Adam changes each of n parameters by at most about the learning rate. Each update has about 12 roundings of terms of
    that size, and as many of terms of the parameter's size."""
    options = [*options, "--log-params-norm", "--exit-interval", 1]
    want, got = ({"n": int(re.search(r"number of parameters: (\d+)", pretrain(
        data, WORK / f"{name} {more}", *options, *more, "--log-jsonl", WORK / f"{name} {more}.jsonl"))[1]),
        **records(WORK / f"{name} {more}.jsonl")[0]} for more in ([], [OFFLOAD]))
    ulp = 2**-53 if "--fp64" in options else 2**-24
    bound = 2 * 12 * ulp * (got["learning_rate"] * math.sqrt(got["n"]) + got["params_norm"])
    assert got["lm_loss"] == want["lm_loss"] and abs(got["params_norm"] - want["params_norm"]) <= bound, (want, got)


for name, options in RUNS.items() if "cuda" in OPTIONS else ():
    check_on_gpu(name, options)
    for part in ([OFFLOAD], HALF):
        want, got = (run(f"{name} {part} {more}", *options, *part, *more)
                     for more in ([], ["--overlap-cpu-optimizer-d2h-h2d"]))
        assert got == want, f"{name}, {part}: overlapped copies change numbers"
        save = WORK / f"{name}, from {part}"
        pretrain(data, save, *options, *part, "--exit-interval", 6)
        got = run(f"{name}, after {part}", *options, *part, "--load", save, save=save)
        assert got[0] == want[0] and got[1] == want[1][6:], f"{name}, {part}: the resumed run has other numbers"
    print(f"{name}: offloaded optimizer state differs from the GPU's by rounding")

for name, options in RUNS.items() if "cuda" not in OPTIONS else ():
    want = run(name, *options)
    device, host = want[2]
    assert host is None, name
    for which, more in {"offloaded": [OFFLOAD], "half": HALF,
                        "half, overlapped": [*HALF, "--overlap-cpu-optimizer-d2h-h2d"]}.items():
        got = run(f"{name}, {which}", *options, *more)
        assert got[:2] == want[:2], f"{name}, {which}: other numbers or another checkpoint"
        left = 0.65 * device if "half" in which else 0.01
        assert left * 0.75 <= got[2][0] + 0.01 <= left + 0.01, f"{name}, {which}: {got[2]} MiB, {device} before"
    # A run may continue with or without offloaded state.
    for first, then in (([OFFLOAD], []), ([], HALF)):
        save = WORK / f"{name}, from {first} to {then}"
        pretrain(data, save, *options, *first, "--exit-interval", 6)
        got = run(f"{name}, after {first}", *options, *then, "--load", save, save=save)
        assert got[0] == want[0] and got[1] == want[1][6:], f"{name}, from {first} to {then}: other numbers"
    print(f"{name}: bitwise equal with offloaded optimizer state")
