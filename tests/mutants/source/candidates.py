"""Generates all mutants of the sources under test with universalmutator's rules for C. Each mutant changes one line."""
import collections
import contextlib
import hashlib
import io
import pathlib
import random
import re
import sys

from cli import Failed

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = ["src/*/*.[ch]", "kernels/cpu/*.[ch]"]
TOOLS = ROOT / "build/nightly/python"  # where ci/install-deps nightly puts the generator
RULES = ["universal.rules", "c_like.rules", "c.rules"]
PREPROCESSOR = r"^\s*#"
STRING = r'"(?:\\.|[^"\\\n])*"'
TEXT = re.compile(rf"/\*.*?\*/|//[^\n]*|({STRING}|'(?:\\.|[^'\\\n])+')", re.S)

Mutant = collections.namedtuple("Mutant", "id file line rule was new")


def without_comments(source):
    """Replaces comments by spaces, so that line numbers do not change, and code next to a comment is mutated too."""
    return TEXT.sub(lambda m: m.group(1) or re.sub(r"[^\n]", " ", m.group()), source)


def changes_code(was, new):
    """Whether the change affects more than the text of string literals."""
    return re.sub(STRING, '""', was) != re.sub(STRING, '""', new)


def mutants_of(file, source, mutator):
    lines = without_comments(source).splitlines(keepends=True)
    with contextlib.redirect_stdout(io.StringIO()):
        found = mutator.mutants_regexp(lines, RULES, ignorePatterns=[PREPROCESSOR])
    for number, new, (rule, _), _ in found:
        # without newlines, so that the numbers of later lines (__LINE__) do not change
        was, new = lines[number - 1].rstrip(), new.rstrip().replace("\n", " ")
        if changes_code(was, new):
            name = hashlib.sha256("\0".join([file, str(number), was, new]).encode()).hexdigest()[:10]
            yield Mutant(name, file, number, rule, was, new)


def sample(tree, seed):
    """All mutants of the tree, shuffled with the seed, so that every prefix is a uniform sample."""
    sys.path.insert(0, str(TOOLS))
    try:
        from universalmutator import mutator
    except ImportError:
        raise Failed(f"universalmutator is not installed in {TOOLS}: run ci/install-deps nightly") from None
    files = sorted(path for pattern in SOURCES for path in tree.glob(pattern))
    found = [m for path in files for m in mutants_of(str(path.relative_to(tree)), path.read_text(), mutator)]
    random.Random(seed).shuffle(found)
    return found
