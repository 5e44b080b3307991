"""A sweep judges every cell, fails wrong ones, skips those that a rule forbids, reports lines that it cannot parse, and
writes reports."""
import html.parser
import os
import re
import xml.dom.minidom

from harness import *

CASE = ROOT / "golden" / "gpt2-layouts"


def sweep(cells, *options, cases=(CASE,), expect=0):
    (WORK / "list").write_text("\n".join(cells) + "\n")
    return isotron("parity", *cases, "--sweep", WORK / "list", "--json", WORK / "r.json", *options, expect=expect)


def cells():
    return json.loads((WORK / "r.json").read_text())["cells"]


# ---- verdicts: correct cells pass, wrong ones fail in every lane, and those that a rule forbids are skipped
RIGHT = ["# comment", "", "fp64 --tensor-model-parallel-size 2 # and here", "exact --ranks 2",
         "bf16 --pipeline-model-parallel-size 2", "llama-layouts fp64 --tensor-model-parallel-size 2"]
out = sweep(RIGHT + ["fp64 --tensor-model-parallel-size 3"], "--junit", WORK / "r.xml", "--html", WORK / "r.html")
assert [c["verdict"] for c in cells()] == ["pass"] * 3 + ["skipped"], out
assert "not a multiple of --tensor-model-parallel-size 3" in cells()[3]["reason"]
assert [c["layout"] for c in cells()[:3]] == ["tp2", "dp2", "pp2"]
assert "3 cells pass, 0 fail, 1 is skipped (not a pass), 1 line is for cases that are not given" in out
number, = re.findall(r"gpt2-layouts +bf16 .* (0\.\d+) of the bound \(.*\), power [\d.]+ %", out)
assert "R: the error divided by" in out and "power: the smallest" in out, out
for lane in ("exact", "fp32", "bf16", "fp64"):
    out = sweep([f"gpt2-layouts {lane} --ranks 2 --lr-warmup-iters 2"], "--junit", WORK / "fail.xml",
                "--html", WORK / "fail.html", cases=(CASE, ROOT / "golden" / "llama-layouts"), expect=1)
    assert "1 given case has no cell;" in out, out
    assert cells()[0]["verdict"] == "fail"
sweep(["fp64 --tensor-model-parallel-size 3"], expect=1)  # nothing has passed

# ---- reports can be parsed, and contain every cell
suite = xml.dom.minidom.parse(str(WORK / "r.xml"))
assert len(suite.getElementsByTagName("testcase")) == 4 and len(suite.getElementsByTagName("skipped")) == 1
names = {p.getAttribute("name") for p in suite.getElementsByTagName("property")}
assert {"layout", "lane", "bound", "observed", "R", "power", "commit", "host", "date", "list"} <= names, names
for cell in suite.getElementsByTagName("testcase"):
    of = {p.getAttribute("name"): p.getAttribute("value") for p in cell.getElementsByTagName("property")}
    assert ("R" in of) == (of["lane"] == "bf16" and "bound" in of), of  # there is no R="nan"
    if "bound" in of:
        assert abs(float(of["fraction of bound"]) - float(of["observed"]) / float(of["bound"])) < 1e-4, of
for p in suite.getElementsByTagName("property"):
    assert p.getAttribute("name") not in ("bound", "observed") or float(p.getAttribute("value")) >= 0, p.toxml()
page = (WORK / "r.html").read_text()
assert '<h1>Parity sweep: <span class="PASS">PASS</span></h1>' in page, page
# provenance: every report has that of a benchmark, and the threads per rank
isotron("bench", "ops", "--filter", "^norm/rms-short$", "--dtype", "fp32", "--seconds", 1e-3, "--cpu-threads", 1,
        "--json", WORK / "ops.json")
bench = json.loads((WORK / "ops.json").read_text())["provenance"]
facts = {p.getAttribute("name"): p.getAttribute("value")
         for p in suite.getElementsByTagName("properties")[0].getElementsByTagName("property")}
