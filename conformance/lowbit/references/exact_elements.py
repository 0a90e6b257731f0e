"""One number to one code, in integers and Fractions: slow, obvious, complete.

A rounding is a statement about a real number v: find the two neighbouring codes lo and hi with lo <= |v| <= hi, the
exact position p = (|v| - lo) / (hi - lo), and choose one by the named rule. Nothing here is a float operation; Python
floats only carry NaN, infinities and the sign of zero, which a Fraction cannot.
"""

from __future__ import annotations

import bisect
import functools
import math
from fractions import Fraction

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.rules import NanCode, Rounding

BINARY32_INF = 0x7F800000
BINARY32_SIGN = 0x80000000


def round_to(
    value: Fraction,
    fmt: FloatFormat,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    *,
    negative: bool = False,
    saturate: bool = False,
) -> int:
    """The code of a real number in a format: one rounding.

    Args:
      value: any real number.
      fmt: format of the result; subnormals are kept.
      rounding: any rule but STOCHASTIC.
      negative: the sign of the result where `value` is 0; elsewhere `value` has its own.
      saturate: True stops at the largest finite magnitude; False overflows as IEEE 754 does, to Inf where the rule
        rounds that far. A format without Inf saturates always.

    Returns:
      The code, which for BINARY32 is the bit pattern.

    Raises:
      ArgumentError: STOCHASTIC, which needs random bits (see `encode`); a negative value for an unsigned format.

    Exactness: this is the definition.
    Spec: SPEC.md 1, 2.
    """
    if rounding is Rounding.STOCHASTIC:
        raise ArgumentError("rounding: got STOCHASTIC, which needs random bits; want `encode`")
    negative = value < 0 if value else negative
    if negative and not fmt.signed:
        raise ArgumentError(f"value: got {value}, want none below zero: {fmt.name} has no sign")
    magnitude = _round_magnitude(abs(value), fmt, rounding, negative, 0, 0)
    if magnitude > fmt.max_magnitude:
        magnitude = fmt.max_magnitude if saturate or fmt.inf_magnitude is None else fmt.inf_magnitude
    return fmt.sign_mask * negative | magnitude


def encode(
    x: float,
    element: FloatFormat,
    rounding: Rounding,
    nan: NanCode | None = None,
    *,
    random: int | None = None,
    random_width: int = 8,
) -> int:
    """The code of one element; overflow and Inf saturate, zero and what rounds to it keep the sign.

    A format without sign and zero (E8M0) takes what lies below its least value, +0 and -0 included, to code 0, and
    every negative number to NaN.

    Args:
      x: any binary32 (or binary64) value, NaN and ±Inf included; the exact number that it stands for is rounded.
      element: format of the code.
      rounding: element rule.
      nan: code of NaN; not used where the format has a NaN of its own.
      random: STOCHASTIC's r, 0..2**random_width - 1.
      random_width: n, the bits of r.

    Returns:
      The code, sign bit included.

    Raises:
      ArgumentError: NaN, with neither a rule nor a NaN in the format; STOCHASTIC without `random`, or one out of range.

    Exactness: this is the definition.
    Spec: SPEC.md 2.
    """
    if rounding is Rounding.STOCHASTIC and (random is None or not 0 <= random < 1 << random_width):
        raise ArgumentError(f"random: got {random}, want 0..{(1 << random_width) - 1} for stochastic rounding")
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x):
        return nan_code(element, nan, negative)
    if negative and not element.signed:
        if x == 0:
            return 0
        assert element.nan_magnitude is not None  # every unsigned format has a NaN
        return element.nan_magnitude
    sign = element.sign_mask * negative
    if math.isinf(x):
        return sign | element.max_magnitude
    magnitude = _round_magnitude(abs(Fraction(x)), element, rounding, negative, random or 0, random_width)
    return sign | min(magnitude, element.max_magnitude)


def nan_code(element: FloatFormat, nan: NanCode | None, negative: bool) -> int:
    """The code of NaN: the format's canonical one, else what the rule says."""
    if element.nan_magnitude is not None:
        return element.nan_magnitude
    match nan:
        case NanCode.POSITIVE_MAX:
            return element.magnitude_mask
        case NanCode.SIGNED_MAX:
            return element.sign_mask * negative | element.magnitude_mask
        case NanCode.NEGATIVE_ZERO:
            return element.sign_mask
        case NanCode.ZERO:
            return 0
    raise ArgumentError(f"nan: got {nan}, want a NanCode: {element.name} has no NaN")


