#!/usr/bin/env python3
"""Scores the test suite with a random sample of source mutants of src/ and kernels/cpu.

usage: tests/mutants/source/run.py [--seed N] [--count N] [--jobs N] [--time-limit MINUTES] [--again]
              [--floor PERCENT] [--records FILE] [--json FILE]

  --seed N              selects the sample (default: that of the records, or today's date); printed and recorded in
                        the report
  --count N             number of mutants to run, not counting those that do not build or are equivalent (default: 300)
  --jobs N              number of mutants to run at a time, each in a copy of the tree (default: 1)
  --time-limit MINUTES  start no mutant after this time
  --again               run only the survivors again, against the current tests
  --floor PERCENT       fail if the whole confidence interval of the score, without the mutants that explained.json
                        calls equivalent, is below this value
  --records FILE        one line for each mutant; resumes a stopped run (default: build/mutants/records.jsonl)
  --json FILE           writes the report, from which tests/mutants/table.py updates docs/mutation.md

A mutant changes one line (candidates.py). It counts if it compiles with the project's flags and its object code differs
from the original. Then every test of CI's ctest that executes the line runs, until one fails or takes 10 times as long
as usual. The tests that CI also runs under AddressSanitizer follow. A mutant whose tests take two minutes in either
build counts as a survivor, which can only lower the score. Exit status 1 if the score is below the floor."""
import concurrent.futures
import hashlib
import json
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import score
import suite
from candidates import Mutant, sample, without_comments
from cli import Command, Failed, count, natural, positive, result_file, write_json
from tree import Tree, checked

WORK = ROOT / "build/mutants"
PATIENCE_S = 120


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def sources():
    """Identifies the sources that are mutated (file names and hashes), because a sample of mutants is valid only for
    unchanged sources."""
    state = [checked(["git", *words, "--", "src", "kernels/cpu"], cwd=ROOT) for words in (["ls-files", "-s"],
                                                                                          ["diff", "HEAD"])]
    return {"commit": checked(["git", "rev-parse", "--short=10", "HEAD"], cwd=ROOT).strip(),
            "sources": hashlib.sha256("".join(state).encode()).hexdigest()[:10]}


