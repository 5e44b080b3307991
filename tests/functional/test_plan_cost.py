"""`plan --rates` predicts days, cost and goodput, and finds the fastest layouts."""
import concurrent.futures
import itertools
import random
import re
import statistics

from harness import *

data = corpus()
RATES = WORK / "rates.json"
def write_rates(copy_gbytes, gemm_gflops, launch_us):
    RATES.write_text(json.dumps({
        "rates_version": 1, "device": "NVIDIA H200", "provenance": {"date": "2026-11-28"}, "launch_us": launch_us,
        "tile": 128, "roofs": {"copy_gbytes": copy_gbytes, "gemm_gflops": {"F32": gemm_gflops}}, "rates": []}))


write_rates(0.5, 0.2, 0)
HOST = ROOT / "bench/rates/hgx-h100-ndr400.json"
CONFIG = ["--config", WORK / "run.conf", "--device", "cuda"]
TIMED = [*CONFIG, "--rates", RATES, "--links", HOST]


def plan(*options, expect=0):
    """Returns the plan as JSON, with the printed text."""
    printed = isotron("plan", *options, "--json", WORK / "plan.json", expect=expect)
    return json.loads((WORK / "plan.json").read_text()) | {"printed": printed}


# Days, cost and goodput follow from the step's time.
STORAGE = ["--gpu-failure-hours", 0.5, "--save-bandwidth", 0.01, "--restart-seconds", 20]
said = plan(*TIMED, "--ranks", 2, "--tokens", "1.5B", "--price", 2.5, *STORAGE, "--save-interval", 30)
run, speed = said["run"], said["time"]["tokens_per_second"]
save = float(re.search(r"failures: one per 0.25 hours; a checkpoint takes (\S+) s, a restart 20 s\n",
                       said["printed"])[1])
# masters and two moments of 4 bytes, and small tables
assert 1 <= save * 0.01e9 / (12 * said["plan"]["parameters"]) < 1.001, save
assert math.isclose(run["failure_hours"], 0.25) and run["interval"] == 30, run
seconds = 1.5e9 / speed / run["goodput"]
assert math.isclose(run["days"], seconds / 86400) and math.isclose(run["cost"], 2 * 2.5 * seconds / 3600), run
assert math.isclose(run["cost_per_million_tokens"], run["cost"] / 1500), run
assert f"--save-interval: 30 steps ({30 * said['time']['step_ms'] / 6e4:.1f} minutes), goodput " in said["printed"]
best = plan(*TIMED, "--ranks", 2, *STORAGE, "--save-interval", "none")["run"]
assert best["interval"] == best["best_interval"] == run["best_interval"] and best["goodput"] > run["goodput"], best


def duration(train, failure, restart):
    """Simulates one interval between checkpoints. Returns its duration."""
    time, rng = 0, random.random
    while (work := -failure * math.log(1 - rng())) < train + save:
        time += work
        while (lost := -failure * math.log(1 - rng())) < restart:
            time += lost
        time += restart
    return time + train + save


# A simulation with random failures has this goodput.
random.seed(1)
train = 30 * said["time"]["step_ms"] * 1e-3
times = [duration(train, 900, 20) for _ in range(20000)]
sigma = statistics.stdev(times) / len(times)**0.5
assert abs(train / run["goodput"] - statistics.mean(times)) < 4 * sigma, (run, statistics.mean(times), sigma)

# Errors.
FAILURES = ["--gpu-failure-hours", 9, "--restart-seconds", 1]
for options, message in (
        (["--tokens", "1x"], "--tokens must be a positive number, such as 15T, 300B, 10M or 1e9, not '1x'"),
        (["--price", 0], "--price must be above 0 and finite"),
        ([*FAILURES, "--save-seconds", -1], "--save-seconds must be above 0 and finite"),
        (["--gpu-failure-hours", "nan"], "--gpu-failure-hours expects a number, not 'nan'"),
        (FAILURES, "--gpu-failure-hours needs either --save-seconds or --save-bandwidth"),
        ([*FAILURES, "--save-seconds", 1, "--save-bandwidth", 1], "needs either --save-seconds or --save-bandwidth"),
        (["--gpu-failure-hours", 9, "--save-seconds", 1], "--gpu-failure-hours needs --restart-seconds"),
        (["--save-seconds", 1], "--save-seconds is not used without --gpu-failure-hours"),
        (["--save-bandwidth", 1], "--save-bandwidth is not used without --gpu-failure-hours"),
        (["--restart-seconds", 1], "--restart-seconds is not used without --gpu-failure-hours"),
        ([*FAILURES, "--save-bandwidth", 1, "--async-save", "--save", "x", "--save-interval", 1],
         "--save-bandwidth is not used with --async-save")):
    assert message in isotron("plan", *TIMED, *options, expect=2), (options, message)
