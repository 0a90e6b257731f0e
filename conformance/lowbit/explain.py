"""One block by hand: amax, scale, code, value, each step by the rule that decides it.

The steps are worked out here with the scalar reference's arithmetic and must end in the codes that the scalar
reference gives for the block; if they do not, that is reported instead of an explanation.
"""

from __future__ import annotations

import bisect
import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lowbit import schemes, weights
from lowbit.errors import ArgumentError, ShapeError, UnknownScheme, WitnessDisagreement
from lowbit.formats import BINARY32, FloatFormat
from lowbit.glossary import indent, meaning, number, table
from lowbit.references import exact
from lowbit.references.exact_arithmetic import clamp, convert, divide, is_finite, is_zero, largest_magnitude, multiply
from lowbit.references.exact_elements import encode, floor_log2, pattern_float, round_to
from lowbit.references.exact_random import element_byte, scale_word
from lowbit.rules import NonFinite, Rounding, ScaleRule, ZeroBlock
from lowbit.schemes import Scheme

QUIET_NAN = 0x7FC00000
"""The binary32 NaN without payload."""


@dataclass(frozen=True)
class _Work:
    """How a family gets from x to what is rounded to a code.

    Attributes:
      steps: (what, text), for the whole block.
      columns: heading → exact values a lane, in the order of the arithmetic; the last one is what is rounded.
    """

    steps: list[tuple[str, str]]
    columns: dict[str, list[Fraction | float]]


def parse_value(text: str) -> int:
    """The binary32 pattern that a value on the command line stands for.

    Args:
      text: a decimal or a ratio (rounded once, to nearest even), a hex float, ``0x`` and 8 digits (the pattern itself),
        nan, inf; any but a pattern with a sign.

    Raises:
      ArgumentError: none of these, or beyond binary32.
    """
    body = text.strip().lower()
    if re.fullmatch(r"0x[0-9a-f]{8}", body):
        return int(body, 16)
    negative = body.startswith("-")
    sign, body = BINARY32.sign_mask * negative, body[body[:1] in ("+", "-") :]
    if body in ("inf", "infinity"):
        return sign | BINARY32.max_magnitude + 1
    if body == "nan":
        return sign | QUIET_NAN
    try:
        pattern = round_to(_magnitude(body), BINARY32)
    except (ValueError, ZeroDivisionError) as error:
        raise ArgumentError(
            f"value: got {text!r}, want a decimal, a hex float (0x1.8p-3), 0x and 8 digits of binary32, nan or inf"
        ) from error
    except OverflowError:
        pattern = BINARY32.max_magnitude + 1
    if BINARY32.is_inf(pattern):
        raise ArgumentError(f"value: got {text!r}, which is beyond binary32; want inf if Inf is meant")
    return sign | pattern


def choose(name: str) -> Scheme:
    """The block scheme of that name.

    Raises:
      UnknownScheme: there is none.
    """
    if name.startswith(weights.families()):
        known = ", ".join(scheme.name for scheme in schemes.select() if scheme.canonical)
        raise UnknownScheme(
            f"scheme: got {name!r}, of stored weights, want a block scheme: {known} … (see `lowbit list`)"
        )
    return schemes.get(name)


def explain(scheme: Scheme, values: Sequence[int], *, tensor_scale: int | None = None, seed: int = 0) -> str:
    """The text of one block worked out by hand.

    Args:
      values: binary32 patterns of the first elements of the block; the others are +0.
      tensor_scale: binary32 pattern of g, for a scheme that takes one; else the block is the whole tensor.
      seed: of the random bits of a stochastic scheme.

    Raises:
      ShapeError: no value, or more than a block holds.
      ArgumentError: a tensor scale that the scheme refuses.
      WitnessDisagreement: the steps do not lead to the reference's codes.
    """
    if not 1 <= len(values) <= scheme.block:
        raise ShapeError(f"values: got {len(values)}, want 1..{scheme.block}, one block of {scheme.name}")
    x = [*values, *[0] * (scheme.block - len(values))]
    given = None if tensor_scale is None else np.uint32(tensor_scale).view(np.float32)
    block = np.array([x], np.uint32).view(np.float32)
    encoded = exact.quantize(block, scheme, tensor_scale=given, seed=seed if scheme.stochastic else None)
    codes, scale = encoded.codes[0].tolist(), int(encoded.scales[0, 0])
    g = None if encoded.tensor_scale is None else int(encoded.tensor_scale.view(np.uint32))
    match scheme.family:
        case "mx4" | "mxfp4":
            work = _power_of_two(x, scheme, scale, seed)
        case "nvfp4":
            assert g is not None  # every scheme of the family has one
            work = _nvfp4(x, scheme, scale, g, tensor_scale is not None)
        case "rtn_xxfp4":
            work = _rtn(x, scheme, scale)
        case _:
            raise ArgumentError(f"scheme: got {scheme.name} of family {scheme.family!r}, which has no explanation here")
    randoms = [element_byte(seed, i) if scheme.rounding is Rounding.STOCHASTIC else None for i in range(len(values))]
    rounded = list(work.columns.values())[-1]
    for lane, random in enumerate(randoms):
        code = encode(float(rounded[lane]), scheme.element, scheme.rounding, scheme.nan, random=random)
        if code != codes[lane]:
            raise WitnessDisagreement(f"{scheme.name}, lane {lane}: the steps give {code:#x}, exact {codes[lane]:#x}")
    decoded = exact.dequantize(encoded, scheme)[0].tolist()
    rest = scheme.block - len(values)
    facts = [
        ("block", f"{len(values)} of {scheme.block} elements given" + (f", the other {rest} are +0" if rest else "")),
        *work.steps,
        ("code", f"{scheme.rounding.value}: {meaning(scheme.rounding, scheme)}"),
    ]
    if any(map(math.isnan, rounded[: len(values)])):
        facts.append(("NaN", f"{scheme.nan.value}: {meaning(scheme.nan, scheme)}"))
    rows = [("lane", "x", "bits", *work.columns, "between", "where", "code", "s|e|m", "decodes to")]
    for lane, value in enumerate(values):
        code = codes[lane]
        where = _where(rounded[lane], scheme, randoms[lane])
        cells = [
            str(lane),
            shortest(value),
            f"{value:#010x}",
            *(number(column[lane]) for column in work.columns.values()),
        ]
        rows.append((*cells, *where, f"{code:#x}", scheme.element.fields(code), _text(decoded[lane])))
    return "\n".join([scheme.name, *indent(table(facts)), "", *indent(table(rows))])


