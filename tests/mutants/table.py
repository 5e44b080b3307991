#!/usr/bin/env python3
"""Writes a section of docs/mutation.md from a report of run.py --json or of source/run.py --json. The planted bugs of
the former are stored in bench/results/planted-bugs.json, the mutants of the latter in bench/results/mutants.json.

usage: tests/mutants/table.py REPORT"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/mutants/source")]
import score
from cli import Command, Failed, markdown, read_json, write_json

DOCUMENT = ROOT / "docs/mutation.md"
BUGS = ROOT / "bench/results/planted-bugs.json"


def share(part):
    return f"{sum(part)} of {len(part)}" if any(part) else "-"


def planted(report):
    records = report["records"]
    rows = [["planted bugs killed", share([r["killed"] for r in records])],
            ["bugs that change the loss curve and are killed by Megatron-LM's rule",
             f"{report['megatron']} of {report['curves']}"],
            ["bugs in fp64 or exact cells whose op and rank the report names correctly",
             share([r["localised"] for r in records if r["traced"]])]]
    for lane, eps in report["sensitivity"].items():
        rows.append(["lowest bit of a float64 mantissa whose flip is detected (in one element, in one step)", eps]
                    if lane == "bit" else
                    [f"smallest eps for which {lane} detects that one rank's gradients are multiplied by 1 + eps",
                     f"{eps:.1e}"])
    return f"\n{markdown(['', ''], rows)}\n\n"


def bugs(records):
    return [{"bug": r["id"], "family": r["family"], "what": r["what"], "reported_like": r["issues"],
             "killed_in": r["by"], "noticed_in": r["why"].split(":")[0].split("(")[0].strip()[:40],
             "error_over_bound": float(f"{float(r['excess']):.0e}"), "loss_rule": bool(r["megatron"])
             and r["family"] not in ("comparator", "option", "dataset", "plan")} for r in records]


def source(report):
    left_out = sorted(report["not_counted"].items())
    scores = markdown(["", ""], [*score.scores(report).items(),
                                 *((f"not counted: {status}", n) for status, n in left_out)])
    return f"\nSeed {report['seed']}, commit {report['commit']}.\n\n{scores}\n\n"


def main(a):
    report = read_json(a.report)
    try:
        of_source = "sources" in report
        name, text = ("source mutants", source(report)) if of_source else ("planted bugs", planted(report))
        begin, end = (f"<!-- tests/mutants/table.py writes {name}{rest} -->\n" for rest in ("", ", up to here"))
        head, rest = DOCUMENT.read_text().split(begin)
        text = head + begin + text + end + rest.split(end)[1]
        found = None if of_source else {"rows": bugs(report["records"])}
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise Failed(f"{a.report} is no report of run.py --json, or a mark is missing in docs/mutation.md "
                     f"({e})") from None
    DOCUMENT.write_text(text)
    if found:
        write_json(BUGS, found)


command = Command(__doc__)
command.add_argument("report", type=pathlib.Path)
command.run(main)
