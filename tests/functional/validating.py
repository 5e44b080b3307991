"""Functions for the tests of isotron validate."""
import html
import os
import xml.etree.ElementTree

from harness import *

FAULTY = os.environ["FAULTY_PROGRAM"]
LIBRARY = pathlib.Path(PROGRAM).parent / "tests/libhost_nccl.so"
NCCL = ["--nccl-library", LIBRARY]
MPI = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
VERDICTS = {0: "PASS", 1: ("DEGRADED", "FAIL"), 4: "INCONCLUSIVE", **dict.fromkeys((129, 130, 143), "INTERRUPTED")}
HEADINGS = {"PASS": "accepted", "FAIL": "not accepted", "DEGRADED": "not accepted", "INCONCLUSIVE": "no verdict",
            "INTERRUPTED": "interrupted"}


def reports(name="v"):
    """The options that write NAME.json, NAME.xml and NAME.html."""
    return ["--json", WORK / f"{name}.json", "--junit", WORK / f"{name}.xml", "--html", WORK / f"{name}.html"]


def validate(*options, expect=0, program=PROGRAM, name="v", **environment):
    """Runs validate. Returns the stages of the report, and the output."""
    words = [program, "validate", *reports(name), *options]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env={**os.environ, **environment})
    said = done.stdout + done.stderr
    assert done.returncode == expect, (words, done.returncode, said)
    for line in said.splitlines():  # a repetition must not replace the reports
        assert "to repeat it: " not in line or not {"--json", "--junit", "--html"} & {*line.split()}, line
    return read_reports(expect, done.stdout, name), said


def read_reports(status, said, name="v"):
    """Returns the stages of the report, after checking that it agrees with the exit status, the output and the other
    reports."""
    text, suite, page = (WORK / f"{name}.{kind}" for kind in ("json", "xml", "html"))
    report, page = json.loads(text.read_text()), html.unescape(page.read_text())
    assert report["verdict"] in VERDICTS[status] and f"verdict: {report['verdict']}" in said, said
    suite = xml.etree.ElementTree.parse(suite).find(".//testsuite")
    assert int(suite.get("failures")) == sum(s["verdict"] in ("FAIL", "DEGRADED") for s in report["stages"]), said
    judged = said.rpartition("verdict: ")[2].rpartition(" (")[0]
    parts = ["<title>Isotron validation, ", f": {HEADINGS[report['verdict']]}</h1>",
             judged.partition(", ")[2], report.get("conclusion", ""),
             "Limitations of the verdict" if "\nnot certified" in said else "", "<h2>Rates", "<h2>Provenance",
             "<th>flags</th>", "</html>\n"]
    at = [page.find(part) for part in parts if part]
    assert at[0] >= 0 and at == sorted(at), (parts, at, page)
    return {s["name"]: s for s in report["stages"]}


def named(stage, suspect, words, verdict="FAIL"):
    found = [e for e in stage["evidence"] if e["verdict"] == verdict and e["suspect"].startswith(suspect)
             and words in e["text"]]
    assert stage["verdict"] == verdict and found, (suspect, words, stage)


def only(suspect, words, *options, **fault):
    """Asserts that validate finds only the planted fault. A busy machine may cause other findings, so there are up to
    three runs."""
    for last in (False, False, True):
        try:
            stages, said = validate(*options, expect=1, **fault)
            named(stages["speed"], suspect, words, "DEGRADED")
            assert len(stages["speed"]["evidence"]) == 1, said
            return
        except AssertionError:
            if last:
                raise