def shortest(pattern: int) -> str:
    """The shortest decimal that rounds to a binary32 pattern."""
    value = BINARY32.value(pattern)
    if isinstance(value, float):
        return number(value)
    texts = (f"{float(value):.{digits}g}" for digits in range(1, 10))  # 9 digits tell any two patterns apart
    return next(text for text in texts if round_to(Fraction(text), BINARY32) == pattern)


def _magnitude(text: str) -> Fraction:
    """The exact value of an unsigned decimal, ratio or hex float. Raises ValueError; OverflowError far out of range."""
    if text[:1] in ("+", "-"):
        raise ValueError(text)
    if "/" in text:
        return Fraction(text)
    hexadecimal = re.fullmatch(r"0x([0-9a-f]+)(?=[.p])\.?([0-9a-f]*)(?:p([+-]?\d+))?", text)
    # A double tells an exponent that is out of reach, before a Fraction of a billion digits is made.
    rough = float.fromhex(text) if hexadecimal else float(text)
    if math.isinf(rough):
        raise OverflowError(text)
    if rough == 0:
        return Fraction(0)
    if hexadecimal is None:
        return Fraction(text)
    whole, fraction, exponent = hexadecimal.groups()
    return int(whole + fraction, 16) * Fraction(2) ** (int(exponent or 0) - 4 * len(fraction))


def _power_of_two(x: list[int], scheme: Scheme, scale: int, seed: int) -> _Work:
    amax = largest_magnitude(v for v in x if not BINARY32.is_nan(v))
    exponent = 0 if scheme.scale.is_nan(scale) else scale - scheme.scale.bias
    steps = [("amax", f"{_text(amax)}{_binade(amax)}, the largest magnitude")]
    if scheme.nonfinite is NonFinite.MARK_BLOCK and not all(map(is_finite, x)):
        steps += _named("scale", scheme.nonfinite, scheme, f"byte {scale:#04x}")
    else:
        if is_zero(amax):
            steps += _named("zeros", scheme.zero_block, scheme)
        if not all(map(is_finite, x)):
            steps += _named("NaN, Inf", scheme.nonfinite, scheme)
        steps += _named("scale", scheme.scale_rule, scheme)
        if scheme.scale_rule is ScaleRule.STOCHASTIC:
            steps.append(("", f"r = {scale_word(seed, 0):#x}, of seed {seed}"))
        assert scheme.exponent_range is not None  # of every power-of-two scale
        lowest, highest = scheme.exponent_range
        steps.append(("", f"E = {exponent}, clamped to {lowest}..{highest}; byte {scale:#04x}"))
    scaled = [v if isinstance(v, float) else v / Fraction(2) ** exponent for v in _values(x, BINARY32)]
    return _Work(steps, {f"x / 2^{exponent}": scaled})


