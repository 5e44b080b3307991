#!/usr/bin/env python3
"""Judges the judge: runs every planted bug (mutants.def) in the cells that look for it (cells.list) until one of them notices.

usage: tests/mutants/run.py PROGRAM [--only ID...] [--all] [--matrix] [--sensitivity] [--jobs N] [--json FILE]

  --all           a bug that its own cells miss meets all the others
  --matrix        also which cells of each kind notice it
  --sensitivity   also the smallest factor on a gradient, and the lowest bit, that each lane sees
  --json FILE     for table.py, which writes docs/mutation.md

Exit status 1 if a bug survives, if a cell fails without one, or if a report does not name the op and a rank of the bug (except UNNAMED).
Also prints what Megatron-LM's own rule would have noticed in the same runs: the loss alone, within 5 %, in steps 1 and every 5th, of which
one may fail (tests/functional_tests)."""
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from cli import Command, Failed, count, program, result_file, write_json

WORK = tempfile.TemporaryDirectory(prefix="isotron-mutants-")
STEPS, HALF = 12, 6  # of a training cell
APART = "comparator", "option"  # families that have no curve of their own beside a sound one
DEADLINE_S = 60
# Bugs whose op the report does not name: a later op is the first that can be compared, or the run crashes.
UNNAMED = {"summed_too_early", "cp_heads_permuted", "other_group", "moe_tail_dropped", "moe_sent_permuted", "moe_returned_permuted",
           "moe_counts_of_own_rank", "moe_aux_times_tp", "labels_of_other_microbatch", "flip_mantissa"}
TRAIN = """--num-layers 2 --hidden-size 32 --num-attention-heads 4 --group-query-attention --num-query-groups 2 --seq-length 16
  --max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu --hidden-dropout 0.1
  --attention-dropout 0.1 --micro-batch-size 1 --global-batch-size 4 --lr 1e-2 --lr-warmup-iters 2 --lr-decay-style cosine
  --log-interval 1 --eval-iters 0 --save-interval 1000 --mock-data --tokenizer-type NullTokenizer --vocab-size 60""".split()
TRAIN += ["--train-iters", str(STEPS)]
MODEL = {"-": [], "moe": "--num-experts 4 --moe-expert-capacity-factor 0.75 --moe-aux-loss-coeff 0.01 --disable-bias-linear".split()}
# Runs that are equal but for rounding: parity measures that 20 steps of models of this size amplify it by less than 1e3.
TRAIN_BOUND = 1e4 * 2.0**-53


