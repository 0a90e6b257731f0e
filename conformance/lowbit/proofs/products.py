"""Lemmas about codes of y / s that come from one product with a number just below 1 / s, not from a quotient.

As in `quotients`, real numbers decide what would be too much for bits. For each scale s, and r as the kernels form it:

* the exact product y * r grows with y, and so does what it is rounded to. That a code is reached is a bound of the
  product, and z3 compares it with the bound that y itself has, s * T, for every tie T;
* y is a binary32 number, so it is s * T or at least as far from it as the numbers next to that. Nothing else is asked
  of y: it may be subnormal, or the product, and either may be too large for binary32.

Rounded upward, a product is at least T exactly if it is above the number before T, and above T exactly if it is itself.
Adding 2**23 rounds to whole numbers, ties to even: the sum reaches an odd k if what is added is above k - 1/2, and an
even k if it is at least that. Inf and NaN, which are no real numbers, are left to bits.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, E2M1, E4M3
from lowbit.proofs import device, language, nearest, reals
from lowbit.proofs.device import FLOAT32, INT32, UINT32, Value, pattern, variable
from lowbit.proofs.lemma import Claim, Lemma
from lowbit.proofs.nvfp4 import e4m3_value, rounded_quotient
from lowbit.proofs.quotients import SCALES, rational, scale_value
from lowbit.proofs.sources import Kernels
from lowbit.references.exact_elements import pattern_float, round_to
from lowbit.rules import Rounding

TIES = tuple((a + b) / 2 for a, b in itertools.pairwise(E2M1.magnitudes))
"""Tie k, counted from 1, is between codes k - 1 and k."""

Reaches = Callable[[Any, int], Any]
"""Whether an exact product, a fraction or a real number of z3, is given a code of k or more."""


def lemmas() -> Iterator[Lemma]:
    yield Lemma(
        name="nvfp4_quotient/ties_to_even",
        statement="The code of RN32(y / s), or of the product of |y| and r rounded upward, r one unit below "
        "RN32(1 / s), is that of |y| / s, ties_to_even, for every binary32 y and every s that an E4M3 code above 0 "
        "stands for; of NaN it is 7.",
        about="_nvfp4_kernels._nearest_quotient, _e4m3.multiply_upward, given nearest/e2m1 and quotient/scale",
        claims=_even_claims,
    )
    yield Lemma(
        name="nvfp4_quotient/ties_toward_zero",
        statement="Three multiply-adds of |y|, by 2r, r and r / 2, r one unit below RN32(1 / s), give the code of "
        "|y| / s, ties_toward_zero, for every binary32 y and every s that an E4M3 code above 0 stands for; 7 of NaN.",
        about="_nvfp4_kernels._nearest_quotient, _e4m3.least_code",
        claims=_zero_claims,
    )


def _even_claims(code: Kernels) -> Iterator[Claim]:
    import z3

    y, high, low, byte = (variable(name, FLOAT32) for name in ("y", "high", "low", "byte"))
    byte = byte.to(INT32, bitcast=True)
    scale = Value(FLOAT32, e4m3_value(byte.bits))
    divisor, magnitude = reals.scale_of(scale.bits), y.bits & reals.MAGNITUDE
    is_nan, is_infinite = z3.Not(reals.not_nan(magnitude)), magnitude == reals.INFINITY
    possible = [byte.bits >= 1, byte.bits <= E4M3.max_magnitude]
    unknowns = {"y": y.bits, "s": scale.bits}
    q = variable("q", FLOAT32)
    handed: list[Value] = []

    def taken(*arguments: Value) -> Value:
        handed.extend(arguments)
        return q

    stubs = {"divide_by_scale": taken, "multiply_upward": taken, "nearest_e2m1": nearest.as_proved()}
    nvfp4 = code.replacing("_nvfp4_kernels", **stubs).nvfp4
    expected = nearest.quotient_code(magnitude, scale, Rounding.TIES_TO_EVEN)

    quotient = [*possible, z3.Implies(is_nan, z3.Not(reals.not_nan(q.bits)))]
    known = rounded_quotient(q.bits, magnitude, Rounding.TIES_TO_EVEN, divisor, None)
    quotient += [z3.Or(is_nan, fact) for fact in known]
    found = nvfp4._nearest_quotient(y, scale, high, low, True, False).bits & 0xFF
    yield Claim(quotient, found == expected, unknowns)
    right = zip(handed, (Value(FLOAT32, magnitude), scale, high, low), strict=True)
    yield Claim([], z3.And(*(actual.bits == wanted.bits for actual, wanted in right)), unknowns)

    handed.clear()
    upward = [
        *possible,
        z3.Implies(is_nan, z3.Not(reals.not_nan(q.bits))),
        z3.Implies(is_infinite, q.bits == magnitude),
    ]
    upward.append(z3.Or(is_nan, z3.And(q.bits >= 0, reals.not_nan(q.bits))))
    own, product = divisor.without_power(reals.of_magnitude(magnitude)), reals.of_magnitude(q.bits)
    for k, tie in enumerate(TIES, 1):
        strict = z3.BoolVal(k % 2 == 1)
        same = product.at_least(reals.one().times(tie), strict=strict) == own[0].at_least(
            own[1].times(tie), strict=strict
        )
        upward.append(z3.Or(is_nan, same))
    found = nvfp4._nearest_quotient(y, scale, high, low, True, True).bits & 0xFF
    yield Claim(upward, found == expected, unknowns)
    below = code.e4m3.below_reciprocal(high, low)
    yield Claim([], z3.And(handed[0].bits == y.bits, handed[1].bits == below.bits), unknowns)
    yield from _by_numbers(code, Rounding.TIES_TO_EVEN, _rounded(_ptx_rounding(code)))


def _zero_claims(code: Kernels) -> Iterator[Claim]:

    y, high, low = (variable(name, FLOAT32) for name in ("y", "high", "low"))
    below = code.e4m3.below_reciprocal(high, low)
    magnitude = language.absolute(y)
    halves, ones, twos = (
        language.fma(magnitude, factor, 2.0**23 + addend).to(UINT32, bitcast=True)
        for factor, addend in ((below * 2.0, 0.0), (below, 2.0), (below * 0.5, 4.0))
    )
    least = language.minimum(language.minimum(language.minimum(halves, ones), twos), 0x4B000007)
    for ptx in (False, True):
        found = code.nvfp4._nearest_quotient(y, y, high, low, False, ptx)
        yield Claim([], found.bits == least.bits, {"y": y.bits})
    infinite, nan = (device.constant(number, FLOAT32) for number in (math.inf, math.nan))
    of_nan = code.e4m3.least_code(nan, *(variable(name, FLOAT32) for name in ("twice", "once", "half")))
    yield Claim([], of_nan.bits & 0xFF == 7, {})  # what NaN it is decides nothing
    for scale in SCALES:
        divisor = scale_value(scale)
        parts = (device.simplified(part) for part in code.e4m3.reciprocal_pair(divisor))
        beyond = code.nvfp4._nearest_quotient(infinite, divisor, *parts, False, False)
        yield Claim([], beyond.bits & 0xFF == 7, {})
    yield from _by_numbers(code, Rounding.TIES_TOWARD_ZERO, _added)


def _by_numbers(code: Kernels, rounding: Rounding, reaches: Reaches) -> Iterator[Claim]:
    """For each scale: the product reaches every code exactly if |y| / s does, |y| any finite binary32 number."""
    import z3

    for scale in SCALES:
        s = E4M3.magnitude_value(scale)
        parts = (device.simplified(part) for part in code.e4m3.reciprocal_pair(scale_value(scale)))
        bits = pattern(code.e4m3.below_reciprocal(*parts))
        r = Fraction(pattern_float(bits))
        normal = 1 << 24 <= bits < 0xFE << 23  # so that 2r and r / 2 are exact
        y = z3.Real("y")
        claims, places = [z3.BoolVal(normal)], []
        for k, tie in enumerate(TIES, 1):
            before, there, after = (rational(near) for near in _near(s * tie))
            place = z3.Or(y <= before, y == there, y >= after)
            right = y >= there if rounding is Rounding.TIES_TO_EVEN and k % 2 == 0 else y > there
            claims.append(reaches(y * rational(r), k) == right)
            places.append(place)
        yield Claim(
            [y >= 0, *places],
            z3.And(*claims),
            {},
            numbers=True,
            confirm=functools.partial(_search, s, r, rounding, reaches),
        )


def _search(s: Fraction, r: Fraction, rounding: Rounding, reaches: Reaches) -> Mapping[str, int] | None:
    """A y at a tie, or next to one, whose product does not reach the codes that y / s does."""
    for k, tie in enumerate(TIES, 1):
        for y in _near(s * tie):
            right = y >= s * tie if rounding is Rounding.TIES_TO_EVEN and k % 2 == 0 else y > s * tie
            if reaches(y * r, k) != right:
                return {"y": round_to(y, BINARY32), "s": round_to(s, BINARY32)}
    return None


def _near(value: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """A binary32 number above 0 and its neighbours, that below first."""
    bits = round_to(value, BINARY32)
    before, there, after = (Fraction(pattern_float(bits + step)) for step in (-1, 0, 1))
    if there != value:
        raise AssertionError(f"{value} is no binary32 number")
    return before, there, after


def _added(product: Any, k: int) -> Any:
    """By the least of 2v, v + 2 and v / 2 + 4, each rounded by an addition."""
    import z3

    sums = (product * 2, product + 2, product / 2 + 4)
    bound = Fraction(2 * k - 1, 2)
    if isinstance(product, Fraction):
        return all(term >= bound if k % 2 == 0 else term > bound for term in sums)
    return z3.And(*(term >= rational(bound) if k % 2 == 0 else term > rational(bound) for term in sums))


def _rounded(direction: str) -> Reaches:
    """By the code of the product rounded to binary32, ties to even: T reached for an even k, passed for an odd one."""

    def reaches(product: Any, k: int) -> Any:
        before, tie, after = _near(TIES[k - 1])
        if direction == "rp":
            bound, strict = (before, True) if k % 2 == 0 else (tie, True)
        elif direction == "rn":  # T has few bits, and so takes both midpoints next to it
            bound, strict = ((before + tie) / 2, False) if k % 2 == 0 else ((tie + after) / 2, True)
        else:
            bound, strict = (tie, False) if k % 2 == 0 else (after, False)
        limit = bound if isinstance(product, Fraction) else rational(bound)
        return product > limit if strict else product >= limit

    return reaches


def _ptx_rounding(code: Kernels) -> str:
    """In which direction the kernels' PTX multiplies.

    Raises:
      ArgumentError: it is another text than that of a product of a magnitude.
    """
    text = " ".join(code.e4m3.UPWARD.split())
    found = re.fullmatch(
        r"\{ \.reg \.f32 magnitude; abs\.f32 magnitude, \$1; mul\.(r[npmz])\.f32 \$0, magnitude, \$2; \}", text
    )
    if found is None:
        raise ArgumentError(f"UPWARD: got {text!r}, want a product of |$1| and $2, subnormals kept")
    return found.group(1)
