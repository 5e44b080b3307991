"""Options reach the code: each option that changes numbers has a row (options/rows.py). In each row, an independent
trainer, a formula or a relation between runs defines what `pretrain` must log, on one rank, in layouts and across a
resume. An option without a row is an error, unless it is listed as one that changes no number; then results must be
bitwise equal with and without it.

usage: options/judge.py"""
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "options"))
sys.dont_write_bytecode = True
import judge
import numpy
import declared
import delta_rows  # adds rows
import hybrid_rows
from program import TERMS, U, expect, write_datasets
from rows import EXPERTS
from table import BASES, ROWS, Row
from trainer import Options, Trainer


def check_bound(program, quick):
    """If each weight is rounded, the reference trainer's numbers change by less than the sqrt(K) in the bound."""
    family = Options(program.base).text("model", "gpt")
    for words in ("", "--train-iters 12", EXPERTS + "--moe-aux-loss-coeff 0.3" if family == "gpt"
                  else "--normalization RMSNorm"):
        o, rng = program.words(words), numpy.random.default_rng(1)
        plain, noisy = Trainer(o), Trainer(o)
        expect(sum(w.size for w in plain.state.weights.values()) <= TERMS, "a norm has more terms than the bound says")
        for w in noisy.state.weights.values():
            w *= 1 + U["fp64"] * rng.choice([-1, 1], w.shape)
        keys = *plain.family.losses, "grad_norm", "params_norm"
        moved = [abs(a[key] / b[key] - 1) for a, b in zip(noisy.run()[0], plain.run()[0]) for key in keys]
        expect(max(moved) <= math.sqrt(TERMS) * U["fp64"],
               f"a rounding of the weights moves the curve by {max(moved) / U['fp64']:.0f} u")


if __name__ == "__main__":
    CHECKS = {"the bound": check_bound, "options that change no number": declared.check_unchanged,
              "options that are not read": declared.check_unread,
              "notes about options without effect": declared.check_noted}
    MORE = [Row(["a row for each option"], declared.check_complete)]
    MORE += [Row([name], check, family=family) for family in BASES for name, check in CHECKS.items()]
    sys.exit(judge.main(__doc__, ROWS, BASES, write_datasets, MORE))
