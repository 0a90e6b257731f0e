"""Formats, rules and schemes in words: what `lowbit list` and `lowbit show` print. Standard library only."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lowbit import schemes
from lowbit.formats import FORMATS, FloatFormat
from lowbit.rules import (
    NanCode,
    NonFinite,
    PartialBlock,
    Rounding,
    ScaleLayout,
    ScaleRule,
    TensorScaleRule,
    ZeroBlock,
)
from lowbit.schemes import Scheme

RULES: dict[str, type[enum.Enum]] = {
    "scale_rule": ScaleRule,
    "rounding": Rounding,
    "nan": NanCode,
    "nonfinite": NonFinite,
    "zero_block": ZeroBlock,
    "tensor_scale": TensorScaleRule,
    "partial_block": PartialBlock,
    "scale_layout": ScaleLayout,
}
"""The fields of a scheme that hold a rule, in the order in which they are told."""

_MEANINGS: dict[enum.Enum, str] = {
    ScaleRule.FLOOR: "scale 2^E, E = floor(log2 amax) - {e}",
    ScaleRule.CEIL: "scale 2^E, E = ceil(log2 amax) - {e}",
    ScaleRule.NEAREST: "scale 2^E, E = floor(log2 amax + 1/2) - {e}: up iff the significand is at least sqrt 2",
    ScaleRule.EVEN: "scale 2^E, E = floor(log2 amax) - {e}, one more iff the significand is at least {even}",
    ScaleRule.EVEN_EXCLUSIVE: "scale 2^E, E = floor(log2 amax) - {e}, one more iff the significand is above {even}",
    ScaleRule.RCEIL: "scale 2^E, the least E with {max} * 2^E >= amax",
    ScaleRule.STOCHASTIC: "scale 2^E, E = exponent of (bits of amax + (r & {noise:#x})) - {e}, r one a block",
    ScaleRule.AMAX_OVER_SIX: "s = {scale} of clamp(RN32(amax / 6), {floor}, {scale_max})",
    ScaleRule.AMAX_TIMES_SIXTH: "s = {scale} of clamp(RN32(amax * RN32(1/6)), {floor}, {scale_max})",
    ScaleRule.RTN_CAST: "s = {scale} of amax / ({scale_scale} * {global_scale}), clamped, cast as PyTorch casts",
    Rounding.TIES_TO_EVEN: "the nearer code; a tie to the code whose least significant bit is 0",
    Rounding.TIES_TOWARD_ZERO: "the nearer code; a tie to the smaller magnitude",
    Rounding.TIES_AWAY: "the nearer code; a tie to the larger magnitude",
    Rounding.TIES_DOWN: "the nearer code; a tie to the smaller value",
    Rounding.TIES_UP: "the nearer code; a tie to the larger value",
    Rounding.TOWARD_ZERO: "the neighbour of smaller magnitude",
    Rounding.TOWARD_NEGATIVE: "the smaller neighbour",
    Rounding.TOWARD_POSITIVE: "the larger neighbour",
    Rounding.STOCHASTIC: "p of the way to the next magnitude: up iff r >= 256 - floor(256 p), r 8 random bits each",
    NanCode.POSITIVE_MAX: "NaN becomes the all-ones magnitude, sign clear",
    NanCode.SIGNED_MAX: "NaN becomes the all-ones magnitude, sign kept",
    NanCode.NEGATIVE_ZERO: "NaN becomes -0",
    NanCode.ZERO: "NaN becomes +0",
    NonFinite.IGNORE_NAN: "NaN does not enter amax; Inf does, and gives the largest scale",
    NonFinite.MARK_BLOCK: "NaN or Inf in a block makes its scale NaN; its codes are encoded as if the scale were 1",
    NonFinite.PROPAGATE: "NaN and Inf go through the arithmetic as IEEE values",
    ZeroBlock.MIN_NORMAL_AMAX: "in a block of zeros amax counts as 2^-126",
    ZeroBlock.BYTE_ZERO: "a block of zeros stores scale byte 0 and codes of ±0",
    ZeroBlock.FORMULA: "a block of zeros stores whatever the formulas give",
    TensorScaleRule.NONE: "no scale of the whole tensor",
    TensorScaleRule.UNIT: "g = 1, and none may be given",
    TensorScaleRule.ONE_ROUNDING: "g = min(RN32(2688 / a), FLT_MAX), a the largest finite magnitude; 1 if a = 0",
    TensorScaleRule.TWO_ROUNDINGS: "g = RN32(RN32(1 / a) * 2688), a = max(the tensor's amax, RN32(1e-12))",
    TensorScaleRule.GLOBAL_SCALE: "{global_scale} multiplies on decoding: element = x / (s * {global_scale})",
    PartialBlock.PAD: "a row that is no multiple of the block is padded with +0",
    PartialBlock.REFUSE: "a row that is no multiple of the block is an error",
    ScaleLayout.SEPARATE: "a tensor [..., K / {block}] of scale bytes, plain or SWIZZLE_32_4_4",
    ScaleLayout.INTERLEAVED: "one stream, [{half} bytes of codes][1 scale byte] a block",
}


def meaning(rule: enum.Enum, scheme: Scheme) -> str:
    """What a rule says, with the numbers of a scheme."""
    element = scheme.element
    return _MEANINGS[rule].format(
        # OCP's e is the element's emax, MX4's the width of its exponent field: for E3M0 3, not 4.
        e=element.exponent_bits if scheme.family == "mx4" else element.emax,
        max=number(element.max_value),
        even=number(2 - Fraction(1, 2 << element.mantissa_bits)),
        noise=(1 << (23 - element.mantissa_bits)) - 1,
        scale=scheme.scale.name.upper(),
        scale_max=number(scheme.scale.max_value),
        floor=None if scheme.scale_floor is None else _short(scheme.scale_floor),
        scale_scale=scheme.scale_scale,
        global_scale=scheme.global_scale,
        block=scheme.block,
        half=scheme.block // 2,
    )


def describe_scheme(scheme: Scheme) -> str:
    """Everything that a scheme pins, as text: rules with their meaning, element codes, packing, sources."""
    facts = [("family", scheme.family + (", canonical" if scheme.canonical else "")), ("cites", scheme.cites)]
    facts += [("element", _summary(scheme.element)), ("scale", _summary(scheme.scale))]
    facts += [("block", f"{scheme.block} consecutive elements of the last dimension")]
    if scheme.exponent_range is not None:
        low, high = scheme.exponent_range
        bias = scheme.scale.bias
        facts.append(("exponent", f"clamped to {low}..{high}, scale bytes {low + bias:#04x}..{high + bias:#04x}"))
    if scheme.family == "rtn_xxfp4":
        facts.append(("arithmetic", f"{scheme.high.name}, each operation rounded once"))
    rules = [(name, getattr(scheme, name)) for name in RULES]
    return "\n".join(
        [
            scheme.name,
            *indent(table(facts)),
            "",
            "rules",
            *indent(table((name, rule.value, meaning(rule, scheme)) for name, rule in rules)),
            "",
            f"codes of {scheme.element.name}",
            *indent(_code_table(scheme.element)),
            "",
            "packing",
            *indent(_packing(scheme)),
        ]
    )


def describe_format(fmt: FloatFormat) -> str:
    """A format as text: its fields, its range, its codes if they are few."""
    facts = [
        ("bits", f"{fmt.bits}: {fmt.signed:d} sign, {fmt.exponent_bits} exponent, {fmt.mantissa_bits} mantissa"),
        ("bias", str(fmt.bias)),
        ("largest", f"{number(fmt.max_value)}, code {_code(fmt, fmt.max_magnitude)}"),
        ("least above zero", f"{number(fmt.min_positive)}, code {_code(fmt, 1 if fmt.has_zero else 0)}"),
        ("least normal", f"2^{fmt.emin}"),
        ("zero", ("+0 and -0" if fmt.signed else "+0") if fmt.has_zero else "none"),
        ("Inf", "none" if fmt.inf_magnitude is None else _code(fmt, fmt.inf_magnitude)),
        ("NaN", "none" if fmt.nan_magnitude is None else f"{_code(fmt, fmt.nan_magnitude)} is the canonical one"),
    ]
    lines = [fmt.name, *indent(table(facts))]
    if fmt.bits <= 6:
        lines += ["", "codes", *indent(_code_table(fmt))]
    return "\n".join(lines)


def scheme_rows() -> list[dict[str, Any]]:
    """One row a registered scheme: what `lowbit list schemes` shows."""
    return [
        {
            "name": s.name,
            "family": s.family,
            "element": s.element.name,
            "scale": s.scale.name,
            "block": s.block,
            "scale_rule": s.scale_rule.value,
            "rounding": s.rounding.value,
            "canonical": s.canonical,
        }
        for s in schemes.select()
    ]


def format_rows() -> list[dict[str, Any]]:
    """One row a format."""
    return [
        {
            "name": f.name,
            "bits": f.bits,
            "fields": f"{f.signed:d}/{f.exponent_bits}/{f.mantissa_bits}",
            "bias": f.bias,
            "largest": number(f.max_value),
            "least_above_zero": number(f.min_positive),
            "inf": f.inf_magnitude is not None,
            "nan": f.nan_magnitude is not None,
        }
        for f in FORMATS.values()
    ]


def rule_rows() -> list[dict[str, Any]]:
    """One row a member of every rule, its meaning told with the numbers of the first scheme that pins it."""
    rows = []
    for field, rule in RULES.items():
        for member in rule:
            example = next(s for s in schemes.select() if getattr(s, field) is member)
            rows.append(
                {"rule": field, "name": member.value, "meaning": meaning(member, example), "as_in": example.name}
            )
    return rows


def number(value: Fraction | float) -> str:
    """An exact number as short text: a decimal of few digits, else ``n/2^k``, ``n*2^k`` or ``n/d``; never rounded."""
    if isinstance(value, float):
        if not math.isfinite(value) or value == 0:
            return str(value).replace("nan", "NaN").replace("inf", "Inf").removesuffix(".0")
        value = Fraction(value)
    top, bottom = value.numerator, value.denominator
    if bottom & (bottom - 1):
        return str(value)
    power = bottom.bit_length() - 1
    if not power and abs(top) < 10**16:
        return str(top)
    if 0 < power <= 10 and abs(top) < 10**12:
        text = f"{top * 5**power:+0{power + 2}d}"  # the sign, then at least one digit before the point
        return f"{text[:-power]}.{text[-power:]}".lstrip("+")
    if power:
        return f"2^-{power}" if top == 1 else f"{top}/2^{power}"
    zeros = (top & -top).bit_length() - 1
    return f"2^{zeros}" if top == 1 << zeros else f"{top >> zeros}*2^{zeros}"


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of the same keys as lines, the keys as headings."""
    words = {True: "yes", False: "no"}
    cells = [[words[v] if isinstance(v, bool) else str(v) for v in row.values()] for row in rows]
    return table([list(rows[0]), *cells]) if rows else []