class Records:
    """The file of records, with one line for each mutant, which is written when the mutant is done."""

    def __init__(self, path, seed, again):
        self.path, self.lock, now = path, threading.Lock(), sources()
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"seed": int(time.strftime("%Y%m%d")) if seed is None else seed, **now}) + "\n")
        try:
            self.head, *self.all = [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError:
            raise Failed(f"{path} is damaged: remove it, or set another --records") from None
        say(f"seed {self.head['seed']}")
        if seed not in (None, self.head["seed"]) or (self.head["sources"] != now["sources"] and not again):
            raise Failed(f"{path} has mutants of another seed or of other sources: remove it, or set another --records")

    def add(self, record):
        with self.lock:
            self.all.append(record)
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")

    def counted(self):
        return sum(r["status"] in score.COUNTED and "again" not in r for r in self.all)


class Worker:
    """Runs mutants in two copies of the tree: one is built like CI's tests, the other like CI's AddressSanitizer
    step."""

    def __init__(self, folder, coverage):
        self.coverage = coverage
        self.plain = Tree(folder, "-O3")  # no debug information, so that equal code gives equal files
        self.sanitized = Tree(folder.with_name(f"{folder.name}-asan"), "-O1 -fno-omit-frame-pointer",
                              "-DCMAKE_C_COMPILER=clang", "-DISOTRON_SANITIZE=address,undefined")
        self.tests = {tree: {test.name: test for test in suite.tests_of(tree)} for tree in (self.plain, self.sanitized)}
        self.sound = {}  # test -> whether it passes under the sanitizer without a mutant

    def judge(self, mutant):
        """Returns the status of a mutant, what killed it, and the number of tests run."""
        begin, by, ran = time.monotonic(), None, 0
        with self.plain.mutated(mutant) as status:
            if status is None:
                by, ran = self.first_to_notice(self.plain, self.coverage.order(mutant.file, mutant.line))
        if status is None and not by:
            order = [name for name in self.coverage.order(mutant.file, mutant.line) if self.passes_sanitized(name)]
            with self.sanitized.mutated(mutant) as other:  # clang has different warnings
                by, more = (None, 0) if other == "does not build" else self.first_to_notice(self.sanitized, order)
            by, ran = by and f"asan {by}", ran + more
        status = status or ("killed" if by else "survived")
        return {**mutant._asdict(), "status": status, "by": by, "tests": ran,
                "seconds": round(time.monotonic() - begin, 1)}

    def passes_sanitized(self, name):
        test = self.tests[self.sanitized].get(name)
        if name not in self.sound:
            self.sound[name] = bool(test and test.sanitized and not suite.notices(test, self.sanitized,
                                                                                  self.coverage.seconds[name]))
        return self.sound[name]

    def first_to_notice(self, tree, order):
        end = time.monotonic() + PATIENCE_S
        for i, name in enumerate(order):
            if time.monotonic() > end:
                return None, i
            if how := suite.notices(self.tests[tree][name], tree, self.coverage.seconds[name]):
                return f"{name}: {how}", i + 1
        return None, len(order)


def found_again(record):
    """Finds the mutant of a record again at the current position of its line."""
    mutant = Mutant(*(record[key] for key in Mutant._fields))
    lines = [line.rstrip() for line in without_comments((ROOT / mutant.file).read_text()).splitlines()]
    places = [i for i, line in enumerate(lines, 1) if line == mutant.was]
    if not places:
        say(f"{mutant.file}:{mutant.line} is no longer '{mutant.was.strip()}': mutant skipped")
        return None
    return mutant._replace(line=min(places, key=lambda n: abs(n - mutant.line)))


def queue_of(options, records):
    """Yields the mutants to run."""
    end = time.monotonic() + 60 * options.time_limit if options.time_limit else float("inf")
    if options.again:
        last = {r["id"]: r for r in records.all}
        found = filter(None, [found_again(r) for r in last.values() if r["status"] == "survived"])
    else:
        done = {r["id"] for r in records.all}
        found = (m for m in sample(ROOT, records.head["seed"]) if m.id not in done)
    for mutant in found:
        if time.monotonic() > end or (not options.again and records.counted() >= options.count):
            return
        yield mutant


def work(number, options, coverage, records, queue, lock):
    worker, known = Worker(WORK / f"tree{number}", coverage), score.explained()
    again = {"again": sources()["commit"]} if options.again else {}
    while True:
        with lock:
            mutant = next(queue, None)
        if not mutant:
            return
        if known.get(mutant.id, [""])[0] == "equivalent":  # not run
            record = {**mutant._asdict(), "status": "survived", "by": None, "tests": 0, "seconds": 0}
        else:
            record = worker.judge(mutant)
        records.add({**record, **again})
        if record["status"] in score.COUNTED:
            told = f", {record['by']}" if record["by"] else f"\n  - {mutant.was.strip()}\n  + {mutant.new.strip()}"
            begin = f"{records.counted()}: {mutant.file}:{mutant.line} {record['status']}"
            say(f"{begin} in {record['seconds']} s, {record['tests']} tests{told}")


def main(options):
    if not suite.sandbox_works():
        raise Failed("mutants may delete files and kill processes, so they run in namespaces, which this user cannot "
                     "create: run as root")
    records = Records(options.records, options.seed, options.again)
    coverage = suite.Coverage(WORK / "coverage", options.jobs, say)
    for name, why in coverage.left_out.items():
        say(f"excluded: {name} {why}")
    queue, lock = queue_of(options, records), threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda number: work(number, options, coverage, records, queue, lock), range(options.jobs)))
    report = score.report(records.head, records.all)
    if options.json:
        write_json(options.json, report)
    print(f"seed {report['seed']}, commit {report['commit']}; not counted: {dict(report['not_counted'])}")
    print("\n".join(f"{name}: {value}" for name, value in score.scores(report).items()))
    return int(100 * score.best(report) < options.floor)


command = Command(__doc__)
command.add_argument("--seed", type=natural)
command.add_argument("--count", type=count, default=300)
command.add_argument("--jobs", type=count, default=1)
command.add_argument("--time-limit", type=positive)
command.add_argument("--again", action="store_true")
command.add_argument("--floor", type=positive, default=0)
command.add_argument("--records", type=pathlib.Path, default=WORK / "records.jsonl")
command.add_argument("--json", type=result_file)
command.run(main)
