"""Runs bench/eight with small models on a CPU. An interrupted run continues without repeating a part, a part that
cannot run is a failure, and verdicts follow the results. EIGHT_GPUS is the number of ranks; with 8, all parts run."""
import os
import re
import signal
import time

from harness import *

GPUS = int(os.environ.get("EIGHT_GPUS", 2))
OUT, LIST = WORK / "out", WORK / "list"
QUICK = ("validate-planted", "comm-{gpus}", "comm-{gpus}-halves", "scaling-gpt3-1.3b-weak", "layout", "validate-second")
LINES = [line for line in (ROOT / "bench/eight.list").read_text().splitlines() if line[0] != "#"]
LIST.write_text("".join(f"{line}\n" for line in LINES if GPUS == 8 or line.split()[0] in QUICK))
WORDS = [ROOT / "bench/eight", "--device", "cpu", "--gpus", GPUS, "--build", pathlib.Path(PROGRAM).resolve().parent,
         "--out", OUT, "--limit", 5000]


def eight(*options, status=0, names=LIST):
    """Returns the names of the parts that ran, in their order, and {name: (verdict, note)} of the table."""
    done = subprocess.run([*map(str, WORDS), "--list", names, *map(str, options)], capture_output=True, text=True)
    assert done.returncode == status, done
    rows = re.findall(r"^(\S+) +(pass|FAIL|no time|skipped) +[\d.]+  (.*)$", done.stdout, re.M)
    return re.findall("^---- (.*?):", done.stdout, re.M), {name: (verdict, note) for name, verdict, note in rows}


def results():
    return {path.stem.removeprefix("gpu-"): path.read_bytes() for path in OUT.glob("*.json")}


# Without time, no part runs.
ran, table = eight("--limit", 0, status=1)
parts = [name for name, (verdict, _) in table.items() if verdict == "no time"]
skipped = {name: note for name, (verdict, note) in table.items() if verdict == "skipped"}
assert not ran and not results() and len(parts) + len(skipped) == len(table) and len(parts) >= 4, table
assert GPUS == 8 and len(parts) >= 20 or skipped["comm-2-halves"] == "needs 4 GPUs", table
assert GPUS == 8 or skipped["layout-tp8"] == "needs 8 GPUs" and "layout-8b-tp2" in parts, table

# The run is killed during its third part.
killed = subprocess.Popen([*map(str, WORDS), "--list", LIST], stdout=subprocess.PIPE, text=True, start_new_session=True)
for name in parts[:3]:
    assert killed.stdout.readline().startswith(f"---- {name}:"), name
os.killpg(killed.pid, signal.SIGKILL)
killed.wait(), killed.stdout.close()
first = results()
assert list(first) and {*first} == {*parts[:2]}, first.keys()

# Then it continues. Every result is complete, and has the machine, the command and the program's provenance.
ran, table = eight()
assert sorted(ran) == sorted(parts[2:]), ran
assert {name for name, (verdict, _) in table.items() if verdict == "pass"} == {*parts}, table
whole = results()
assert {*whole} == {*parts} and all(whole[name] == text for name, text in first.items()), whole.keys()
for name, text in whole.items():
    result = json.loads(text)
    assert result["machine"]["commit"] and result["machine"]["cpus"] >= 1 and "libraries" in result["machine"], name
    assert result["part"]["command"][0].endswith("/isotron") and result["part"]["seconds"] > 0, name
    assert result["provenance"]["commit"], name
assert all(("measured earlier" in note) == (name in first) for name, (_, note) in table.items()), table
assert table["validate-planted"][1].startswith("NCCL explains "), table
assert eight()[0] == [] and results() == whole

# Verdicts follow the results: each of these changes fails a part, and no part is repeated.
scaling, layout = "scaling-gpt3-1.3b-weak", next(name for name in parts if name.startswith("layout-"))


def change(name, edit):
    result = json.loads(whole[name])
    edit(result)
    (OUT / f"gpu-{name}.json").write_text(json.dumps(result))


def efficiency(kind, value):
    return lambda result: (result.update(scaling=kind), result["rows"][-1].update(
        devices=GPUS, efficiency={"median": value}))