def table(program):
    """Rows of mutants.def."""
    keys = ["id", "family", "rank", "op", "issues", "cells", "what"]
    done = subprocess.run([program, "--mutant", "list"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode or not lines or any(line.count("\t") != len(keys) - 1 for line in lines):
        raise Failed(f"{program} has no planted bugs: name build/cpu/tests/mutants/isotron_mutants")
    return [dict(zip(keys, line.split("\t"))) for line in lines]


MATRIX = ["gpt2/tp2dp2", "gpt2/tp2sp", "llama/cp2", "gpt2/pp2", "gpt2/zero1", "moe/ep2", "gpt2/zero1-exact", "gpt2/zero1-bf16",
          "train/tp2", "resume/tp2"]


def read_cells():
    found = {}
    for line in (HERE / "cells.list").read_text().splitlines():
        if line and line[0] != "#":
            name, kind, case, lane, *options = line.split()
            found[name] = {"name": name, "kind": kind, "case": case, "lane": lane, "options": options}
    lists = "".join((ROOT / "tests/functional/layouts" / f"{tier}.list").read_text() for tier in ("t0", "t1")).splitlines()
    gone = [name for name, c in found.items() if c["kind"] == "t0" and " ".join([c["case"], c["lane"], *c["options"]]) not in lists]
    if gone:
        raise Failed(f"cells.list: not in T0 or T1: {', '.join(gone)}")
    return found


def megatron_passes(losses, golden):
    """Megatron-LM's approximate check of a training curve."""
    steps = [i for i in range(len(golden)) if i == 0 or (i + 1) % 5 == 0]
    far = [i for i in steps if i >= len(losses) or not abs(losses[i] - golden[i]) <= 0.05 * abs(golden[i])]
    return len(far) <= 1


class Outcome:
    """What one cell saw. `rows`: quantities that were out of bound; `excess`: the largest error over its bound."""

    def __init__(self, killed, why, excess=0.0, rows=(), losses=(), golden=(), localised=None):
        self.killed, self.why, self.excess, self.rows = killed, why, excess, list(rows)
        self.megatron = not megatron_passes(losses, golden) if golden else killed
        self.localised = localised


def excess(row):
    """The larger error over its bound. null: not finite; a bound that is not finite binds nothing."""
    pairs = [(row["relative"], row["relative_bound"]), (row["elementwise"], row["elementwise_bound"])]
    return max(math.inf if e is None else e / b for e, b in pairs if b is not None)


def first_words(text):
    """The sentence of a fault."""
    lines = [line for line in text.splitlines() if line.strip()]
    fault = [line for line in lines if re.search(r"CHECK|fault|^isotron", line)]
    return (fault or lines or ["no output"])[0].strip()[:160]


# What the report must say of bugs that scale gradients by a known factor.
REPORTED = {"gradient_over_cp": {"signature": "scaled by 0.5", "slice": "[0:61, 0:32]"}, "gradient_over_tp": {"signature": "scaled by 0.5"},
            "dp_averaged": {"signature": "scaled by 0.5"}, "gradient_times_dp": {"signature": "scaled by 2", "slice": "[0:61, 0:32]"},
            "experts_times_ep": {"signature": "scaled by 2"}, "gradient_over_microbatches": {"signature": "scaled by 0.125"}}
OF_A_STEP = "parameter before the step", "gradient sum", "update", "end of the step"  # phases that belong to no sample


def is_localised(row, found):
    """Whether a report names the op and a rank that have the bug, a sample if the phase has one, and what REPORTED demands."""
    if not found:
        return False
    ranks = set()
    for part in found["ranks"].split(","):
        first, _, last = part.strip().partition("-")
        ranks |= set(range(int(first), int(last or first) + 1)) if first.isdigit() else set()
    return (found["op"] in row["op"].split("|") and (row["rank"] == "-1" or int(row["rank"]) in ranks)
            and (found["sample"] == -1) == (found["phase"] in OF_A_STEP) and REPORTED.get(row["id"], {}).items() <= found.items())


class Suite:
    def __init__(self, program):
        self.program, self.cells, self.reference = program, read_cells(), {}

    def run(self, mutant, *words, curve=None):
        """-> exit status (None: it hung) and what was printed."""
        command = [self.program, *(["--mutant", mutant] if mutant else []), *map(str, words)]
        env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"} | ({"ISOTRON_CURVE": str(curve)} if curve else {})
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S, cwd=ROOT, env=env)
        except subprocess.TimeoutExpired:
            return None, "hangs"
        return done.returncode, done.stdout + done.stderr

    def parity(self, cell, mutant, folder):
        """A cell of a sweep: judged against the oracle and against one rank, in a process of its own."""
        report, curve, cells = folder / "report.json", folder / "curve", folder / "cells"
        cells.write_text(" ".join([cell["lane"], *cell["options"]]) + "\n")
        status, text = self.run(mutant, "parity", ROOT / "golden" / cell["case"], "--sweep", cells, "--sweep-jobs", 1,
                                "--sweep-deadline", DEADLINE_S, "--json", report, curve=curve)
        if not report.exists():
            return Outcome(True, first_words(text), math.inf, ["fault"])
        judged = json.loads(report.read_text())["cells"][0]
        golden = [s["loss"] for s in json.loads((ROOT / "golden" / cell["case"] / "curve.json").read_text())["steps"]]
        losses = [float(x) for x in curve.read_text().split()] if curve.exists() else []
        bad = [r | {"quantity": f"{r['quantity']} ({against})"} for against, rows in
               (("oracle", judged.get("oracle", [])), ("one rank", judged.get("one_rank", []))) for r in rows if not r["pass"]]
        if judged["verdict"] == "skipped" or (judged["verdict"] == "fail" and not bad):
            return Outcome(True, judged["reason"][:160], math.inf, [judged["verdict"]], losses, golden)
        worst = max(bad, key=excess, default=None)
        why = f"{worst['quantity']}: {worst['worst']}" if worst else ""
        return Outcome(judged["verdict"] == "fail", why, excess(worst) if worst else 0.0, {r["quantity"] for r in bad}, losses, golden,
                       judged.get("localised"))

    def losses(self, mutant, folder, cell, *options):
        log = folder / "log.jsonl"
        log.unlink(missing_ok=True)
        status, text = self.run(mutant, "pretrain", *TRAIN, *MODEL[cell["case"]], "--lane", cell["lane"], "--log-jsonl", log, *options)
        if status != 0:
            return first_words(text)
        return [json.loads(line)["lm_loss"] for line in log.read_text().splitlines()]

    def same(self, cell, mutant, folder):
        """Sharing out the optimizer's state changes no bit."""
        apart, shared = (self.losses(mutant, folder, cell, *cell["options"], *more) for more in ([], ["--use-distributed-optimizer"]))
        far = [i for i, (a, b) in enumerate(zip(apart, shared)) if a != b]
        return Outcome(bool(far), f"loss of step {far[0] + 1}" if far else "", math.inf if far else 0.0, ["loss"] if far else [],
                       apart, shared)

    def train(self, cell, mutant, folder):
        """A layout's losses against those of one rank; "resume": saved and loaded half-way."""
        key = cell["lane"], cell["case"]
        if key not in self.reference:
            self.reference[key] = self.losses(None, folder, cell)
        golden = self.reference[key]
        if cell["kind"] == "train":
            losses = self.losses(mutant, folder, cell, *cell["options"])
        else:
            saved = ["--save", folder / "save", *cell["options"]]
            losses = self.losses(mutant, folder, cell, *saved, "--exit-interval", HALF)
            more = self.losses(mutant, folder, cell, *saved, "--load", folder / "save")
            losses = losses + more if isinstance(losses, list) and isinstance(more, list) else more
        if isinstance(losses, str) or len(losses) != len(golden):
            return Outcome(True, losses if isinstance(losses, str) else f"{len(losses)} steps", math.inf, ["fault"], [], golden)
        errors = [abs(a - b) / abs(b) if math.isfinite(a) else math.inf for a, b in zip(losses, golden)]
        far = [i for i, e in enumerate(errors) if not e <= TRAIN_BOUND]
        why = f"loss of step {far[0] + 1}" if far else ""
        return Outcome(bool(far), why, max(errors) / TRAIN_BOUND, ["loss"] if far else [], losses, golden)

    def options(self, cell, mutant, folder):
        """Rows of the table of options."""
        env = os.environ | ({"ISOTRON_MUTANT": mutant} if mutant else {})
        done = subprocess.run([sys.executable, ROOT / "tests/functional/test_options.py", self.program, "--only", *cell["options"]],
                              capture_output=True, text=True, errors="replace", env=env)
        why = (done.stdout.splitlines() or [first_words(done.stderr)])[-1].split(": ", 1)[-1]  # without the name of the row
        return Outcome(done.returncode != 0, why, math.inf if done.returncode else 0.0)

    def meet(self, name, mutant):
        cell, folder = self.cells[name], pathlib.Path(tempfile.mkdtemp(dir=WORK.name))
        return {"t0": self.parity, "beyond": self.parity, "same": self.same, "options": self.options}.get(cell["kind"], self.train)(cell, mutant, folder)

    def notices(self, name, mutant):
        """As meet, but by the oracle alone: without the run on one rank and without a search for the place."""
        cell = self.cells[name]
        if cell["kind"] not in ("t0", "beyond") or cell["lane"] == "exact":
            return self.meet(name, mutant).killed
        return self.run(mutant, "parity", ROOT / "golden" / cell["case"], "--lane", cell["lane"], *cell["options"])[0] != 0

    def traces(self, row, cell):
        """Whether a report has to say where the bug is: of a cell of a sweep in a lane without rounding noise."""
        return row["family"] != "comparator" and self.cells[cell]["kind"] in ("t0", "beyond") and self.cells[cell]["lane"] in ("fp64", "exact")

    def judge_of_judges(self, row):
        """A bug in the judge is found if a fault that the sound judge reports is not reported, or not in the same quantities."""
        probe, cell = row["cells"].split("@")
        sound, spoilt = self.meet(cell, probe), self.meet(cell, f"{row['id']},{probe}")
        if not sound.killed:
            return cell, Outcome(False, f"the probe {probe} is not seen by the sound judge either")
        missed = sorted(set(sound.rows) - set(spoilt.rows))
        return cell, Outcome(bool(missed), f"{probe}: no word of {', '.join(missed)}", sound.excess, missed, [], [])

    def hunt(self, row, everywhere, matrix):
        """-> record of the first cell that notices, or of the last that did not."""
        begin, tried = time.time(), []
        if row["family"] == "comparator":
            cell, outcome = self.judge_of_judges(row)
            tried = [cell]
        else:
            hints = row["cells"].split()
            for cell in hints + [c for c in self.cells if everywhere and c not in hints]:
                tried.append(cell)
                outcome = self.meet(cell, row["id"])
                if outcome.killed:
                    break
        noticed = {c: self.notices(c, row["id"]) for c in MATRIX} if matrix and row["family"] != "comparator" else {}
        return row | {"killed": outcome.killed, "matrix": noticed, "by": tried[-1], "tried": len(tried), "why": outcome.why, "excess": outcome.excess,
                      "quantities": outcome.rows, "megatron": outcome.megatron, "traced": self.traces(row, tried[-1]), "found": outcome.localised, "localised": is_localised(row, outcome.localised),
                      "seconds": round(time.time() - begin, 2)}

    # ---- sensitivity ----

    def smallest_factor(self, cell):
        """The smallest eps of gradient * (1 + eps) on one rank that the cell notices, to a factor of 10^(1/4)."""
        low, high = -17.0, 0.0
        while high - low > 0.25:
            middle = (low + high) / 2
            if self.meet(cell, f"gradient_scaled:{10 ** middle:.4g}").killed:
                high = middle
            else:
                low = middle
        return 10**high

    def lowest_bit(self, cell):
        """The lowest bit of a float64 mantissa whose flip, in one element of one step, the cell notices."""
        low, high = -1, 51
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.meet(cell, f"flip_mantissa:{middle}").killed else (middle, high)
        return high


def say(record):
    verdict, found = "killed" if record["killed"] else "SURVIVES", record["found"]
    print(f"{record['id']:32} {record['family']:11} {verdict:8} {record['by']:12} {record['excess']:9.1e} {record['seconds']:5.1f} s  "
          f"{record['why'][:80]}", flush=True)
    if record["traced"] and record["localised"] == (record["id"] in UNNAMED):
        told = ", ".join(map(str, found.values())) if found else "nothing"
        print(f"    the report does not match {record['op']} on rank {record['rank']} {REPORTED.get(record['id'], '')}: {told}"
              if not record["localised"] else "    the report names its op now: remove it from UNNAMED")


def main(args):
    suite, rows, begin = Suite(str(pathlib.Path(args.program).resolve())), table(args.program), time.time()
    chosen = [row for row in rows if row["family"] != "probe" and (not args.only or row["id"] in args.only)]
    unknown = set(args.only or []) - {row["id"] for row in chosen}
    if unknown:
        raise Failed(f"there is no planted bug {', '.join(sorted(unknown))}; {args.program} --mutant list names them")
    wanted = sorted({c.split("@")[-1] for row in chosen for c in row["cells"].split()}) if not args.all else list(suite.cells)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        outcomes = zip(wanted, pool.map(lambda name: suite.meet(name, None), wanted))
        unsound = [f"{name} fails without a planted bug: {outcome.why}" for name, outcome in outcomes if outcome.killed]
        if unsound:
            raise Failed("\n".join(unsound))
        print(f"{len(wanted)} cells pass without a planted bug, {time.time() - begin:.0f} s", flush=True)
        records = []
        for record in pool.map(lambda row: suite.hunt(row, args.all, args.matrix), chosen):
            say(record)
            records.append(record)
    killed, megatron = sum(r["killed"] for r in records), sum(r["megatron"] for r in records if r["family"] not in APART)
    curves = sum(r["family"] not in APART for r in records)
    traced = [r for r in records if r["traced"]]
    print(f"{killed} of {len(records)} planted bugs killed; Megatron-LM's rule kills {megatron} of {curves}; {time.time() - begin:.0f} s")
    print(f"{sum(r['localised'] for r in traced)} of {len(traced)} that were traced are found in the right op and rank")
    sensitivity = {}
    if args.sensitivity:
        for cell in ("gpt2/zero1", "gpt2/zero1-exact", "gpt2/zero1-fp32", "gpt2/zero1-bf16"):
            sensitivity[suite.cells[cell]["lane"]] = eps = suite.smallest_factor(cell)
            print(f"lane {suite.cells[cell]['lane']}: gradients of one rank times 1 + {eps:.2g} are noticed")
        sensitivity["bit"] = bit = suite.lowest_bit("gpt2/tp2dp2")
        print(f"lane fp64: a flip of bit {bit} of 52 in one element of one step is noticed")
    if args.json:
        write_json(args.json, {"schema": 1, "killed": killed, "mutants": len(records), "megatron": megatron, "curves": curves,
                               "sensitivity": sensitivity, "records": records})
    return int(killed < len(records) or any(r["id"] not in UNNAMED and not r["localised"] for r in traced))


command = Command(__doc__)
command.add_argument("program", type=program)
command.add_argument("--only", nargs="*")
command.add_argument("--all", action="store_true")
command.add_argument("--matrix", action="store_true")
command.add_argument("--sensitivity", action="store_true")
command.add_argument("--jobs", type=count, default=os.cpu_count())
command.add_argument("--json", type=result_file)
command.run(main)
