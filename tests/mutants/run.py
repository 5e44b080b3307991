#!/usr/bin/env python3
"""Tests the test suite: runs every planted bug (mutants.def) in the cells that test for it (cells.list), until one of
them fails.

usage: tests/mutants/run.py PROGRAM [--only ID...] [--kinds] [--matrix] [--sensitivity] [--jobs N] [--json FILE]

  --kinds         only one bug for each family and op
  --matrix        also shows which cells of each kind detect it
  --sensitivity   also shows the smallest factor on a gradient, and the lowest bit, that each lane detects
  --json FILE     writes a report, from which table.py updates docs/mutation.md

Exit status 1 if a bug survives, if a cell fails without a bug, or if a report does not name the op and a rank of the
bug (except UNNAMED). Also prints which bugs Megatron-LM's own rule (tests/functional_tests) would have detected in the
same runs: the loss alone must agree to 5 % in step 1 and every 5th step, except for one of them."""
import concurrent.futures
import dataclasses
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
APART = "comparator", "option", "dataset", "plan"  # families that have no curve to compare with that of a sound run
DEADLINE_S = 60
KEYS = ["id", "family", "rank", "op", "issues", "cells", "what"]  # of mutants.def
# Bugs whose op the report cannot name, because a later op is the first that can be compared, or because the run
# crashes.
UNNAMED = {"cp_heads_permuted", "other_group", "moe_tail_dropped", "moe_sent_permuted",
           "moe_returned_permuted", "moe_counts_of_own_rank", "moe_aux_times_tp", "labels_of_other_microbatch",
           "encoded_gradient_lost", "flip_mantissa", "scan_state_lost", "scan_next_group"}
TRAIN = f"""--num-layers 2 --hidden-size 32 --num-attention-heads 4 --group-query-attention --num-query-groups 2
  --seq-length 16 --max-position-embeddings 16 --position-embedding-type rope --normalization RMSNorm --swiglu
  --hidden-dropout 0.1 --attention-dropout 0.1 --micro-batch-size 1 --global-batch-size 4 --lr 1e-2
  --lr-warmup-iters 2 --lr-decay-style cosine --log-interval 1 --eval-iters 0 --save-interval 1000 --mock-data
  --tokenizer-type NullTokenizer --vocab-size 60 --train-iters {STEPS}""".split()
MODEL = {"-": [], "moe": "--num-experts 4 --moe-expert-capacity-factor 0.75 --moe-aux-loss-coeff 0.01 "
         "--disable-bias-linear".split()}
# The bound for runs that are equal up to rounding. According to parity, 20 steps of models of this size amplify
# rounding errors by less than 1e3.
TRAIN_BOUND = 1e4 * 2.0**-53
MATRIX = ["gpt2/tp2dp2", "gpt2/tp2sp", "llama/cp2", "gpt2/pp2", "gpt2/zero1", "moe/ep2", "gpt2/zero1-exact",
          "gpt2/zero1-bf16", "train/tp2", "resume/tp2"]
# Details that a report must contain: the factor of bugs that scale gradients, and the first layers of BERT and T5 that
# have a bug.
REPORTED = {"gradient_over_cp": {"signature": "scaled by 0.5", "slice": "[0:61, 0:32]"},
            "gradient_over_tp": {"signature": "scaled by 0.5"}, "dp_averaged": {"signature": "scaled by 0.5"},
            "gradient_times_dp": {"signature": "scaled by 2", "slice": "[0:61, 0:32]"},
            "relative_not_summed": {"place": "encoder_relative_pos_emb.relative_attention_bias.weight"},
            "cross_sees_padding": {"place": "decoder.layers.0.cross_attention.linear_kv.weight"},
            "encoded_not_normed": {"place": "encoder.final_layernorm.weight"},
            "pooler_of_other_rank": {"place": "pooler.dense.weight"},
            "cp_sees_padding": {"place": "encoder.layers.0.self_attention.linear_qkv.weight"},
            "experts_times_ep": {"signature": "scaled by 2"},
            "gradient_over_microbatches": {"signature": "scaled by 0.125"}}
OF_A_STEP = "parameter before the step", "gradient sum", "update", "end of the step"  # phases that belong to no sample


class Fault(Exception):
    """A run ended without results."""


@dataclasses.dataclass
class Outcome:
    """The outcome of one cell. rows: the quantities out of bounds; excess: the largest ratio of an error to its bound;
    megatron: the verdict of Megatron-LM's rule."""
    killed: bool
    why: str = ""
    excess: float = 0.0
    rows: tuple = ()
    megatron: bool = True
    localised: dict | None = None