@functools.cache
def breakpoints(element: FloatFormat, rounding: Rounding, negative: bool) -> tuple[tuple[int, int], ...]:
    """Where the code changes: the complete truth for every binary32 of one sign that is not NaN.

    Codes are monotone in the magnitude, so a pattern has the code of the last row at or below it.

    Args:
      element: format of the codes, at most 8 bits.
      rounding: any rule but STOCHASTIC.
      negative: which sign.

    Returns:
      Rows (first binary32 bit pattern, code), ascending. Patterns carry the sign bit: the first row is at 0x00000000
      or 0x80000000, and the last one reaches to the infinity of that sign.

    Raises:
      ArgumentError: STOCHASTIC, which is no function of x alone.
    """
    first = BINARY32_SIGN if negative else 0
    end = first + BINARY32_INF + 1
    rows = [(first, _encode_pattern(first, element, rounding))]
    while True:
        change = _first_change(*rows[-1], end, element, rounding)
        if change == end:
            break
        rows.append((change, _encode_pattern(change, element, rounding)))
    return tuple(rows)


def pattern_float(pattern: int, fmt: FloatFormat = BINARY32) -> float:
    """The value of a bit pattern as a Python float, which holds every one of at most 64 bits exactly."""
    if fmt.is_nan(pattern):
        return math.copysign(math.nan, -1.0 if fmt.is_negative(pattern) else 1.0)
    return float(fmt.value(pattern))


def _first_change(start: int, code: int, end: int, element: FloatFormat, rounding: Rounding) -> int:
    """The first pattern from `start`, which has `code`, that has another one; `end` if there is none."""

    def differs(pattern: int) -> bool:  # False, …, False, True, …, True: the patterns of one code are consecutive
        return _encode_pattern(pattern, element, rounding) != code

    return start + bisect.bisect_left(range(start, end), True, key=differs)


def _encode_pattern(pattern: int, element: FloatFormat, rounding: Rounding) -> int:
    return encode(pattern_float(pattern), element, rounding)


def _round_magnitude(
    value: Fraction, fmt: FloatFormat, rounding: Rounding, negative: bool, random: int, random_width: int
) -> int:
    """The magnitude that a value >= 0 rounds to; max_magnitude + 1 stands for everything that overflows."""
    if not value or (not fmt.has_zero and value < fmt.min_positive):
        return 0  # without a zero the least magnitude takes everything below it, whatever the rule
    lo, position = _neighbours(value, fmt)
    if lo > fmt.max_magnitude:
        # Beyond the last step of the ladder only the direction matters: nearest goes up, toward zero comes back.
        lo, position = fmt.max_magnitude, Fraction(3, 4)
    return lo + _rounds_up(lo, position, rounding, negative, random, random_width)


def _neighbours(value: Fraction, fmt: FloatFormat) -> tuple[int, Fraction]:
    """The largest magnitude lo whose value is not above `value`, and the position 0 <= p < 1 toward lo + 1.

    The ladder continues above the largest finite magnitude with the same step, as IEEE 754 defines overflow.
    """
    exponent = max(floor_log2(value), fmt.emin)
    place = exponent - fmt.mantissa_bits
    numerator, denominator = value.numerator << max(-place, 0), value.denominator << max(place, 0)
    whole, rest = divmod(numerator, denominator)  # in units of the last place, 2**place
    # A normal number has 2**m <= whole < 2**(m + 1); in a format with a zero the subnormals, below 2**m, have the
    # exponent field 0 and the first normals 1, which is why the implicit bit counts there.
    implicit = 0 if fmt.has_zero else 1 << fmt.mantissa_bits
    return ((exponent - fmt.emin) << fmt.mantissa_bits) + whole - implicit, Fraction(rest, denominator)


def floor_log2(value: Fraction) -> int:
    """The exponent E of 2**E <= value < 2**(E + 1), for a value above zero."""
    estimate = value.numerator.bit_length() - value.denominator.bit_length()
    reached = value.denominator << max(estimate, 0) <= value.numerator << max(-estimate, 0)
    return estimate if reached else estimate - 1


def _rounds_up(lo: int, position: Fraction, rounding: Rounding, negative: bool, random: int, random_width: int) -> bool:
    """Whether the magnitude becomes lo + 1 rather than lo."""
    if position == 0:
        return False
    match rounding:
        case Rounding.TOWARD_ZERO:
            return False
        case Rounding.TOWARD_NEGATIVE:
            return negative
        case Rounding.TOWARD_POSITIVE:
            return not negative
        case Rounding.STOCHASTIC:
            return random >= (1 << random_width) - math.floor(position * (1 << random_width))
    if position != Fraction(1, 2):
        return position > Fraction(1, 2)
    match rounding:
        case Rounding.TIES_TO_EVEN:
            return lo % 2 == 1
        case Rounding.TIES_TOWARD_ZERO:
            return False
        case Rounding.TIES_AWAY:
            return True
        case Rounding.TIES_DOWN:
            return negative
        case Rounding.TIES_UP:
            return not negative
    raise ArgumentError(f"rounding: got {rounding}, want a member of Rounding")
