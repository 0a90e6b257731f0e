"""IEEE 754 arithmetic on bit patterns, each operation rounded once to nearest even, with Fractions inside.

A pattern is the code of a `FloatFormat` with Inf and NaN (BINARY32 unless said otherwise), which holds all that IEEE
arithmetic tells apart: NaN, infinities and the sign of zero. So the fate of NaN and Inf in a scheme follows from its
formula and is written nowhere by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from lowbit.formats import BINARY32, FloatFormat
from lowbit.references.exact_elements import round_to


def multiply(a: int, b: int, fmt: FloatFormat = BINARY32) -> int:
    """RN(a * b): 0 * Inf is NaN; a NaN operand is handed on as it is."""
    if (nan := _first_nan(a, b, fmt)) is not None:
        return nan
    negative = fmt.is_negative(a) != fmt.is_negative(b)
    if fmt.is_inf(a) or fmt.is_inf(b):
        return _nan(fmt) if is_zero(a, fmt) or is_zero(b, fmt) else _infinity(fmt, negative)
    return round_to(_signed(negative, _magnitude(a, fmt) * _magnitude(b, fmt)), fmt, negative=negative)


def divide(a: int, b: int, fmt: FloatFormat = BINARY32) -> int:
    """RN(a / b): 0 / 0 and Inf / Inf are NaN, x / 0 is Inf; a NaN operand is handed on as it is."""
    if (nan := _first_nan(a, b, fmt)) is not None:
        return nan
    negative = fmt.is_negative(a) != fmt.is_negative(b)
    if fmt.is_inf(a):
        return _nan(fmt) if fmt.is_inf(b) else _infinity(fmt, negative)
    if fmt.is_inf(b):
        return round_to(Fraction(0), fmt, negative=negative)
    if is_zero(b, fmt):
        return _nan(fmt) if is_zero(a, fmt) else _infinity(fmt, negative)
    return round_to(_signed(negative, _magnitude(a, fmt) / _magnitude(b, fmt)), fmt, negative=negative)


def maximum(a: int, b: int, fmt: FloatFormat = BINARY32) -> int:
    """The larger of two; NaN if either is."""
    if (nan := _first_nan(a, b, fmt)) is not None:
        return nan
    return a if fmt.value(a) >= fmt.value(b) else b


def minimum(a: int, b: int, fmt: FloatFormat = BINARY32) -> int:
    """The smaller of two; NaN if either is."""
    if (nan := _first_nan(a, b, fmt)) is not None:
        return nan
    return a if fmt.value(a) <= fmt.value(b) else b


def clamp(value: int, lowest: int, highest: int, fmt: FloatFormat = BINARY32) -> int:
    """The value limited to lowest..highest; NaN stays NaN."""
    return minimum(maximum(value, lowest, fmt), highest, fmt)


def largest_magnitude(values: Iterable[int], fmt: FloatFormat = BINARY32) -> int:
    """The largest |value|, 0 of none; NaN if any is NaN."""
    largest = 0
    for value in values:
        largest = maximum(largest, value & fmt.magnitude_mask, fmt)
    return largest


def convert(value: int, source: FloatFormat, target: FloatFormat) -> int:
    """The value in another format, rounded once; NaN to the target's canonical one, its sign dropped."""
    if source.is_nan(value):
        return _nan(target)
    negative = source.is_negative(value)
    if source.is_inf(value):
        return _infinity(target, negative)
    return round_to(_signed(negative, _magnitude(value, source)), target, negative=negative)


def is_zero(value: int, fmt: FloatFormat = BINARY32) -> bool:
    return fmt.has_zero and value & fmt.magnitude_mask == 0


def is_finite(value: int, fmt: FloatFormat = BINARY32) -> bool:
    return not fmt.is_nan(value) and not fmt.is_inf(value)


def _magnitude(value: int, fmt: FloatFormat) -> Fraction:
    return fmt.magnitude_value(value & fmt.magnitude_mask)


def _signed(negative: bool, magnitude: Fraction) -> Fraction:
    return -magnitude if negative else magnitude


def _first_nan(a: int, b: int, fmt: FloatFormat) -> int | None:
    return next((value for value in (a, b) if fmt.is_nan(value)), None)


def _nan(fmt: FloatFormat) -> int:
    assert fmt.nan_magnitude is not None  # arithmetic happens in formats with NaN only
    return fmt.nan_magnitude


def _infinity(fmt: FloatFormat, negative: bool) -> int:
    """Inf, or the largest finite value of a format without one."""
    magnitude = fmt.max_magnitude if fmt.inf_magnitude is None else fmt.inf_magnitude
    return fmt.sign_mask * negative | magnitude
