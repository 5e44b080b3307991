#!/usr/bin/env python3
"""Writes a section of docs/mutation.md from a report of run.py --json or of source/run.py --json.

usage: tests/mutants/table.py REPORT"""
import collections
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/mutants/source")]
import score
from cli import Command, Failed, markdown, read_json

DOCUMENT = ROOT / "docs/mutation.md"


def share(part):
    return f"{sum(part)} of {len(part)}" if any(part) else "-"


def summary(report):
    records = report["records"]
    rows = [["planted bugs killed", share([r["killed"] for r in records])],
            ["of those that change a curve, killed by Megatron-LM's rule", f"{report['megatron']} of {report['curves']}"],
            ["of those in a lane without noise, traced to the right op and rank", share([r["localised"] for r in records if r["traced"]])]]
    for lane, eps in report["sensitivity"].items():
        rows.append(["lowest bit of a float64 mantissa whose flip is noticed (one element, one step)", eps] if lane == "bit" else
                    [f"smallest eps of one rank's gradients times 1 + eps that lane {lane} notices", f"{eps:.1e}"])
    return markdown(["", ""], rows)


def matrix(records):
    families = collections.defaultdict(list)
    for record in records:
        if record["matrix"]:
            families[record["family"]].append(record["matrix"])
    cells = list(next(iter(families.values()), [{}])[0])
    return markdown(["family", "bugs", *cells],
                    [[family, len(found), *(share([m[c] for m in found]) for c in cells)] for family, found in families.items()])


def bugs(records):
    rows = [[f"`{r['id']}`", r["family"], r["what"], r["issues"], r["by"], r["why"].split(":")[0].split("(")[0].strip()[:40],
             f"{float(r['excess']):.0e}", "yes" if r["megatron"] and r["family"] not in ("comparator", "option", "dataset") else ""] for r in records]
    head = ["bug", "family", "what it does", "reported like", "killed in", "first by its bound", "error / bound", "5 % of loss"]
    return markdown(head, rows)


def planted(report):
    parts = {"Score": summary(report), "Which cells notice which family": matrix(report["records"]), "The bugs": bugs(report["records"])}
    return "".join(f"\n## {title}\n\n{part}\n" for title, part in parts.items())


def by_folder(mutants):
    folders = collections.defaultdict(list)
    for m in mutants:
        folders[str(pathlib.Path(m["file"]).parent)].append(m)
    rows = [[folder, len(found), score.killed(found, "status"), score.killed(found, "last")] for folder, found in sorted(folders.items())]
    return markdown(["folder", "mutants", "killed", "killed now"], rows)


def survivors(mutants):
    rows, explained = [], score.explained()
    code = lambda line: f"`` {line.strip()} ``".replace("|", "\\|")
    for m in sorted((m for m in mutants if m["status"] == "survived"), key=lambda m: (m["file"], m["line"])):
        kind, why = explained.get(m["id"], ["open", ""])
        verdict = f"killed by {m['last_by'].split(':')[0]}" if m["last"] == "killed" else f"{kind}: {why}"
        rows.append([f"{m['file']}:{m['line']}", code(m["was"]), code(m["new"]), verdict])
    return markdown(["line", "was", "became", "verdict"], rows)


def source(report):
    mutants, left_out = report["mutants"], sorted(report["not_counted"].items())
    scores = markdown(["", ""], [*score.scores(report).items(), *((f"not counted: {status}", n) for status, n in left_out)])
    return f"\nSeed {report['seed']}, commit {report['commit']}.\n\n{scores}\n\n{by_folder(mutants)}\n\n{survivors(mutants)}\n\n"


def main(a):
    report = read_json(a.report)
    try:
        name, text = ("source mutants", source(report)) if "sources" in report else ("planted bugs", planted(report))
        begin, end = (f"<!-- tests/mutants/table.py writes {name}{rest} -->\n" for rest in ("", ", up to here"))
        head, rest = DOCUMENT.read_text().split(begin)
        DOCUMENT.write_text(head + begin + text + end + rest.split(end)[1])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        raise Failed(f"{a.report} is no report of run.py --json, or a mark is missing in docs/mutation.md ({e})") from None


command = Command(__doc__)
command.add_argument("report", type=pathlib.Path)
command.run(main)
