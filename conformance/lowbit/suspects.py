"""Single changes of a rule that would explain a wrong block quantiser: a table of name, sentence and function.

A function takes a `Trial` and returns what an implementation with that fault would give, or None where the fault
cannot occur. Whatever the references refuse is skipped as well: a suspect is tried, or it is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lowbit import packing, schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.rules import NanCode, NonFinite, Rounding, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Encoded
from lowbit.suspect_scales import SCALES
from lowbit.trial import Floats, Suspect, Trial

ROUNDINGS: dict[Rounding, str] = {
    Rounding.TIES_TO_EVEN: "ties to even",
    Rounding.TIES_TOWARD_ZERO: "ties toward zero",
    Rounding.TIES_AWAY: "ties away from zero",
    Rounding.TIES_DOWN: "ties toward -Inf",
    Rounding.TIES_UP: "ties toward +Inf",
    Rounding.TOWARD_ZERO: "elements truncated toward zero",
    Rounding.TOWARD_NEGATIVE: "elements rounded toward -Inf",
    Rounding.TOWARD_POSITIVE: "elements rounded toward +Inf",
}
"""What every rounding rule but the stochastic one is called in a diagnosis."""

NANS: dict[NanCode, str] = {
    NanCode.POSITIVE_MAX: "NaN encoded as +max",
    NanCode.SIGNED_MAX: "NaN encoded as max with the NaN's sign",
    NanCode.NEGATIVE_ZERO: "NaN encoded as -0",
    NanCode.ZERO: "NaN encoded as +0",
}
"""What every NaN rule is called in a diagnosis."""


def through(fmt: FloatFormat, x: Floats) -> Floats:
    """x rounded to binary16 or bfloat16, ties to even, and widened again; NaN stays."""
    with np.errstate(over="ignore"):
        if fmt is BINARY16:
            return x.astype(np.float16).astype(np.float32)
    pattern = x.view(np.uint32).astype(np.uint64)
    shift = np.uint64(BINARY32.mantissa_bits - fmt.mantissa_bits)
    even = (pattern >> shift) & np.uint64(1)
    rounded = (pattern + even + np.uint64((1 << (int(shift) - 1)) - 1)) >> shift << shift
    return np.where(np.isnan(x), x, rounded.astype(np.uint32).view(np.float32))


def flushed(x: Floats) -> Floats:
    """x with binary32's subnormals replaced by zeros of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**BINARY32.emin), np.copysign(np.float32(0), x), x)


def suspects(trial: Trial) -> Iterator[tuple[Suspect, ...]]:
    """All suspects in groups, the likeliest group first."""
    yield (*_rules(trial), *ELEMENTS, *ORDER)
    yield SCALES
    yield tuple(_dialects(trial))


def _rules(trial: Trial) -> Iterator[Suspect]:
    """Every other member of every rule of the scheme."""
    scheme = trial.scheme
    for rounding, text in ROUNDINGS.items():
        if rounding is not scheme.rounding:
            yield Suspect(rounding.value, text, partial(_with_rules, rounding=rounding))
    for nan, text in NANS.items():
        if nan is not scheme.nan:
            yield Suspect(nan.value, text, partial(_with_rules, nan=nan))
    for rule in ScaleRule:
        if rule not in (scheme.scale_rule, ScaleRule.STOCHASTIC):
            yield Suspect(rule.value, f"the scale rule {rule.value}", partial(_with_rules, scale_rule=rule))
    for zero in ZeroBlock:
        if zero is not scheme.zero_block:
            yield Suspect(
                zero.value, f"blocks of zeros by the rule {zero.value}", partial(_with_rules, zero_block=zero)
            )
    for special in NonFinite:
        if special is not scheme.nonfinite:
            text = f"blocks with NaN or Inf by the rule {special.value}"
            yield Suspect(special.value, text, partial(_with_rules, nonfinite=special))
    for g in TensorScaleRule:
        if g is not scheme.tensor_scale and not trial.given:
            yield Suspect(g.value, f"the tensor scale rule {g.value}", partial(_with_rules, tensor_scale=g))
    yield Suspect("tensor_scale", "the tensor scale that it returned taken for right", _with_its_tensor_scale)


