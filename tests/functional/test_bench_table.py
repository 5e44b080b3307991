"""tools/bench_table on a separate tree with made-up results: tables and plots show the results, --check detects each
change, files of results are compact, and damaged results change nothing."""
import os
import re

from harness import *

sys.path.insert(0, str(ROOT / "tools"))
from cli import compact

for name in ("docs", "bench/results"):
    (WORK / name).mkdir(parents=True)
DOCUMENTS = WORK / "docs/performance.md", WORK / "README.md"
script = (ROOT / "tools/bench_table").read_text()
SECTIONS = re.findall(r'"([\w-]+)": \w+_table\b', script)
assert len(SECTIONS) == 17, SECTIONS
for path in DOCUMENTS:
    path.write_text("Before.\n" + "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in SECTIONS) + "After.\n")

spread = {"median": 1.25, "min": 1.2, "max": 1.3}
families = {family: 1.0 for family in "gemm attention norm activation loss elementwise embedding optimizer moe fp8 "
            "idle".split()}
result = {"profiled_step_ms": 11.0, "roof_gflops": 604e3, "family_ms": families, "timing_ops_adds": 0.01,
          "gemm": {"of_alone": 0.97}, "memory_mb": {"peak_over_plan": 1.02}, "provenance": {"commit": "0123abc"}}
sensors = {name: spread for name in ("sm_mhz", "watts", "celsius")}
sensors["gpus"] = [dict(sensors), None]
facts = {"device": "a GPU", "our_libraries": {"libcudnn": "/lib/libcudnn.so.9"},
         "ours_options": "--fast", "peer_options": ""}
row = {"conf": "gpt2-125m", "provenance": facts, "ours": [{"result": result, "sensors": sensors}],
       "peer": [{"sensors": None}], "ours_ms": spread, "peer_ms": spread, "ratio": spread, "tokens_per_second": 1e5,
       "mfu": 0.5, "peer_mfu": 0.4, "of_roof": 0.7}
failed = {"conf": "llama3-8b", "ours": [{"failed": "ended with 1"}], "peer": []}
other = row | {"conf": "gpt3-1.3b", "provenance": facts | {"ours_options": "", "driver": "1.2"}}
cell = {"ours": {"us": spread, "path": "cuDNN"}, "peer": {"us": spread, "path": "flash"}, "ratio": spread}
against = {"rows": [row | {"provenance": facts | {"ours_options": "--this", "peer_options": "--that"}}]}
of_cpu = {"gemm": {"gflops": 90.0, "blas_gflops": 96.0}, "family_ms": {"attention": 1.0}, "step_ms": {"mean": 20.0}}
of_family = {"conf": "bert-20m", "ours": [{"result": of_cpu}], "ratio": spread, "flops_ratio": spread,
             "step_tflop": 0.121, "tflops": 0.0832, "provenance": {"device": "CPU (1 thread)", "cpu": "a CPU",
                                                                   "blas": "a BLAS", "commit": "0123abc", "rounds": 4}}
scaled = {"ranks": 2, "devices": 2, "global_batch_size": 8, "step_ms": spread, "tokens_per_second": 5e4,
          "tokens_per_second_per_device": 2.5e4, "exposed": 0.015,
          "efficiency": {"median": 0.97, "low": 0.96, "high": 0.98}, "note": "2 ranks share a bus"}
loads = [{"mean_mhz": mhz, "mean_watts": 600.0} for mhz in (1400.0, 1500.0)]
first = scaled | {"ranks": 1, "efficiency": {"median": 1.0}}
on_two = result | {"global_batch_size": 32, "profiled_step_ms": 10.0, "family_ms": families | {"communication": 0.2}}
step = row | {"provenance": facts, "devices": 2, "ours": [{"result": on_two, "sensors": sensors}],
              "peer": [{"result": {"parallel": "DDP"}}]}
collective = {"collective": "all_reduce", "bytes": 2**28} | {f"{side}_{what}": spread for side in ("ours", "peer")
                                                             for what in ("us", "busbw")}
alone = {"device": "a GPU", "transport": "a NCCL", "ranks": 8, "group": 4, "rows": [
    {"collective": name, "bytes": size} | {place: {"us": us, "busbw": 300.04, "wrong": 0} for place in places}
    for name, places in (("all_reduce", ["out_of_place", "in_place"]), ("all_to_all", ["out_of_place"]), ("x", []))
    for size, us in ((2**28, 900.0), (2**12, 9.0))]}
layout = {"family_ms": {"communication": 0.2, "bubble": 1.0, "attention": 2.0}, "profiled_step_ms": 10.0, "devices": 2,
          "device": "a GPU (GPU 0)", "options": {"seq_length": 2048}, "micro_batch_size": 2, "global_batch_size": 16,
          "step_ms": spread, "tokens_per_second": 9e4, "mfu": 0.4, "memory_mb": {"planned": 100.0, "taken": 103.0},
          "rank": [{"busy_ms": 1.0, "planned_mb": 100.0, "taken_mb": 103.0, "communicators": 1}] * 2}
LAYOUTS = ("tp4", "tp2pp2", "cp4-a2a", "8b-dp4", "8b-tp2", "8b-tp4", "8b-fp8", "dp4")
RESULTS = {f"gpu-layout-{name}.json": layout for name in LAYOUTS} | {
    "gpu-layout-dp4.json": layout | {"family_ms": layout["family_ms"] | {"communication": 0.21}},
    "gpu-steps-ddp-4.json": {"rows": [step]},
    "gpu-steps-fsdp.json": {"rows": [step | {"ratio": spread | {"median": 1.0}}]},
    "gpu-scaling-gpt3-1.3b-weak.json": {"scaling": "weak", "rows": [first, scaled]},
    "gpu-steps-ddp.json": {"rows": [step, step | {"devices": 1}, failed]},
    "gpu-layout-pp2.json": layout,
    "gpu-comm-2.json": {"rows": [collective | {"ratio": spread}],
                        "provenance": {"ranks": 2, "device": "a GPU", "transport": "a NCCL", "rounds": 3},
                        "turns": {"ours 256M": [{"sensors": sensors}]}},
    "gpu-comm-8-halves.json": alone, "gpu-comm-8.json": alone | {"group": 8},
    "recipes.json": {"rows": [{"name": "m", "parameters": 8030261248,
                               "layout": {"ranks": 64, "tensor": 4, "pipeline": 4, "context": 1,
                                          "expert": 1, "data": 4},
                               "global_batch_size": 128, "bubble": 0.012, "bytes": 2**36, "published": "1 TFLOP/s",
                               "time": {"step_ms": 1234.5, "tokens_per_second_per_gpu": 999.6, "mfu": 0.4567,
                                        "ratio": 0.955}}],
                     "rates": {"date": "2026-12-01T16:00:00Z", "commit": "0123456789ab"},
                     "scaling": [{"kind": kind, "name": "m", "ranks": 64, "published": 400, "tflops": 400 * ratio,
                                  "ratio": ratio, "micro": 2, "chunks": 3}
                                 for kind, ratio in (("weak", 0.9), ("weak", 1.2), ("strong", 1.05))]},
    "cpu-families.json": {"rows": [of_family]},
    "gpu-scaling-2b-weak.json": {"scaling": "weak", "rows": [first, scaled | {"rank": loads}]},
    "gpu-scaling-half.json": {"scaling": "weak", "rows": [first, scaled | {"rank": [loads[0], {"busy_ms": 1.0}]}]},
    "gpu-race.json": {"rows": [row, failed, other]}, "gpu-fp8.json": against,
    "gpu-ops.json": {"roofs": {"copy_gbytes": 4000.0, "bf16": 7e5}, "rows": [
        {"name": "adamw/large", "type": "bf16", "us": 10.0, "gbytes": 3700.0, "of_roof": 0.925},
        {"name": "add/large", "type": "bf16", "us": 20.0, "gbytes": 3950.0, "of_roof": 0.9875},
        {"name": "add", "type": "bf16", "us": 10.0, "gbytes": 3500.0, "of_roof": 0.875},
        {"name": "linear/fc1", "type": "bf16", "us": 10.0, "gflops": 5.6e5, "of_roof": 0.8}]},
    "gpu-peer-infer.json": {"rows": [
        {"name": "decode/1x1024", "weights": "fp8", "us": 3300.0},
        {"name": "decode/1x1024", "weights": "bf16", "us": 4869.0},
        {"name": "prefill/1x4096", "weights": "bf16", "us": 99930.0},
        {"name": "all/4x1024+128", "weights": "bf16", "tokens_per_second": 700.2}]},
    "gpu-infer-1.json": {"options": {"batch_invariant_mode": True}, "rows": [
        {"name": "prefill/1x1024+128", "us": 22050.0, "gflops": 648e3, "of_roof": 0.98},
        {"name": "decode/1x1024+128", "us": 4750.0, "gbytes": 3189.4},
        {"name": "all/1x1024+128", "us": 7e5, "tokens_per_second": 204.4, "outside_model": 0.0025}]},
    "gpu-clients.json": {"rows": [
        {"name": f"{name}/{n}x2x1024+128", "clients": n, "us": 3e4 * n, "p99_us": 6e4 * n,
         "itl_us": 5e3, "itl_p99_us": 7e3, "requests_per_second": 1.71, "tokens_per_second": 218.9,
         "scheduler": 0.0012, "http": 0.0251}
        for n in (1, 256) for name in ("ttft", "tpot", "latency", "serve")]},
    "gpu-attention.json": {"rows": [{"name": "attention/short", "shape": [2, 1, 1, 1, 8], "gflop": 1.0,
                                     "any_order": cell, "deterministic": {}}]}}


def run(*words, **variables):
    return subprocess.run([sys.executable, ROOT / "tools/bench_table", *words], capture_output=True, text=True,
                          env=os.environ | {"BENCH_TABLE_ROOT": str(WORK)} | variables)


def write(name, text):
    (WORK / "bench/results" / name).write_text(text if isinstance(text, str) else json.dumps(text, indent=1))


def updates():
    assert run("--check").returncode == 1 and run().returncode == 0 and run("--check").returncode == 0


updates()
assert all(path.read_text().count("Not measured yet.") == len(SECTIONS) for path in DOCUMENTS)
for name, what in RESULTS.items():
    write(name, what)
updates()
for name, what in RESULTS.items():
    text = (WORK / "bench/results" / name).read_text()
    assert json.loads(text) == what and text.count("\n") < json.dumps(what, indent=1).count("\n") / 2, text
text = DOCUMENTS[0].read_text()
assert "Measured at commit 0123abc.\n<!-- end -->" in text
assert "skipped: the ages of results, because this is not a git repository" in run("--check").stdout
for part in ("| gpt2-125m | 1.2 | 1.2 | 1.250 (1.200 to 1.300) | 100000 | 592000 | 50.0 % | 40.0 % | 70.0 % |",
             "| 1 | 1024 | 128 | bf16 | yes | 22.1 | - | 648, 98.0 % | 4.75 | 4.87 | 3189 | 204 | 700 (4 requests) | "
             "0.2 % |",
             "| 256 | 7680.0 | 15360.0 | 7680.00 | 15360.00 | 7.00 | 219 | 0.1 % | 2.5 % |",
             "\n\nPrompts of 1024 tokens, 128 new tokens.\n\n",
             "After.\n", "| gpt2-125m | 1 ms | 1 ms | 1.25 | 100,000 |",
             "| bert-20m | 121 | 83.2 | 66.6 | 1.250 (1.200 to 1.300) | 90.0 | 96.0 | 5.0% |",
             "| `add` | 10 us, 3500 GB/s, 88 % |", "10 us, 560.0 TFLOP/s, 80 %", "| +1.0% | 0.970 | +2.0% |",
             "libcudnn.so.9", "Ours: `--fast` or as configured.", "| driver | 1.2 |",
             "| `attention/short` | 2 x 1 x 1 x 1 x 8 | 800 | 800, flash | 1.250 (1.200 to 1.300) | - | - | - |",
             "| gpt2-125m | 1.2 | 1.2 | 1.250 (1.200 to 1.300) |", "FP8: `--this`; bf16: `--that`.",
             "| [m](../bench/recipes/m.conf) | 64 | TP4 PP4 DP4 | 64.0 | 1 TFLOP/s | 1234 | 1000 | 45.7 % | 0.95 |",
             "| weak | m | 64 | 400.0 | 360.0 | -10.0 % | 2 | 3 |",
             "weak scaling: mean error 15.0 %, worst 20.0 %; strong scaling: mean error 5.0 %, worst 5.0 %.",
             "| half | 2 | 2 | 8 | 1.2 | 50000 | 25000 | 1.5 % | - | - | 97.0 %",  # NVML does not know the second GPU
             "| 2b-weak | 2 | 2 | 8 | 1.2 | 50000 | 25000 | 1.5 % | 1450 | 600 | 97.0 % (96.0 % to 98.0 %) |",
             "Note: 2 ranks share a bus.",
             "| gpt2-125m | 2 x a GPU | 16 | `--fast` | 1.2 | 2.0 % | DDP | 1.2 | 1.250 (1.200 to 1.300) | 100000 | "
             "50.0 % | 1 | 1 | - | - |",
             "| gpt2-125m | 1 x a GPU | 32 | `--fast` | 1.2 | - | DDP |",
             "| pp2 | 2 x a GPU | 2048 | 2 | 16 | 1.2 | 90000 | - | 40.0 % | 2.0 % | 10.0 % | 20.0 % | +3.0% |",
             "| tp4 | 2 x a GPU | 2048 | 2 | 16 | 1.2 | 90000 | 123200 | 40.0 % | 2.0 % | 10.0 % | 20.0 % | +3.0% |",
             "| all_reduce | 256 | 1 | 1 | 1.2 | 1.250 (1.200 to 1.300) |", "2 ranks on a GPU, a NCCL, 3 rounds.",
             "| 2 x 4 | all_reduce | 256 | 900 | - | 300.0 | - |", "| 8 | all_to_all | 256 | 900 | - | 300.0 | - |",
             "\n2 x 4 ranks on a GPU, a NCCL.\n8 ranks on a GPU, a NCCL.\n",
             "| 8b-fp8 | 2 x a GPU | 2048 | 2 | 16 | 1.2 | 90000 | 115608 (NeMo, H100) |"):
    assert part in text, (part, text)
assert "llama3-8b" not in text and "`add/large`" not in text  # `add` is slower relative to its roof
assert all((WORK / f"docs/{name}.svg").read_text().count("<svg") == 1 for name in ("race", "scaling", "clients"))

# The options of each row in the table of layouts are listed in bench/train/layouts.list.
listed = {line.split()[0] for line in (ROOT / "bench/train/layouts.list").read_text().splitlines()} - {"#"}
measured = {path.stem.removeprefix("gpu-layout-") for path in (ROOT / "bench/results").glob("gpu-layout-*.json")}
assert measured <= listed, measured - listed

# A changed number makes the documents and the plot stale.
row["mfu"] = 0.51
write("gpu-race.json", RESULTS["gpu-race.json"])
stale = run("--check")
assert stale.returncode == 1 and "docs/race.svg" in stale.stdout and "README.md" in stale.stdout, stale

# Damaged results, and a machine without gnuplot, end with an error message, and nothing is written.
before = [path.read_text() for path in DOCUMENTS]
for what, why in ((json.dumps(against)[:-9], "is not JSON"), ("[]", "a JSON object"), ({}, "'rows'"),
                  ({"rows": 5}, "gpu-fp8"),
                  ({"rows": [row | {"ratio": "x"}]}, "gpu-fp8"),
                  ({"rows": [row | {"ours_ms": {"median": "fast"}}]}, "gpu-fp8"), (against, "no gnuplot")):
    write("gpu-fp8.json", what)
    done = run(PATH="")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and why in done.stderr, (what, done)
    assert not done.stdout, (what, done)
assert before == [path.read_text() for path in DOCUMENTS]
# Ages: a table that is written more than 200 commits after its measurement says "older"; after more than 300 commits,
# --check requires this of the table and of text that names the file. If the commit was rebased away, its date is used
# instead. A shallow clone compares no ages.
TREE = WORK / "tree"
(TREE / "bench/results").mkdir(parents=True)
(TREE / "docs").mkdir()
stream = "".join(f"commit refs/heads/main\nmark :{i}\ncommitter a <a> {1700000000 + 86400 * i} +0000\ndata 1\n.\n"
                 for i in range(1, 303))
for words in (["init", "-q", "-b", "main"], ["fast-import", "--quiet"]):
    subprocess.run(["git", "-C", TREE, *words], input=stream, text=True, check=True)
# the newest first
shas = subprocess.run(["git", "-C", TREE, "rev-list", "main"], capture_output=True, text=True,
                      check=True).stdout.split()


def aged(tree, commit, *words, text="", **more):
    """Checks or writes the README of a tree whose race was measured at this commit."""
    raced = {"rows": [row | {"provenance": {"commit": commit, **more}}]}
    (tree / "bench/results/gpu-race.json").write_text(compact(raced) + "\n")
    (tree / "docs/performance.md").write_text("")
    if text:
        (tree / "README.md").write_text(text)
    done = run(*words, BENCH_TABLE_ROOT=str(tree))
    return done, (tree / "README.md").read_text()


EMPTY = "See bench/results/gpu-race.json, which is older.\n\n<!-- speed -->\n<!-- end -->\n"
row["ours"][0]["result"].pop("provenance")
for age, older, fails in ((0, False, False), (200, False, False), (201, True, False), (300, True, False),
                          (301, True, True)):
    done, text = aged(TREE, shas[age], text=EMPTY, date="2023-11-15T00:00:00Z")
    line = f"at commit {shas[age][:7]} (2023-11-15).\n<!-- end -->"
    assert done.returncode == 0 and (f"\n\nMeasured on an older version, {line}" in text) == older, (age, text, done)
    assert (f"\n\nMeasured {line}" in text) == (not older), (age, text, done)
    assert aged(TREE, shas[age], "--check", date="2023-11-15T00:00:00Z")[0].returncode == 0
    for wrong in (text.replace("Measured on an older version,", "Measured"), text.replace("which is older", "above")):
        done, _ = aged(TREE, shas[age], "--check", text=wrong, date="2023-11-15T00:00:00Z")
        assert (done.returncode == 1) == (fails and wrong != text), (age, done)
    if fails:
        assert "README.md: gpu-race.json is more than 300 commits old" in done.stdout, done
old = text
for date, older in (("2023-11-16T00:00:00Z", True), ("2024-09-01T00:00:00Z", False)):
    assert ("Measured on an older version" in aged(TREE, "fffffff", text=EMPTY, date=date)[1]) == older
assert "without a date, and git has no such commit: measure again" in aged(TREE, "fffffff", text=EMPTY)[0].stderr
done, _ = aged(TREE, shas[0], "--check", text="<!-- speed -->\n<!-- end -->\n")
assert done.returncode == 1 and "no age was compared" in done.stdout, done
subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{TREE}", WORK / "shallow"], check=True)
(WORK / "shallow/bench/results").mkdir(parents=True)
shutil.copytree(TREE / "docs", WORK / "shallow/docs")
for text in (old, old.replace("Measured on an older version,", "Measured")):
    done, _ = aged(WORK / "shallow", shas[301], "--check", text=text, date="2023-11-15T00:00:00Z")
    assert done.returncode == 0 and "skipped: the ages of results, because this clone" in done.stdout, done
print("bench_table: tables and plots follow their results")
