"""Benchmark results are consistent: the times of op families and the rest add up to the step, and every GEMM in the
step is listed with its FLOPs. Ops can be selected by name and dtype. A race interleaves both programs, uses the smaller
time, and continues after a failure of one program. Measured times are not judged."""
import json
import os
import statistics
import subprocess

from harness import *

bench_conf(micro_batch_size=2)


def train(*options):
    isotron("bench", "train", "--config", WORK / "bench.conf", "--steps", 3, "--warmup", 1,
            "--json", WORK / "step.json", *options)
    return json.loads((WORK / "step.json").read_text())


step = train("--peak-tflops", 1)
assert abs(sum(step["family_ms"].values())
           - step["step_ms"]["mean"]) < 1e-3 * step["step_ms"]["mean"], step["family_ms"]
assert abs(sum(op["ms"] for op in step["op_ms"].values()) + step["family_ms"]["other"]
           - step["step_ms"]["mean"]) < 1e-3 * step["step_ms"]["mean"]
# The FLOPs of 2 layers with 4 linear layers each and of the output layer: one forward pass and a backward pass that
# costs twice as much, for 2 microbatches of 32 tokens. The vocabulary is padded to 128.
flop = 3 * 2 * 64 * (2 * (32 * 96 + 32 * 32 + 2 * 32 * 128) + 32 * 128)
assert abs(step["gemm"]["gflop"] * 1e9 - flop) < 1e-5 * flop, (step["gemm"]["gflop"], flop)
assert sum(p["calls"] for p in step["gemm"]["gemms"]) == 3 * 2 * (2 * 4 + 1)
assert step["tokens"] == 64 and step["model"]["hidden_size"] == 32 and "swiglu" not in step["model"]
assert all("blas_gflops" in p for p in step["gemm"]["gemms"])
assert not any("blas_gflops" in p for p in train("--no-alone")["gemm"]["gemms"])
out = isotron("bench", "train", "--config", WORK / "bench.conf", "--steps", 0, "--warmup", 0, "--seconds", -1, expect=2)
assert "--steps" in out and "--warmup" in out and "--seconds" in out, out
assert "--steps must be from 1" in isotron("bench", "train", "--config", WORK / "bench.conf", "--steps", 10**18,
                                           expect=2)

isotron("bench", "ops", "--filter", "^norm/(layer|rms)$|^drop$", "--dtype", "fp32", "bf16", "--seconds", 1e-3,
        "--json", WORK / "ops.json")
ops = json.loads((WORK / "ops.json").read_text())
rows = ops["rows"]
assert [(r["name"], r["type"]) for r in rows] == [("norm/layer", "bf16"), ("norm/rms", "bf16"), ("drop", "bf16"),
                                                  ("norm/layer", "fp32"), ("norm/rms", "fp32")], rows
assert rows[3]["megabytes"] > 1.9 * rows[0]["megabytes"] and all(r["us"] > 0 and r["gbytes"] > 0 for r in rows)
assert ops["complete"] and rows[0]["shape"] == [64, 4, 768], ops
assert all(3 <= r["rounds"] <= 21 and r["calls"] >= 1 for r in rows), rows
isotron("bench", "ops", "--filter", "^drop$", "--dtype", "fp32", "--seconds", 1e-9, "--json", WORK / "ops.json")
assert [r["rounds"] for r in json.loads((WORK / "ops.json").read_text())["rows"]] == [3]
isotron("bench", "ops", "--dtype", "fp8", expect=2)
assert "--seconds" in isotron("bench", "ops", "--seconds", -1, expect=2)
assert "--cpu-threads" in isotron("bench", "ops", "--cpu-threads", 5000, expect=2)
# All results begin with the same members.
HEAD = ["bench", "provenance", "device", "ranks", "transport", "threads"]
isotron("bench", "comm", "--ranks", 2, "--collective", "all_reduce", "--max-bytes", "1K", "--seconds", 1e-3,
        "--json", WORK / "comm.json")
