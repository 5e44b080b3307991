"""The benches measure what they say: families and the rest add up to the step, every product of the step is listed with its
FLOPs, ops can be chosen by name and type, and a race runs both sides in turns, counts the smaller time, and survives a side that
fails. What is measured is never judged here."""
import json
import stat
import statistics
import subprocess

from harness import *

(WORK / "bench.conf").write_text("""
num-layers = 2
hidden-size = 32
num-attention-heads = 4
seq-length = 16
vocab-size = 100
hidden-dropout = 0
attention-dropout = 0
micro-batch-size = 2
global-batch-size = 4
train-iters = 10
lr = 0.001
mock-data = true
""")


def train(*options):
    isotron("bench", "train", "--config", WORK / "bench.conf", "--steps", 3, "--warmup", 1, "--json", WORK / "step.json", *options)
    return json.loads((WORK / "step.json").read_text())


step = train("--peak-tflops", 1)
assert abs(sum(step["family_ms"].values()) - step["step_ms"]["mean"]) < 1e-3 * step["step_ms"]["mean"], step["family_ms"]
assert abs(sum(op["ms"] for op in step["op_ms"].values()) + step["family_ms"]["other"] - step["step_ms"]["mean"]) < 1e-3 * step["step_ms"]["mean"]
# 2 layers of 4 linear layers and the head, forward and twice backward, 2 microbatches of 32 tokens; the vocabulary is padded to 128.
flop = 3 * 2 * 64 * (2 * (32 * 96 + 32 * 32 + 2 * 32 * 128) + 32 * 128)
assert abs(step["gemm"]["gflop"] * 1e9 - flop) < 1e-5 * flop, (step["gemm"]["gflop"], flop)
assert sum(p["calls"] for p in step["gemm"]["products"]) == 3 * 2 * (2 * 4 + 1)
assert step["tokens"] == 64 and step["model"]["hidden_size"] == 32 and "swiglu" not in step["model"]
assert all("blas_gflops" in p for p in step["gemm"]["products"])
assert not any("blas_gflops" in p for p in train("--no-alone")["gemm"]["products"])
out = isotron("bench", "train", "--config", WORK / "bench.conf", "--steps", 0, "--warmup", 0, "--seconds", -1, expect=2)
assert "--steps" in out and "--warmup" in out and "--seconds" in out, out
assert "--steps: from 1" in isotron("bench", "train", "--config", WORK / "bench.conf", "--steps", 10**18, expect=2)
assert "one rank" in isotron("bench", "train", "--config", WORK / "bench.conf", "--ranks", 2, expect=2)

isotron("bench", "ops", "--filter", "^norm/(layer|rms)$|^drop$", "--dtype", "fp32", "bf16", "--json", WORK / "ops.json")
ops = json.loads((WORK / "ops.json").read_text())
rows = ops["rows"]
assert [(r["name"], r["type"]) for r in rows] == [("norm/layer", "bf16"), ("norm/rms", "bf16"), ("drop", "bf16"), ("norm/layer", "fp32"), ("norm/rms", "fp32")], rows
assert rows[3]["megabytes"] > 1.9 * rows[0]["megabytes"] and all(r["us"] > 0 and r["gbytes"] > 0 for r in rows)
assert ops["complete"] and rows[0]["shape"] == [64, 4, 768], ops
assert all(3 <= r["rounds"] <= 21 and r["calls"] >= 1 for r in rows), rows
isotron("bench", "ops", "--filter", "^linear/head$", "--dtype", "fp32", "--seconds", 1e-9, "--json", WORK / "ops.json")
assert [r["rounds"] for r in json.loads((WORK / "ops.json").read_text())["rows"]] == [3]
isotron("bench", "ops", "--dtype", "fp8", expect=2)
assert "--seconds" in isotron("bench", "ops", "--seconds", -1, expect=2)
assert "--cpu-threads" in isotron("bench", "ops", "--cpu-threads", 5000, expect=2)
# What was measured before a run is stopped stands in its file.
(WORK / "ops.json").unlink()
stopped = subprocess.Popen([PROGRAM, "bench", "ops", "--json", str(WORK / "ops.json")], stdout=subprocess.PIPE, text=True)
while "fc1" not in stopped.stdout.readline():
    assert stopped.poll() is None