def indent(lines: Iterable[str]) -> list[str]:
    """The lines two columns to the right."""
    return [f"  {line}".rstrip() for line in lines]


def _summary(fmt: FloatFormat) -> str:
    least, most = number(fmt.min_positive), number(fmt.max_value)
    nan = "no NaN" if fmt.nan_magnitude is None else f"NaN {_code(fmt, fmt.nan_magnitude)}"
    return f"{fmt.name}, {fmt.bits} bits, magnitudes {'0, ' if fmt.has_zero else ''}{least}..{most}, {nan}"


def _short(value: Fraction) -> str:
    text = number(value)
    return text if "/" not in text else f"{text} (about {float(value):.3g})"


def _code(fmt: FloatFormat, code: int) -> str:
    return f"{code:#0{2 + -(-fmt.bits // 4)}x}"


def _code_table(fmt: FloatFormat) -> list[str]:
    """Every code of a narrow format, positive and negative side by side."""
    rows = [("code", "bits", "value", "code", "bits", "value")]
    for magnitude in range(fmt.magnitude_mask + 1):
        row: tuple[str, ...] = ()
        for code in (magnitude, magnitude | fmt.sign_mask):
            row += (_code(fmt, code), fmt.fields(code), number(fmt.value(code)))
        rows.append(row)  # type: ignore[arg-type]
    return table(rows)


def _packing(scheme: Scheme) -> list[str]:
    half, block = scheme.block // 2, scheme.block
    lines = [
        "byte j of the codes   | code 2j+1 | code 2j   |    element 0 in the low nibble: codes 0x2, 0x4",
        "                      bit 7..4    bit 3..0         make byte 0x42",
    ]
    if scheme.scale_layout is ScaleLayout.INTERLEAVED:
        return [
            *lines,
            f"one stream a row      | {half} bytes of codes | scale byte | {half} bytes of codes | scale byte | ...",
            f"                      ceil(K/{block}) * {half + 1} bytes",
        ]
    return [
        *lines,
        f"scales                | byte of elements 0..{block - 1} | byte of elements {block}..{2 * block - 1} | ...",
        f"                      K/{block} bytes a row, in a tensor of their own",
        "swizzled on request   scale (r, c) at ((r/128)*ceil(C/4) + c/4)*512 + (r%32)*16 + ((r%128)/32)*4 + c%4,",
        "                      rows padded to 128, columns to 4, padding bytes 0",
    ]
