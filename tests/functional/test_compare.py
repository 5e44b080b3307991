"""compare finds runs equal that must be equal: another layout in the exact lane, and a resumed run. It names the first
difference from a run with another seed, and its exit status is the verdict."""
import re

from harness import *

data = corpus()
options = ["--lane", "exact", "--train-iters", 4, "--lr-decay-iters", 4, "--save-interval", 2, "--micro-batch-size", 2,
           "--global-batch-size", 4]


def run(name, *more, expect=0):
    return pretrain(data, WORK / name, *options, "--log-jsonl", WORK / f"{name}.jsonl", *more, expect=expect)


def compare(a, b, *more, expect=0):
    out = isotron("compare", WORK / a, WORK / b, *more, expect=expect)
    return out.splitlines()[-1]


run("one")
run("tp2", "--tensor-model-parallel-size", 2)
run("other", "--seed", 5)
assert compare("one", "tp2") == compare("one.jsonl", "tp2.jsonl") == "verdict: equal"

# A resumed run repeats some steps. In the log, their records come after those of the stopped run. Here, step 3 of the
# stopped run had another loss.
log = WORK / "again.jsonl"
log.write_text("".join(json.dumps(r | {"lm_loss": r["lm_loss"] + (r["iteration"] == 3)}) + "\n"
                       for r in records(WORK / "one.jsonl")
                       if r.get("iteration", 1) <= 3))
assert "step 3, lm_loss" in compare("one.jsonl", "again.jsonl", "--common", expect=1)
assert "again.jsonl" not in run("again", "--load", WORK / "one", "--ckpt-step", 2)
assert compare("one.jsonl", "again.jsonl") == compare("tp2", "again") == "verdict: equal"

# If a run is started again and stops earlier, the later steps of the previous run in the log do not count.
shutil.copy(WORK / "one.jsonl", WORK / "twice.jsonl")
assert f"note: {WORK}/twice.jsonl has steps of an earlier run" in run("twice", "--exit-interval", 3)
assert "step 4, which is only in " in compare("one.jsonl", "twice.jsonl", expect=1)

# Losses that are NaN, as Python's json writes them, and lines that are not records.
lost = "".join(json.dumps(r | {"lm_loss": math.nan if r["iteration"] == 2 else 1}) + "\n"
               for r in records(WORK / "one.jsonl"))
for name, text in (("nan", lost), ("text", lost.replace("NaN", '"6.2"')), ("torn", lost.replace("NaN", "")),
                   ("bare", '{"iteration": 1}')):
    (WORK / name).write_text(text)
assert compare("nan", "nan", expect=1).endswith("first at step 2, lm_loss is finite in neither log")

first = losses(WORK / "tp2.jsonl")[1], losses(WORK / "other.jsonl")[1]
verdict = compare("tp2.jsonl", "other.jsonl", expect=1)
assert verdict.startswith("verdict: differ, first at step 1, lm_loss "), verdict
assert [f"{x:.4g}" for x in first] == [f"{float(x):.4g}"
                                       for x in verdict.split("lm_loss ")[1].split(" against ")], (first, verdict)
assert compare("tp2.jsonl", "other.jsonl", "--bound", 10).startswith("verdict: within 10, ")
assert "verdict: differ, first at 'decoder.final_layernorm.weight' ('whole') [" in compare("one", "other",
                                                                                           "--weights-only", expect=1)
assert compare("one/iter_0000002", "other/iter_0000004", "--weights-only",
               "--bound", 100).startswith("verdict: within 100")
said = isotron("compare", WORK / "one", WORK / "other", expect=1)
assert all(f"{WORK / name}/iter_0000004: step 4\n" in said for name in ("one", "other")), said
differ = sum(map(int, re.findall(r": (\d+) of \d+ tensors differ", said)))
assert "option seed: 1234 and 5" in said and differ > 20, said
assert said.count("\n  '") == 20 and f"... and {differ - 20} more tensors that differ\n" in said, said

run("wide", "--hidden-size", 64, "--vocab-size", 600)
said = isotron("compare", WORK / "one", WORK / "wide", "--only", "word_embeddings.weight", expect=1)
assert re.search(r"^  'embedding.word_embeddings.weight' .*: shapes \[512, 48\] and \[600, 64\]$", said, re.M), said

# Selected tensors or quantities are compared alone, even if others differ.
said = isotron("compare", WORK / "one", WORK / "other", "--only", "layernorm.weight.exp_avg", expect=1)
shown = re.findall(r"^  '(\S+)'", said, re.M)
assert shown and all("layernorm.weight.exp_avg" in name for name in shown) and "progress" not in said, said
assert re.findall(r"^(\w+): \d+ of (\d+) tensors", said, re.M) == [("exp_avg", "5"), ("exp_avg_sq", "5")], said
changed = WORK / "changed.jsonl"
changed.write_text("".join(json.dumps(r | ({"grad_norm": 7} if "grad_norm" in r else {})) + "\n"
                           for r in records(WORK / "one.jsonl")))
assert "grad_norm" in compare("one.jsonl", "changed.jsonl", expect=1)
said = isotron("compare", WORK / "one.jsonl", changed, "--only", "loss")
assert said.endswith("verdict: equal\n") and "lm_loss" in said and "grad_norm" not in said, said

for words, why in (([WORK / "one", WORK / "tp2", "--only", "lyer"], "no tensor has 'lyer' in its name"),
                   ([log, log, "--only", "x" * 9], "the names are consumed_"),
                   ([WORK / "one", WORK / "tp2.jsonl"], "is a folder and the other is not"),
                   ([WORK / "one"], "specify two logs"),
                   ([WORK / "one", WORK / "none"], "does not exist"), ([log, log, "--weights-only"], "remove it"),
                   ([log, log, "--bound", -1], "--bound"), ([WORK, WORK / "one"], "contains no checkpoint"),
                   ([log, WORK / "run.conf"], "line 2 is not a JSON object"),
                   ([WORK / "text"] * 2, "line 2: \"lm_loss\" is not a number"),
                   ([WORK / "torn"] * 2, "line 2 is not a JSON object"),
                   ([WORK / "bare"] * 2, "no quantities")):
    assert why in isotron("compare", *words, expect=2), words
print("compare: equal runs are equal, and the first difference is named")
