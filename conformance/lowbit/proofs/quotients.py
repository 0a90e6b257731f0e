"""Lemmas about quotients that no division forms: amax / 6, and y / s for every E4M3 scale.

The kernels take fma(y, high, RN32(y * low)) with high + low close to 1 / d. That this is RN32(y / d) for every y is too
much for bits, and easy for real numbers, where z3 decides it:

* y / d cannot be arbitrarily close to a point where the rounding changes: with d = m * 2**k, m odd, and a midpoint
  W * 2**j of two binary32 numbers, W odd, their distance is a multiple of D = 2**a * Y - m * W, an integer that is
  never 0, so that |D| >= 1;
* the sum before its rounding differs from y / d by less than that, so that no midpoint lies between, or at, the two;
* hence both round to the same number.

Y is the significand of y as an integer, and everything is homogeneous in powers of two while nothing leaves the normal
range. Below 2**-90 a quotient is only said to stay below 2**-89 and not to be negative, which decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from lowbit.formats import BINARY32, E4M3
from lowbit.proofs import device, language, reals
from lowbit.proofs.device import FLOAT32, Term, Value, pattern, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.sources import Kernels
from lowbit.references.exact_arithmetic import divide
from lowbit.references.exact_elements import floor_log2, pattern_float, round_to

RELATIVE = Fraction(1, 1 << 24)
"""Half a unit in the last place, relative to a normal number."""

ABSOLUTE = Fraction(1, 1 << 60)
"""2**-150, half the least subnormal, relative to the least quotient that must be right, 2**-90."""

SCALES = tuple(range(1, E4M3.max_magnitude + 1))
"""The E4M3 codes that divide."""

TRIALS = 512
"""Significands that are tried for a counter-example."""


def lemmas() -> Iterator[Lemma]:
    yield _never_a_tie()
    yield Lemma(
        name="quotient/six",
        statement="fma(x, high, RN32(x * low)) is RN32(x / 6) for every binary32 x with x / 6 at least 2**-90, and a "
        "number of 0 to 2**-89 below.",
        about="_e4m3.divide_by_six, given quotient/never_a_tie",
        claims=_sixth_claims,
    )
    yield Lemma(
        name="quotient/scale",
        statement="fma(y, high, RN32(y * low)) is RN32(y / s) for every s that an E4M3 code above 0 stands for and "
        "every binary32 y with y / s at least 2**-90, and a number of 0 to 2**-89 below; "
        "for y = Inf it is Inf or NaN, for NaN it is NaN.",
        about="_e4m3.reciprocal_pair, _e4m3.divide_by_scale, given quotient/never_a_tie",
        claims=_scale_claims,
    )
    yield _decides()


def scale_value(code: int) -> Value:
    """The constant that an E4M3 code stands for."""
    return device.constant(float(E4M3.magnitude_value(code)), FLOAT32)


def _never_a_tie() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        y, w, m, a = (z3.BitVec(name, 48) for name in ("Y", "W", "m", "a"))
        facts = [
            *(z3.ULT(y, 1 << 24), z3.ULT(w, 1 << 25), z3.ULT(m, 16), z3.UGE(a, 1), z3.ULE(a, 8)),
            *(w & 1 == 1, m & 1 == 1),
        ]
        yield Claim(facts, y << a != m * w, {"Y": y, "W": w, "m": m, "a": a})

    return Lemma(
        name="quotient/never_a_tie",
        statement="2**a * Y is never m * W for integers Y < 2**24, odd W < 2**25, odd m < 16 and a >= 1: no quotient "
        "y / s lies midway between two binary32 numbers.",
        about="y / s",
        claims=claims,
    )


def _decides() -> Lemma:
    def claims(code: Kernels) -> Iterator[Claim]:
        import z3

        y, t, m, shift = (z3.BitVec(name, 48) for name in ("Y", "T", "m", "q"))
        unknowns = {"Y": y, "T": t, "m": m, "q": shift}
        facts = [
            *(z3.UGE(y, 1 << 23), z3.ULT(y, 1 << 24), z3.UGE(t, 512), z3.ULT(t, 1024), z3.UGE(m, 8), z3.ULT(m, 16)),
            z3.ULT(shift, 8),
        ]
        exact, value = t * m << 16, y << shift  # T * s and y, in units of 2**-16 of T's last place
        below = z3.If(t == 512, z3.BitVecVal(1, 48), z3.BitVecVal(2, 48)) * m  # to the midpoint under T, times s
        yield Claim([*facts, z3.ULT(value, exact)], z3.ULT(value, exact - below), unknowns)
        yield Claim([*facts, z3.UGT(value, exact)], z3.UGT(value, exact + 2 * m), unknowns)

    return Lemma(
        name="quotient/decides",
        statement="RN32(y / s) is above, at or below a bound T of at most 10 significant bits exactly if y is above, "
        "at or below T * s, for every binary32 y and every significand of s: rounding the quotient moves nothing "
        "across a code, a tie or a bound of the stochastic rule.",
        about="y / s",
        claims=claims,
    )


def _sixth_claims(code: Kernels) -> Iterator[Claim]:
    x = variable("x", FLOAT32)
    high, low = (device.constant(number, FLOAT32) for number in (code.e4m3.SIXTH_HIGH, code.e4m3.SIXTH_LOW))
    shape = language.fma(x, high, x * low)
    yield Claim([], code.e4m3.divide_by_six(x).bits == shape.bits, {"x": x.bits})
    yield from _correct(Fraction(6), high, low, lambda y: code.e4m3.divide_by_six(y))


def _scale_claims(code: Kernels) -> Iterator[Claim]:
    import z3

    y, s, high, low = (variable(name, FLOAT32) for name in ("y", "s", "high", "low"))
    actual = code.e4m3.divide_by_scale(y, s, high, low)
    yield Claim([], actual.bits == language.fma(y, high, y * low).bits, {"y": y.bits})
    yield Claim([z3.Not(reals.not_nan(y.bits))], z3.Not(reals.not_nan(actual.bits)), {"y": y.bits})
    infinite = device.constant(math.inf, FLOAT32)
    for scale in SCALES:
        divisor = scale_value(scale)
        high, low = (device.simplified(part) for part in code.e4m3.reciprocal_pair(divisor))
        beyond = code.e4m3.divide_by_scale(infinite, divisor, high, low)
        yield Claim([], z3.Or(beyond.bits == reals.INFINITY, z3.ULT(reals.INFINITY, beyond.bits & reals.MAGNITUDE)), {})
        yield from _correct(
            E4M3.magnitude_value(scale),
            high,
            low,
            lambda y, d=divisor, h=high, l=low: code.e4m3.divide_by_scale(y, d, h, l),  # noqa: E741
        )


def _correct(d: Fraction, high: Value, low: Value, quotient: Any) -> Iterator[Claim]:
    """fma(y, high, RN32(y * low)) is RN32(y / d), by real numbers."""
    import z3

    h, l = (Fraction(pattern_float(pattern(part))) for part in (high, low))  # noqa: E741
    odd, power = d.numerator, -floor_log2(Fraction(d.denominator))
    while odd % 2 == 0:
        odd, power = odd // 2, power + 1

    y, w, z = z3.Reals("Y W z")
    exact, total = y * rational(1 / d), y * rational(h) + z
    error = y * rational(abs(l) * RELATIVE + ABSOLUTE / d)
    facts = [
        y >= 1 << 23,
        y <= (1 << 24) - 1,
        w >= (1 << 24) + 1,
        w <= (1 << 25) - 1,
        z - y * rational(l) <= error,
        y * rational(l) - z <= error,
    ]
    claims = [z3.BoolVal(abs(l) <= 1)]  # y * low does not overflow
    # 2**a * Y and m * W are of one size for some of these a. At the first all midpoints are above y / d, at the last
    # all are below it; so are those beyond, and the sum lies on the same side of them.
    for a in range(9):
        difference = y * (1 << a) - w * odd
        apart = z3.Or(difference >= 1, difference <= -1) if a else z3.BoolVal(True)
        midpoint = w * rational(Fraction(2) ** (-a - power))
        between = z3.Or(z3.And(exact <= midpoint, midpoint <= total), z3.And(total <= midpoint, midpoint <= exact))
        claims.append(z3.Implies(apart, z3.Not(between)))
    yield Claim(facts, z3.And(*claims), {}, numbers=True, confirm=lambda: _search(d, quotient))

    # Far below, y is any positive number and RN32(y * low) at most twice y * low in magnitude.
    twice = y * rational(2 * abs(l))
    tiny = [y > 0, y < rational(d * Fraction(2) ** -90), z <= twice, -z <= twice]
    limit = rational(Fraction(2) ** -89 * (1 - RELATIVE))
    yield Claim(tiny, z3.And(total > 0, total < limit), {}, numbers=True, confirm=lambda: _search(d, quotient))


def _search(d: Fraction, quotient: Any) -> Mapping[str, int] | None:
    """A y of the binade of 1 whose quotient is not the correctly rounded one."""
    divisor = round_to(d, BINARY32)
    for significand in np.linspace(0, (1 << 23) - 1, TRIALS, dtype=np.int64).tolist():
        y = round_to(Fraction((1 << 23) + significand, 1 << 23), BINARY32)
        found = pattern(quotient(device.of_pattern(y, FLOAT32)))
        if found != divide(y, divisor):
            return {"y": y, "d": divisor, "got": found, "want": divide(y, divisor)}
    return None


def rational(value: Fraction) -> Term:
    import z3

    return z3.Q(value.numerator, value.denominator)
