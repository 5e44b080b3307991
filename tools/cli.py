"""Code that all Python scripts share: the command line, errors, and the format of result files.

--help prints the script's docstring. For an invalid argument, a script prints an error message and exits with status 2.
After a failure, it exits with status 1."""
import argparse
import importlib.util
import json
import math
import os
import pathlib
import shlex
import shutil
import sys
import tempfile


class Failed(Exception):
    """Raised if the arguments are valid, but the work cannot be done. The text states the reason."""


class Command(argparse.ArgumentParser):
    """The parser of a script's command line. description: the script's docstring. packages: modules outside the
    standard library that the script needs. A script must parse its arguments before it imports these modules, so that
    --help and messages about invalid arguments work without them."""

    def __init__(self, description, packages=""):
        super().__init__(description=description, allow_abbrev=False)
        self.packages = packages.split()

    def format_help(self):
        return self.description.strip() + "\n"

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see --help\n")

    def fail(self, message):
        self.exit(1, f"{self.prog}: {message}\n")

    def parse_args(self, *words):
        options = super().parse_args(*words)
        for name in self.packages:
            if not importlib.util.find_spec(name):
                self.fail(f"this Python has no {name}: install it, or use another Python (tools/oracle/README.md)")
        return options

    def run(self, main):
        """Parses the arguments, calls main(options) and exits with the status that it returns."""
        options = self.parse_args()
        try:
            sys.exit(main(options))
        except OSError as e:
            self.fail(words_of(e))
        except Failed as e:
            self.fail(e)


def words_of(error):
    """Returns the message of an OSError without the error number."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def self_test(check, cases):
    """Tests a checker. A case consists of the files of a tree, {name: text}, and the number of errors that check(tree)
    must find."""
    for files, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            for path, text in ((pathlib.Path(folder, name), text) for name, text in files.items()):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            errors = check(pathlib.Path(folder))
        assert len(errors) == expected, (files, errors)
    print(f"{len(cases)} planted trees judged correctly")


def number(text, kind, least, what):
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not {what}")
    return value


def natural(text):
    return number(text, int, 0, "a whole number of at least 0")


def count(text):
    return number(text, int, 1, "a whole number of at least 1")


def finite(text):
    return number(text, float, -sys.float_info.max, "a number")


def positive(text):
    return number(text, float, math.ulp(0), "a number above 0")


def program(text):
    """An argument type: a program that exists, optionally followed by arguments."""
    if not shutil.which((shlex.split(text) or [""])[0]):
        raise argparse.ArgumentTypeError(f"there is no program '{text}': build it (ci/build), or name another")
    return text


# ---- results ----

def result_file(text):
    """An argument type: a file for results. Checks that the file can be written, before a long measurement begins."""
    path = pathlib.Path(os.path.realpath(text))
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written")
    return text


def has_records(value):
    """Returns whether a value contains a list of objects at any depth."""
    if isinstance(value, dict):
        return any(map(has_records, value.values()))
    return isinstance(value, list) and any(isinstance(x, dict) for x in value)


def compact(value, indent="\n"):
    """Formats JSON so that a value without lists of objects is on one line. Each record is therefore on one line."""
    if not has_records(value):
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, list):
        return "[" + ",".join(inner + compact(x, inner) for x in value) + indent + "]"
    return "{" + ",".join(f"{inner}{json.dumps(key)}: {compact(x, inner)}" for key, x in value.items()) + indent + "}"


def markdown(head, rows):
    """Formats a Markdown table."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" if row else "|" + "---|" * len(head)
                     for row in [head, None, *rows])


def read_json(path):
    try:
        result = json.loads(pathlib.Path(path).read_text())
    except ValueError as e:
        raise Failed(f"{path} is not JSON ({e}): measure again") from None
    if not isinstance(result, dict):
        raise Failed(f"{path} is not a JSON object: measure again")
    return result


def write_json(path, result):
    """Replaces a file atomically, so that readers never find a partially written file. A symlink is preserved."""
    path = pathlib.Path(os.path.realpath(path))
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(compact(result) + "\n")
    temporary.replace(path)
