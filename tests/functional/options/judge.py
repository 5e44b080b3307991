"""Judges the rows of a table of options.

usage: PROGRAM [--only FIELD...] [--ignore MUTANTS] [--thorough]

  --only FIELD      only the rows of these options (fields of options.def)
  --ignore MUTANTS  also tests the rows: the program isotron_mutants ignores one option after the other, and the first
                    row of each option and family must fail
  --thorough        more layouts (table.py); with --ignore, all rows of an option must fail"""
import argparse
import os
import pathlib
import sys
import tempfile
import time

import needs_numpy
from program import Program, Wrong


def meet(row, command, base, quick):
    """Runs a row. Returns the error that it reports, or None. It is also an error if a value that the row reads is
    missing."""
    try:
        row.check(Program(command, base), quick)
    except Wrong as e:
        return str(e)
    except KeyError as e:
        return f"there is no {e}"
    return None


def judge(rows, bases, programs):
    """Runs rows and returns complaints. `programs` has, for a row, pairs of a command and the field that it ignores, or
    None."""
    complaints = []
    for row, command, field in [(row, *pair) for row in rows for pair in programs(row)]:
        begin = time.time()
        wrong = meet(row, command, bases[row.family], field is not None)
        print(f"{time.time() - begin:5.1f} s  {row.name}: {field or ''} {wrong or 'passes'}", flush=True)
        if bool(wrong) == (field is None):
            complaints.append(f"{row.name}: {wrong or 'does not notice that ' + field + ' is ignored'}")
    return complaints


def main(doc, rows, bases, write_files, more):
    """`bases` has the words of each family, and `more` has rows that check the table itself, if all of its rows run.
    Returns the exit status."""
    parser = argparse.ArgumentParser(description=doc, epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--ignore", type=lambda path: pathlib.Path(path).resolve(strict=True))
    parser.add_argument("--thorough", action="store_true")
    args = parser.parse_args()
    rows, seen = [row for row in rows if not args.only or set(args.only) & set(row.fields)], set()
    binary = pathlib.Path(args.program).resolve()

    def programs(row):
        fields = [f for f in row.fields if args.ignore and row not in more and (not args.only or f in args.only)
                  and (args.thorough or (row.family, f) not in seen)]
        seen.update((row.family, f) for f in fields)
        return [([binary], None)] + [([args.ignore, "--ignore-option", f], f) for f in fields]
    with tempfile.TemporaryDirectory(prefix="isotron-options-") as work:
        os.chdir(work)
        write_files()
        complaints = judge(rows + ([] if args.only else more), bases, programs)
        os.chdir("/")
    print("\n".join(complaints))
    return bool(complaints)