def _with_rules(trial: Trial, **rules: Any) -> Encoded:
    return trial.quantize(**rules)


def _with_its_tensor_scale(trial: Trial) -> Encoded | None:
    g, right = trial.actual.tensor_scale, trial.expected.tensor_scale
    return None if g is None or g == right else trial.quantize(g=g)


def _dialects(trial: Trial) -> Iterator[Suspect]:
    """Every other scheme of the same element, block and scale format."""
    mine = trial.scheme
    for other in schemes.select():
        alike = (other.element, other.scale, other.block) == (mine.element, mine.scale, mine.block)
        if alike and other.name != mine.name and not other.stochastic:
            yield Suspect(other.name, f"the rules of the scheme {other.name}", partial(_as_scheme, other=other))


def _as_scheme(trial: Trial, other: schemes.Scheme) -> Encoded | None:
    return trial.quantize_as(other)


def _input(trial: Trial, change: Callable[[Floats], Floats]) -> Encoded:
    return trial.quantize(x=change(trial.x))


def _elements_of(trial: Trial, change: Callable[[Floats], Floats]) -> Encoded | None:
    if not trial.separable:
        return None
    return trial.expected._replace(codes=trial.codes_for(trial.expected.scales, change(trial.x)))


def _quotient(trial: Trial, fmt: FloatFormat) -> Encoded | None:
    """The quotient rounded to a narrow format before the element's own rounding."""
    if not trial.separable:
        return None
    exact = trial.quotient(*trial.operands(trial.expected.scales))
    with np.errstate(over="ignore"):
        return trial.expected._replace(codes=trial.encode(through(fmt, exact.astype(np.float32))))


def _divided(trial: Trial, divide: Callable[..., Any]) -> Encoded | None:
    """Another way to divide by a scale that is no power of two; every operation rounds to binary32."""
    if not trial.separable or trial.scheme.scale.mantissa_bits == 0:
        return None
    y, s = (part.astype(np.float32) for part in trial.operands(trial.expected.scales))
    if trial.scheme.family != "nvfp4":
        return None
    with np.errstate(all="ignore"):
        quotient = divide(y, s, trial.x, np.float32(trial.expected.tensor_scale))
    return trial.expected._replace(codes=trial.encode(quotient))


def _codes(trial: Trial, change: Callable[[Any, FloatFormat], Any]) -> Encoded:
    return trial.expected._replace(codes=change(trial.expected.codes, trial.scheme.element))


def _without_subnormals(codes: Any, element: FloatFormat) -> Any:
    return np.where((codes & element.magnitude_mask) < 1 << element.mantissa_bits, codes & element.sign_mask, codes)


CODE_CHANGES: tuple[tuple[str, str, Callable[[Any, FloatFormat], Any]], ...] = (
    ("code_flushed", "subnormal results flushed to zero", _without_subnormals),
    ("zero_sign_lost", "the sign of zero lost", lambda codes, e: np.where(codes & e.magnitude_mask, codes, 0)),
    ("zero_signed", "+0 encoded as -0", lambda codes, e: np.where(codes == 0, e.sign_mask, codes)),
    ("sign_lost", "every sign lost", lambda codes, e: codes & e.magnitude_mask),
    ("sign_flipped", "every sign flipped", lambda codes, e: codes ^ e.sign_mask),
)
"""Faults that show in the right codes alone: name, text, and what becomes of the codes of a format."""

ONE = np.float32(1)

