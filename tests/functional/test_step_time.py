"""`plan --rates` predicts the time of a step. Its calls and the sum of their times are those of steps measured on GPUs
(bench/results). Each row of gpu-race.json is also predicted from the ops of the other rows, and each step on several
GPUs from all these ops."""
import contextlib
import os
import re
import signal
import statistics
import xml.etree.ElementTree as xml
from time import monotonic, sleep

from harness import *

FP8 = ("fp8_format", "fp8_recipe", "fp8_keep_weights", "fp8_keep_inputs")
RATES = WORK / "rates.json"
ROOFS = {"rates_version": 1, "device": "NVIDIA H200", "provenance": {"date": "2026-11-28"}, "launch_us": 0, "tile": 128,
         "roofs": {"copy_gbytes": 4200, "gemm_gflops": {"BF16": 7e5, "F32": 5e4, "F8_E4M3": 1.4e6, "F8_E5M2": 1.4e6}},
         "rates": []}


def predict(conf, rates, *options, expect=0):
    """Returns what `plan` prints, and the predicted time as JSON."""
    RATES.write_text(json.dumps(rates))
    printed = isotron("plan", "--config", conf, "--rates", RATES, "--json", WORK / "plan.json", *options, expect=expect)
    return printed, None if expect else json.loads((WORK / "plan.json").read_text())["time"]


def measured(row):
    """Returns the rates of a measured step. If an op has calls of several sizes, its time is divided in proportion to
    their measured times, if they are GEMMs, or to their rooflines. Asserts that the plan has the calls that ran."""
    ran = row["ours"][0]["result"]
    _, time = predict(row["path"], ROOFS, *row["options"])
    gemms, ops, rates = {}, {}, []
    for g in ran["gemm"]["gemms"]:
        calls, us = gemms.get(key := (g["op"], g["m"], g["n"], g["k"]), (0, 0))
        gemms[key] = calls + g["calls"], us + g["calls"] * 2e-3 * g["m"] * g["n"] * g["k"] / g["gflops"]
    for call in time["calls"]:
        name, (m, n, k, experts) = call["op"].split()[0], [*call["size"], 1, 1, 1][:4]
        wgrad = name.endswith("wgrad")
        calls, us = gemms.get((name, m if wgrad else m * experts, n, k * experts if wgrad else k), (1, call["us"]))
        ops.setdefault(name, []).append(call | {"us": us / calls})
    assert set(ops) >= set(ran["op_ms"]) - {"fill", "copy"}, (row["path"], set(ran["op_ms"]) - set(ops))
    for name, calls in ops.items():
        if name == "fill":  # `bench train` also counts the fills and copies of a few bytes before the step
            continue
        count, us = sum(c["calls"] for c in calls), sum(c["us"] * c["calls"] for c in calls)
        assert ran["op_ms"][name]["calls"] == count, (row["path"], name, ran["op_ms"][name], count)
        scale = 1e3 * ran["op_ms"][name]["ms"] / us
        rates += [{"op": c["op"], "size": c["size"], "us": scale * c["us"]} for c in calls]
    return rates


def steps(name):
    """Returns the rows of a result with their options."""
    rows = json.loads((ROOT / f"bench/results/{name}.json").read_text())["rows"]
    for row in rows:
        ran = row["ours"][0]["result"]
        changed = {name: ran[name] for name in ("micro_batch_size", "global_batch_size")} | {
            name: x for name, x in (ran["model"] | ran.get("options", {})).items() if name in FP8}
        row["options"] = [f"--{name.replace('_', '-')}={str(x).lower()}" for name, x in changed.items()]
        row["path"] = ROOT / f"bench/train/{row['conf']}.conf"
    return rows


def error(row, known, ran):
    """Returns the relative error of the predicted time, compared with a time of the row's result."""
    return predict(row["path"], ROOFS | {"rates": known}, *row["options"])[1]["step_ms"] / ran - 1


