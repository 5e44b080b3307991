"""Judges the rows of a table of options.

usage: PROGRAM [--only FIELD...] [--ignore] [--thorough]

  --only FIELD   only the rows of these options (fields of options.def)
  --ignore       tests the rows: PROGRAM is isotron_mutants, which ignores one option after the other, and the first row
                 of each option and family must fail
  --thorough     more layouts (table.py); with --ignore, all rows of an option must fail"""
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


def judge(rows, binary, bases, ignored):
    """Runs rows and returns complaints. `ignored` has, for a row, the fields that the program ignores, one after the
    other; None means that it ignores none."""
    complaints = []
    for row, field in [(row, field) for row in rows for field in ignored(row)]:
        begin = time.time()
        wrong = meet(row, [binary, "--ignore-option", field] if field else [binary], bases[row.family], field is not None)
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
    parser.add_argument("--ignore", action="store_true")
    parser.add_argument("--thorough", action="store_true")
    args = parser.parse_args()
    rows, seen = [row for row in rows if not args.only or set(args.only) & set(row.fields)], set()

    def ignored(row):
        fields = [f for f in row.fields if (args.thorough or (row.family, f) not in seen) and (not args.only or f in args.only)]
        seen.update((row.family, f) for f in fields)
        return fields
    with tempfile.TemporaryDirectory(prefix="isotron-options-") as work:
        binary = pathlib.Path(args.program).resolve()
        os.chdir(work)
        write_files()
        if args.ignore:
            complaints = judge(rows, binary, bases, ignored)
        else:
            complaints = judge(rows + ([] if args.only else more), binary, bases, lambda row: [None])
        os.chdir("/")
    print("\n".join(complaints))
    return bool(complaints)
