"""What every format's codes stand for, and where rounding to it changes its code.

Codes grow with the magnitude, and so do binary32 patterns: the first and the last pattern of each code are the complete
truth for all 2**32 inputs. The places are derived here from the values alone; the witnesses are asked at both ends of
every row.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction

from lowbit.formats import BINARY32, LOW_BIT, FloatFormat
from lowbit.rules import NanCode, Rounding
from lowbit.vectors.hextext import word
from lowbit.vectors.payload import Draft, Raw, draft

DETERMINISTIC = tuple(rule for rule in Rounding if rule is not Rounding.STOCHASTIC)

SIGN, INFINITY, LAST_NAN = 0x80000000, 0x7F800000, 0x7FFFFFFF

SOURCES = {
    "e2m1": "OCP Microscaling Formats 1.0, 5.3.3",
    "e3m0": "SPEC.md 1; the second element type of FBGEMM's MX4",
    "e2m3": "OCP Microscaling Formats 1.0, 5.3.2",
    "e3m2": "OCP Microscaling Formats 1.0, 5.3.2",
    "e4m3": "OCP 8-bit Floating Point 1.0, 5.2; OCP Microscaling Formats 1.0, 5.3.1",
    "e5m2": "OCP 8-bit Floating Point 1.0, 5.2; OCP Microscaling Formats 1.0, 5.3.1",
    "e8m0": "OCP Microscaling Formats 1.0, 5.4.1",
}


def build() -> Iterator[Draft]:
    """The groups of all formats of at most 8 bits."""
    for fmt in LOW_BIT:
        yield draft(
            f"formats/{fmt.name}/decode.json",
            f"{fmt.name}/decode",
            "decode",
            "codes",
            map(_decoded(fmt), range(1 << fmt.bits)),
            format=fmt.name,
            source=SOURCES[fmt.name],
            flags=("complete", "decode"),
        )
        for rounding in DETERMINISTIC:
            yield draft(
                f"formats/{fmt.name}/breakpoints.json",
                f"{fmt.name}/{rounding.value}",
                "breakpoints",
                "rows",
                rows(fmt, rounding),
                format=fmt.name,
                rounding=rounding.value,
                source=f"SPEC.md 2; {SOURCES[fmt.name]}",
                flags=("complete", "rounding"),
            )
        if fmt.nan_magnitude is None:
            for nan in NanCode:
                yield draft(
                    f"formats/{fmt.name}/breakpoints.json",
                    f"{fmt.name}/{nan.value}",
                    "breakpoints",
                    "rows",
                    _nan_rows(fmt, nan),
                    format=fmt.name,
                    nan=nan.value,
                    source="SPEC.md 2",
                    flags=("complete", "nan"),
                )


def rows(fmt: FloatFormat, rounding: Rounding) -> list[Raw]:
    """Every binary32 input's code: all that are not NaN, and NaN where the format has one of its own."""
    found = [row for negative in (False, True) for row in _sign_rows(fmt, rounding, negative)]
    return [_row(fmt, *row) for row in found]


def first_pattern(value: Fraction, *, above: bool) -> int:
    """The first binary32 magnitude pattern whose value is at least `value`, or above it.

    Midpoints and values of all our formats are binary32 numbers, so that nothing is rounded here.
    """
    pattern = struct.unpack("<I", struct.pack("<f", float(value)))[0]
    assert Fraction(*struct.unpack("<f", struct.pack("<f", float(value)))[0].as_integer_ratio()) == value
    return int(pattern) + above


def code_text(fmt: FloatFormat, code: int) -> str:
    """A code in hex, with the digits that its bits need."""
    return f"{code:0{-(-fmt.bits // 4)}x}"


def _sign_rows(fmt: FloatFormat, rounding: Rounding, negative: bool) -> Iterator[tuple[int, int, int]]:
    sign = SIGN * negative
    if negative and not fmt.signed:
        assert fmt.nan_magnitude is not None  # every unsigned format has a NaN
        yield sign, sign, 0
        yield sign | 1, sign | LAST_NAN, fmt.nan_magnitude
        return
    starts = [0]
    for low in range(fmt.max_magnitude):
        starts.append(_start(fmt.magnitude_value(low), fmt.magnitude_value(low + 1), low, rounding, negative))
    ends = [*(start - 1 for start in starts[1:]), INFINITY]
    for magnitude, (first, last) in enumerate(zip(starts, ends, strict=True)):
        yield sign | first, sign | last, fmt.sign_mask * negative | magnitude
    if fmt.nan_magnitude is not None:
        yield sign | INFINITY + 1, sign | LAST_NAN, fmt.nan_magnitude


def _start(low: Fraction, high: Fraction, code: int, rounding: Rounding, negative: bool) -> int:
    """The first magnitude pattern that goes to `code + 1`, of value `high`, rather than to `code`, of value `low`."""
    outward = {Rounding.TOWARD_ZERO: False, Rounding.TOWARD_NEGATIVE: negative, Rounding.TOWARD_POSITIVE: not negative}
    if rounding in outward:
        return first_pattern(low, above=True) if outward[rounding] else first_pattern(high, above=False)
    tie_up = {
        Rounding.TIES_TO_EVEN: code % 2 == 1,
        Rounding.TIES_TOWARD_ZERO: False,
        Rounding.TIES_AWAY: True,
        Rounding.TIES_DOWN: negative,
        Rounding.TIES_UP: not negative,
    }[rounding]
    return first_pattern((low + high) / 2, above=not tie_up)


def _nan_rows(fmt: FloatFormat, nan: NanCode) -> list[Raw]:
    largest, sign = fmt.magnitude_mask, fmt.sign_mask
    positive, negative = {
        NanCode.POSITIVE_MAX: (largest, largest),
        NanCode.SIGNED_MAX: (largest, sign | largest),
        NanCode.NEGATIVE_ZERO: (sign, sign),
        NanCode.ZERO: (0, 0),
    }[nan]
    first = INFINITY + 1
    return [_row(fmt, first, LAST_NAN, positive), _row(fmt, SIGN | first, SIGN | LAST_NAN, negative)]


def _row(fmt: FloatFormat, first: int, last: int, code: int) -> Raw:
    return {"first": word(first), "last": word(last), "code": code_text(fmt, code)}


def _decoded(fmt: FloatFormat) -> Callable[[int], Raw]:
    def case(code: int) -> Raw:
        value = fmt.value(code)
        if math.isnan(value):
            return {"code": code_text(fmt, code), "binary32": word(BINARY32.magnitude_mask ^ 0x3FFFFF), "value": "nan"}
        pattern = struct.unpack("<I", struct.pack("<f", float(value)))[0]
        return {"code": code_text(fmt, code), "binary32": word(pattern), "value": hex_float(float(value))}

    return case


def hex_float(value: float) -> str:
    """A C99 hexadecimal floating constant without trailing zeros: ``0x1.8p+2``, ``-0x0p+0``, ``inf``."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    head, _, exponent = value.hex().partition("p")
    return f"{head.rstrip('0').rstrip('.') if '.' in head else head}p{exponent}"