# The plan's calls are those of the step, and their times add up to the time in which the GPU was not idle.
race = steps("gpu-race")
rates = [measured(row) for row in race]
for row in (*race, *steps("gpu-steps-bert"), *steps("gpu-steps-t5"), *steps("gpu-fp8")):
    families = row["ours"][0]["result"]["family_ms"]
    e = error(row, measured(row), sum(families.values()) - families["idle"])
    assert abs(e) < 0.002, (row["path"], e)

# Leave one out: the rates of the other rows predict the step.
errors = []
for row, own in zip(race, rates):
    ran = row["ours"][0]["result"]["step_ms"]["median"]
    e = error(row, [r for known in rates if known is not own for r in known], ran)
    print(f"{row['conf']:18} {ran:8.1f} ms, prediction {e:+.1%}")
    errors.append(abs(e))
print(f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")
assert statistics.median(errors) < 0.08 and max(errors) < 0.12, errors

# Rates that bench rates measured on an H200, without routers, predict the models without experts.
errors, known = {}, json.loads((ROOT / "bench/results/gpu-rates-h200.json").read_text())
for row in race:
    if row["conf"] not in ("moe-2.4b", "qwen3-moe-layers"):
        ms = predict(row["path"], known, *row["options"], "--no-deterministic-mode")[1]["step_ms"]
        errors[row["conf"]] = ms / row["ours"][0]["result"]["step_ms"]["median"] - 1
print("from bench rates:", ", ".join(f"{conf} {e:+.1%}" for conf, e in errors.items()))
assert len(errors) == 4 and max(map(abs, errors.values())) < 0.05, errors

# The rates of steps on one GPU, an H200, and of collectives predict steps on 2 and 4 GPUs, most of them H100.
def steps_of_several():
    """Yields a name, a configuration, options and the measured time of each step on several GPUs."""
    for line in (ROOT / "bench/train/layouts.list").read_text().splitlines():
        name, conf, *options = line.split()
        path = ROOT / f"bench/results/gpu-layout-{name}.json"
        if path.exists():
            yield name, conf, options, json.loads(path.read_text())["step_ms"]["median"]
    for name in ("gpt3-1.3b-strong", "gpt3-1.3b-weak", "gpt2-125m-weak"):
        result = json.loads((ROOT / f"bench/results/gpu-scaling-{name}.json").read_text())
        same = ("micro_batch_size", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
                "cuda_graph_impl")
        options = [f"--{field.replace('_', '-')}={str(result['options'][field]).lower()}" for field in same]
        for row in result["rows"][1:]:
            yield (f"{name} {row['ranks']}", name.rpartition("-")[0],
                   options + [f"--ranks={row['ranks']}", f"--global-batch-size={row['global_batch_size']}"],
                   row["step_ms"]["median"])


LINKS = ["--links", ROOT / "bench/rates/hgx-h100-ndr400.json",
         *(ROOT / f"bench/results/gpu-comm-{n}.json" for n in (2, 4))]
errors, known = [], ROOFS | {"rates": [r for row in rates for r in row]}
for name, conf, options, ms in steps_of_several():
    e = predict(ROOT / f"bench/train/{conf}.conf", known, *options, *LINKS)[1]["step_ms"] / ms - 1
    print(f"{name:18} {ms:8.1f} ms, prediction {e:+.1%}")
    errors.append(abs(e))
print(f"several GPUs: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}")
assert len(errors) >= 15 and statistics.median(errors) < 0.05 and max(errors) < 0.12, errors

# A step of 6,144 ranks.
begin = monotonic()
_, time = predict(ROOT / "bench/recipes/gpt-462b-h100.conf", known, *LINKS)
assert monotonic() - begin < 5 and 0.3 < time["mfu"] < 0.6, (monotonic() - begin, time["mfu"])

# Only one op and the collectives of two ranks are measured. Ops without rates are named.
isotron("bench", "rates", "--dtype", "fp32", "--filter", "^linear$", "--seconds", 1e-3, "--cpu-threads", 1, "--ranks",
        2, "--json", RATES)
file = json.loads(RATES.read_text())
links = {(x["kind"], x["members"], x["per_host"]): x["bytes"] for x in file["links"]}
assert links == {(kind, 1, 1): 256 << 20 for kind in ("to_device", "to_host")} | {(kind, 2, 2): 16 << 20 for kind in (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")}, links
assert file["bench"] == "rates" and file["provenance"]["commit"] and file["launch_us"] == 0
assert file["roofs"]["copy_gbytes"] > 0 and set(file["roofs"]["gemm_gflops"]) == {"F32"}
conf = bench_conf(hidden_size=64)
printed, time = predict(conf, file, "--device", "cpu")
assert all((c["from"] in ("measured", "beyond")) == (c["op"] == "linear F32") for c in time["calls"]), time
assert "from rooflines (adamw F32, " in printed and "predicted step: " in printed, printed
assert math.isclose(sum(c["us"] * c["calls"] for c in time["calls"]), 1e3 * time["step_ms"])
assert math.isclose(sum(time["family_ms"].values()), time["device_ms"])

printed, _ = predict(conf, file, "--device", "cpu", "--ranks", 2)
assert "from other sizes or groups, 0.0 % from the description of hosts" in printed, printed

# Modes with other kernels have other rates. `bench rates` measures all of them.
for options, op in ((["--batch-invariant-mode"], "linear_wgrad F32 fixed"), ([], "linear_wgrad F32")):
    assert op in {c["op"] for c in predict(conf, file, "--device", "cpu", *options)[1]["calls"]}, options
isotron("bench", "rates", "--dtype", "fp32", "--filter", "^(linear|attention_grad)$", "--seconds", 1e-3,
        "--cpu-threads", 1, "--json", RATES)
assert {r["op"] for r in json.loads(RATES.read_text())["rates"]} == {"linear F32", "linear F32 fixed"} | {
    f"attention_grad F32 {mask}{bias}{order}" for mask in ("causal", "full") for bias in ("", " biased")
    for order in ("", " deterministic")}

# Links: of bench comm, of a comparison with nccl-tests, and of a description, which must be the only one.
isotron("bench", "comm", "--ranks", 4, "--max-bytes", "4K", "--seconds", 1e-3, "--json", WORK / "comm.json")
HOST = ROOT / "bench/rates/hgx-h100-ndr400.json"
LINKS = ["--links", WORK / "comm.json", ROOT / "bench/results/gpu-comm-2.json", HOST]
predict(conf, file, "--device", "cpu", *LINKS)
assert "this is the second description of hosts" in predict(conf, file, "--device", "cpu", *LINKS, HOST, expect=2)[0]
described = json.loads(HOST.read_text())
assert described["host"].keys() == described["basis"].keys()

# A measurement whose process ends is skipped. After an op's second failure, its other calls are skipped, too.
run = subprocess.Popen([PROGRAM, "bench", "rates", "--dtype", "fp32", "--filter", "^linear$", "--seconds", "1e-3",
                        "--cpu-threads", "1", "--json", RATES], stdout=subprocess.PIPE, text=True)
killed = set()
while run.poll() is None:
    for child in map(int, pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()):
        if child not in killed:
            killed.add(child)
            sleep(0.2)
            with contextlib.suppress(ProcessLookupError):  # the measurement has ended
                os.kill(child, signal.SIGKILL)
printed, skipped = run.communicate()[0], json.loads(RATES.read_text())["skipped"]
assert run.returncode == 0 and 3 <= len(skipped) <= len(killed), printed
assert skipped[0] == "copy and launch: the process ended", skipped
assert "\nskipped all further calls of linear F32\n" in printed, printed

# Several ranks, with links of 1 GB/s. The timeline contains the calls of the shorter step that was simulated.
host = {"ranks": 8, "nvlink_gbytes": 1, "nvlink_us": 1, "nics": 8, "nic_gbytes": 1, "nic_us": 1, "rails": 8,
        "pcie_gbytes": 1, "pcie_us": 1}
many = ["--device", "cpu", "--tensor-model-parallel-size", 2, "--pipeline-model-parallel-size", 2, "--num-layers", 2]
file["links"] = []
assert "there is no time for " in predict(conf, file, *many, "--ranks", 8, expect=2)[0]
(WORK / "host.json").write_text(json.dumps({"host": host}))
many += ["--links", WORK / "host.json", "--ranks", 8]
printed, time = predict(conf, file, *many, "--timeline", WORK / "step.json")
predict(conf, file, *many, "--timeline", WORK / "step.svg")
parts = time["parts_ms"]
assert math.isclose(sum(parts["exposed"].values()) + sum(x for x in parts.values() if x != parts["exposed"]),
                    time["step_ms"]), time
assert set(parts["exposed"]) >= {"tp", "pp", "dp", "world"} and parts["bubble"] > 0, parts
for text in ("per rank), MFU", "exposed tp ", "100.0 % from the description of hosts\n"):
    assert text in printed, (text, printed)
events = json.loads((WORK / "step.json").read_text())["traceEvents"]
rows = {(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"}
assert rows >= {(0, "stage 0"), (1, "stage 1"), (0, "tp"), (1, "dp"), (0, "pp send"), (1, "pp recv")}, rows
for stage in range(2):
    ops = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == stage and not e["tid"])
    assert all(a[1] <= b[0] + 2e-3 for a, b in zip(ops, ops[1:])), "ops overlap"
    assert {e["name"].split()[0] for e in events if e["ph"] == "X" and e["pid"] == stage} >= {
        "linear", "adamw", "pipeline_activation", "pipeline_gradient", "grad_sum"}
drawn = {e.text for e in xml.parse(WORK / "step.svg").iter() if e.tag.endswith("text")}
assert drawn >= {"stage 0", "stage 1", "tp", "GEMM", "0 ms"}, drawn

# Errors.
assert "plan is for a GPU: add --device cpu" in predict(conf, file, "--device", "cuda", expect=2)[0]
for name, *rest in (["--cpu-offloading", "--cpu-offloading-num-layers", 1], ["--optimizer-cpu-offload"],
                    ["--fine-grained-activation-offloading", "--offload-modules", "mlp_norm"]):
    assert f"the copies and updates of {name}: remove it, or --rates" in predict(
        conf, file, "--device", "cpu", "--num-layers", 2, name, *rest, expect=2)[0]
no_fp8 = {"roofs": {"copy_gbytes": 4200, "gemm_gflops": {"BF16": 7e5}}}
assert "no rates for fp8_gemm FP8, fp8_gemm FP8 fast: measure" in predict(
    ROOT / "bench/train/llama3-8b.conf", ROOFS | no_fp8, "--fp8-format=hybrid", expect=2)[0]
no_bf16 = {"roofs": {"copy_gbytes": 4200, "gemm_gflops": {}}}
assert ", linear BF16," in predict(ROOT / "bench/train/moe-2.4b.conf", ROOFS | no_bf16, expect=2)[0]
for broken in ({"rates_version": 2}, {"rates": None}, {"rates": [{"op": "a", "size": [], "us": 1}]}, {"launch_us": -1},
               {"rates": [{"op": "a", "size": [1], "us": "1"}]}, {"rates": [{"op": "a", "size": [1], "us": 0}]},
               {"roofs": {"copy_gbytes": 1, "gemm_gflops": {"X": 1}}}):
    message = predict(conf, file | broken, "--device", "cpu", expect=2)[0]
    assert "measure " in message and "isotron bench rates" in message, message