def _nvfp4(x: list[int], scheme: Scheme, scale: int, g: int, given: bool) -> _Work:
    y = [multiply(v, g) for v in x]
    amax = largest_magnitude(y)
    steps = [("g", f"{_text(g)}, given")] if given else _named("g", scheme.tensor_scale, scheme, f"g = {_text(g)}")
    steps.append(("amax", f"{_text(amax)}, the largest magnitude of y"))
    columns = {"y = RN32(x*g)": _values(y, BINARY32)}
    for rule, applies in (
        (scheme.nonfinite, scheme.nonfinite is NonFinite.MARK_BLOCK and not all(map(is_finite, x))),
        (scheme.zero_block, scheme.zero_block is ZeroBlock.BYTE_ZERO and all(map(is_zero, y))),
    ):
        if applies:
            return _Work([*steps, *_named("scale", rule, scheme, f"s = byte {scale:#04x}")], columns)
    assert scheme.scale_floor is not None  # of every E4M3 scale
    six = round_to(scheme.element.max_value, BINARY32)
    if scheme.scale_rule is ScaleRule.AMAX_TIMES_SIXTH:
        quotient = multiply(amax, round_to(1 / scheme.element.max_value, BINARY32))
    else:
        quotient = divide(amax, six)
    clamped = clamp(quotient, round_to(scheme.scale_floor, BINARY32), round_to(scheme.scale.max_value, BINARY32))
    path = f"{_text(quotient)}, clamped to {_text(clamped)}" if clamped != quotient else _text(quotient)
    divisor = convert(scale, scheme.scale, BINARY32)
    steps += _named("scale", scheme.scale_rule, scheme, f"{path}; s = {_text(divisor)}, byte {scale:#04x}")
    if is_zero(divisor) or BINARY32.is_nan(divisor):
        divisor = round_to(scheme.scale.min_positive, BINARY32)
        steps.append(
            ("", f"a scale of 0 or NaN is stored, but divides as the least positive one, s = {_text(divisor)}")
        )
    quotients = [divide(v, divisor) for v in y]
    columns["e = RN32(y/s)"] = _values(quotients, BINARY32)
    limited = [clamp(v, six | BINARY32.sign_mask, six) for v in quotients]
    if scheme.nonfinite is NonFinite.PROPAGATE:
        columns["clamped"] = _values(limited, BINARY32)
    return _Work(steps, columns)


def _rtn(x: list[int], scheme: Scheme, scale: int) -> _Work:
    assert scheme.scale_scale is not None
    assert scheme.global_scale is not None
    high = scheme.high
    wide = [convert(v, BINARY32, high) for v in x]
    amax, constant = largest_magnitude(wide, high), round_to(scheme.global_scale, high)
    quotient = divide(amax, multiply(round_to(scheme.scale_scale, high), constant, high), high)
    stored = convert(scale, scheme.scale, high)
    unit = multiply(stored, constant, high)
    steps = [
        ("amax", f"{_text(amax, high)}, the largest magnitude"),
        *_named(
            "scale", scheme.scale_rule, scheme, f"{_text(quotient, high)}; s = {_text(stored, high)}, byte {scale:#04x}"
        ),
        *_named("unit", scheme.tensor_scale, scheme, f"s * {scheme.global_scale} = {_text(unit, high)}"),
    ]
    return _Work(steps, {"x / unit": _values([divide(v, unit, high) for v in wide], high)})


def _where(value: Fraction | float, scheme: Scheme, random: int | None) -> tuple[str, str]:
    """The codes' values around what is rounded, and where between them it lies."""
    element = scheme.element
    if math.isnan(value):
        return "", "NaN"
    negative = math.copysign(1, value) < 0
    if math.isinf(value) or abs(Fraction(value)) > element.max_value:
        return f"{'-' * negative}{number(element.max_value)}", "beyond: saturates"
    magnitude = abs(Fraction(value))
    above = bisect.bisect_left(element.magnitudes, magnitude)
    if element.magnitudes[above] == magnitude:
        return number(value), "exact"
    low, high = element.magnitudes[above - 1 : above + 1]
    between = f"-{number(high)} | -{number(low)}" if negative else f"{number(low)} | {number(high)}"
    position = (magnitude - low) / (high - low)
    if random is not None:
        return between, f"r {random}, up from {256 - math.floor(256 * position)}"
    if position == Fraction(1, 2):
        return between, "tie"
    return between, f"nearer {'-' * negative}{number(high if position > Fraction(1, 2) else low)}"


def _named(what: str, rule: enum.Enum, scheme: Scheme, result: str = "") -> list[tuple[str, str]]:
    lines = [(what, f"{rule.value}: {meaning(rule, scheme)}")]
    return [*lines, ("", result)] if result else lines


def _values(patterns: list[int], fmt: FloatFormat) -> list[Fraction | float]:
    """Exact values; NaN keeps its sign, which a code may keep too."""
    return [pattern_float(p, fmt) if fmt.is_nan(p) else fmt.value(p) for p in patterns]


def _text(pattern: int, fmt: FloatFormat = BINARY32) -> str:
    return number(fmt.value(pattern))


def _binade(amax: int) -> str:
    if is_zero(amax) or not is_finite(amax):
        return ""
    value = BINARY32.magnitude_value(amax)
    exponent = floor_log2(value)
    return f" = {number(value / Fraction(2) ** exponent)} * 2^{exponent}"