def mutants(program):
    done = subprocess.run([program, "--mutant", "list"], capture_output=True, text=True)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    if done.returncode or not rows or any(len(row) != len(KEYS) for row in rows):
        raise Failed(f"{program} has no planted bugs: name build/cpu/tests/mutants/isotron_mutants")
    return [dict(zip(KEYS, row)) for row in rows]


def read_cells():
    found = {}
    for line in (HERE / "cells.list").read_text().splitlines():
        if line and line[0] != "#":
            name, kind, case, lane, *options = line.split()
            found[name] = {"name": name, "kind": kind, "case": case, "lane": lane, "options": options}
    return found


def megatron_notices(losses, golden):
    """Megatron-LM's approximate check of a training curve."""
    steps = [i for i in range(len(golden)) if i == 0 or (i + 1) % 5 == 0]
    return sum(i >= len(losses) or not abs(losses[i] - golden[i]) <= 0.05 * abs(golden[i]) for i in steps) > 1


def excess(row):
    """The larger of the two ratios of error to bound. An error of null is not finite; a bound that is not finite is
    ignored."""
    pairs = [(row["relative"], row["relative_bound"]), (row["elementwise"], row["elementwise_bound"])]
    return max(math.inf if e is None else e / b for e, b in pairs if b is not None)


def first_words(text):
    """The first line of a fault's message."""
    lines = [line for line in text.splitlines() if line.strip()]
    fault = [line for line in lines if re.search(r"CHECK|fault|^isotron", line)]
    return (fault or lines or ["no output"])[0].strip()[:160]


def is_localised(row, found):
    """Whether a report names the op and a rank that have the bug, a sample if the phase has one, and the details in
    REPORTED."""
    if not found:
        return False
    ranks = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", found["ranks"]):
        ranks |= set(range(int(first), int(last or first) + 1))
    return (found["op"] in row["op"].split("|") and (row["rank"] == "-1" or int(row["rank"]) in ranks)
            and (found["sample"] == -1) == (found["phase"] in OF_A_STEP)
            and REPORTED.get(row["id"], {}).items() <= found.items())


