"""Runs isotron validate for the tests of it."""
import html
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
    page, judged = html.unescape((WORK / "v.html").read_text()), done.stdout.rpartition("verdict: ")[2].rpartition(" (")[0]
    parts = ["<title>Isotron validation, ", {0: ": accepted</h1>", 1: ": not accepted</h1>", 4: ": no verdict</h1>"}[expect],
             judged.partition(", ")[2], report.get("conclusion", ""),
             "Limits of the verdict" if "\nnot certified" in done.stdout else "", "<h2>Rates", "<h2>Provenance", "<th>flags</th>"]
    at = [page.find(part) for part in parts if part]
    assert at[0] >= 0 and at == sorted(at), (parts, at, page)
    return {s["name"]: s for s in report["stages"]}, said


def named(stage, suspect, words, verdict="FAIL"):
    found = [e for e in stage["evidence"] if e["verdict"] == verdict and e["suspect"].startswith(suspect) and words in e["text"]]
    assert stage["verdict"] == verdict and found, (suspect, words, stage)