isotron("bench", "scaling", "--config", WORK / "bench.conf", "--ranks", 2, "--steps", 1, "--warmup", 1, "--rounds", 1,
        "--json", WORK / "scaling.json")
for name, ranks in ("step", 1), ("ops", 1), ("comm", 2), ("scaling", 2):
    result = json.loads((WORK / f"{name}.json").read_text())
    assert set(HEAD) <= result.keys() and result["bench"] == name.replace("step", "train"), (name, list(result))
    assert result["ranks"] == ranks, (name, list(result))
    assert "commit" in result["provenance"] and result["device"].startswith("CPU"), (name, result["transport"])
    assert (result["transport"] == "none") == (ranks == 1), (name, result["transport"])
out = isotron("bench", "ops", "--filter", "^drop$", "--baseline", WORK / "scaling.json", expect=2)
assert "other bench" in out or "is not a result" in out, out
# If a run is stopped, its file has the results so far.
(WORK / "ops.json").unlink()
stopped = subprocess.Popen([PROGRAM, "bench", "ops", "--seconds", "1e-3", "--json", str(WORK / "ops.json")],
                           stdout=subprocess.PIPE, text=True)
while "fc1" not in stopped.stdout.readline():
    assert stopped.poll() is None
stopped.kill(), stopped.wait()
ops = json.loads((WORK / "ops.json").read_text())
assert not ops["complete"] and [r["name"] for r in ops["rows"]][:2] == ["linear/qkv", "linear/proj"], ops
isotron("bench", "ops", "--filter", "(", expect=2)
# If a file cannot be written, the error is reported before anything is measured. A stream gets the results once, after
# the printed text.
for bench in (["train", "--config", WORK / "bench.conf"], ["ops", "--filter", "^norm/layer$"]):
    for path, why in ((WORK / "missing" / "x.json", "No such file or directory"), (WORK, "is a folder")):
        out = isotron("bench", *bench, "--json", path, expect=2)
        assert why in out and out.count("\n") == 1, out
(WORK / "stdout").symlink_to("/proc/self/fd/1")
out = isotron("bench", "ops", "--filter", "^norm/(layer|rms)$", "--dtype", "fp32", "--seconds", 1e-3,
              "--json", WORK / "stdout")
result, end = json.JSONDecoder().raw_decode(out, out.index("\n{") + 1)
assert result["complete"] and len(result["rows"]) == 2 and "norm/rms" in out[:out.index("{")], out
assert "{" not in out[end:], out
assert (WORK / "stdout").is_symlink()
assert "no op" in isotron("bench", "ops", "--filter", "^norm$", expect=2)
out = isotron("bench", expect=2)


# ---- races, with stand-ins ----