for name in "tokens", "price", "gpu-failure-hours":
    assert f"--{name} is not used without --rates" in isotron("plan", *CONFIG, f"--{name}", 1, expect=2), name
# The search finds the fastest of all layouts that fit, and the fastest of each choice of parallel sizes.
EXPERTS = ["--disable-bias-linear", "--num-experts", 4, "--moe-router-topk", 2]
RECOMPUTE = ([], ["--recompute-granularity", "selective"],
             ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1])
FSDP = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy"]
ZERO = ([], ["--use-distributed-optimizer"], [*FSDP, "optim_grads"], [*FSDP, "optim_grads_params"])
AXES = ("--tensor-model-parallel-size", "--context-parallel-size", "--pipeline-model-parallel-size",
        "--expert-model-parallel-size")


def layouts(ranks, layers, batch, experts):
    """Yields the options of all layouts, some of which are invalid."""
    powers = [2**i for i in range(ranks.bit_length())]
    for tensor, context, pipeline, expert in itertools.product(powers, powers, powers, powers if experts else [1]):
        for sequence, etp, chunks, micro, zero, recompute in itertools.product(
                ([], ["--sequence-parallel"]) if tensor > 1 else ([],), {1, tensor} if experts else (None,),
                range(1, layers // pipeline + 1) if pipeline > 1 else (1,), (1, 2, 4, 8), ZERO, RECOMPUTE):
            if tensor * context * pipeline <= ranks and batch % (micro * ranks // (tensor * context * pipeline)) == 0:
                sizes = [word for pair in zip(AXES, (tensor, context, pipeline, expert)) for word in pair]
                yield [*sizes[:None if experts else -2], *sequence, "--micro-batch-size", micro, *zero, *recompute,
                       *(["--expert-tensor-parallel-size", etp] if experts else []),
                       *(["--num-virtual-stages-per-pipeline-rank", chunks] if chunks > 1 else [])]


def speed(i, words, options):
    """Returns tokens/s and the memory that a rank needs, or None if the layout is invalid."""
    out = WORK / f"speed-{i}.json"
    done = subprocess.run([PROGRAM, "plan", *map(str, [*words, *options, "--json", out])], capture_output=True)
    assert done.returncode in (0, 2), (options, done)
    if done.returncode:
        return None
    made = json.loads(out.read_text())
    out.unlink()
    return made["time"]["tokens_per_second"], max(m["total"] for m in made["plan"]["memory"])


def group(options):
    """Returns the parallel sizes in a list of options."""
    return tuple(int(options[options.index(axis) + 1]) if axis in options else 1 for axis in AXES)


write_rates(500, 1e4, 0)
for model, ranks, layers, batch in (([], 4, 4, 32), (EXPERTS, 2, 2, 4)):
    words = [*TIMED, *model, "--num-layers", layers, "--global-batch-size", batch, "--ranks", ranks, "--hidden-size",
             512, "--seq-length", 256]
    tried = list(layouts(ranks, layers, batch, bool(model)))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        speeds = list(pool.map(lambda i: speed(i, words, tried[i]), range(len(tried))))
    valid = sorted(x[1] for x in speeds if x)
    for memory in valid[-1], valid[len(valid) // 2], valid[len(valid) // 16]:
        best = {}
        for options, x in zip(tried, speeds):
            if x and x[1] <= memory:
                best[group(options)] = max(x[0], best.get(group(options), 0))
        said = plan(*words, "--search", "--device-memory-gib", memory / 2**30)
        found, fastest = said["search"], max(best.values())
        print(f"{len(tried)} layouts, {len(valid)} valid, {len(best)} choices fit; searched", said["searched"])
        # one of the searched layouts stands for all choices of ZeRO and recomputation
        assert said["searched"]["all"] and said["searched"]["layouts"] >= len(tried) / len(ZERO) / len(RECOMPUTE), said
        assert found[0]["tokens_per_second"] == fastest, (found, fastest)
        assert [f["tokens_per_second"] for f in found] == sorted(
            (x for x in best.values() if x > fastest / 1.1), reverse=True)[:8], (found, best)
        for layout in found:
            again = plan(*words, *layout["options"].split())
            assert again["time"]["tokens_per_second"] == layout["tokens_per_second"], layout
            assert max(m["total"] for m in again["plan"]["memory"]) == layout["bytes"] <= memory, layout
print("plan: days, cost, goodput and the fastest layouts")
