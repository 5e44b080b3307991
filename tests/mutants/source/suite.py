"""Runs CI's tests in a sandbox, and measures which source lines each of them executes."""
import bisect
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from cli import Failed
from tree import Tree, checked, run

# A mutant may delete any file, kill any process (kill(-1, ...)) and fill memory or disk. Therefore a test runs in
# private namespaces, in which only the tree, a private /tmp and /run are writable. The size of files is limited, the
# OOM killer selects the test first, and the test is killed when this program ends.
NAMESPACES = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
INSIDE = """
exec 9<"$1" && mount --bind "$2" /tmp && mkdir -p "$1" && mount -c --bind /proc/self/fd/9 "$1" && mount -t tmpfs tmpfs /run || exit 125
exec 9<&-
while read -r _ at _; do
  case $at in "$1" | /tmp | /run | /proc* | /sys* | /dev*) ;; *) mount -o remount,ro,bind "$at" 2>/dev/null ;; esac
done </proc/self/mounts
echo 1000 >/proc/self/oom_score_adj
ulimit -f 2000000 -c 0
cd "$3" || exit 125
shift 3
"$@"
exit $?  # a separate line, so that the test is not process 1, which handles signals differently
"""
FACTOR, LEAST_S = 10, 30  # a test that exceeds this multiple of its normal duration has detected the mutant

# The tests that ci/sanitizers runs under AddressSanitizer.
SANITIZED = re.compile(r"functional/(sentences|resume|interrupt|"
                       r"parity/(gpt2-awkward|llama-gqa)/(fp64|fp16|recompute-full))")
SANITIZED_LABELS = {"fast", "fuzz"}

Test = collections.namedtuple("Test", "name folder command cwd environment skip sanitized")


def tests_of(tree):
    found = []
    for t in tree.tests():
        properties = {p["name"]: p["value"] for p in t["properties"]}
        labels = set(properties.get("LABELS", []))
        if "tools" not in labels:  # they check texts, not the program
            parts = t["name"].split("/")
            found.append(Test(t["name"], parts[1] if parts[0] == "unit" else None, t["command"],
                              properties["WORKING_DIRECTORY"], properties.get("ENVIRONMENT", []),
                              properties.get("SKIP_RETURN_CODE"),
                              bool(labels & SANITIZED_LABELS or SANITIZED.fullmatch(t["name"]))))
    return found


def sandbox_works():
    return run([*NAMESPACES, "true"])[0] == 0