assert {k: v for k, v in bench.items() if k != "date"} == {k: facts[k] for k in bench if k != "date"}, (bench, facts)
assert facts["threads"] == "1", (bench, facts)
assert all(f"<th>{name}</th><td><code>" in page for name in facts), page
assert json.loads((WORK / "r.json").read_text())["provenance"].keys() == facts.keys(), page
where = f"BLAS core {bench['blas_core']}, threads per rank: "
out = isotron("parity", CASE, "--fp64", "--cpu-threads", 2, "--json", WORK / "one.json")
one = json.loads((WORK / "one.json").read_text())
assert one["provenance"].keys() == bench.keys() and one["provenance"]["blas_core"] == bench["blas_core"], one
assert one["threads"] == 2, one
assert where + "2\n" in out and where + "1 to 3\n" in sweep(["fp64 --ranks 2", "fp64 --cpu-threads 3"]), out
opened = []


class Tags(html.parser.HTMLParser):
    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            opened.append(tag)

    def handle_endtag(self, tag):
        assert opened.pop() == tag, tag


Tags().feed(page)
assert not opened, f"tags that are not closed: {opened}"
assert page.count("<polyline") == 4 and "<script" not in page and "src=" not in page
assert all(f"<th>{fact}</th>" in page for fact in ("commit", "host", "cpu", "date", "command")), page
assert ">step</text>" in page, page
assert "How to read this" in page and "<h2>Failures" not in page and "<summary>Skipped" in page, page
assert f">{number}</td>" in page, page

# ---- failures come first, with their numbers; a case whose cells did not run has no figure
failure, = xml.dom.minidom.parse(str(WORK / "fail.xml")).getElementsByTagName("failure")
assert re.fullmatch(r"learning rate of step 2: 0\.5, \S+ times its bound of \S+",
                    failure.getAttribute("message")), failure.toxml()
assert "loss of step 4: " in failure.firstChild.data, failure.toxml()
assert "against one rank: loss of step 4: " in failure.firstChild.data, failure.toxml()
page = (WORK / "fail.html").read_text()
assert '<h1>Parity sweep: <span class="FAIL">FAIL</span></h1>' in page, page
assert page.index("<h2>Failures") < page.index("learning rate of step 2: 0.5") < page.index("<summary>Layouts"), page
assert page.count("<svg") == 1 and "llama-layouts" not in page.partition("</table>")[2], page

# ---- cells with the same layout that differ in other options: each has a name, and the grid shows the worst
out = sweep(["fp64 --ranks 2", "fp64 --ranks 2 --lr 0.02", "fp64 --ranks 2 --seed 5"], "--clip-grad", 1,
            "--html", WORK / "r.html",
      "--junit", WORK / "r.xml", expect=1)
assert [c["verdict"] for c in cells()] == ["pass", "fail", "pass"], cells()
assert {c["layout"] for c in cells()} == {"dp2"}, cells()
names = [c.getAttribute("name") for c in xml.dom.minidom.parse(str(WORK / "r.xml")).getElementsByTagName("testcase")]
assert names == ["dp2 [--ranks 2]", "dp2 [--ranks 2 --lr 0.02]", "dp2 [--ranks 2 --seed 5]"], names
page = (WORK / "r.html").read_text()
grid = page.partition("<summary>Layouts")[2].partition("</table>")[0]
assert grid.count("<code>dp2</code>") == 1 and "dp2 [--ranks 2 --lr 0.02]: learning rate" in grid, grid

# ---- the command of a failed cell reproduces it: it has the options for all cells, but not those for reports
command = cells()[1]["command"]
assert command == " ".join(map(str, ["isotron parity", CASE, "--lane fp64 --clip-grad 1", *OPTIONS,
                                     "--ranks 2 --lr 0.02"])), command
assert command in page.partition("<h2>Failures")[2].partition("</table>")[0]
assert f"isotron parity {CASE} --sweep" in page
assert "learning rate" in isotron(*command.split()[1:], expect=1)
assert f"    to run it alone: {command}\n" in out, out
# run alone, the cell is not compared with one rank
out = sweep(["exact --ranks 2 --lr-warmup-iters 2"], "--clip-grad", 1, expect=1)
command = cells()[0]["command"]
done = subprocess.run(command.replace("| isotron", f"| {PROGRAM}"), shell=True, capture_output=True, text=True)
assert done.returncode == 1 and f"to run it alone: {command}" in done.stdout, (command, done)
layout = "fp64 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ettt|tL --ranks 2"
sweep([layout], "--sweep-dry-run")
assert cells()[0]["command"].endswith("--pipeline-model-parallel-layout 'Ettt|tL' --ranks 2"), cells()[0]["command"]

