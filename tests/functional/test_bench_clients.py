"""bench infer --clients reports every token of every request, and times that agree with each other. With DRILL_SERVER,
a delay before the queue is part of TTFT and of HTTP's share, and a delay of each step is part of TPOT and of the
scheduler's share. Otherwise, times are not judged."""
import json
import os

from harness import *

CONF = bench_conf()
ROUNDS, EACH, NEW = 3, 2, 6
CLOSE = 1.1e-5  # two numbers of six digits, each with a relative error of at most 5e-6, and the arithmetic


def clients(*options, program=PROGRAM, expect=0, **env):
    done = subprocess.run(list(map(str, [program, "bench", "infer", "--config", CONF, "--prompt-tokens", 9,
                                         "--new-tokens", NEW, "--rounds", ROUNDS, "--json", WORK / "clients.json",
                                         *options])), capture_output=True, text=True, env=os.environ | env)
    assert done.returncode == expect, (options, done)
    return done.stdout + done.stderr if expect else json.loads((WORK / "clients.json").read_text())


def rows_of(result, n, each=EACH):
    return [next(row for row in result["rows"] if row["name"].startswith(f"{name}/{n}x{each}x9+{NEW}"))
            for name in ("ttft", "tpot", "latency", "serve")]


def check(result, *numbers, kind="F32"):
    assert result["bench"] == "infer" and result["complete"] and "roofs" not in result, result
    for n in numbers:
        ttft, tpot, latency, serve = rows_of(result, n)
        assert all(row["clients"] == n and row["type"] == kind and len(row["samples_us"]) == ROUNDS
                   for row in (ttft, tpot, latency, serve)), result
        assert serve["requests"] == n * EACH * ROUNDS and serve["tokens"] == serve["requests"] * NEW, serve
        for rate, count in ("requests", n * EACH), ("tokens", n * EACH * NEW):
            assert math.isclose(serve[f"{rate}_per_second"] * serve["us"], count * 1e6, rel_tol=CLOSE), (rate, serve)
        assert 0 < serve["scheduler"] < 1 and serve["http"] < 1 and serve["engine_us"] > 0, serve
        assert 0 <= tpot["itl_us"] <= tpot["itl_p99_us"] and ttft["p99_us"] <= latency["p99_us"], (ttft, tpot, latency)
        assert tpot["itl_p99_us"] <= latency["p99_us"] <= max(serve["samples_us"]), (tpot, latency, serve)
        assert all(0 < first <= whole <= round for first, whole, round in
                   zip(ttft["samples_us"], latency["samples_us"], serve["samples_us"])), (ttft, latency, serve)
    if 1 in numbers:  # the median of two requests is their mean, which is linear, and the requests fill the round
        ttft, tpot, latency, serve = rows_of(result, 1)
        for first, gap, whole, round in zip(*(row["samples_us"] for row in (ttft, tpot, latency, serve))):
            assert math.isclose(first + (NEW - 1) * gap, whole, rel_tol=CLOSE), (first, gap, whole)
            assert EACH * whole <= round * (1 + CLOSE), (whole, round)


check(clients("--clients", 1, 3), 1, 3)
both = clients("--clients", 3, "--requests", 2, "--no-alone", "--tensor-model-parallel-size", 2, "--bf16")
assert both["rows"][0]["name"] == f"prefill/2x9+{NEW}" and both["ranks"] == 2, both
check(both, 3, kind="BF16")
sampled = clients("--clients", 2, "--temperature", 0.8, "--top-p", 0.9)
assert {row["name"].partition(" ")[2] for row in sampled["rows"]} == {"sampled"}, sampled

# The gate compares the same work. A busy machine makes it inconclusive.
clients("--clients", 1)
(WORK / "clients.json").rename(WORK / "base.json")
out = clients("--clients", 1, "--baseline", WORK / "base.json", expect=4)
assert f"ttft/1x2x9+{NEW} F32" in out and "3 samples" in out, out
REFUSED = {"no row ttft/1x3x9": ["--clients", 1, "--requests-per-client", 3, "--baseline", WORK / "base.json"],
           "--clients": ["--clients", 4097], "--requests-per-client": ["--requests-per-client", 0]}
for message, options in REFUSED.items():
    out = clients(*options, expect=2)
    assert message in out, (options, out)

DELAY = 60  # ms
# The delays are part of one share. On a busy machine, the engine may compute during a delay: several tries are allowed.
for attempt in range(4):
    late = rows_of(clients("--clients", 1, program=os.environ["DRILL_PROGRAM"], DRILL_SERVER=f"request {DELAY}"), 1)
    slow = rows_of(clients("--clients", 1, program=os.environ["DRILL_PROGRAM"], DRILL_SERVER=f"step {DELAY // 4}"), 1)
    shares = late[3]["http"] * late[3]["us"], slow[3]["scheduler"] * slow[3]["us"]
    least = 0.9e3 * EACH * DELAY, 0.9e3 * EACH * NEW * (DELAY // 4)
    if shares[0] >= least[0] and shares[1] >= least[1]:
        break
else:
    raise AssertionError((shares, least, late[3], slow[3]))
assert min(late[0]["samples_us"]) >= DELAY * 1e3 > 2 * late[1]["us"], late
assert late[3]["scheduler"] < late[3]["http"] and slow[3]["http"] < slow[3]["scheduler"], (late, slow)
assert slow[1]["us"] > DELAY / 8 * 1e3, slow