def execute(test, tree, timeout, **environment):
    """Runs a test in the sandbox, with a scratch folder as /tmp. Returns the exit status (None after a timeout), the
    seconds and the coverage."""
    with tempfile.TemporaryDirectory(dir=tree.root.parent, ignore_cleanup_errors=True) as scratch:
        words = dict(e.split("=", 1) for e in test.environment)
        command = [*NAMESPACES, "bash", "-c", INSIDE, "bash", tree.root, scratch, test.cwd, *test.command]
        begin = time.monotonic()
        child = subprocess.Popen([str(word) for word in command], env={**tree.environment, **words, **environment},
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        try:
            status = child.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = None
        if status == 125:
            raise Failed(f"the namespaces of {test.name} could not be set up")
        return status, time.monotonic() - begin, executed(pathlib.Path(scratch),
                                                          tree) if "GCOV_PREFIX" in environment else None


def executed(scratch, tree):
    """Returns {file: [executed lines, other lines]} and {file: [first and last line of each function]}, from gcov's
    counts."""
    counts = sorted((scratch / "counts").rglob("*.gcda"))
    for path in counts:
        notes = pathlib.Path("/", path.relative_to(scratch / "counts")).with_suffix(".gcno")
        path.with_suffix(".gcno").symlink_to(notes)
    ran, functions = collections.defaultdict(dict), collections.defaultdict(set)
    output = checked(["gcov", "--json-format", "--stdout", *counts], cwd=scratch) if counts else ""
    for document in filter(None, output.splitlines()):
        if not document.startswith("{"):
            continue
        for file in json.loads(document)["files"]:
            path = pathlib.Path(file["file"])
            if not path.is_relative_to(tree.root) or path.relative_to(tree.root).parts[0] not in ("src", "kernels"):
                continue
            name = str(path.relative_to(tree.root))
            for line in file["lines"]:
                number = line["line_number"]
                ran[name][number] = ran[name].get(number, False) or line["count"] > 0
            functions[name] |= {(f["start_line"], f["end_line"]) for f in file["functions"]}
    return {"lines": {name: [[n for n in sorted(lines) if lines[n] == hit] for hit in (True, False)]
                      for name, lines in ran.items()},
            "functions": {name: sorted(f) for name, f in functions.items()}}


class Coverage:
    """Line -> tests. The tests that execute each line. This is measured once for the unmodified sources and cached in a
    folder."""

    def __init__(self, folder, jobs, say):
        (folder / "tests").mkdir(parents=True, exist_ok=True)
        keeper = folder / "keep_coverage.o"
        checked(["gcc", "-O1", "-c", pathlib.Path(__file__).parent / "keep_coverage.c", "-o", keeper])
        self.tree = Tree(folder / "tree", "-O1 --coverage -fprofile-update=single",
                         f"-DCMAKE_EXE_LINKER_FLAGS=--coverage {keeper} -Wl,--wrap=_exit,--wrap=abort")
        self.tests, self.seconds = {}, {}
        self.by_line, self.code, self.functions = (collections.defaultdict(set) for _ in range(3))
        self.left_out = {}
        tests = tests_of(self.tree)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            measured = [pool.submit(self._measured, test, folder, f"{i + 1}/{len(tests)}", say)
                        for i, test in enumerate(tests)]
        for test, found in zip(tests, measured):
            self._add(test, found.result())
        if not self.tests:
            raise Failed("no passing test executes a line of the program: coverage was not measured")
        self.lines = {name: sorted(code) for name, code in self.code.items()}

    def _measured(self, test, folder, progress, say):
        path = folder / "tests" / test.name.replace("/", "+")
        path = path.with_name(f"{path.name}-{self._version(test)}.json")
        if not path.exists():
            status, seconds, found = execute(test, self.tree, 3600, GCOV_PREFIX="/tmp/counts")
            passed = status == 0
            say(f"coverage {progress}: {test.name} {'passes' if passed else f'ends with {status}'} in {seconds:.1f} s")
            path.write_text(json.dumps({"status": status, "seconds": seconds,
                                        **(found if passed else {"lines": {}, "functions": {}})}))
        return json.loads(path.read_text())

    def _version(self, test):
        """A hash of the programs and scripts of the test."""
        programs = [self.tree.build / name for name in self.tree.programs_of([*test.command, *test.environment])]
        scripts = [self.tree.root / word for word in test.command if word.endswith(".py")]
        return hashlib.sha256(b"".join(path.read_bytes() for path in [*programs, *scripts])).hexdigest()[:10]

    def _add(self, test, found):
        if found["status"] != 0:
            is_skipped = found["status"] == test.skip
            self.left_out[test.name] = "skipped" if is_skipped else f"fails without a mutant ({found['status']})"
            return
        if not found["lines"]:
            self.left_out[test.name] = "does not execute the program"
            return
        self.tests[test.name], self.seconds[test.name] = test, found["seconds"]
        for name, (ran, other) in found["lines"].items():
            self.code[name].update(ran, other)
            self.functions[name].update(map(tuple, found["functions"][name]))
            for line in ran:
                self.by_line[name, line].add(test.name)

    def reach(self, file, line):
        """The names of the tests that can detect a change of this line. A line without code (a table, the rest of a
        statement, an 'else') is treated as the nearest lines with code; a file without code is treated as the files
        that include it."""
        if not self.lines.get(file):
            objects = set(self.tree.objects.get(file, []))
            including = {name for name in self.lines if objects & set(self.tree.objects.get(name, []))
                         and name.endswith(".c")}
            return set().union(*(tests for (name, _), tests in self.by_line.items() if name in including))
        if not any(first <= line <= last for first, last in self.functions[file]):
            near = self.lines[file]
        elif line in self.code[file]:
            near = [line]
        else:
            at = bisect.bisect(self.lines[file], line)
            near = self.lines[file][max(at - 1, 0):at + 1]
        return set().union(*(self.by_line[file, n] for n in near)) if near else set()

    def order(self, file, line):
        """Sorts tests so that they kill mutants fast: tests of the same folder first, then by duration."""
        folder = pathlib.Path(file).parent.name if not file.startswith("kernels") else "ops"
        return sorted(self.reach(file, line),
                      key=lambda name: (self.tests[name].folder != folder, self.seconds[name], name))


def notices(test, tree, seconds):
    """Returns how a test detects the mutant in the tree, or None. A failure must occur twice, a timeout only once."""
    if not tree.make(tree.programs_of([*test.command, *test.environment])):
        return "does not link"
    for attempt in range(2):
        status, _, _ = execute(test, tree, max(LEAST_S, FACTOR * seconds))
        if status is None:
            return "timeout"
        if status == 0:
            return None
    return f"exit status {status}"
