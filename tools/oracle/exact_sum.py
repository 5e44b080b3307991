#!/usr/bin/env python3
"""Writes tests/unit/base/exact_sum_vectors.def: sums of doubles, computed exactly with Python's fractions and rounded
once.

usage: tools/oracle/exact_sum.py > tests/unit/base/exact_sum_vectors.def"""
import random
from fractions import Fraction

from cli import Command

command = Command(__doc__)
command.parse_args()

TINY, HUGE = 5e-324, 1.7976931348623157e308


def cases():
    r = random.Random(1)
    yield [1.0]
    yield [-1.0, 2.0**-60]
    yield [1e16, 1.0, -1e16]
    yield [1.0, 2.0**-53]  # a tie, which is rounded to even
    yield [1.0 + 2.0**-52, 2.0**-53]
    yield [1.0, 2.0**-53, TINY]  # slightly above a tie
    yield [-1.0, -(2.0**-53), -TINY]
    yield [TINY, TINY, -3 * TINY]
    yield [2.0**-1022, -TINY]
    yield [HUGE, HUGE, -HUGE]
    yield [HUGE, -HUGE, TINY, 2.0**53]
    yield [-(2.0**32), 2.0**64, -(2.0**96), 1.0]
    yield [HUGE, 2.0**969]  # the largest sum that is rounded down
    for spread in (0, 30, 300, 1000):
        for _ in range(3):
            yield [r.choice([-1, 1]) * r.random() * 2.0 ** r.randint(-spread, min(spread, 1000)) for _ in range(20)]
    big = [r.gauss(0, 1) for _ in range(20)]
    yield big + [2.0**-80] + [-x for x in big]


print("/* Made by tools/oracle/exact_sum.py: SUM(exact sum, rounded once; numbers). */")
for x in cases():
    total = float(sum(map(Fraction, x), Fraction(0)))
    print("SUM(%s, %s)" % (total.hex(), ", ".join(v.hex() for v in x)))
