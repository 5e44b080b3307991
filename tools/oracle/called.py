"""Imported first by the programs here: --help prints a program's docstring; an option that this does not name, a word too few or too
many, a package and a file that are missing are one sentence."""
import sys

import __main__

NAME = sys.argv[0].rpartition("/")[2]


def refuse(message):
    print(f"{NAME}: {message}", file=sys.stderr)
    sys.exit(2)


def words(least, most):
    """Those of the command line."""
    given = sys.argv[1:]
    if not least <= len(given) <= most:
        refuse(f"{len(given)} words, not {least if least == most else f'{least} to {most}'}; --help says how it is called")
    return given


def say(kind, error, trace):
    if isinstance(error, ModuleNotFoundError):
        print(f"{NAME}: this Python has no {error.name}: tools/oracle/README.md says what to install", file=sys.stderr)
    elif isinstance(error, OSError) and error.filename:
        print(f"{NAME}: {error.filename}: {error.strerror}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = say
documentation = __main__.__doc__.strip()
if sys.argv[1:2] == ["--help"]:
    print(documentation)
    sys.exit()
if sys.argv[1:] and sys.argv[1].startswith("--") and sys.argv[1].partition("=")[0] not in documentation:
    refuse(f"there is no option {sys.argv[1]}; --help says how it is called")
