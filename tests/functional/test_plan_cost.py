"""`plan --rates` predicts days, cost and goodput."""
import random
import re
import statistics

from harness import *

data = corpus()
RATES = WORK / "rates.json"
# All times follow from these roofs and links, which a GPU of our machine need not have.
RATES.write_text(json.dumps({
    "rates_version": 1, "device": "NVIDIA H200", "provenance": {"date": "2026-11-28"}, "launch_us": 0, "tile": 128,
    "roofs": {"copy_gbytes": 0.5, "gemm_gflops": {"F32": 0.2}}, "rates": []}))
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
print("plan: days, cost and goodput")