stopped.kill(), stopped.wait()
ops = json.loads((WORK / "ops.json").read_text())
assert not ops["complete"] and [r["name"] for r in ops["rows"]][:2] == ["linear/qkv", "linear/proj"], ops
isotron("bench", "ops", "--filter", "(", expect=2)
# A file that cannot be written is said before anything is measured; a stream gets the results once, behind what was printed.
for bench in (["train", "--config", WORK / "bench.conf"], ["ops", "--filter", "^norm/layer$"]):
    for path, why in ((WORK / "missing" / "x.json", "No such file or directory"), (WORK, "is a folder")):
        out = isotron("bench", *bench, "--json", path, expect=2)
        assert why in out and out.count("\n") == 1, out
(WORK / "stdout").symlink_to("/proc/self/fd/1")
out = isotron("bench", "ops", "--filter", "^norm/(layer|rms)$", "--dtype", "fp32", "--json", WORK / "stdout")
result, end = json.JSONDecoder().raw_decode(out, out.index("\n{") + 1)
assert result["complete"] and len(result["rows"]) == 2 and "norm/rms" in out[:out.index("{")] and "{" not in out[end:], out
assert (WORK / "stdout").is_symlink()
assert "no op" in isotron("bench", "ops", "--filter", "^norm$", expect=2)
out = isotron("bench", expect=2)
assert "\n  train " in out and "\n  ops " in out, out

# The race, with a stand-in for the peer: the first turn of "slow" fails.
peer = WORK / "peer"
peer.write_text(f"""#!/bin/sh
# $1 is peer_torch.py, $2 --config, $3 the file
case $3 in *broken*) echo "no such thing" >&2; exit 3;; esac
echo words of a library
echo '{json.dumps({"step_ms": {"median": 50.0}, "back_to_back_ms": 40.0, "tokens": 64, "torch": "t", "cuda": "c", "cudnn": 1})}'
""")
peer.chmod(peer.stat().st_mode | stat.S_IXUSR)
(WORK / "broken.conf").write_text((WORK / "bench.conf").read_text())
words = ["bench/train/race", WORK / "bench.conf", WORK / "broken.conf", "--device", "cpu", "--ours", PROGRAM, "--ours-options", "--peak-tflops 1",
         "--python", peer, "--steps", 2, "--warmup", 1, "--rounds", 2, "--out", WORK / "race.json"]
done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "no such thing" in done.stdout, done
race = json.loads((WORK / "race.json").read_text())
good, broken = race["rows"]
times = [turn["result"]["step_ms"]["median"] for turn in good["ours"]]
spread = lambda values: {"median": statistics.median(values), "min": min(values), "max": max(values)}
assert good["peer_ms"] == spread([40, 40]) and len(times) == 2 and good["ours_ms"] == spread(times), good
assert good["ratio"] == spread([40 / ms for ms in times]), good
# The products' FLOPs, and of attention half of two products of 16 x 16 x 32, 3 times, in 2 layers of 4 samples. The peak is 1 TFLOP/s.
model_tflop = (flop + 3 * 2 * 16 * 16 * 32 * 2 * 4) * 1e-12
seconds = good["ours_ms"]["median"] * 1e-3
for key, wanted in {"tokens": 64, "step_tflop": model_tflop, "tokens_per_second": 64 / seconds, "tflops": model_tflop / seconds,
                    "peak_tflops": 1, "mfu": model_tflop / seconds, "peer_mfu": model_tflop / 40e-3}.items():
    assert abs(good[key] - wanted) < 1.01e-5 * wanted, (key, good[key], wanted)  # two numbers of 6 digits, 5e-6 each
