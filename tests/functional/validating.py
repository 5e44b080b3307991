"""Runs isotron validate for the tests of it."""
import html
import os
import xml.etree.ElementTree

from harness import *

FAULTY = os.environ["FAULTY_PROGRAM"]
LIBRARY = pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"
NCCL = ["--nccl-library", LIBRARY]
VERDICTS = {0: "PASS", 1: ("DEGRADED", "FAIL"), 4: "INCONCLUSIVE"}


def validate(*options, expect=0, program=PROGRAM, name="v", **environment):
    """The report, written to NAME.json, .xml and .html, and the output."""
    paths = {kind: WORK / f"{name}.{kind}" for kind in ("json", "xml", "html")}
    words = [program, "validate", "--json", paths["json"], "--junit", paths["xml"], "--html", paths["html"], *options]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env={**os.environ, **environment})
    said = done.stdout + done.stderr
    assert done.returncode == expect, (words, done.returncode, said)
    report = json.loads(paths["json"].read_text())
    assert report["verdict"] in VERDICTS[expect] and f"verdict: {report['verdict']}" in done.stdout, said
    suite = xml.etree.ElementTree.parse(paths["xml"]).find(".//testsuite")
    assert int(suite.get("failures")) == sum(s["verdict"] in ("FAIL", "DEGRADED") for s in report["stages"]), said
    page, judged = html.unescape(paths["html"].read_text()), done.stdout.rpartition("verdict: ")[2].rpartition(" (")[0]
    parts = ["<title>Isotron validation, ", {0: ": accepted</h1>", 1: ": not accepted</h1>", 4: ": no verdict</h1>"}[expect],
             judged.partition(", ")[2], report.get("conclusion", ""),
             "Limits of the verdict" if "\nnot certified" in done.stdout else "", "<h2>Rates", "<h2>Provenance", "<th>flags</th>"]
    at = [page.find(part) for part in parts if part]
    assert at[0] >= 0 and at == sorted(at), (parts, at, page)
    return {s["name"]: s for s in report["stages"]}, said


def named(stage, suspect, words, verdict="FAIL"):
    found = [e for e in stage["evidence"] if e["verdict"] == verdict and e["suspect"].startswith(suspect) and words in e["text"]]
    assert stage["verdict"] == verdict and found, (suspect, words, stage)


def only(suspect, words, *options, **fault):
    """A planted fault is the only evidence. A busy machine hides a slow link in about one of 100 runs, so there are three."""
    for last in (False, False, True):
        try:
            stages, said = validate(*options, expect=1, **fault)
            named(stages["speed"], suspect, words, "DEGRADED")
            assert len(stages["speed"]["evidence"]) == 1, said
            return
        except AssertionError:
            if last:
                raise
