"""The score of a sample of source mutants, with its confidence interval."""
import collections
import json
import math
import pathlib

COUNTED = ("killed", "survived")


def explained():
    """Id of a survivor -> [equivalent or open, reason]"""
    return json.loads(pathlib.Path(__file__).with_name("explained.json").read_text())


def wilson(k, n, z=1.96):
    """95 % interval of a proportion."""
    if not n:
        return 0.0, 1.0
    middle, half = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def report(head, records):
    """The first verdict on each mutant, which the sample measures, and the last one, after --again."""
    first, last = {}, {}
    for record in records:
        first.setdefault(record["id"], record)
        last[record["id"]] = record
    mutants = [{**first[i], "last": last[i]["status"], "last_by": last[i]["by"]} for i in first]
    return {**head, "mutants": [m for m in mutants if m["status"] in COUNTED],
            "not_counted": collections.Counter(m["status"] for m in mutants if m["status"] not in COUNTED)}


def killed(mutants, key):
    return sum(m[key] == "killed" for m in mutants), len(mutants)


def real(mutants):
    """Without those that are known to be equivalent."""
    known = explained()
    return [m for m in mutants if known.get(m["id"], [""])[0] != "equivalent"]


def best(report):
    """The upper end of the interval for the score of the current suite."""
    return wilson(*killed(real(report["mutants"]), "last"))[1]


def words(k, n):
    low, high = wilson(k, n)
    return f"{k} of {n}, {100 * k / n if n else 0:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)"


def scores(report):
    """Name -> score: of the suite as sampled, without equivalent mutants, and with the tests written since."""
    differ = real(report["mutants"])
    return {"killed": words(*killed(report["mutants"], "status")), "killed, without equivalent mutants": words(*killed(differ, "status")),
            "the same, including tests written for survivors": words(*killed(differ, "last"))}


def text(report):
    known = explained()
    lines = [f"seed {report['seed']}, commit {report['commit']}; not counted: {dict(report['not_counted'])}"]
    for m in report["mutants"]:
        if m["last"] == "survived":
            kind, why = known.get(m["id"], ["not explained", ""])
            lines.append(f"survived {m['id']} {m['file']}:{m['line']} ({kind}) {why}\n  - {m['was'].strip()}\n  + {m['new'].strip()}")
    return "\n".join(lines + [f"{name}: {value}" for name, value in scores(report).items()])