assert "ratio" not in broken and "ended with 3" in broken["peer"][0]["failed"], broken
assert "alone" not in str(good["ours"][1]["result"]["gemm"].keys()) and good["provenance"]["peer_torch"] == "t"
words[words.index("--rounds") + 1:] = [1, "--limit", "-1"]
done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "left out" in done.stdout, done
words[words.index("--rounds") + 1:] = [1, "--against", "--cpu-threads 1", "--out", WORK / "race.json"]
words.remove(WORK / "broken.conf")
done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
race = json.loads((WORK / "race.json").read_text())
assert done.returncode == 0 and race["rows"][0]["provenance"]["peer"] == "this program" and race["rows"][0]["provenance"]["peer_options"] == "--cpu-threads 1", done
assert race["rows"][0]["peer"][0]["result"]["model"] == race["rows"][0]["ours"][0]["result"]["model"]
words[words.index("--against"):words.index("--out")] = ["--limit", "-1"]
words[1] = WORK / "broken.conf"
done = subprocess.run([*map(str, words), "--add"], cwd=ROOT, capture_output=True, text=True)
added = json.loads((WORK / "race.json").read_text())["rows"]
assert done.returncode == 1 and added[0] == race["rows"][0] and [row["conf"] for row in added] == ["bench", "broken"], done
(WORK / "race.json").write_text("[]")
done = subprocess.run([*map(str, words), "--add"], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "no result of a race" in done.stderr and not done.stdout and (WORK / "race.json").read_text() == "[]", done
assert "no configuration 'gpt3'" in subprocess.run(["bench/train/race", "gpt3", "--ours", PROGRAM], cwd=ROOT, capture_output=True, text=True).stderr
done = subprocess.run(["bench/train/race", "gpt3-1.3b", "llama3-8b", "--ours", PROGRAM, "--limit", "-1"], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "gpt3-1.3b" in done.stdout and "llama3-8b" in done.stdout, done

# What a race makes of a GPU's turns, with a stand-in for us: 20 ms back to back in the first turn, 10 ms in the second. A step has
# 2 GFLOP, which it does at 80 GFLOP/s when it takes 25 ms; the roof is 400 GFLOP/s, the peak 0.5 TFLOP/s.
(WORK / "ours").write_text("""#!/usr/bin/env python3
import json, pathlib, sys
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({
    "step_ms": {"median": 25.0}, "back_to_back_ms": 10.0 if "--no-alone" in sys.argv else 20.0, "tokens": 64, "model_gflops": 80.0,
    "roof_gflops": 400.0, "peak_tflops": 0.5, "provenance": {}, "device": "a GPU"}))
""")
(WORK / "ours").chmod(0o700)
words = ["bench/train/race", WORK / "bench.conf", "--ours", WORK / "ours", "--python", peer, "--out", WORK / "race.json"]
done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
row = json.loads((WORK / "race.json").read_text())["rows"][0]
assert done.returncode == 0 and row["ours_ms"] == spread([20, 10]) and row["ratio"] == spread([2, 4]), (done, row)
for key, wanted in {"step_tflop": 2e-3, "tokens_per_second": 64 / 15e-3, "tflops": 2 / 15, "mfu": 4 / 15, "peer_mfu": 0.1,
                    "of_roof": 1 / 3}.items():
    assert abs(row[key] - wanted) < 1e-12 * wanted, (key, row[key], wanted)
assert "15.00     40.00  3.000 (2.000, 4.000)      4267   26.7   10.0      33.3" in done.stdout, done.stdout

# What a race cannot do is one sentence before the first turn, and a symlink to the results stays.
for race in ("bench/train/race", "bench/ops/race"):
    for option, value, why in (("--out", WORK / "missing" / "x.json", "there is no folder"), ("--out", WORK, "not a regular file"),
                               ("--ours-options", '"a', "no closing quotation"), ("--python", "'a", "no closing quotation"),
                               ("--rounds", 0, "at least 1"), ("--laps", 1, "--laps"), ("--seconds", "nan", "no number"), ("--seconds", 0, "above 0"),
                               ("--ours", WORK / "missing", "no program"), ("--python", WORK / "missing", "no program")):
        done = subprocess.run([race, "--ours", PROGRAM, option, str(value)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and not done.stdout and why in done.stderr and done.stderr.count("\n") == 1, done
assert "at least 1" in subprocess.run(["bench/train/race", "--steps", "0"], cwd=ROOT, capture_output=True, text=True).stderr
(WORK / "race.json").unlink()
(WORK / "link.json").symlink_to("race.json")
done = subprocess.run([*map(str, words[:-1]), WORK / "link.json", "--rounds", "1"], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 0 and (WORK / "link.json").is_symlink() and len(json.loads((WORK / "race.json").read_text())["rows"][0]["ours"]) == 1

# The race of attention, with a stand-in that takes twice our time for the first shape, and refuses the second.
(WORK / "attention").write_text("""import json, pathlib, sys
names = [row["name"] for row in json.loads(pathlib.Path(sys.argv[sys.argv.index("--shapes") + 1]).read_text())]
same = "--deterministic" in sys.argv
print(json.dumps({"torch": "t", "rows": [{"name": names[0], "us": 1000.0 if same else 500.0, "path": "flash" if same else "cuDNN"},
                                         {"name": names[1], "refused": "no such kernel"}]}))
""")
peer.write_text(f"#!/bin/sh\nshift\nexec python3 {WORK / 'attention'} \"$@\"\n")
words = ["bench/ops/race", "--device", "cpu", "--ours", PROGRAM, "--python", peer, "--rounds", 1, "--seconds", 1e-3, "--filter",
         "^attention(_grad)?/short$", "--out", WORK / "attention.json"]
done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
race = json.loads((WORK / "attention.json").read_text())
first, second = race["rows"]
assert done.returncode == 1 and [first["name"], second["name"]] == ["attention/short", "attention_grad/short"], done
assert first["shape"] == [64, 4, 12, 1, 64] and abs(first["gflop"] - 2 * 64 * 64 * 64 * 4 * 12 * 1e-9) < 1e-3 * first["gflop"], first
for form, us in (("same_bits", 1000.0), ("any_order", 500.0)):
    cell = first[form]
    assert abs(cell["ratio"]["median"] * cell["ours"]["us"]["median"] - us) < 1e-6 * us and "ratio" not in second[form], first
assert first["same_bits"]["peer"]["path"] == "flash" and first["any_order"]["peer"]["path"] == "cuDNN"
# A peer that says something else than results has failed, and what was measured stays.
peer.write_text("#!/bin/sh\necho '{\"rows\": 5'\n")
done = subprocess.run([*map(str, words)], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "something else than results" in done.stdout and not done.stderr, done
assert [row["name"] for row in json.loads((WORK / "attention.json").read_text())["rows"]] == ["attention/short", "attention_grad/short"]
# A program that has gone since.
(WORK / "vanishing").write_text('#!/bin/sh\nrm -f "$0"\nexit 1\n')
(WORK / "vanishing").chmod(0o700)
words[words.index(PROGRAM)] = WORK / "vanishing"
done = subprocess.run([*map(str, words), "--rounds", "2"], cwd=ROOT, capture_output=True, text=True)
assert done.returncode == 1 and "no process: " in done.stdout and not done.stderr, done

# A comparison, with a stand-in for us that takes 10 ms a step and a peer that takes 30 ms after a slower first step.
(WORK / "ours").write_text("""#!/usr/bin/env python3
import json, pathlib, sys
if "--json" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"provenance": {"commit": "c"}, "threads": 2}))
for step in range(5):
    print(f"step {step}: 10.0 ms")
""")
compare = lambda *words: subprocess.run(["bench/train/compare", *map(str, words)], cwd=ROOT, capture_output=True, text=True)
steps = "printf 'step %d: it took %d ms\\n' 1 90 2 30 3 30 4 30 5 30"
words = ["--ours", WORK / "ours", "--peer", f"sh -c \"{steps}\"", "--pairs", 2, "--out", WORK / "compare.json"]
done = compare(*words)
result = json.loads((WORK / "compare.json").read_text())
assert done.returncode == 0 and "ratio 3.00 (3.00 to 3.00)" in done.stdout, done
assert result["ratio"] == spread([3, 3]) and result["provenance"] == {"commit": "c"} and len(result["pairs"]) == 2, result
for option, value, status, why in (("--cpus", "x", 2, "cores of this machine"), ("--pairs", 0, 2, "at least 1"), ("--peer-pattern", "(", 2, "no regular expression"),
                                   ("--peer-pattern", "ms", 2, "0 groups"), ("--peer-pattern", "(it)", 1, "is no number"),
                                   ("--peer-dir", WORK / "missing", 2, "no folder"), ("--ours", WORK / "missing", 1, "ended with 127"),
                                   ("--ours", "true", 1, "left no results"), ("--peer", "true", 1, "printed 0 step times"),
                                   ("--peer", "'a", 2, "no closing quotation"), ("--out", WORK, 2, "not a regular file")):
    done = compare(*words, option, value)
    assert done.returncode == status and not done.stdout and why in done.stderr and done.stderr.count("\n") == 1, done
assert json.loads((WORK / "compare.json").read_text()) == result

# Results are stamped with the machine; one that is damaged is named and left alone, and the others have their stamp.
provenance = lambda *words: subprocess.run(["tools/gpu_provenance", *map(str, words)], cwd=ROOT, capture_output=True, text=True)
for option, why in (("--results", "there is no folder"), ("--program", "there is no program"), ("--resuls", "")):
    done = provenance(option, WORK / "missing")
    assert done.returncode == 2 and not done.stdout and why in done.stderr and done.stderr.count("\n") == 1, done
results = WORK / "results"
results.mkdir()
(results / "a.json").write_text('{"rows": [')
(results / "b.json").write_text('{"rows": []}')
done = provenance("--results", results)
assert done.returncode == 1 and "a.json: no JSON" in done.stderr and done.stderr.count("\n") == 1, done
assert (results / "a.json").read_text() == '{"rows": [' and json.loads((results / "b.json").read_text())["machine"]["cpus"] >= 1
print("benches: sums, products, choices, turns")
