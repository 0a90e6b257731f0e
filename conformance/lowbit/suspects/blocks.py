"""Single changes of a rule that would explain a wrong block quantiser: a table of name, sentence and function.

A function takes a `Trial` and returns what an implementation with that fault would give, or None where the fault
cannot occur. Whatever the references refuse is skipped as well: a suspect is tried, or it is not named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from lowbit import schemes
from lowbit.formats import BFLOAT16, BINARY16, E2M1, E3M0, E4M3, FloatFormat
from lowbit.rules import NanCode, NonFinite, Rounding, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Encoded
from lowbit.suspects.dialects import DIALECTS
from lowbit.suspects.order import ORDER
from lowbit.suspects.scales import SCALES, observed
from lowbit.suspects.trial import COMPUTED, Floats, Suspect, Trial, flushed, through, to_bfloat16, to_binary16

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

FLOORS: dict[Fraction, str] = {
    Fraction(0): "nothing",
    Fraction(float.fromhex("0x1.197998p-40")): "1e-12",
    E4M3.min_positive: "2^-9",
    Fraction(1, 64): "2^-6",
}
"""Least values of an E4M3 scale before it is rounded, and their words."""

EXPONENTS = ((-127, 125), (-127, 126), (-127, 127), (-126, 125), (-126, 127))
"""Ranges to which the exponent of a power-of-two scale may be clamped."""

REACHED = (Rounding.TIES_TO_EVEN, Rounding.TIES_AWAY)
"""Rules that take the midpoint above the greatest code up, in either sign."""


def suspects(trial: Trial) -> Iterator[tuple[Suspect, ...]]:
    """All suspects in groups, the likeliest group first."""
    yield (*_rules(trial), *ELEMENTS, *ORDER)
    yield SCALES
    yield (*_dialects(trial), *DIALECTS)
    yield tuple(observed(trial))


def _base(name: str, text: str, becomes: Callable[[Trial], Trial | None]) -> Suspect:
    """A fault that another rule, input or factor of the whole reference makes."""
    return Suspect(name, text, partial(_quantized, becomes=becomes), becomes)


def _quantized(trial: Trial, becomes: Callable[[Trial], Trial | None]) -> Encoded | None:
    changed = becomes(trial)
    return None if changed is None else changed.quantize()


def _rules(trial: Trial) -> Iterator[Suspect]:
    """Every other member of every rule of the scheme, and other values of its numbers."""
    scheme = trial.scheme
    for rounding, text in ROUNDINGS.items():
        if rounding is not scheme.rounding:
            yield _base(rounding.value, text, partial(_under, rounding=rounding))
    for nan, text in NANS.items():
        if nan is not scheme.nan:
            yield _base(nan.value, text, partial(_under, nan=nan))
    for rule in ScaleRule:
        if rule not in (scheme.scale_rule, ScaleRule.STOCHASTIC):
            yield _base(rule.value, f"the scale rule {rule.value}", partial(_under, scale_rule=rule))
    for zero in ZeroBlock:
        if zero is not scheme.zero_block:
            yield _base(zero.value, f"blocks of zeros by the rule {zero.value}", partial(_under, zero_block=zero))
    for special in NonFinite:
        if special is not scheme.nonfinite:
            text = f"blocks with NaN or Inf by the rule {special.value}"
            yield _base(special.value, text, partial(_under, nonfinite=special))
    for g in TensorScaleRule:
        if g is not scheme.tensor_scale and not trial.given and scheme.family == "nvfp4":
            yield _base(g.value, f"the tensor scale rule {g.value}", partial(_under, tensor_scale=g))
    yield _base("tensor_scale", "the tensor scale that it returned taken for right", _with_its_tensor_scale)
    for floor, words in FLOORS.items():
        if scheme.scale_floor not in (None, floor):
            yield _base(f"floor_{words}", f"scales clamped below at {words}", partial(_under, scale_floor=floor))
    for low, high in EXPONENTS:
        if scheme.exponent_range not in (None, (low, high)):
            text = f"scale exponents clamped to {low}..{high}"
            yield _base(f"exponents_{low}_{high}", text, partial(_under, exponent_range=(low, high)))
    for element in (E2M1, E3M0):
        if element is not scheme.element and scheme.element.bits == element.bits:
            yield _base(element.name, f"elements of {element.name.upper()}", partial(_under, element=element))


def _under(trial: Trial, **rules: Any) -> Trial | None:
    if trial.given and "tensor_scale" in rules:
        return None
    return replace(trial, scheme=replace(trial.scheme, **rules))


def _with_its_tensor_scale(trial: Trial) -> Trial | None:
    g, right = trial.actual.tensor_scale, trial.expected.tensor_scale
    if g is None or g == right or trial.scheme.tensor_scale not in COMPUTED:
        return None
    return replace(trial, options={**trial.options, "tensor_scale": g})


def _dialects(trial: Trial) -> Iterator[Suspect]:
    """Every other scheme of the same element, block and scale format."""
    mine = trial.scheme
    for other in schemes.select():
        alike = (other.element, other.scale, other.block) == (mine.element, mine.scale, mine.block)
        if alike and other.name != mine.name and not other.stochastic:
            yield _base(other.name, f"the rules of the scheme {other.name}", partial(_as_scheme, other=other))


def _as_scheme(trial: Trial, other: schemes.Scheme) -> Trial | None:
    """The trial under another scheme; None where its tensor scale cannot be known."""
    options = {}
    if other.tensor_scale is trial.scheme.tensor_scale:
        options = {name: value for name, value in trial.options.items() if name == "tensor_scale"}
    elif trial.given and other.tensor_scale in COMPUTED:
        return None
    return replace(trial, scheme=other, options=options)


def _with_input(trial: Trial, change: Callable[[Floats], Floats]) -> Trial:
    return replace(trial, x=change(trial.x))


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


def _wrapping(trial: Trial) -> Encoded | None:
    """Rounded as if the grid went on, and one added to the greatest code carries into the sign."""
    if not trial.separable:
        return None
    element = trial.scheme.element
    top, below = (float(value) for value in element.magnitudes[:-3:-1])
    middle = top + (top - below) / 2 if element.mantissa_bits else 1.5 * top
    with np.errstate(invalid="ignore"):
        quotient = np.abs(trial.quotient(*trial.operands(trial.expected.scales)))
        up = quotient >= middle if trial.scheme.rounding in REACHED else quotient > middle
    wrapped = (trial.expected.codes + 1) & (element.sign_mask | element.magnitude_mask)
    return trial.expected._replace(codes=np.where(up, wrapped, trial.expected.codes).astype(np.uint8))


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
    _base("input_bfloat16", "the input rounded to bfloat16 first", partial(_with_input, change=to_bfloat16)),
    _base("input_binary16", "the input rounded to binary16 first", partial(_with_input, change=to_binary16)),
    Suspect("quotient_bfloat16", "x / scale rounded to bfloat16 before the element", partial(_quotient, fmt=BFLOAT16)),
    Suspect("quotient_binary16", "x / scale rounded to binary16 before the element", partial(_quotient, fmt=BINARY16)),
    _base("input_flushed", "subnormal inputs flushed to zero", partial(_with_input, change=flushed)),
    Suspect(
        "element_flushed",
        "subnormal inputs flushed to zero in the elements alone",
        partial(_elements_of, change=flushed),
    ),
    *(Suspect(name, text, partial(_codes, change=change), last=True) for name, text, change in CODE_CHANGES),
    Suspect("code_wraps", "codes that carry into the sign beyond the largest value, not saturated", _wrapping),
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
