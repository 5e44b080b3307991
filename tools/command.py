"""The command line of a script: --help prints what stands on top of it, and a wrong word is one sentence and exit status 2."""
import argparse
import math


class Command(argparse.ArgumentParser):
    """description: the script's docstring."""

    def __init__(self, description):
        super().__init__(description=description, allow_abbrev=False)

    def format_help(self):
        return self.description.strip() + "\n"

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; --help says how it is called\n")

    def fail(self, message):
        """What was asked for is right, but cannot be done."""
        self.exit(1, f"{self.prog}: {message}\n")


def words_of(error):
    """An OSError as one line, without its number."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def natural(text, least=0):
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least {least}")
    return int(text)


def count(text):
    return natural(text, 1)


def finite(text):
    try:
        if math.isfinite(value := float(text)):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"'{text}' is no number")


def positive(text):
    if (value := finite(text)) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not above 0")
    return value