# ---- a learning rate that is wrong on one rank too ends the search, because 16 steps later the layout would route
# tokens differently
smoke = [line for line in (ROOT / "tests/functional/layouts/smoke.list").read_text().splitlines()
         if "--expert-tensor-parallel-size" in line]
out = sweep(smoke, "--lr", 0.02, cases=(ROOT / "golden" / "mixtral-layouts",), expect=1)
assert "not localised: the one-rank run also differs from the oracle, in step 2; every op agrees" in out, out
assert "localised" not in cells()[0], out

# ---- a cell that hangs fails alone
sweep(["fp64 --ranks 2"], "--sweep-deadline", 1e-6, expect=1)
assert "timed out after 0 s" in cells()[0]["reason"], cells()

# ---- lines that cannot be parsed are errors, not skipped cells
GOOD = "gpt2-layouts fp64 --ranks 2"
for line, sentence in (("fp64 --tensor-model-paralel-size 2", "list:2: '--tensor-model-paralel-size'"),
                       ("gpt2-layouts fp65", "is not a precision"),
                       ("fp65 --ranks 2", "list:2: 'fp65' is neither a precision nor a golden case"),
                       ("fp64 --lr-warmup 2", "list:2:"),
                       ("gpt2-layout fp64 --ranks 2",
                        "list:2: 'gpt2-layout' is neither a precision nor a golden case; the cases are gpt2-layouts"),
                       ("../golden/llama-layouts fp64", "neither"), ("gpt2-layouts", "needs a lane"),
                       ("fp64 --save x", "--save is not used in parity"),
                       ("fp64 --bf16", "list:2: --lane is not used in a cell"),
                       ("fp64 --lane bf16", "list:2: --lane is not used in a cell"),
                       ("fp64 --junit x", "list:2: --junit is not used in a cell"),
                       ("fp64 --sweep x", "list:2: --sweep is not used in a cell"),
                       ("fp64 --help", "list:2: --help has no effect"),
                       ("fp64  --ranks 2", "list:2: line 1 already has this cell"),
                       ("fp64 --train-iters 3", "list:2: --train-iters is not used"),
                       ("fp64 --tensor-model-parallel-size 0", "list:2: --tensor-model-parallel-size must be"),
                       ("fp64 --lr -1", "list:2: --lr must be"), ("fp64 --ranks 99999999", "list:2: --ranks must be"),
                       *((f"fp64 {other}", "list:2: ") for other in
                         ("--seq-length 8", "--num-experts 4", "--hidden-size 48", "--hidden-size 50", "--num-layers 1",
                          "--vocab-size 64", "--global-batch-size 16", "--hidden-dropout 0.1"))):
    said = sweep([GOOD, line], expect=2)
    assert sentence in said, (line, said)
isotron("parity", CASE, ROOT / "golden" / "llama-layouts", expect=2)
assert "--sweep-jobs must be from 0" in sweep(RIGHT, "--sweep-jobs", -1, expect=2)
assert "--lane is not used with --sweep" in sweep(RIGHT, "--bf16", expect=2)
alone = subprocess.run([PROGRAM, "parity", CASE, "--device", "cuda"], capture_output=True, text=True)
if "--device cuda: this" in alone.stderr:  # no GPU
    assert "--device cuda: this" in sweep([GOOD + " --device cuda"], expect=2)
assert "--sweep-deadline must be above" in sweep(RIGHT, "--sweep-deadline", 0, expect=2)

# ---- a report must not overwrite the list or another report, and a sweep that writes no report removes an earlier one
for one, two in (("--junit", "r.json"), ("--html", "list"), ("--junit", "../" + WORK.name + "/list")):
    assert "are the same file" in sweep([GOOD], one, WORK / two, expect=2)