for edits in ({"validate-planted": lambda result: result.update(conclusion="link 0-1 explains 3 of 3 findings")},
              {"validate-planted": lambda result: result.update(verdict="DEGRADED"),
               "validate-second": lambda result: result.update(verdict="INCONCLUSIVE"),
               scaling: efficiency("weak", 0.969),
               f"comm-{GPUS}": lambda result: result["rows"][1]["out_of_place"].update(wrong=1)},
              {scaling: efficiency("strong", 0.949)}):
    for name, edit in edits.items():
        change(name, edit)
    ran, table = eight(status=1)
    assert not ran and {name for name, (verdict, _) in table.items() if verdict == "FAIL"} == {*edits}, table
    for name in edits:
        change(name, lambda result: None)
for kind, value in ("weak", 0.971), ("strong", 0.951):
    change(scaling, efficiency(kind, value))
    assert eight()[0] == []

# A result of another command, or one that is damaged, does not count.
change(scaling, lambda result: result["part"]["command"].append("--fp16"))
(OUT / f"gpu-{layout}.json").write_text('{"rows": [')
assert sorted(eight()[0]) == sorted([scaling, layout])

# A part that is refused, and one that takes too long, fail. The next run begins with parts that have not run yet.
OTHER = WORK / "other"
OTHER.write_text("refused 2 1 bench comm --ranks {gpus} --dtype fp8\nslow 2 0.01 validate --ranks {gpus}\n")
ran, table = eight(status=1, names=OTHER)
assert ran == ["refused", "slow"] and {verdict for verdict, _ in table.values()} == {"FAIL"}, table
assert all(f"/{name}.log" in note for name, (_, note) in table.items()), table
OTHER.write_text(OTHER.read_text().replace("slow 2 0.01 validate --ranks {gpus}", "new 2 5 bench comm --ranks {gpus}"))
ran, table = eight(status=1, names=OTHER)
assert ran == ["new", "refused"] and [verdict for verdict, _ in table.values()] == ["FAIL", "pass"], table
OTHER.write_text("long 2 1000 bench comm --ranks {gpus}\nnew 2 5 bench comm --ranks {gpus}\n")
ran, table = eight("--limit", 500, status=1, names=OTHER)
assert ran == [] and table["long"] == ("no time", "needs about 1000 s") and table["new"][0] == "pass", table
OTHER.write_text("late 2 0.5 validate --ranks {gpus}\n")  # takes 2 s
assert eight("--limit", 1.5, status=1, names=OTHER)[1]["late"][0] == "no time"
done = subprocess.run([ROOT / "bench/eight", "--build", "missing"], capture_output=True, text=True)
assert done.returncode == 1 and "there is no missing/isotron: build it" in done.stderr, done

# Every layout fits a GPU of 140 GiB, not counting the kernels' scratch memory.
BENCH_OPTIONS = re.compile(r" --(?:steps|warmup|profiled) \d+")
tables = [line for line in (ROOT / "bench/train/layouts.list").read_text().splitlines() if line[0] != "#"]
common = next(line.split(maxsplit=2)[2] for line in tables if line.startswith("all "))
for name, conf, options in (line.split(maxsplit=2) for line in tables if not line.startswith("all ")):
    words = BENCH_OPTIONS.sub("", f" {common} {options}").split()
    isotron("plan", "--config", ROOT / f"bench/train/{conf}.conf", *words, "--json", WORK / "plan.json")
    rows = json.loads((WORK / "plan.json").read_text())["plan"]["memory"]
    assert max(row["total"] for row in rows) < 140 * 2**30, name

# The arguments of 8b-fp8 are those of Megatron-LM's script, except for paths.
if "MEGATRON_LM" in os.environ:
    (WORK / "torchrun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (WORK / "torchrun").chmod(0o700)
    (WORK / "pretrain_gpt.py").touch()
    script = f"{os.environ['MEGATRON_LM']}/examples/llama/train_llama3_8b_h100_fp8.sh"
    said = subprocess.run(["bash", script], cwd=WORK, capture_output=True, text=True, check=True,
                          env=os.environ | {"PATH": f"{WORK}:{os.environ['PATH']}"}).stdout
    theirs = said.partition("pretrain_gpt.py\n")[2].replace("'", "").replace(f"{WORK}/", "").split("\n--")
    conf = (ROOT / "bench/train/llama3-8b-h100-fp8.conf").read_text().splitlines()[1:]
    ours = [line.replace(" = true", "").replace(" = ", "\n") for line in conf]
    assert [words.strip().removeprefix("--") for words in theirs] == ours, (theirs, ours)
print(f"eight: {len(parts)} parts on {GPUS} ranks")
