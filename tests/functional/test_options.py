"""Options reach the code: each option that changes numbers has a row (options/rows.py). An independent trainer, a formula or a
relation between runs in the row defines what `pretrain` must log, on one rank, on layouts and across a resume. An option without a row fails, unless
it is listed as one that changes no number; then it changes no bit.

usage: test_options.py PROGRAM [--only FIELD...] [--ignore]

  --only FIELD   the rows of these options (fields of options.def)
  --ignore       judges the rows: PROGRAM is isotron_mutants, which ignores one option after the other, and each row has to notice"""
import argparse
import math
import os
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "options"))
sys.dont_write_bytecode = True
try:
    import numpy
except ImportError:  # an interpreter that was built by hand does not see the distribution's packages
    if sys.executable == "/usr/bin/python3":
        sys.exit("numpy is missing; ci/install-deps installs it")
    os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
import declared
from program import TERMS, U, Program, Wrong, expect, write_datasets
from rows import EXPERTS
from table import BASES, ROWS, Row
from trainer import Options, Trainer


def check_bound(program, quick):
    """A rounding of each weight changes the witness's own numbers by less than the sqrt(K) of the bound."""
    family = Options(program.base).text("model", "gpt")
    for words in ("", "--train-iters 12", EXPERTS + "--moe-aux-loss-coeff 0.3" if family == "gpt" else "--normalization RMSNorm"):
        o, rng = program.words(words), numpy.random.default_rng(1)
        plain, noisy = Trainer(o), Trainer(o)
        expect(sum(w.size for w in plain.state.weights.values()) <= TERMS, "a norm has more terms than the bound says")
        for w in noisy.state.weights.values():
            w *= 1 + U["fp64"] * rng.choice([-1, 1], w.shape)
        keys = *plain.family.losses, "grad_norm", "params_norm"
        moved = [abs(a[key] / b[key] - 1) for a, b in zip(noisy.run()[0], plain.run()[0]) for key in keys]
        expect(max(moved) <= math.sqrt(TERMS) * U["fp64"], f"a rounding of the weights moves the curve by {max(moved) / U['fp64']:.0f} u")


def meet(row, command, quick):
    """The error that the row reports, None if there is none. A value that the row reads may be absent."""
    try:
        row.check(Program(command, BASES[row.family]), quick)
    except Wrong as e:
        return str(e)
    except KeyError as e:
        return f"there is no {e}"
    return None


def judge(binary, rows):
    """-> complaints"""
    complaints = []
    for row in rows:
        begin, wrong = time.time(), meet(row, [binary], False)
        print(f"{'FAILS' if wrong else 'passes':8}{time.time() - begin:5.1f} s  {row.name}", flush=True)
        if wrong:
            complaints.append(f"{row.name}: {wrong}")
    return complaints


def judge_rows(binary, rows, only):
    """The rows that do not notice that an option is ignored."""
    complaints = []
    for row in rows:
        for field in [f for f in row.fields if not only or f in only]:
            wrong = meet(row, [binary, "--ignore-option", field], True)
            print(f"{field:40} {wrong or 'NOT NOTICED'}", flush=True)
            if not wrong:
                complaints.append(f"{row.name}: does not notice that {field} is ignored")
    return complaints


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--ignore", action="store_true")
    args = parser.parse_args()
    binary = pathlib.Path(args.program).resolve()
    rows = [row for row in ROWS if not args.only or set(args.only) & set(row.fields)]
    if not args.only and not args.ignore:
        checks = ("the bound", check_bound), ("options that change no number", declared.check_unchanged), (
            "options that are not read", declared.check_unread)
        rows += [Row([name], check, family=family) for family in BASES for name, check in checks]
    with tempfile.TemporaryDirectory(prefix="isotron-options-") as work:
        os.chdir(work)
        write_datasets()
        if args.ignore:
            complaints = judge_rows(binary, rows, args.only)
        else:
            complaints = judge(binary, rows) + ([] if args.only else declared.complaints())
        os.chdir("/")
    print("\n".join(complaints))
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
