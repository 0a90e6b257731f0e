"""NVFP4 blocks with E4M3 scales and a tensor scale g, one block at a time (SPEC.md 3.3).

Values are binary32 patterns; every operation is one IEEE operation of `exact_arithmetic`. NaN and Inf take the way
that the formula gives them; only the canonical scheme, which marks its blocks, looks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lowbit.errors import ArgumentError
from lowbit.formats import BINARY32, FloatFormat
from lowbit.references.exact_arithmetic import (
    clamp,
    convert,
    divide,
    is_finite,
    is_zero,
    largest_magnitude,
    maximum,
    minimum,
    multiply,
)
from lowbit.references.exact_elements import encode, pattern_float, round_to
from lowbit.rules import NonFinite, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Scheme

ONE = round_to(Fraction(1), BINARY32)


def tensor_scale(x: Sequence[int], scheme: Scheme) -> int:
    """The pattern of g for the whole tensor x; of an empty one as for a tensor of zeros."""
    span = _binary32(scheme.element.max_value * scheme.scale.max_value)  # 6 * 448
    match scheme.tensor_scale:
        case TensorScaleRule.UNIT:
            return ONE
        case TensorScaleRule.ONE_ROUNDING:
            amax = largest_magnitude(v for v in x if is_finite(v))
            return ONE if is_zero(amax) else minimum(divide(span, amax), BINARY32.max_magnitude)
        case TensorScaleRule.TWO_ROUNDINGS:
            amax = maximum(largest_magnitude(x), _floor(scheme))
            return multiply(divide(ONE, amax), span)
    raise ArgumentError(f"scheme: got {scheme.name} with {scheme.tensor_scale}, want a rule of an NVFP4 tensor scale")


def encode_block(x: Sequence[int], scheme: Scheme, randoms: Sequence[int | None], g: int) -> tuple[int, list[int]]:
    """One block: its scale byte and its codes.

    Args:
      x: binary32 patterns.
      randoms: r of each element, None where the rounding needs none.
      g: pattern of the tensor scale.
    """
    y = [multiply(v, g) for v in x]
    if scheme.nonfinite is NonFinite.MARK_BLOCK and not all(map(is_finite, x)):
        assert scheme.scale.nan_magnitude is not None
        return scheme.scale.nan_magnitude, _codes(y, scheme, randoms)
    if scheme.zero_block is ZeroBlock.BYTE_ZERO and all(map(is_zero, y)):
        return 0, _codes(y, scheme, randoms)
    amax, six = largest_magnitude(y), scheme.element.max_value
    if scheme.scale_rule is ScaleRule.AMAX_TIMES_SIXTH:
        quotient = multiply(amax, _binary32(1 / six))
    else:
        quotient = divide(amax, _binary32(six))
    scale = convert(clamp(quotient, _floor(scheme), _binary32(scheme.scale.max_value)), BINARY32, scheme.scale)
    # A scale that underflowed to 0, or is NaN, is stored so, and divides as the least positive one. Under the
    # canonical scheme, whose floor is that value, neither happens.
    positive = scale != 0 and not scheme.scale.is_nan(scale)
    divisor = convert(scale, scheme.scale, BINARY32) if positive else _binary32(scheme.scale.min_positive)
    limit = _binary32(six)
    return scale, _codes([clamp(divide(v, divisor), limit | BINARY32.sign_mask, limit) for v in y], scheme, randoms)


def decode(code: int, scale: int, scheme: Scheme, fmt: FloatFormat, g: int | None) -> int:
    """The pattern of one element in `fmt`: RN(fmt)(RN32(RN32(value * s) / g)), no division without g."""
    value = convert(code, scheme.element, BINARY32)
    product = multiply(value, convert(scale, scheme.scale, BINARY32))
    return convert(product if g is None else divide(product, g), BINARY32, fmt)


def _codes(e: Sequence[int], scheme: Scheme, randoms: Sequence[int | None]) -> list[int]:
    return [
        encode(pattern_float(v), scheme.element, scheme.rounding, scheme.nan, random=r)
        for v, r in zip(e, randoms, strict=True)
    ]


def _binary32(value: Fraction) -> int:
    return round_to(value, BINARY32)


def _floor(scheme: Scheme) -> int:
    if scheme.scale_floor is None:
        raise ArgumentError(f"scheme: got {scheme.name} without scale_floor, want the least scale before rounding")
    return _binary32(scheme.scale_floor)