assert (WORK / "list").read_text() == GOOD + "\n"
assert "are the same file" in sweep([GOOD], "--junit", WORK / "x", "--html", WORK / ".." / WORK.name / "x", expect=2)
(WORK / "link").symlink_to(WORK / "r.xml")
reports = [WORK / "r.json", WORK / "r.xml", WORK / "r.html"]
for line, more, not_named, status in ((GOOD, ["--json", "/dev/full"], reports[:1], 3), ("fp65", [], [], 2),
                                      (GOOD, ["--html", WORK / "none" / "r.html"], reports[2:], 2)):
    sweep([GOOD], "--sweep-dry-run", "--junit", WORK / "link", "--html", reports[2])
    assert all(report.exists() for report in reports)
    sweep([line], "--junit", WORK / "link", "--html", reports[2], *more, expect=status)
    assert [report for report in reports if report.exists()] == not_named and (WORK / "link").is_symlink(), (line, more)
sweep([GOOD], "--sweep-dry-run", "--junit", reports[1])
other = WORK / "notes"
other.write_text("not a report")
assert "is not a parity report" in sweep([GOOD], "--junit", reports[1], "--html", other, expect=2)
assert other.read_text() == "not a report"
assert not reports[0].exists() and not reports[1].exists()
other.write_text("")  # as mktemp makes it
sweep([GOOD], "--sweep-dry-run", "--html", other)
for words in ([WORK / "no-case"], [CASE, "--tensor-model-parallel-size", 3]):
    isotron("parity", CASE, "--json", reports[0])
    isotron("parity", *words, "--json", reports[0], expect=2)
    assert not reports[0].exists(), words
isotron("parity", CASE, "--json", reports[0])
isotron("parity", CASE, "--json", reports[0], "--hidden-sise", 4, expect=2)
assert reports[0].exists()  # an option with an error changes nothing

# ---- an option for all cells may make two cells equal
pair = ["gpt2-layouts fp64 --tensor-model-parallel-size 2 --ranks 2", "gpt2-layouts fp64 --ranks 2"]
sweep(pair, "--sweep-dry-run")
assert "list:2: line 1 already has this cell of gpt2-layouts" in sweep(pair, "--tensor-model-parallel-size", 2,
                                                                       "--sweep-dry-run", expect=2)

# ---- a dry run plans cells without running them; options for all cells are applied to each
out = sweep(RIGHT + ["fp64 --tensor-model-parallel-size 3"], "--sweep-dry-run", "--device", "cuda",
            "--junit", WORK / "r.xml", "--html", WORK / "r.html")
assert [(c["seconds"], c["verdict"], c["device"])
        for c in cells()] == [(0, "planned", "cuda")] * 3 + [(0, "skipped", "cuda")], cells()
assert all("--device cuda" in c["command"] for c in cells()), cells()
assert "3 cells are planned, 1 is skipped (not a pass)" in out and len(re.findall(r" planned +0 ms", out)) == 3, out
messages = [s.getAttribute("message")
            for s in xml.dom.minidom.parse(str(WORK / "r.xml")).getElementsByTagName("skipped")]
assert messages[:3] == ["planned, not run"] * 3 and "not a multiple" in messages[3], messages
page = (WORK / "r.html").read_text()
assert page.count("<td>planned</td>") == 3, page
assert page.partition("<summary>Skipped")[2].count('<tr class="skip">') == 1, page

# ---- if the machine cannot run a cell, this is an error and not a failed cell, and the sweep ends immediately
for threads, why in (("2", "OpenBLAS needs 272.0 MiB"), ("1", "cannot reserve")):
    done = subprocess.run(["sh", "-c", 'ulimit -v 120000; exec "$@"', "sh", PROGRAM, "parity", CASE,
                           "--sweep", WORK / "list"], capture_output=True,
                          text=True, timeout=30, env=os.environ | {"OPENBLAS_NUM_THREADS": threads})
    assert done.returncode == 3 and why in done.stderr and "ulimit -v" in done.stderr and not done.stdout, done
