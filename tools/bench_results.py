"""Files of bench/results as rows of tables and plots: what tools/bench_table and its parts have in common."""
import json
import os
import pathlib

ROOT = pathlib.Path(os.environ.get("BENCH_TABLE_ROOT") or pathlib.Path(__file__).resolve().parents[1])


class NotMeasured(Exception):
    pass


class Damaged(Exception):
    """Its text says which file, and why."""


def read(path):
    """The object in a file of results."""
    try:
        result = json.loads(path.read_text())
    except ValueError as e:
        raise Damaged(f"{path} is not JSON ({e}); measure again") from None
    if not isinstance(result, dict):
        raise Damaged(f"{path} holds no results, which are a JSON object; measure again")
    return result


def load(name):
    path = ROOT / "bench/results" / name
    if not path.exists():
        raise NotMeasured
    return read(path)


def percent(x):
    return f"{round(100 * x, 1) + 0:.1f} %"  # + 0: no "-0.0"


def range_of(spread, digits):
    return f"{spread['median']:.{digits}f} ({spread['min']:.{digits}f} to {spread['max']:.{digits}f})"


def table(head, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [head] + rows]
    return "\n".join([lines[0], "|" + "---|" * len(head)] + lines[1:])


def plot(name, size, lines, data):
    """gnuplot's script, and the numbers in the block $data."""
    script = ["set terminal svg noenhanced size %d,%d font 'sans,12'" % size, "set output", "$data << EOD", *data, "EOD",
              "set style data histograms", "set style fill solid 0.9 border -1", "set grid y", *lines]
    return name, "\n".join(script) + "\n"
