"""Blocks with a power-of-two scale, MX4 and MXFP4, one block at a time (SPEC.md 3.1, 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.references.exact_elements import encode, floor_log2, pattern_float, round_to
from lowbit.rules import NonFinite, ScaleRule, ZeroBlock
from lowbit.schemes import Scheme


def scale_exponent(amax: float, scheme: Scheme, *, random: int | None = None) -> int:
    """The exponent E of a block's scale 2**E, clamped to the scheme's range.

    Args:
      amax: the largest magnitude of the block, a binary32 value >= 0; Inf only where the scheme lets it in.
      scheme: of a power-of-two family.
      random: ScaleRule.STOCHASTIC's integer, of which the low 23 - m bits count.

    Returns:
      E; the scale byte is E + 127.

    Raises:
      ArgumentError: the scheme has no such exponent; amax is NaN, negative, or an Inf that marks the block instead;
        STOCHASTIC without `random`.

    Exactness: this is the definition.
    Spec: SPEC.md 3.1, 3.2.
    """
    if scheme.exponent_range is None:
        raise ArgumentError(f"scheme: got {scheme.name}, want one whose scale is a power of two")
    lowest, highest = scheme.exponent_range
    if not amax >= 0 or (math.isinf(amax) and scheme.nonfinite is NonFinite.MARK_BLOCK):
        raise ArgumentError(f"amax: got {amax}, want a magnitude that has an exponent under {scheme.name}")
    if math.isinf(amax):
        return highest
    if amax == 0 and scheme.zero_block is ZeroBlock.BYTE_ZERO:
        return lowest
    exact = Fraction(amax) if amax else Fraction(2) ** -126
    return min(max(_unclamped(exact, scheme, random), lowest), highest)


def encode_block(
    x: Sequence[int], scheme: Scheme, randoms: Sequence[int | None], scale_random: int | None
) -> tuple[int, list[int]]:
    """One block: its scale byte and its codes.

    Args:
      x: binary32 patterns.
      randoms: r of each element, None where the rounding needs none.
      scale_random: of the stochastic exponent.
    """
    values = [pattern_float(pattern) for pattern in x]
    if scheme.nonfinite is NonFinite.MARK_BLOCK and not all(map(math.isfinite, values)):
        assert scheme.scale.nan_magnitude is not None
        exponent, byte = 0, scheme.scale.nan_magnitude
    else:
        amax = max((abs(v) for v in values if not math.isnan(v)), default=0.0)
        exponent = scale_exponent(amax, scheme, random=scale_random)
        byte = exponent + scheme.scale.bias
    # Exact: a double holds every binary32 number times any power of two within reach.
    scaled = [v if math.isnan(v) else math.ldexp(v, -exponent) for v in values]
    return byte, [
        encode(v, scheme.element, scheme.rounding, scheme.nan, random=r) for v, r in zip(scaled, randoms, strict=True)
    ]


def decode(code: int, byte: int, scheme: Scheme, fmt: FloatFormat) -> int:
    """The pattern of one element in `fmt`: one rounding of value * 2**(byte - 127)."""
    value = scheme.element.value(code)
    negative = scheme.element.is_negative(code)
    assert fmt.nan_magnitude is not None  # outputs are IEEE formats
    assert fmt.inf_magnitude is not None
    infinite_scale = scheme.scale.is_nan(byte)  # MX4 has no NaN scale: byte 255 counts as +Inf there
    if math.isnan(value) or (infinite_scale and (scheme.nonfinite is NonFinite.MARK_BLOCK or value == 0)):
        return fmt.nan_magnitude
    if infinite_scale or math.isinf(value):
        return fmt.sign_mask * negative | fmt.inf_magnitude
    return round_to(Fraction(value) * Fraction(2) ** (byte - scheme.scale.bias), fmt, negative=negative)


def _unclamped(amax: Fraction, scheme: Scheme, random: int | None) -> int:
    """f(amax) - e."""
    element = scheme.element
    # MX4's e is the width of the exponent field, 2 for E2M1 and 3 for E3M0 (whose emax is 4); OCP's e is the emax.
    e = element.exponent_bits if scheme.family == "mx4" else element.emax
    exponent = floor_log2(amax)
    significand = amax / Fraction(2) ** exponent  # 1 <= significand < 2
    bound = 2 - Fraction(1, 2 << element.mantissa_bits)  # 1.75 for E2M1, 1.5 for E3M0
    match scheme.scale_rule:
        case ScaleRule.FLOOR:
            return exponent - e
        case ScaleRule.CEIL:
            return exponent + (significand > 1) - e
        case ScaleRule.NEAREST:  # log2 >= exponent + 1/2
            return exponent + (significand**2 >= 2) - e
        case ScaleRule.EVEN:
            return exponent + (significand >= bound) - e
        case ScaleRule.EVEN_EXCLUSIVE:
            return exponent + (significand > bound) - e
        case ScaleRule.RCEIL:
            ratio = amax / element.max_value
            return floor_log2(ratio) + (ratio != Fraction(2) ** floor_log2(ratio))
        case ScaleRule.STOCHASTIC:
            if random is None:
                raise ArgumentError(f"scale_random_bits: got None, want an integer for {scheme.name}")
            noise = random & (1 << (BINARY32.mantissa_bits - element.mantissa_bits)) - 1
            return (round_to(amax, BINARY32) + noise >> BINARY32.mantissa_bits) - BINARY32.bias - e
    raise ArgumentError(f"scheme: got {scheme.name} with {scheme.scale_rule}, want a rule of a power of two")