class Suite:
    def __init__(self, program):
        self.program, self.cells, self.reference = program, read_cells(), {}

    def run(self, mutant, *words, curve=None):
        """Runs the program. Returns the exit status (None if the run hung) and the output."""
        command = [self.program, *(["--mutant", mutant] if mutant else []), *map(str, words)]
        env = os.environ | ({"ISOTRON_CURVE": str(curve)} if curve else {})
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=DEADLINE_S,
                                  cwd=ROOT, env=env)
        except subprocess.TimeoutExpired:
            return None, "hangs"
        return done.returncode, done.stdout + done.stderr

    def parity(self, cell, mutant, folder):
        """Runs a cell of a sweep, which compares with the oracle and with one rank, in a separate process."""
        report, curve, cells = folder / "report.json", folder / "curve", folder / "cells"
        case = ROOT / "golden" / cell["case"]
        cells.write_text(" ".join([cell["lane"], *cell["options"]]) + "\n")
        _, text = self.run(mutant, "parity", case, "--sweep", cells, "--sweep-jobs", 1, "--sweep-deadline", DEADLINE_S,
                           "--json", report, curve=curve)
        if not report.exists():
            raise Fault(first_words(text))
        judged = json.loads(report.read_text())["cells"][0]
        golden = [s["loss"] for s in json.loads((case / "curve.json").read_text())["steps"]]
        notices = megatron_notices([float(x) for x in curve.read_text().split()] if curve.exists() else [], golden)
        bad = [r | {"quantity": f"{r['quantity']} ({key.replace('_', ' ')})"} for key in ("oracle", "one_rank")
               for r in judged.get(key, [])
               if not r["pass"]]
        if judged["verdict"] == "skipped" or (judged["verdict"] == "fail" and not bad):
            return Outcome(True, judged["reason"][:160], math.inf, (judged["verdict"],), notices)
        if not bad:
            return Outcome(judged["verdict"] == "fail", megatron=notices, localised=judged.get("localised"))
        worst = max(bad, key=excess)
        return Outcome(judged["verdict"] == "fail", f"{worst['quantity']}: {worst['worst']}", excess(worst),
                       tuple({r["quantity"] for r in bad}), notices, judged.get("localised"))

    def losses(self, mutant, folder, cell, *options):
        log = folder / "log.jsonl"
        log.unlink(missing_ok=True)
        status, text = self.run(mutant, "pretrain", *TRAIN, *MODEL[cell["case"]], "--lane", cell["lane"],
                                "--log-jsonl", log, *options)
        if status != 0:
            raise Fault(first_words(text))
        return [r["lm_loss"] for r in map(json.loads, log.read_text().splitlines()) if "kind" not in r]

    @staticmethod
    def compared(losses, golden, bound):
        if len(losses) != len(golden):
            raise Fault(f"{len(losses)} steps")
        errors = [abs(a - b) / abs(b) if math.isfinite(a) else math.inf for a, b in zip(losses, golden)]
        far = [i for i, e in enumerate(errors) if not e <= bound]
        worst = max(errors) / bound if bound else math.inf if far else 0.0
        why, rows = (f"loss of step {far[0] + 1}", ("loss",)) if far else ("", ())
        return Outcome(bool(far), why, worst, rows, megatron_notices(losses, golden))

    def same(self, cell, mutant, folder):
        """Checks that results with and without sharded optimizer state are bitwise equal."""
        apart, shared = (self.losses(mutant, folder, cell, *cell["options"], *more)
                         for more in ([], ["--use-distributed-optimizer"]))
        return self.compared(apart, shared, 0)

    def train(self, cell, mutant, folder):
        """Compares a layout's losses with those of one rank; with "resume", the run saves and resumes half-way."""
        key = cell["lane"], cell["case"]
        if key not in self.reference:
            self.reference[key] = self.losses(None, folder, cell)
        saved = ["--save", folder / "save", *cell["options"]]
        parts = [cell["options"]]
        if cell["kind"] == "resume":
            parts = [[*saved, "--exit-interval", HALF], [*saved, "--load", folder / "save"]]
        losses = [x for options in parts for x in self.losses(mutant, folder, cell, *options)]
        return self.compared(losses, self.reference[key], TRAIN_BOUND)

    def options(self, cell, mutant, folder):
        """Runs rows of the table of options."""
        env = os.environ | ({"ISOTRON_MUTANT": mutant} if mutant else {})
        done = subprocess.run([sys.executable, ROOT / "tests/functional/test_options.py", self.program, "--only",
                               *cell["options"]],
                              capture_output=True, text=True, errors="replace", env=env)
        # the message without the name of the row
        why = (done.stdout.splitlines() or [first_words(done.stderr)])[-1].split(": ", 1)[-1]
        return Outcome(done.returncode != 0, why, math.inf if done.returncode else 0.0, megatron=done.returncode != 0)

    def unit(self, cell, mutant, folder):
        """Runs a unit test that is also built with the planted bugs."""
        env = os.environ | ({"ISOTRON_MUTANT": mutant} if mutant else {})
        done = subprocess.run(pathlib.Path(self.program).parent / cell["options"][0], capture_output=True, text=True,
                              env=env, cwd=ROOT)
        failed = re.findall(r"FAILED  . (\w+)", done.stdout + done.stderr)
        return Outcome(done.returncode != 0, (failed or [""])[0], math.inf if done.returncode else 0.0,
                       megatron=done.returncode != 0)

    def meet(self, name, mutant):
        cell, folder = self.cells[name], pathlib.Path(tempfile.mkdtemp(dir=WORK.name))
        judge = {"parity": self.parity, "same": self.same, "options": self.options,
                 "unit": self.unit}.get(cell["kind"], self.train)
        try:
            return judge(cell, mutant, folder)
        except Fault as fault:
            return Outcome(True, str(fault), math.inf, ("fault",))

    def notices(self, name, mutant):
        """The same as meet, but compares only with the oracle, without the run on one rank and the search for the first
        wrong op."""
        cell = self.cells[name]
        if cell["kind"] != "parity" or cell["lane"] == "exact":
            return self.meet(name, mutant).killed
        return self.run(mutant, "parity", ROOT / "golden" / cell["case"], "--lane", cell["lane"],
                        *cell["options"])[0] != 0

    def judge_of_judges(self, row):
        """A bug in the comparison is found if a fault that the correct comparison reports is not reported, or not in
        the same quantities."""
        probe, cell = row["cells"].split("@")
        sound, spoilt = self.meet(cell, probe), self.meet(cell, f"{row['id']},{probe}")
        if not sound.killed:
            return cell, Outcome(False, f"the probe {probe} is not seen by the sound judge either")
        missed = sorted(set(sound.rows) - set(spoilt.rows))
        return cell, Outcome(bool(missed), f"{probe}: no word of {', '.join(missed)}", sound.excess,
                             tuple(missed), bool(missed))

    def hunt(self, row, matrix):
        """Returns the record of the first cell that detects the bug, or else of the last cell."""
        begin, of_judge = time.time(), row["family"] == "comparator"
        if of_judge:
            by, outcome = self.judge_of_judges(row)
        else:
            for by in row["cells"].split():
                outcome = self.meet(by, row["id"])
                if outcome.killed:
                    break
        cell = self.cells[by]
        # A report must localize the bug if there is no rounding noise.
        traced = not of_judge and cell["kind"] == "parity" and cell["lane"] in ("fp64", "exact")
        noticed = {c: self.notices(c, row["id"]) for c in MATRIX} if matrix and not of_judge else {}
        return row | {"killed": outcome.killed, "matrix": noticed, "by": by, "why": outcome.why,
                      "excess": outcome.excess, "megatron": outcome.megatron, "traced": traced,
                      "found": outcome.localised, "localised": is_localised(row, outcome.localised),
                      "seconds": round(time.time() - begin, 2)}

    def least(self, cell, low, high, step, mutant):
        """The smallest x between two numbers, to within `step`, for which the cell detects mutant(x)."""
        while high - low > step:
            middle = (low + high) / 2 if step < 1 else (low + high) // 2
            low, high = (low, middle) if self.meet(cell, mutant(middle)).killed else (middle, high)
        return high


