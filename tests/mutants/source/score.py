"""Computes the score of a sample of source mutants, with its confidence interval."""
import collections
import json
import math
import pathlib

COUNTED = ("killed", "survived")


def explained():
    """Returns {id of a survivor: ["equivalent" or "open", reason]}."""
    return json.loads(pathlib.Path(__file__).with_name("explained.json").read_text())


def wilson(k, n, z=1.96):
    """The 95 % confidence interval of a proportion k / n."""
    if not n:
        return 0.0, 1.0
    middle, half = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def report(head, records):
    """Combines the first verdict on each mutant, which the sample measures, and the last verdict, after --again."""
    first, last = {r["id"]: r for r in reversed(records)}, {r["id"]: r for r in records}
    mutants = [{**first[i], "last": last[i]["status"], "last_by": last[i]["by"]} for i in last]
    return {**head, "mutants": [m for m in mutants if m["status"] in COUNTED],
            "not_counted": collections.Counter(m["status"] for m in mutants if m["status"] not in COUNTED)}


def killed(mutants, key):
    return sum(m[key] == "killed" for m in mutants)


def real(mutants):
    """The mutants that are not known to be equivalent."""
    known = explained()
    return [m for m in mutants if known.get(m["id"], [""])[0] != "equivalent"]


def best(report):
    """The upper end of the confidence interval for the score of the current suite."""
    differ = real(report["mutants"])
    return wilson(killed(differ, "last"), len(differ))[1]


def scores(report):
    """Returns {name: score}: of the suite as sampled, without equivalent mutants, and with the tests written since
    then."""
    every, differ = report["mutants"], real(report["mutants"])
    found = {}
    for name, mutants, key in (("killed", every, "status"), ("killed, without equivalent mutants", differ, "status"),
                               ("the same, including tests written for survivors", differ, "last")):
        k, n = killed(mutants, key), len(mutants)
        low, high = wilson(k, n)
        share = 100 * k / n if n else 0
        found[name] = f"{k} of {n}, {share:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
    return found
