"""isotron validate: a clean machine passes, every planted fault is named with its suspect, and reports and exit statuses agree."""
import os
import xml.etree.ElementTree

from harness import *

FAULTY = os.environ["FAULTY_PROGRAM"]
LIBRARY = pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"
NCCL = ["--nccl-library", LIBRARY]
VERDICTS = {0: "PASS", 1: ("DEGRADED", "FAIL"), 4: "INCONCLUSIVE"}


def validate(*options, expect=0, program=PROGRAM, **environment):
    """The report as JSON, and the output."""
    words = [program, "validate", "--json", WORK / "v.json", "--junit", WORK / "v.xml", "--html", WORK / "v.html", *options]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env={**os.environ, **environment})
    said = done.stdout + done.stderr
    assert done.returncode == expect, (words, done.returncode, said)
    report = json.loads((WORK / "v.json").read_text())
    assert report["verdict"] in VERDICTS[expect] and f"verdict: {report['verdict']}" in done.stdout, said
    suite = xml.etree.ElementTree.parse(WORK / "v.xml").find(".//testsuite")
    assert int(suite.get("failures")) == sum(s["verdict"] in ("FAIL", "DEGRADED") for s in report["stages"]), said
    assert report["verdict"] in (WORK / "v.html").read_text()
    return {s["name"]: s for s in report["stages"]}, said


def named(stage, suspect, words, verdict="FAIL"):
    found = [e for e in stage["evidence"] if e["verdict"] == verdict and e["suspect"].startswith(suspect) and words in e["text"]]
    assert stage["verdict"] == verdict and found, (suspect, words, stage)


# Clean runs, on threads and with NCCL's code path; what one rank cannot show is listed, and does not fail.
stages, said = validate("--ranks", 4, "--seconds", 8)
good = WORK / "good.json"
good.write_text((WORK / "v.json").read_text())
assert {s["verdict"] for s in stages.values()} == {"PASS"}, said
validate("--ranks", 4, "--seconds", 4, "--only", "inventory", "--good", good)
nccl, said = validate("--ranks", 3, "--seconds", 4, *NCCL, "--only", "inventory", "collectives")
assert "NCCL 2.28.9" in nccl["collectives"]["summary"] and "hang; --only leaves them out" in said, said
one, said = validate("--seconds", 2)
assert one["collectives"]["verdict"] == "INCONCLUSIVE" and "not certified: collectives: it needs 2 ranks" in said, said
if shutil.which("mpirun"):
    run = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", PROGRAM, "validate", "--seconds", "3"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0 and "verdict: PASS (2 ranks" in done.stdout, done

# Planted faults.
ONLY = ["--ranks", 4, "--seconds", 4, "--only"]
named(validate(*ONLY, "compute", program=FAULTY, FAULTY="gemm 2 7", expect=1)[0]["compute"], "rank 2", "one bit flipped")
stages, said = validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="drop_tail", expect=1)
named(stages["collectives"], "NCCL 2.28.9", "the last 8 elements are missing")
assert "validate --ranks 4 --seconds 4 --nccl-library" in said and "--only collectives" in said, said
named(validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="half_sum", expect=1)[0]["collectives"], "NCCL", "it sums in 16 bits")
SOON = ["--distributed-timeout-seconds-after-init", 1]
named(validate(*ONLY, "collectives", *NCCL, *SOON, HOST_NCCL_FAULT="lost:40", expect=1)[0]["collectives"], "NCCL", "has waited 1 s")
named(validate(*ONLY, "collectives", *NCCL, HOST_NCCL_FAULT="error:40", expect=1)[0]["collectives"], "NCCL", "planted fault")
newer = validate("--ranks", 4, "--seconds", 4, "--only", "inventory", *NCCL)[0]
good.write_text((WORK / "v.json").read_text())
older = [*ONLY, "inventory", *NCCL, "--good", good]
named(validate(*older, HOST_NCCL_VERSION="22703", expect=1)[0]["inventory"], "NCCL", "it is '2.27.3', and was '2.28.9'", "DEGRADED")
validate(*older, "--allow-changes", HOST_NCCL_VERSION="22703")

# Wrong arguments.
(WORK / "empty.json").write_text("{}")
for words, message in (
        (["--only", "speed"], "--only 'speed': choose from inventory, "),
        (["--seconds", 0], "--seconds: from 1 to"),
        (["--seconds", 5, "--quick"], "--seconds and --quick: choose one"),
        (["--allow", "x"], "--allow expects a percentage"),
        (["--allow-changes"], "--allow-changes needs --good"),
        (["--good", WORK / "empty.json"], "is not a report of validate"),
        (["--good", WORK / "none.json"], "none.json"),
        (["--nccl-a", LIBRARY], "--nccl-a needs --nccl-b"),
        (["--nccl-a", LIBRARY, "--nccl-library", LIBRARY, "--nccl-b", LIBRARY], "choose one"),
        (["--json", WORK / "r", "--html", WORK / "r"], "are the same file"),
        (["--ranks", 2, "--nccl-library", "nowhere.so"], "NCCL cannot be loaded"),
        (["--num-layers", 2], "--num-layers"),
):
    said = isotron("validate", *words, expect=2)
    assert message in said, (words, said)
