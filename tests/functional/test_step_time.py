"""`plan --rates` predicts the time of a step: from rates that `bench rates` measured here, and for each row of
bench/results/gpu-race.json from the ops of the other rows."""
import statistics

from harness import *

RATES = WORK / "rates.json"
ROOFS = {"rates_version": 1, "device": "NVIDIA H200", "launch_us": 0, "tile": 128, "rates": [],
         "roofs": {"copy_gbytes": 4200, "gemm_gflops": {"BF16": 7e5, "F32": 5e4}}}


def predict(conf, rates, *options, expect=0):
    """Returns what `plan` prints, and the predicted time as JSON."""
    RATES.write_text(json.dumps(rates))
    printed = isotron("plan", "--config", conf, "--rates", RATES, "--json", WORK / "plan.json", *options, expect=expect)
    return printed, None if expect else json.loads((WORK / "plan.json").read_text())["time"]


def measured(row):
    """Returns the rates of a measured step: of each GEMM by shape, and of each other op. If an op has calls of several
    sizes, its time is divided in proportion to their rooflines. Asserts that the plan has the calls that ran."""
    ran = row["ours"][0]["result"]
    _, time = predict(ROOT / f"bench/train/{row['conf']}.conf", ROOFS)
    gemms, ops, rates = {}, {}, []
    for g in ran["gemm"]["gemms"]:
        calls, us = gemms.get(key := (f"{g['op']} {g['type']}", g["m"], g["n"], g["k"]), (0, 0))
        gemms[key] = calls + g["calls"], us + g["calls"] * 2e-3 * g["m"] * g["n"] * g["k"] / g["gflops"]
    for call in time["calls"]:
        ops.setdefault(call["op"].split()[0], []).append(call)
    for name, calls in ops.items():
        if name == "fill":  # `bench train` also counts the fills before the step
            continue
        assert ran["op_ms"][name]["calls"] == sum(c["calls"] for c in calls), (row["conf"], name, calls)
        roof = sum(c["us"] * c["calls"] for c in calls)
        for c in calls:
            us, size = 1e3 * ran["op_ms"][name]["ms"] * c["us"] / roof, c["size"]
            if ran["op_ms"][name]["family"] == "gemm":
                m, n, k, experts = [*size, 1][:4]
                wgrad = name == "grouped_linear_wgrad"
                count, total = gemms[c["op"], m if wgrad else m * experts, n, k * experts if wgrad else k]
                assert count == c["calls"], (row["conf"], c, count)
                us = total / count
            rates.append({"op": c["op"], "size": size, "us": us})
    assert set(ops) >= set(ran["op_ms"]) - {"fill"}, row["conf"]
    return rates


# Leave one out: the rates of the other rows predict the step.
rows = json.loads((ROOT / "bench/results/gpu-race.json").read_text())["rows"]
rates, errors = {row["conf"]: measured(row) for row in rows}, []
for row in rows:
    conf, ran = ROOT / f"bench/train/{row['conf']}.conf", row["ours"][0]["result"]
    step = ran["step_ms"]["median"]
    others = [r for name, known in rates.items() if name != row["conf"] for r in known]
    own, left_out = (predict(conf, ROOFS | {"rates": known})[1] for known in (rates[row["conf"]], others))
    errors.append(abs(left_out["step_ms"] / step - 1))
    print(f"{row['conf']:18} {step:8.1f} ms, predicted {left_out['step_ms']:8.1f} ms "
          f"({left_out['step_ms'] / step - 1:+.1%}), with the row {own['step_ms'] / step - 1:+.1%}")
    assert abs(own["step_ms"] / step - 1) < 0.02, "the step is not the sum of its ops"
print(f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")
assert statistics.median(errors) < 0.08 and max(errors) < 0.12, errors

# Only one op is measured. Ops without rates are named.
isotron("bench", "rates", "--dtype", "fp32", "--filter", "^linear$", "--seconds", 1e-3, "--cpu-threads", 1, "--json",
        RATES)
file = json.loads(RATES.read_text())
assert file["bench"] == "rates" and file["provenance"]["commit"] and file["launch_us"] == 0
assert file["roofs"]["copy_gbytes"] > 0 and set(file["roofs"]["gemm_gflops"]) == {"F32"}
conf = bench_conf(hidden_size=64)
printed, time = predict(conf, file, "--device", "cpu")
assert all((c["from"] in ("measured", "beyond")) == (c["op"] == "linear F32") for c in time["calls"]), time
assert "from rooflines (adamw F32, " in printed and "predicted step: " in printed, printed
assert math.isclose(sum(c["us"] * c["calls"] for c in time["calls"]), 1e3 * time["step_ms"])
assert math.isclose(sum(time["family_ms"].values()), time["device_ms"])

# Errors.
for options, said in ((["--ranks", 2], "one rank, but the layout has 2"),
                      (["--device", "cuda"], "plan is for a GPU: add --device cpu")):
    assert said in predict(conf, file, "--device", "cpu", *options, expect=2)[0], options
FP8 = ["--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"]
assert "no rates for fp8_gemm F8_E4M3, fp8_gemm F8_E5M2: measure" in predict(
    ROOT / "bench/train/llama3-8b.conf", ROOFS, *FP8, expect=2)[0]
for broken in ({"rates_version": 2}, {"rates": None}, {"rates": [{"op": "a", "size": [], "us": 1}]}, {"launch_us": -1},
               {"rates": [{"op": "a", "size": [1], "us": "1"}]},
               {"roofs": {"copy_gbytes": 1, "gemm_gflops": {"X": 1}}}):
    message = predict(conf, file | broken, "--device", "cpu", expect=2)[0]
    assert "measure " in message and "isotron bench rates" in message, message