def say(record):
    verdict, found = "killed" if record["killed"] else "SURVIVES", record["found"]
    print(f"{record['id']:32} {record['family']:11} {verdict:8} {record['by']:12} {record['excess']:9.1e} "
          f"{record['seconds']:5.1f} s  "
          f"{record['why'][:80]}", flush=True)
    if record["traced"] and record["localised"] == (record["id"] in UNNAMED):
        told = ", ".join(map(str, found.values())) if found else "nothing"
        print(f"    the report does not match {record['op']} on rank {record['rank']} "
              f"{REPORTED.get(record['id'], '')}: {told}"
              if not record["localised"] else "    the report names its op now: remove it from UNNAMED")


def sensitivity(suite):
    """For each lane, the smallest detected factor (to within 10^(1/4)) on a gradient of one rank, and the lowest
    detected bit of one float64 element in one step."""
    found = {}
    for cell in ("gpt2/zero1", "gpt2/zero1-exact", "gpt2/zero1-fp32", "gpt2/zero1-bf16"):
        lane = suite.cells[cell]["lane"]
        found[lane] = 10 ** suite.least(cell, -17.0, 0.0, 0.25, lambda x: f"gradient_scaled:{10 ** x:.4g}")
        print(f"lane {lane}: gradients of one rank times 1 + {found[lane]:.2g} are noticed")
    found["bit"] = suite.least("gpt2/tp2dp2", -1, 51, 1, lambda x: f"flip_mantissa:{x}")
    print(f"lane fp64: a flip of bit {found['bit']} of 52 in one element of one step is noticed")
    return found


def main(args):
    suite, rows, begin = Suite(str(pathlib.Path(args.program).resolve())), mutants(args.program), time.time()
    chosen = [row for row in rows if row["family"] != "probe" and (not args.only or row["id"] in args.only)]
    if args.kinds:
        chosen = list({(row["family"], row["op"]): row for row in reversed(chosen)}.values())[::-1]
    unknown = set(args.only or []) - {row["id"] for row in chosen}
    if unknown:
        raise Failed(f"there is no planted bug {', '.join(sorted(unknown))}; {args.program} --mutant list names them")
    wanted = sorted({c.split("@")[-1] for row in chosen for c in row["cells"].split()})
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        outcomes = zip(wanted, pool.map(lambda name: suite.meet(name, None), wanted))
        unsound = [f"{name} fails without a planted bug: {outcome.why}" for name, outcome in outcomes if outcome.killed]
        if unsound:
            raise Failed("\n".join(unsound))
        print(f"{len(wanted)} cells pass without a planted bug, {time.time() - begin:.0f} s", flush=True)
        records = []
        for record in pool.map(lambda row: suite.hunt(row, args.matrix), chosen):
            say(record)
            records.append(record)
    curves = [r["megatron"] for r in records if r["family"] not in APART]
    killed, traced = sum(r["killed"] for r in records), [r for r in records if r["traced"]]
    print(f"{killed} of {len(records)} planted bugs killed; Megatron-LM's rule kills {sum(curves)} of {len(curves)}; "
          f"{time.time() - begin:.0f} s")
    print(f"{sum(r['localised'] for r in traced)} of {len(traced)} that were traced are found in the right op and rank")
    smallest = sensitivity(suite) if args.sensitivity else {}
    if args.json:
        write_json(args.json, {"schema": 1, "killed": killed, "mutants": len(records), "megatron": sum(curves),
                               "curves": len(curves), "sensitivity": smallest, "records": records})
    return int(killed < len(records) or any(r["id"] not in UNNAMED and not r["localised"] for r in traced))


command = Command(__doc__)
command.add_argument("program", type=program)
command.add_argument("--only", nargs="*")
command.add_argument("--kinds", action="store_true")
command.add_argument("--matrix", action="store_true")
command.add_argument("--sensitivity", action="store_true")
command.add_argument("--jobs", type=count, default=os.cpu_count())
command.add_argument("--json", type=result_file)
command.run(main)
