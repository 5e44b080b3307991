#!/usr/bin/env python3
"""Writes the tables of docs/mutation.md, below its mark, from a report of run.py --json.

usage: table.py REPORT"""
import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from cli import Command, Failed, read_json

DOCUMENT = ROOT / "docs/mutation.md"
MARK = "<!-- tests/mutants/table.py writes what follows -->\n"


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def of(part):
    return f"{sum(part)} of {len(part)}" if any(part) else "-"


def summary(report):
    rows = [["planted bugs killed", of([r["killed"] for r in report["records"]])],
            ["of those that change a curve, killed by Megatron-LM's rule", f"{report['megatron']} of {report['curves']}"]]
    rows.append(["of those in a lane without noise, traced to the right op and rank",
                 of([r["localised"] for r in report["records"] if r["traced"]])])
    for lane, eps in report["sensitivity"].items():
        rows.append(["lowest bit of a float64 mantissa whose flip is noticed (one element, one step)", eps] if lane == "bit" else
                    [f"smallest eps of one rank's gradients times 1 + eps that lane {lane} notices", f"{eps:.1e}"])
    return table(["", ""], rows)


def matrix(records):
    families, cells = collections.defaultdict(list), []
    for record in records:
        if record["matrix"]:
            families[record["family"]].append(record["matrix"])
            cells = list(record["matrix"])
    rows = [[family, len(found), *(of([m[c] for m in found]) for c in cells)] for family, found in families.items()]
    return table(["family", "bugs", *cells], rows)


def bugs(records):
    rows = [[f"`{r['id']}`", r["family"], r["what"], r["issues"], r["by"], r["why"].split(":")[0].split("(")[0].strip()[:40],
             f"{float(r['excess']):.0e}", "yes" if r["megatron"] and r["family"] not in ("comparator", "option") else ""] for r in records]
    return table(["bug", "family", "what it does", "reported like", "killed in", "first by its bound", "error / bound", "5 % of loss"], rows)


def main(a):
    report = read_json(a.report)
    try:
        parts = {"Score": summary(report), "Which cells notice which family": matrix(report["records"]), "The bugs": bugs(report["records"])}
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise Failed(f"{a.report} is no report of run.py --json ({e}): run that again") from None
    head = DOCUMENT.read_text().split(MARK)[0]
    DOCUMENT.write_text(head + MARK + "".join(f"\n## {title}\n\n{part}" for title, part in parts.items()))


command = Command(__doc__)
command.add_argument("report", type=pathlib.Path)
command.run(main)