def race(*words, status=0, path=os.environ["PATH"]):
    done = subprocess.run(["bench/race", *map(str, words)], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PATH": path})
    assert done.returncode == status, done
    return done


def program(name, text):
    path = WORK / name
    path.write_text(text)
    path.chmod(0o700)
    return path


def rows_of(path):
    return json.loads(path.read_text())["rows"]


def near(row, **wanted):
    for key, value in wanted.items():
        assert abs(row[key] - value) < 1.01e-5 * value, (key, row[key], value)  # two numbers of 6 digits, 5e-6 each


spread = lambda values: {"median": statistics.median(values), "min": min(values), "max": max(values)}

# Races of steps. The peer's arguments are peer_torch.py ($1), --config ($2) and the file ($3). It fails for the file
# "broken", and hangs for "slow".
peer = program("peer", f"""#!/bin/sh
case $3 in *broken*) echo "no such thing" >&2; exit 3;; *slow*) exec sleep 60;; esac
echo words of a library
echo '{json.dumps({"step_ms": {"median": 50.0}, "back_to_back_ms": 40.0, "tokens": 64, "torch": "t", "cuda": "c", "cudnn": 1})}'
""")
(WORK / "broken.conf").write_text((WORK / "bench.conf").read_text())
out, confs = WORK / "race.json", [WORK / "bench.conf", WORK / "broken.conf"]
common = ["--device", "cpu", "--ours", PROGRAM, "--ours-options", "--peak-tflops 1", "--steps", 2, "--warmup", 1,
          "--out", out, "--python", peer]
assert "no such thing" in race("step", *confs, *common, "--rounds", 2, status=1).stdout
good, broken = rows_of(out)
times = [turn["result"]["step_ms"]["median"] for turn in good["ours"]]
assert good["peer_ms"] == spread([40, 40]) and len(times) == 2 and good["ours_ms"] == spread(times), good
assert good["ratio"] == spread([40 / ms for ms in times]), good
# A step's FLOPs are those of the GEMMs and of attention: half of two GEMMs of 16 x 16 x 32, 3 times, in 2 layers for 4
# samples. The peak is 1 TFLOP/s.
model_tflop = (flop + 3 * 2 * 16 * 16 * 32 * 2 * 4) * 1e-12
seconds = good["ours_ms"]["median"] * 1e-3
near(good, tokens=64, step_tflop=model_tflop, tokens_per_second=64 / seconds,
     tflops=model_tflop / seconds, peak_tflops=1, mfu=model_tflop / seconds, peer_mfu=model_tflop / 40e-3)
assert "ratio" not in broken and "ended with 3" in broken["peer"][0]["failed"], broken
assert "alone" not in str(good["ours"][1]["result"]["gemm"].keys()) and good["provenance"]["peer_torch"] == "t"
assert "left out" in race("step", *confs, *common, "--rounds", 1, "--limit", -1, status=1).stdout
# A configuration that is left out for lack of time is not a failure, but a turn that takes too long is one.
slow = [WORK / "bench.conf", WORK / "slow.conf", WORK / "late.conf"]
for path in slow[1:]:
    path.write_text((WORK / "bench.conf").read_text())
done = race("step", *slow, *common, "--rounds", 1, "--limit", 5)
assert done.stdout.count("left out") == 3, done
assert ["ratio" in row for row in rows_of(out)] == [True, False, False], done
assert all("left_out" in row["peer"][0] for row in rows_of(out)[1:]), done
race("step", *slow[:2], *common, "--rounds", 1, "--limit", 20, "--turn-limit", 3, status=1)
assert "ended with the time limit" in rows_of(out)[1]["peer"][0]["failed"], rows_of(out)
race("step", confs[1], *slow[:2], *common, "--rounds", 1, "--limit", 5, status=1)
# The program can race against itself; with --add, rows of other configurations are kept.
race("step", confs[0], *common, "--rounds", 1, "--against", "--cpu-threads 1")
against, = rows_of(out)
assert against["provenance"]["peer"] == "this program", against
assert against["provenance"]["peer_options"] == "--cpu-threads 1", against
assert against["peer"][0]["result"]["model"] == against["ours"][0]["result"]["model"]
# Another model, which runs on half of the samples, so that its step has half the FLOPs.
half = WORK / "half.conf"
half.write_text((WORK / "bench.conf").read_text().replace("global-batch-size = 4", "global-batch-size = 2"))
race("step", confs[0], *common[:-4], "--out", WORK / "half.json", "--rounds", 1, "--against", f"--config {half}")
row, = rows_of(WORK / "half.json")
near({"ratio": row["flops_ratio"]["median"]}, ratio=2 * row["ratio"]["median"])
assert row["peer"][0]["result"]["tokens"] == 32, row
race("step", confs[1], *common, "--rounds", 1, "--limit", -1, "--add", status=1)
added = rows_of(out)
assert added[0] == against and [row["conf"] for row in added] == ["bench", "broken"], added
out.write_text("[]")
refused = race("step", confs[1], *common, "--add", status=1)
assert "is not a result of a race" in refused.stderr and out.read_text() == "[]"
done = race("step", "gpt3-1.3b", "llama3-8b", "--ours", PROGRAM, "--limit", -1, status=1)
assert "gpt3-1.3b" in done.stdout and "llama3-8b" in done.stdout, done

# Two ranks with two samples each. PyTorch's launcher starts the ranks of the peer.
launched = program("launched", f"""#!/bin/sh
case "$*" in '-m torch.distributed.run --standalone --nproc-per-node 2 '*/peer_torch.py\ --config\ *' --batch 2 '*) exec {peer} - - -;; esac
echo "called as $*" >&2
exit 3
""")
race("step", confs[0], *common[:-4], "--python", launched, "--out", out, "--rounds", 1, "--ranks", 2, "--batch", 2)
row, = rows_of(out)
ours, = (turn["result"] for turn in row["ours"])
assert ours["ranks"] == row["ranks"] == 2 and (ours["micro_batch_size"], ours["global_batch_size"]) == (2, 4), row
assert row["ratio"]["median"] > 0, row
near(row, mfu=row["tflops"] / row["devices"], step_tflop=model_tflop)
(WORK / "short.conf").write_text("num-layers = 2\n")
assert "no line 'global-batch-size = N'" in race("step", WORK / "short.conf", *common, "--ranks", 2, status=1).stderr

# Results of a race on a simulated GPU: a step takes 20 ms back to back in the first turn, 10 ms in the second. A step
# of 25 ms at 80 GFLOP/s has 2 GFLOP; the roof is 400 GFLOP/s, the peak 0.5 TFLOP/s. A symlink to the file of results is
# kept.
ours = program("ours", """#!/usr/bin/env python3
import json, pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({
    "step_ms": {"median": 25.0}, "back_to_back_ms": 10.0 if "--no-alone" in sys.argv else 20.0, "tokens": 64, "model_gflops": 80.0,
    "roof_gflops": 400.0, "peak_tflops": 0.5, "provenance": {}, "device": "a GPU", "ranks": 1, "devices": 1}))
""")
(WORK / "link.json").symlink_to("race.json")
done = race("step", confs[0], "--ours", ours, "--python", peer, "--out", WORK / "link.json")
row, = rows_of(out)
assert (WORK / "link.json").is_symlink() and row["ours_ms"] == spread([20, 10]) and row["ratio"] == spread([2, 4]), row
near(row, step_tflop=2e-3, tokens_per_second=64 / 15e-3, tflops=2 / 15, mfu=4 / 15, peer_mfu=0.1, of_roof=1 / 3)
assert "15.00     40.00  3.000 (2.000, 4.000)      4267   26.7   10.0      33.3" in done.stdout, done.stdout

# Races of attention. The peer needs twice our time for the first shape, and refuses the second.
(WORK / "attention.py").write_text("""import json, pathlib, sys
names = [row["name"] for row in json.loads(pathlib.Path(sys.argv[sys.argv.index("--shapes") + 1]).read_text())]
same = "--deterministic" in sys.argv
print(json.dumps({"torch": "t", "rows": [{"name": names[0], "us": 1000.0 if same else 500.0, "path": "flash" if same else "cuDNN"},
                                         {"name": names[1], "refused": "no such kernel"}]}))
""")
program("peer", f"#!/bin/sh\nshift\nexec python3 {WORK / 'attention.py'} \"$@\"\n")
words = ["attention", "--device", "cpu", "--python", peer, "--rounds", 1, "--seconds", 1e-3,
         "--filter", "^attention(_grad)?/short$", "--out", out]
race(*words, "--ours", PROGRAM, status=1)
first, second = rows_of(out)
assert [first["name"], second["name"]] == ["attention/short", "attention_grad/short"], first
assert first["shape"] == [64, 4, 12, 1, 64], first
near(first, gflop=2 * 64 * 64 * 64 * 4 * 12 * 1e-9)
for form, us in (("deterministic", 1000.0), ("any_order", 500.0)):
    cell = first[form]
    assert abs(cell["ratio"]["median"] * cell["ours"]["us"]["median"] - us) < 1e-6 * us, first
    assert "ratio" not in second[form], first
assert first["deterministic"]["peer"]["path"] == "flash" and first["any_order"]["peer"]["path"] == "cuDNN"
# A peer that prints no results has failed, but our rows are kept. A program that does not exist has also failed.
program("peer", "#!/bin/sh\necho '{\"rows\": 5'\n")
assert "did not write valid results" in race(*words, "--ours", PROGRAM, status=1).stdout
assert [row["name"] for row in rows_of(out)] == ["attention/short", "attention_grad/short"]
vanishing = program("vanishing", '#!/bin/sh\nrm -f "$0"\nexit 1\n')
assert "no process: " in race(*words, "--ours", vanishing, "--rounds", 2, status=1).stdout

# Collectives, in host memory. Races of collectives. The peer's programs print lines as nccl-tests does, with times of
# 1000 us; one of them fails.
(WORK / "nccl-tests").mkdir()
NCCL_TESTS = "all_reduce", "all_gather", "reduce_scatter", "alltoall"
for name in NCCL_TESTS:
    program(f"nccl-tests/{name}_perf", f"""#!/bin/sh
[ "$*" = '-g 2 -b 64K -e 64K -n 40 -w 10 -c 0' ] || exit 5
case $0 in *alltoall*) exit 1;; esac
echo '#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong'
echo '       65536         16384     float     sum      -1  1000.00   60.00   61.00    N/A   999.00   60.00   62.00    N/A'
""")
comm = ["comm", "--nccl-tests", WORK / "nccl-tests", "--sizes", "64K", "--device", "cpu", "--rounds", 2,
        "--seconds", 1e-3, "--out", out]
assert race(*comm, "--ours", PROGRAM, "--limit", -1, status=1).stdout.count("left out") == 2 * 5 and rows_of(out) == []
done = race(*comm, "--ours", PROGRAM, status=1)
rows = rows_of(out)
assert [row["collective"] for row in rows] == ["all_reduce", "all_gather", "reduce_scatter"]
assert "nccl-tests, all_to_all: ended with 1" in done.stdout
for row in rows:
    assert row["bytes"] == 65536 and row["peer_us"] == spread([1000, 1000]) and row["peer_busbw"]["median"] == 61, row
    assert abs(row["ratio"]["max"] * row["ours_us"]["min"] - 1000) < 1e-6, row

# Sensors are read for the GPUs of all ranks while they are busy: GPUs 0 and 1, but not 2. A turn ends after nvidia-smi
# has printed.
(WORK / "path").mkdir()
program("path/nvidia-smi", f"""#!/bin/sh
case $* in *driver_version*) echo 1.2; exit;; esac
printf '0, 95, 1000, 2000, 300, 40\n1, 90, 1400, 2000, 500, 60\n1, 10, 100, 100, 100, 10\n2, 99, 1, 1, 1, 1\n0, [N/A]\n'
touch {WORK}/printed
exec sleep 60
""")
waits = lambda path: f"#!/bin/sh\nuntil rm {WORK}/printed 2>/dev/null; do sleep 0.01; done\nexec {path} \"$@\"\n"
for name in NCCL_TESTS:
    (WORK / f"nccl-tests/{name}_perf").rename(WORK / f"nccl-tests/{name}_then")
    program(f"nccl-tests/{name}_perf", waits(WORK / f"nccl-tests/{name}_then"))
waiting, path = program("waiting", waits(os.path.abspath(PROGRAM))), f"{WORK}/path:{os.environ['PATH']}"
race(*comm, "--ours", waiting, status=1, path=path)
recorded = json.loads(out.read_text())["turns"]
assert list(recorded) == [f"{side} 64K" for side in ("ours", "all_reduce", "all_gather", "reduce_scatter",
                                                     "all_to_all")], recorded.keys()
one = lambda *values: {name: spread(pair) for name, pair in zip(("sm_mhz", "memory_mhz", "watts", "celsius"), values)}
both = one([1000, 1400], [2000], [300, 500],
           [40, 60]) | {"gpus": [one([1000], [2000], [300], [40]), one([1400], [2000], [500], [60])]}
assert all([turn["sensors"] for turn in side] == [both, both] for side in recorded.values()), recorded
race("step", confs[0], *common[:-4], "--ours", waiting, "--out", out, "--rounds", 1, "--against",
     "--cpu-threads 1", path=path)
row, = rows_of(out)
assert row["ours"][0]["sensors"] == row["peer"][0]["sensors"] == both["gpus"][0], row
assert row["provenance"]["driver"] == "1.2", row
os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"
race("step", confs[0], *common[:-4], "--ours", waiting, "--out", out, "--rounds", 1, "--against",
     "--cpu-threads 1", path=path)
assert rows_of(out)[0]["ours"][0]["sensors"] == both["gpus"][1], rows_of(out)
del os.environ["CUDA_VISIBLE_DEVICES"]

# Programs. Races of programs. Our program needs 10 ms per step, and the peer needs 30 ms after a slower first step.
program("ours", """#!/usr/bin/env python3
import json, pathlib, sys
if "--json" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"provenance": {"commit": "c"}, "threads": 2}))
for step in range(5):
    print(f"step {step}: 10.0 ms")
""")
steps = "printf 'step %d: it took %d ms\\n' 1 90 2 30 3 30 4 30 5 30"
words = ["program", "--ours", ours, "--peer", f"sh -c \"{steps}\"", "--rounds", 2, "--out", WORK / "program.json"]
assert "ratio 3.00 (3.00 to 3.00)" in race(*words).stdout
result = json.loads((WORK / "program.json").read_text())
assert result["ratio"] == spread([3, 3]) and result["provenance"] == {"commit": "c"}, result
assert len(result["pairs"]) == 2, result

# An impossible race ends with an error message before the first turn.
for kind, option, value, status, why in (
        ("step", "--ours", WORK / "missing", 2, "no program"), ("step", "--python", WORK / "missing", 2, "no program"),
        ("step", "gpt3", "", 2, "no configuration 'gpt3'"),
        ("step", "--out", WORK, 2, "cannot be written"),
        ("attention", "--out", WORK / "missing/x.json", 2, "cannot be written"),
        ("attention", "--ours-options", '"a', 2, "invalid words value"), ("attention", "--rounds", 0, 2, "at least 1"),
        ("attention", "--seconds", "nan", 2, "above 0"),
        ("comm", "--nccl-tests", WORK / "missing", 2, "no program all_reduce_perf in"),
        ("comm", "--sizes", "", 2, "not a list of sizes"),
        ("comm", "--sizes", "64K,4Q", 2, "not a list of sizes"), ("program", "--cpus", "x", 1, "ended with 1"),
        ("program", "--peer-pattern", "(", 2, "not a regular expression"),
        ("program", "--peer-pattern", "ms", 2, "0 groups"),
        ("program", "--peer-pattern", "(it)", 1, "no number"),
        ("program", "--peer-dir", WORK / "missing", 1, "missing: No such file"),
        ("program", "--ours", WORK / "missing", 1, "ended with 127"), ("program", "--ours", "true", 1, "no results"),
        ("program", "--peer", "true", 1, "printed 0 step times")):
    done = race(*{"program": words, "comm": [*comm, "--ours", PROGRAM]}.get(kind, [kind, "--ours", PROGRAM]), option,
                value, status=status)
    assert why in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, done
assert json.loads((WORK / "program.json").read_text()) == result

# gpu_provenance adds a description of the machine to results. A damaged file is named and left unchanged.
results = WORK / "results"
results.mkdir()
(results / "a.json").write_text('{"rows": [')
(results / "b.json").write_text('{"rows": []}')
done = subprocess.run(["tools/gpu_provenance", "--results", results], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "a.json is not JSON" in done.stderr and done.stderr.count("\n") == 1, done
assert (results / "a.json").read_text() == '{"rows": ['
assert json.loads((results / "b.json").read_text())["machine"]["cpus"] >= 1
print("benches: sums, GEMMs, choices, turns")
