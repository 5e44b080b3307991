#!/usr/bin/env python3
"""Writes the section on source mutants of docs/mutation.md from a report of run.py --json and explained.json.

usage: report.py REPORT"""
import collections
import hashlib
import json
import math
import pathlib
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
from cli import Command, words_of

COUNTED = ("killed", "survived")
DOCUMENT = ROOT / "docs/mutation.md"
EXPLAINED = pathlib.Path(__file__).with_name("explained.json")  # id of a survivor -> [equivalent or open, reason]
BEGIN, END = (f"<!-- tests/mutants/source/report.py writes what follows{rest} -->\n" for rest in ("", ", up to here"))


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def lines_of(file):
    from candidates import without_comments
    return without_comments((ROOT / file).read_text()).splitlines()


def wilson(k, n, z=1.96):
    """95 % interval of a proportion."""
    if not n:
        return 0.0, 1.0
    middle, half = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def of(head, records):
    """The first verdict on each mutant, which the sample measures, and the last one, after --again."""
    first, last = {}, {}
    for record in records:
        first.setdefault(record["id"], record)
        last[record["id"]] = record
    mutants = [{**first[i], "last": last[i]["status"], "last_by": last[i]["by"]} for i in first]
    return {**head, "mutants": [m for m in mutants if m["status"] in COUNTED],
            "not_counted": collections.Counter(m["status"] for m in mutants if m["status"] not in COUNTED)}


def score(killed, n):
    low, high = wilson(killed, n)
    return f"{killed} of {n}, {100 * killed / n if n else 0:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)"


def real(mutants, explained):
    return [m for m in mutants if explained.get(m["id"], [""])[0] != "equivalent"]


def best(report):
    """The upper end of the interval for the score of the current suite."""
    mutants = real(report["mutants"], json.loads(EXPLAINED.read_text()))
    return wilson(sum(m["last"] == "killed" for m in mutants), len(mutants))[1]


def scores(report, explained):
    """Name -> score: of the suite as sampled, without equivalent mutants, and with the tests written since."""
    mutants = report["mutants"]
    differ = real(mutants, explained)
    return {"killed": score(sum(m["status"] == "killed" for m in mutants), len(mutants)),
            "killed, without equivalent mutants": score(sum(m["status"] == "killed" for m in differ), len(differ)),
            "the same, including tests written for survivors": score(sum(m["last"] == "killed" for m in differ), len(differ))}


def text(report):
    explained = json.loads(EXPLAINED.read_text())
    lines = [f"seed {report['seed']}, commit {report['commit']}; not counted: {dict(report['not_counted'])}"]
    for m in report["mutants"]:
        if m["last"] == "survived":
            kind, why = explained.get(m["id"], ["not explained", ""])
            lines.append(f"survived {m['id']} {m['file']}:{m['line']} ({kind}) {why}\n  - {m['was'].strip()}\n  + {m['new'].strip()}")
    return "\n".join(lines + [f"{name}: {value}" for name, value in scores(report, explained).items()])


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def by_folder(mutants):
    folders = collections.defaultdict(list)
    for m in mutants:
        folders[str(pathlib.Path(m["file"]).parent)].append(m)
    rows = [[folder, len(found), *(sum(m[key] == "killed" for m in found) for key in ("status", "last"))] for folder, found in sorted(folders.items())]
    return table(["folder", "mutants", "killed", "killed now"], rows)


def code(line):
    return f"`` {line.strip()} ``".replace("|", "\\|")


def survivors(mutants, explained):
    rows = []
    for m in sorted((m for m in mutants if m["status"] == "survived"), key=lambda m: (m["file"], m["line"])):
        kind, why = explained.get(m["id"], ["open", ""])
        verdict = f"killed by {m['last_by'].split(':')[0]}" if m["last"] == "killed" else f"{kind}: {why}"
        rows.append([f"{m['file']}:{m['line']}", code(m["was"]), code(m["new"]), verdict])
    return table(["line", "was", "became", "verdict"], rows)


def section(report, explained):
    mutants = report["mutants"]
    rows = [[name, value] for name, value in scores(report, explained).items()]
    rows += [[f"not counted: {status}", n] for status, n in sorted(report["not_counted"].items())]
    return f"\nSeed {report['seed']}, commit {report['commit']}.\n\n{table(['', ''], rows)}\n{by_folder(mutants)}\n{survivors(mutants, explained)}\n"


def main():
    parser = Command(__doc__)
    parser.add_argument("report", type=pathlib.Path)
    path = parser.parse_args().report
    try:
        report, explained = json.loads(path.read_text()), json.loads(EXPLAINED.read_text())
        head, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(head + BEGIN + section(report, explained) + END + rest.split(END)[1])
    except OSError as e:
        parser.fail(words_of(e))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
        parser.fail(f"{path} is not a report of run.py --json, or a marker is missing in docs/mutation.md ({e})")


if __name__ == "__main__":
    main()
