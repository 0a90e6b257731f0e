"""What kind of mismatch it is: the vocabulary, and the classes of wrong codes and wrong values.

Everything here is vectorised over mismatching places, so that the count of each kind is exact however many there are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowbit.compare.arrays import namespace
from lowbit.formats import BINARY32, FloatFormat
from lowbit.rules import NonFinite, TensorScaleRule
from lowbit.schemes import Scheme

KINDS: dict[str, str] = {
    "error": "the call raised",
    "lemma": "a lemma about the sources is refuted, or undecided",
    "shape": "wrong shape",
    "dtype": "wrong dtype",
    "changed_input": "an input was written to",
    "view": "a result shares memory with an input",
    "setting": "a setting of the process was changed",
    "guard": "a byte outside the output was written",
    "unwritten": "a byte of the output was not written",
    "nondeterministic": "two calls gave different bits",
    "tensor_scale": "wrong tensor scale",
    "scale": "wrong scale code",
    "padding": "wrong padding",
    "scaled": "code in a block whose scale differs",
    "nan": "NaN on one side, or an input of NaN",
    "sign": "right magnitude, or a nonzero one, with the wrong sign",
    "zero_sign": "-0 for +0 or +0 for -0",
    "saturation": "input beyond the largest value",
    "tie": "input exactly midway between the two codes",
    "rounding": "the neighbouring code, the input not midway",
    "value": "more than one code away",
    "byte": "wrong byte",
}
"""Every kind, gravest first, with what it means. Sampling and reports keep this order."""

CODE_KINDS = ("padding", "scaled", "nan", "sign", "zero_sign", "saturation", "tie", "rounding", "value")
VALUE_KINDS = ("nan", "sign", "zero_sign", "saturation", "rounding", "value")
"""What the numbers of `code_kinds` and `value_kinds` stand for; of several that fit, the first."""

NOWHERE = 1 << 40
"""The ordinal of NaN, and of what is no code."""


def ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by kind, gravest first."""
    rank = {kind: i for i, kind in enumerate(KINDS)}
    return dict(sorted(counts.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


@functools.cache
def value_table(fmt: FloatFormat) -> np.ndarray:
    """(2**bits,) float64. The value of every code of a format of at most 8 bits."""
    return np.array([float(fmt.value(code)) for code in range(1 << fmt.bits)])


def ordinal(code: int, fmt: FloatFormat) -> int | None:
    """The place of a code on the number line, ±0 both at 0; None for NaN and for what is no code."""
    if not 0 <= code < 1 << fmt.bits or fmt.is_nan(code):
        return None
    magnitude = code & fmt.magnitude_mask
    return -magnitude if fmt.is_negative(code) else magnitude


@functools.cache
def ordinal_table(fmt: FloatFormat) -> np.ndarray:
    """(256,) int64. `ordinal` of every byte, `NOWHERE` for NaN and for what is no code."""
    found = (ordinal(code, fmt) for code in range(256))
    return np.array([NOWHERE if place is None else place for place in found])


def ordinals(codes: Any, fmt: FloatFormat) -> Any:
    """(N,) int64. `ordinal` of every code of a format of at most 32 bits, `NOWHERE` for NaN and for what is no code.

    Args:
      codes: (N,) uint8, or integers of the width of a format of values.
    """
    xp = namespace(codes)
    if fmt.bits <= 8:
        return _table(ordinal_table(fmt), codes)[xp.asarray(codes, dtype=xp.int64)]
    negative, magnitude = _split(codes, fmt)
    infinite = fmt.inf_magnitude
    assert infinite is not None  # every format of values has Inf
    return xp.where(magnitude > infinite, NOWHERE, xp.where(negative, -magnitude, magnitude))


def distance(actual: int, expected: int, fmt: FloatFormat) -> int | None:
    """How many codes apart; None where one of them is NaN or no code."""
    a, e = ordinal(actual, fmt), ordinal(expected, fmt)
    return None if a is None or e is None else abs(a - e)


@functools.cache
def scale_table(scheme: Scheme) -> np.ndarray:
    """(256,) float64. What an element is divided by under each scale code, as the scheme's encoder does it."""
    table = value_table(scheme.scale).copy()
    if scheme.family == "nvfp4" and scheme.nonfinite is NonFinite.PROPAGATE:
        return np.where(table > 0, table, float(scheme.scale.min_positive))
    if scheme.nonfinite is NonFinite.MARK_BLOCK:
        return np.where(np.isnan(table) | (table == 0), 1.0, table)
    if scheme.global_scale is not None and scheme.tensor_scale is TensorScaleRule.GLOBAL_SCALE:
        factor = float(scheme.global_scale)
        if scheme.high is BINARY32:
            return (table.astype(np.float32) * np.float32(factor)).astype(np.float64)
        return table * factor
    return table


def operands(x: Any, scale_codes: Any, scheme: Scheme, tensor_scale: float | None) -> tuple[Any, Any]:
    """(y, s): the exact quotient y / s decides an element's code under the scheme.

    Args:
      x: (N,) float32. scale_codes: (N,) uint8 of the elements' blocks. tensor_scale: g, where the scheme has one.

    Returns:
      Two (N,) float64, on x's device.

    Exactness: for nvfp4, RN32(y / s) is a midpoint iff y / s is one: y has 24 bits, midpoint · s at most 7.
    """
    xp = namespace(x)
    s = _table(scale_table(scheme), x)[xp.asarray(scale_codes, dtype=xp.int64)]
    y = double(x)
    if scheme.family == "nvfp4" and tensor_scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            y = xp.asarray(xp.asarray(y * float(tensor_scale), dtype=xp.float32), dtype=xp.float64)
    if scheme.family == "rtn_xxfp4":
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            y = y / s
            if scheme.high is BINARY32:
                y = xp.asarray(xp.asarray(y, dtype=xp.float32), dtype=xp.float64)
        s = xp.ones_like(y)
    return y, s


def double(x: Any) -> Any:
    """A float32 array as float64; signalling NaN without a warning."""
    xp = namespace(x)
    with np.errstate(invalid="ignore"):
        return xp.asarray(x, dtype=xp.float64)


def code_kinds(
    actual: Any, expected: Any, y: Any, s: Any, element: FloatFormat, *, scaled: Any = None, padding: Any = None
) -> dict[str, Any]:
    """Sorts mismatching codes into kinds.

    Args:
      actual, expected: (N,) uint8. Codes that differ.
      y, s: (N,) float64. What was encoded is y / s; s is 1 for the scalar stage.
      scaled, padding: (N,) bool, or None for nowhere. Block scale differs; lane lies beyond x.

    Returns:
      (N,) int64. Places in `CODE_KINDS`.
    """
    xp = namespace(actual)
    a, e = xp.asarray(actual, dtype=xp.int64), xp.asarray(expected, dtype=xp.int64)
    mask = (1 << element.bits) - 1
    foreign = (a > mask) | (e > mask)
    a, e = a & mask, e & mask
    values = _table(value_table(element), actual)
    va, ve = values[a], values[e]
    ma, me = a & element.magnitude_mask, e & element.magnitude_mask
    opposite = ((a ^ e) & element.sign_mask) != 0
    zero = 0 if element.has_zero else -1
    sa = xp.where((a & element.sign_mask) != 0, -ma, ma)
    se = xp.where((e & element.sign_mask) != 0, -me, me)
    adjacent = xp.abs(sa - se) == 1
    with np.errstate(invalid="ignore", over="ignore"):
        midway = y == (va + ve) * 0.5 * s
        beyond = xp.abs(y) > float(element.max_value) * xp.abs(s)
    nowhere = xp.zeros_like(foreign)
    tests = {
        "padding": nowhere if padding is None else padding,
        "scaled": nowhere if scaled is None else scaled,
        "nan": xp.isnan(y) | xp.isnan(s) | (~foreign & (xp.isnan(va) | xp.isnan(ve))),
        "sign": ~foreign & opposite & (ma != zero) & (me != zero),
        "zero_sign": ~foreign & opposite & (ma == me),
        "saturation": ~foreign & beyond,
        "tie": ~foreign & adjacent & midway,
        "rounding": ~foreign & adjacent,
    }
    return first_true(tests, CODE_KINDS, a)


def value_kinds(actual: Any, expected: Any, fmt: FloatFormat) -> dict[str, Any]:
    """Sorts mismatching bit patterns of a floating format into kinds.

    Args:
      actual, expected: (N,) integers of the format's width, signed or not.

    Returns:
      (N,) int64. Places in `VALUE_KINDS`.
    """
    xp = namespace(actual)
    (na, ma), (ne, me) = _split(actual, fmt), _split(expected, fmt)
    infinite = fmt.inf_magnitude
    assert infinite is not None  # every format of values has Inf
    opposite = na != ne
    sa, se = xp.where(na, -ma, ma), xp.where(ne, -me, me)
    tests = {
        "nan": (ma > infinite) | (me > infinite),
        "sign": opposite & (ma != 0) & (me != 0),
        "zero_sign": opposite & (ma == 0) & (me == 0),
        "saturation": (ma == infinite) | (me == infinite),
        "rounding": xp.abs(sa - se) == 1,
    }
    return first_true(tests, VALUE_KINDS, ma)


def values_differ(fmt: FloatFormat) -> Any:
    """(actual, expected) -> mask: the bits differ and not both are NaN."""
    infinite = fmt.inf_magnitude
    assert infinite is not None  # every format of values has Inf

    def unequal(actual: Any, expected: Any) -> Any:
        other = actual != expected
        if not bool(other.any()):  # the usual case, at a fraction of the memory traffic
            return other
        return other & ~((_split(actual, fmt)[1] > infinite) & (_split(expected, fmt)[1] > infinite))

    return unequal


def _split(bits: Any, fmt: FloatFormat) -> tuple[Any, Any]:
    """Sign (bool) and magnitude (int64) of bit patterns."""
    xp = namespace(bits)
    wide = xp.asarray(bits, dtype=xp.int64)
    return (wide >> (fmt.bits - 1)) & 1 != 0, wide & fmt.magnitude_mask


def _table(table: np.ndarray, like: Any) -> Any:
    xp = namespace(like)
    return table if xp is np else xp.asarray(table, device=like.device)


def first_true(tests: Mapping[str, Any], order: tuple[str, ...], like: Any) -> Any:
    """(N,) int64 as `like`: the place in the order of the first kind whose test is true, the last kind's if none is."""
    xp = namespace(like)
    found = xp.full_like(like, len(order) - 1)
    for rank in reversed(range(len(order) - 1)):
        found = xp.where(tests[order[rank]], rank, found)
    return found