ELEMENTS: tuple[Suspect, ...] = (
    Suspect(
        "input_bfloat16", "the input rounded to bfloat16 first", partial(_input, change=partial(through, BFLOAT16))
    ),
    Suspect(
        "input_binary16", "the input rounded to binary16 first", partial(_input, change=partial(through, BINARY16))
    ),
    Suspect("quotient_bfloat16", "x / scale rounded to bfloat16 before the element", partial(_quotient, fmt=BFLOAT16)),
    Suspect("quotient_binary16", "x / scale rounded to binary16 before the element", partial(_quotient, fmt=BINARY16)),
    Suspect("input_flushed", "subnormal inputs flushed to zero", partial(_input, change=flushed)),
    Suspect(
        "element_flushed",
        "subnormal inputs flushed to zero in the elements alone",
        partial(_elements_of, change=flushed),
    ),
    *(Suspect(name, text, partial(_codes, change=change)) for name, text, change in CODE_CHANGES),
    Suspect(
        "reciprocal",
        "a reciprocal instead of a division: x · (1 / s)",
        partial(_divided, divide=lambda y, s, x, g: y * (ONE / s)),
    ),
    Suspect(
        "scale_ratio", "x · (g / s) instead of (x · g) / s", partial(_divided, divide=lambda y, s, x, g: x * (g / s))
    ),
    Suspect(
        "divided_ratio", "x / (s / g) instead of (x · g) / s", partial(_divided, divide=lambda y, s, x, g: x / (s / g))
    ),
)
"""Faults of the element stage."""


def _lanes(trial: Trial, order: Callable[[int], Any]) -> Encoded:
    """The right codes, lane i of each block taken from lane order[i]."""
    return trial.expected._replace(codes=trial.expected.codes[:, order(trial.scheme.block)])


def _split_half(block: int) -> Any:
    """Byte j holds element j low and element j + block/2 high, read as neighbours."""
    return np.arange(block).reshape(2, block // 2).T.reshape(-1)


def _moved(trial: Trial, move: Callable[[Any], Any]) -> Encoded | None:
    """The right scales, moved between blocks: move((rows, blocks a row) array) -> array of that size."""
    if trial.grid is None or trial.expected.scales.size < 2:
        return None
    return trial.expected._replace(scales=np.asarray(move(trial.expected.scales.reshape(trial.grid))).reshape(-1, 1))


def _unswizzled(scales: Any) -> Any:
    """What reading the plain order as SWIZZLE_32_4_4 gives."""
    rows, columns = scales.shape
    buffer = np.zeros(packing.swizzled_size(rows, columns), dtype=np.uint8)
    buffer[: scales.size] = scales.reshape(-1)
    return packing.unswizzle(buffer, rows, columns)


ORDER: tuple[Suspect, ...] = (
    Suspect("nibbles_swapped", "neighbouring nibbles swapped", partial(_lanes, order=lambda n: np.arange(n) ^ 1)),
    Suspect(
        "nibbles_split_half",
        "nibbles in split halves: element j low, j + block/2 high",
        partial(_lanes, order=_split_half),
    ),
    Suspect(
        "bytes_reversed", "the bytes of each 32-bit word reversed", partial(_lanes, order=lambda n: np.arange(n) ^ 6)
    ),
    Suspect(
        "lanes_reversed", "each block's elements in reverse order", partial(_lanes, order=lambda n: np.arange(n)[::-1])
    ),
    Suspect(
        "swizzle_omitted", "scales stored in plain order instead of SWIZZLE_32_4_4", partial(_moved, move=_unswizzled)
    ),
    Suspect("scales_transposed", "scales stored column by column", partial(_moved, move=lambda s: s.T.copy())),
    Suspect(
        "scale_of_next", "each block stored with the next block's scale", partial(_moved, move=lambda s: np.roll(s, -1))
    ),
    Suspect(
        "scale_of_previous",
        "each block stored with the previous block's scale",
        partial(_moved, move=lambda s: np.roll(s, 1)),
    ),
)
"""Faults of order: the right codes or scales in the wrong place."""
