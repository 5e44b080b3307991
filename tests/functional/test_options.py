"""Options reach the code: each option that changes numbers has a row (options/rows.py) in which an independent trainer, a formula or a
relation between runs says what `pretrain` must log, on one rank, on layouts and across a resume."""
import argparse
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
from program import Program, Wrong, write_datasets
from rows import BASE, ROWS

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("program")
parser.add_argument("--only")
args = parser.parse_args()
binary = pathlib.Path(args.program).resolve()
with tempfile.TemporaryDirectory(prefix="isotron-options-") as work:
    os.chdir(work)
    write_datasets()
    failed = 0
    for row in ROWS:
        if args.only and args.only not in row.fields:
            continue
        begin = time.time()
        try:
            row.check(Program([binary], BASE), False)
        except Wrong as e:
            failed += 1
            print(f"{row.name}: {e}  [{row.words}]" if hasattr(row, "words") else f"{row.name}: {e}")
        if time.time() - begin > 1: print(row.name, "%.1f s" % (time.time() - begin))
    os.chdir("/")
sys.exit(failed != 0)
