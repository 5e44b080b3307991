"""bench judges its times against another program or an earlier result. The verdicts PASS, REGRESS and INCONCLUSIVE
appear in the exit status, text, JSON and JUnit; times that cannot be compared are refused. The other program is this
one, with times that a script multiplies."""
import xml.dom.minidom

from harness import *

bench_conf(num_layers=1, hidden_size=16, num_attention_heads=2, seq_length=8, vocab_size=50, global_batch_size=1)
TRAIN = ["train", "--config", WORK / "bench.conf", "--steps", 7, "--warmup", 1, "--cpu-threads", 1]
OPS = ["ops", "--filter", "^norm/rms-(narrow|short)$", "--dtype", "fp32", "--seconds", 1e-3, "--cpu-threads", 1]
ALONE = {"train": ["--no-alone"], "ops": []}
STATUS = {"PASS": 0, "REGRESS": 1, "INCONCLUSIVE": 4}


def measure(words):
    isotron("bench", *words, *ALONE[words[0]], "--json", WORK / "base.json")
    return json.loads((WORK / "base.json").read_text())


def scaled(result, factor):
    """Returns the result with all times multiplied by a factor."""
    result = json.loads(json.dumps(result))
    for row, key, samples in [(result["step_ms"], "median", result["samples_ms"])] if "step_ms" in result else \
            [(row, "us", row["samples_us"]) for row in result["rows"]]:
        row[key] *= factor
        samples[:] = [factor * x for x in samples]
    return result


def program(name, results):
    """Makes a program that writes the results one after the other."""
    path = WORK / name
    for i, result in enumerate(results):
        (WORK / f"{name}.{i}").write_text(json.dumps(result))
    path.write_text(f"""#!/bin/sh
echo "$@" >> {path}.words
for to; do :; done
cat {path}.$(( ($(wc -l < {path}.words) - 1) % {len(results)} )) > "$to"
""")
    path.chmod(0o700)
    return path


def other(name, words, factors):
    """Makes a program that writes this program's result, with times multiplied by the factors one after the other."""
    return program(name, [scaled(measure(words), factor) for factor in factors])


def gate(words, verdict, *more):
    out = isotron("bench", *words, *more, expect=STATUS[verdict])
    assert f"verdict: {verdict}" in out.splitlines(), out
    noted = "cannot distinguish a slower machine from a slower program, but --against" in out
    assert noted == ("--baseline" in more), out
    return out


# The other program is far slower, far faster, or alternates between these.
slower, faster, both = other("slower", TRAIN, [1000]), other("faster", TRAIN,
                                                             [1e-3]), other("both", TRAIN, [1000, 1e-3])
gate(TRAIN, "PASS", "--against", slower, "--pairs", 6)
out = gate(TRAIN, "REGRESS", "--against", faster, "--pairs", 6, f"--json={WORK}/gate.json",
           "--junit", WORK / "gate.xml")
assert [f"{faster} first" in line for line in out.splitlines() if line.startswith("pair")] == [False, True] * 3, out
result = json.loads((WORK / "gate.json").read_text())
row, = result["rows"]
assert result["verdict"] == row["verdict"] == "REGRESS" and len(row["pairs"]) == 6 and result["allow"] == 0.03, result
# with 6 pairs, the interval at 95 % is their whole range
assert row["ratio"]["low"] == min(row["pairs"]) and row["ratio"]["high"] == max(row["pairs"]), row
assert result["against_provenance"]["commit"] == result["provenance"]["commit"], result
case, = xml.dom.minidom.parse(str(WORK / "gate.xml")).getElementsByTagName("testcase")
assert "REGRESS: ratio " in case.getElementsByTagName("failure")[0].getAttribute("message"), case.toxml()
words = (WORK / "faster.words").read_text().splitlines()
assert len(words) == 6 and words[0].startswith(" ".join(map(str, ["bench", *TRAIN, "--no-alone", "--json /"]))), words
# The exit status is the verdict even if the report cannot be written, because its folder vanishes during the
# measurement.
gone, vanishing = WORK / "gone", WORK / "vanishing"
vanishing.write_text(f'#!/bin/sh\nrm -rf {gone}\nexec {slower} "$@"\n')
vanishing.chmod(0o700)
for option in "--json", "--junit":
    gone.mkdir()
    said = isotron("bench", *TRAIN, "--against", vanishing, "--pairs", 6, option, gone / "report", expect=3)
    assert "verdict: PASS" in said.splitlines() and f"cannot create '{gone}/report" in said, said
gate(TRAIN, "INCONCLUSIVE", "--against", both, "--pairs", 6, "--junit", WORK / "gate.xml")
skipped, = xml.dom.minidom.parse(str(WORK / "gate.xml")).getElementsByTagName("skipped")
assert "INCONCLUSIVE: ratio " in skipped.getAttribute("message"), skipped.toxml()

# More rows need more pairs.
assert "2 rows with a probability of 95 %: give at least 7" in isotron("bench", *OPS,
                                                                       "--against", other("ops", OPS, [1]),
                                                                       "--pairs", 6, expect=2)

assert "example: isotron bench train" in isotron("bench", "--help")

