"""Ladders: codes as steps over the bit patterns of binary32.

A code, or a power-of-two scale, is monotone in the magnitude of what it encodes, and the bit patterns of binary32 are
monotone in theirs. So a short list of "from this pattern on, this code" is the complete truth about all 2**32 inputs.
Everything here is Python integers; `references.tensors` turns it into tensors.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.references import exact
from lowbit.rules import NanCode, Rounding, ScaleRule
from lowbit.schemes import Scheme

INF = BINARY32.max_magnitude + 1
"""The pattern of +Inf; larger magnitudes are NaN."""

SIGN = BINARY32.sign_mask

_SIGNIFICAND = 1 << BINARY32.mantissa_bits

Rows = tuple[tuple[int, int], ...]
"""(first pattern, code) of each step, ascending."""


@functools.cache
def element_rows(element: FloatFormat, rounding: Rounding, nan: NanCode | None) -> Rows:
    """The code of every binary32 pattern, NaN included.

    Args:
      element: format of the codes, at most 8 bits.
      rounding: any rule but STOCHASTIC.
      nan: code of NaN; not used where the format has a NaN of its own.

    Returns:
      Rows over the unsigned patterns 0 .. 2**32 - 1; the first starts at 0.

    Raises:
      ArgumentError: STOCHASTIC; no `nan` for a format without NaN.

    Exactness: `references.exact.breakpoints`, rearranged.
    Spec: SPEC.md 2.
    """
    rows: list[tuple[int, int]] = []
    for negative in (False, True):
        sign = SIGN * negative
        rows += ((sign | first & ~SIGN, code) for first, code in exact.breakpoints(element, rounding, negative))
        rows.append((sign | INF + 1, nan_code(element, nan, negative)))
    return tuple(rows)


def signed_rows(rows: Rows) -> Rows:
    """The same rows over patterns read as int32: -0 comes first, at -2**31, and +0 follows the negative NaNs."""
    return tuple((first - 2 * SIGN, code) for first, code in rows if first >= SIGN) + tuple(
        (first, code) for first, code in rows if first < SIGN
    )


def nan_code(element: FloatFormat, nan: NanCode | None, negative: bool) -> int:
    """The code of a NaN of one sign."""
    if element.nan_magnitude is not None:
        return element.nan_magnitude
    codes = {
        NanCode.POSITIVE_MAX: element.magnitude_mask,
        NanCode.SIGNED_MAX: element.magnitude_mask | element.sign_mask * negative,
        NanCode.NEGATIVE_ZERO: element.sign_mask,
        NanCode.ZERO: 0,
    }
    if nan not in codes:
        raise ArgumentError(f"nan: got {nan}, want a NanCode, since {element.name} has no NaN")
    return codes[nan]


@functools.cache
def exponent_starts(scheme: Scheme) -> tuple[int, ...]:
    """Where a power-of-two scale's exponent goes up by one.

    Args:
      scheme: of the mx4 or mxfp4 family. Under the rule STOCHASTIC the rows are for the bits of amax with the random
        bits added.

    Returns:
      Patterns of amax, ascending: the first that has at least the exponent lo + 1, lo + 2, …, hi, where lo and hi are
      the bounds of `scheme.exponent_range`. Patterns above Inf's are drawn to it: Inf has the exponent hi.

    Raises:
      ArgumentError: a scale rule that gives no power of two.

    Exactness: integers; the square root of NEAREST by `math.isqrt`.
    Spec: SPEC.md 3.1, 3.2.
    """
    if scheme.exponent_range is None:
        raise ArgumentError(f"scheme: got {scheme.name}, whose scale is no power of two")
    least = _least_significand(scheme.scale_rule, scheme.element)
    low, high = scheme.exponent_range
    # What is subtracted from the rounded log2: MX4's e is the width of the exponent field, which is 3 for E3M0 though
    # its emax is 4; OCP's is the emax.
    subtracted = scheme.element.exponent_bits if scheme.family == "mx4" else scheme.element.emax
    starts = []
    for exponent in range(low + 1, high + 1):
        # The exponent is reached within the binade below the one that it names.
        binade = exponent + subtracted - 1 + BINARY32.bias
        assert binade > 0  # amax is normal there, so that its significand is what the rule speaks of
        starts.append(min((binade - 1) * _SIGNIFICAND + least, INF))
    return tuple(starts)


def _least_significand(rule: ScaleRule, element: FloatFormat) -> int:
    """The least significand of amax, in units of 2**-23, that takes the next exponent: 2**23 .. 2**24."""
    even = 2 - Fraction(1, 2 ** (element.mantissa_bits + 1))
    match rule:
        case ScaleRule.FLOOR | ScaleRule.STOCHASTIC:
            return 2 * _SIGNIFICAND
        case ScaleRule.CEIL:
            return _SIGNIFICAND + 1
        case ScaleRule.NEAREST:
            return math.isqrt(2 * _SIGNIFICAND**2) + 1  # the root is irrational: never equal
        case ScaleRule.EVEN:
            return int(even * _SIGNIFICAND)
        case ScaleRule.EVEN_EXCLUSIVE:
            return int(even * _SIGNIFICAND) + 1
        case ScaleRule.RCEIL:
            return int(element.max_value / 2**element.emax * _SIGNIFICAND) + 1
    raise ArgumentError(f"scale_rule: got {rule}, want one that gives a power of two")


def random_mask(element: FloatFormat) -> int:
    """The random bits that the rule STOCHASTIC adds to the bits of amax."""
    return (1 << (BINARY32.mantissa_bits - element.mantissa_bits)) - 1


def values(fmt: FloatFormat) -> tuple[float, ...]:
    """The value of every code, as Python floats, which hold those of any format of at most 8 bits exactly."""
    return tuple(float(fmt.value(code)) for code in range(1 << fmt.bits))


def power_pattern(exponent: int) -> int:
    """The binary32 pattern of 2**exponent, -149 .. 127."""
    if exponent + BINARY32.bias > 0:
        return (exponent + BINARY32.bias) << BINARY32.mantissa_bits
    return 1 << (exponent + BINARY32.bias - 1 + BINARY32.mantissa_bits)