# A baseline is an earlier result of this machine; here its times are made smaller or larger.
baseline, again = WORK / "base.json", WORK / "again.json"
for words, factor, verdict in ([*TRAIN, "--no-alone"], 1e-3,
                               "REGRESS"), ([*OPS[:-4], "--seconds", 0, "--cpu-threads", 1], 1e3, "PASS"):
    isotron("bench", *words, "--json", baseline)
    result = json.loads(baseline.read_text())
    baseline.write_text(json.dumps(scaled(result, factor)))
    kept = baseline.read_bytes()
    assert "--json and --baseline are the same file" in isotron("bench", *words, "--baseline", baseline,
                                                                "--json", baseline, expect=2)
    assert baseline.read_bytes() == kept  # else a second run would pass
    out = gate(words, verdict, "--baseline", baseline, "--json", again, "--junit", WORK / "gate.xml")
    assert out.count(f" {verdict}\n") == len(result.get("rows", [1])) + 1, out
    assert json.loads(again.read_text()).keys() == result.keys()  # the next baseline
    suite, = xml.dom.minidom.parse(str(WORK / "gate.xml")).getElementsByTagName("testsuite")
    assert (suite.getAttribute("failures") == "0") == (verdict == "PASS"), suite.toxml()
    assert {"commit", "cpu",
            "compared with"} <= {p.getAttribute("name") for p in suite.getElementsByTagName("property")}
gate(OPS, "INCONCLUSIVE", "--baseline", baseline)  # 3 rounds are too few

# Times that cannot be compared are refused: with --against after the first pair, and with --baseline before anything is
# measured.
result, rows = measure(TRAIN), measure(OPS)


def replaced(result, path, value):
    """Returns the result with another value at a path such as a/b/c. The value None removes the entry."""
    result = json.loads(json.dumps(result))
    *folders, name = [int(key) if key.isdigit() else key for key in path.split("/")]
    at = result
    for key in folders:
        at = at[key]
    at[name] = value
    if value is None:
        del at[name]
    return result


for words, of, path, value, why in (
        (TRAIN, result, "device", "a GPU", '"device" is "CPU'),
        (TRAIN, result, "provenance/cpu", "a faster one", '"cpu" is'),
        (TRAIN, result, "tokens", 5, '"tokens" is 8 here and 5 in'),
        (TRAIN, result, "threads", 7, '"threads" is 1 here and 7 in'),
        (TRAIN, result, "type", "BF16", '"type" is "F32" here and "BF16" in'),
        (TRAIN, result, "step_flops", 1, '"step_flops" is'),
        (TRAIN, result, "model/hidden_size", 32, 'option "hidden_size" is 16 here and 32 in'),
        (TRAIN, result, "options/recompute_granularity", "full",
         'option "recompute_granularity" is "none" here and "full" in'),
        (TRAIN, result, "options/optimizer", "sgd", 'option "optimizer" is "adam" here and "sgd" in'),
        (TRAIN, result, "device", None, "missing"),
        (OPS, rows, "threads", 7, '"threads" is 1 here and 7 in'),
        (OPS, rows, "deterministic", False, '"deterministic" is true here'),
        (OPS, rows, "rows/0/op", "other", ': "op" is'),
        (OPS, rows, "rows/1/operands", "F32[1] -> F32[1]", ': "operands" is'),
        (OPS, rows, "rows/0/name", "norm/other", "has no row norm/rms-")):
    changed = replaced(of, path, value)
    baseline.write_text(json.dumps(changed))
    both = path in ("device", "options/optimizer", "rows/0/name", "rows/1/operands")  # they share the comparison
    for option, at in (("--baseline", baseline), ("--against", program("changed", [changed])))[:1 + both]:
        out = isotron("bench", *words, *ALONE[words[0]], option, at, expect=2)
        assert why in out and "verdict" not in out and "pair 1" not in out and str(at) in out, (option, path, out)
        assert option == "--against" or ("step 0" not in out and " us " not in out), out
# Another program may be an old version whose results lack some provenance, but a baseline must have all of it.
earlier = replaced(replaced(result, "options", None), "step_flops", None)
baseline.write_text(json.dumps(earlier))
assert 'does not state its "step_flops"' in gate(TRAIN, "PASS", "--allow", "1000%", "--pairs", 6,
                                                 "--against", program("earlier", [earlier]))
isotron("bench", *TRAIN, "--no-alone", "--baseline", baseline, expect=2)
# A row that this program does not have is not judged.
more = replaced(rows, "rows", rows["rows"] + [rows["rows"][0] | {"name": "norm/more"}])
assert "row norm/more fp32 exists" in isotron("bench", *OPS, "--against", program("more", [more]), expect=2)
# Malformed baselines are also refused before anything is measured.
for change, why in (({"samples_ms": []}, "no samples"), ({"step_ms": {"median": -1}}, "not positive")):
    baseline.write_text(json.dumps(result | change))
    out = isotron("bench", *TRAIN, "--no-alone", "--baseline", baseline, expect=2)
    assert why in out and "step 0" not in out, out
wide = [x * (1e-3 if i % 2 else 1e3) for i, x in enumerate(result["samples_ms"])]
baseline.write_text(json.dumps(result | {"samples_ms": wide, "provenance": result["provenance"] | {"flags": "-O0"}}))
assert 'note: "flags" is ' in gate(TRAIN, "INCONCLUSIVE", "--no-alone", "--baseline", baseline)
assert "other bench" in isotron("bench", *OPS, "--baseline", baseline, expect=2)
for more, why in ((["--against", "/bin/false"], "ended with status 1"), (["--against", WORK / "none"], "cannot run"),
                  (["--pairs", 7], "needs --against"),
                  (["--against", "x", "--baseline", "y"], "choose one"),
                  (["--against", "x", "--allow", 3], "a percentage"), (["--against", "x", "--pairs", 5], "from 6"),
                  (["--baseline", WORK / "none"], "cannot open"),
                  (["--against", slower, "--junit", WORK / "none" / "x"], "none")):
    assert why in isotron("bench", *TRAIN, *more, expect=2), more
with (WORK / "bench.conf").open("a") as f:
    f.write(f"against = {slower}\n")
assert "not in a file" in isotron("bench", *TRAIN, expect=2)
print("gate: verdicts follow the times, and what cannot be compared is refused")
