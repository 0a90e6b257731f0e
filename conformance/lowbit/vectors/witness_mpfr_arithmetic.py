"""Whole schemes in MPFR's arithmetic, through gmpy2: every rounding is done by that library.

The order of operations is SPEC.md's, written once more; what one operation rounds to is MPFR's. Where MPFR lacks a tie
rule, its two directed neighbours and exact rational distances decide. MPFR has NaN, Inf and -0 itself.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

from lowbit.formats import BINARY32, BINARY64, E4M3, E8M0, FloatFormat
from lowbit.rules import NanCode, NonFinite, Rounding, ScaleRule, TensorScaleRule, ZeroBlock
from lowbit.schemes import Scheme


@functools.cache
def gmp() -> Any:
    """The package, imported when it is first asked."""
    import gmpy2

    return gmpy2


@functools.cache
def context(fmt: FloatFormat, mode: str = "RoundToNearest") -> Any:
    """The MPFR context of a format: its precision, and exponents counted from significands in [1/2, 1).

    E2M1 and its like get one more binade above, so that what is beyond the largest value is seen.
    """
    top = fmt.emax + 1 if fmt.inf_magnitude is not None else fmt.emax + 2
    return gmp().context(
        precision=fmt.mantissa_bits + 1,
        emin=fmt.emin - fmt.mantissa_bits + 1,
        emax=top,
        subnormalize=True,
        round=getattr(gmp(), mode),
    )


def number(pattern: int) -> Any:
    """The value of a binary32 pattern, exact."""
    return gmp().mpfr(struct.unpack("<f", struct.pack("<I", pattern))[0], 53)


# -- elements


@functools.cache
def _codes(fmt: FloatFormat) -> dict[Any, int]:
    """Value → magnitude code."""
    return {gmp().mpq(v.numerator, v.denominator): code for code, v in enumerate(fmt.magnitudes)}


def element(value: Any, fmt: FloatFormat, rounding: Rounding, nan: NanCode | None, random: int | None) -> int:
    """The code of an exact value."""
    gmpy2 = gmp()
    negative = bool(gmpy2.is_signed(value))
    if gmpy2.is_nan(value):
        return _nan_code(fmt, nan, negative)
    if not fmt.signed and negative:
        return _nan_code(fmt, nan, negative) if value != 0 else 0
    sign = fmt.sign_mask if negative else 0
    values = fmt.magnitudes
    magnitude = abs(value)
    largest = gmpy2.mpq(values[-1].numerator, values[-1].denominator)
    if gmpy2.is_infinite(value) or magnitude >= largest:
        return sign | fmt.max_magnitude
    exact = gmpy2.mpq(magnitude)
    if not fmt.has_zero and exact <= gmpy2.mpq(values[0].numerator, values[0].denominator):
        return 0
    low = gmpy2.mpq(context(fmt, "RoundToZero").plus(magnitude))
    high = gmpy2.mpq(context(fmt, "RoundAwayZero").plus(magnitude))
    code = _codes(fmt)[low]
    if low == exact:
        return sign | code
    return sign | (code + _up((exact - low) / (high - low), code, rounding, negative, random))


def _up(position: Any, low: int, rounding: Rounding, negative: bool, random: int | None) -> bool:
    if rounding is Rounding.STOCHASTIC:
        assert random is not None  # every stochastic case has it
        return random + int(position * 256) >= 256
    directed = {Rounding.TOWARD_ZERO: False, Rounding.TOWARD_NEGATIVE: negative, Rounding.TOWARD_POSITIVE: not negative}
    if rounding in directed:
        return directed[rounding]
    if 2 * position != 1:
        return bool(2 * position > 1)
    return {
        Rounding.TIES_TO_EVEN: low % 2 == 1,
        Rounding.TIES_TOWARD_ZERO: False,
        Rounding.TIES_AWAY: True,
        Rounding.TIES_DOWN: negative,
        Rounding.TIES_UP: not negative,
    }[rounding]


def _nan_code(fmt: FloatFormat, nan: NanCode | None, negative: bool) -> int:
    if fmt.nan_magnitude is not None:
        return fmt.nan_magnitude
    assert nan is not None  # every scheme has a rule
    sign = fmt.sign_mask
    return {
        NanCode.POSITIVE_MAX: fmt.magnitude_mask,
        NanCode.SIGNED_MAX: fmt.magnitude_mask | (sign if negative else 0),
        NanCode.NEGATIVE_ZERO: sign,
        NanCode.ZERO: 0,
    }[nan]


# -- blocks


def power_of_two_block(x: Sequence[Any], scheme: Scheme, randoms: Sequence[int | None]) -> tuple[int, list[int]]:
    """Scale byte and codes under MX4 or MXFP4."""
    gmpy2 = gmp()
    if scheme.nonfinite is NonFinite.MARK_BLOCK and not all(gmpy2.is_finite(v) for v in x):
        exponent, byte = 0, 0xFF
    else:
        amax = max((abs(v) for v in x if not gmpy2.is_nan(v)), default=gmpy2.mpfr(0))
        exponent = _exponent(amax, scheme)
        byte = exponent + E8M0.bias
    wide = gmpy2.context(precision=64)
    scaled = [wide.mul(v, gmpy2.exp2(-exponent)) for v in x]
    return byte, [
        element(v, scheme.element, scheme.rounding, scheme.nan, r) for v, r in zip(scaled, randoms, strict=True)
    ]


def _exponent(amax: Any, scheme: Scheme) -> int:
    gmpy2 = gmp()
    assert scheme.exponent_range is not None  # of the families asked
    lowest, highest = scheme.exponent_range
    if gmpy2.is_infinite(amax):
        return highest
    if amax == 0:
        if scheme.zero_block is ZeroBlock.BYTE_ZERO:
            return lowest
        amax = gmpy2.exp2(-126)
    floor = gmpy2.get_exp(amax) - 1
    significand = gmpy2.mpq(amax) / gmpy2.mpq(2) ** floor
    bound = 2 - gmpy2.mpq(1, 2 << scheme.element.mantissa_bits)
    subtracted = scheme.element.exponent_bits if scheme.family == "mx4" else scheme.element.emax
    match scheme.scale_rule:
        case ScaleRule.FLOOR:
            up = False
        case ScaleRule.CEIL:
            up = significand > 1
        case ScaleRule.NEAREST:
            up = significand * significand >= 2
        case ScaleRule.EVEN:
            up = significand >= bound
        case ScaleRule.EVEN_EXCLUSIVE:
            up = significand > bound
        case ScaleRule.RCEIL:
            up = significand > gmpy2.mpq(scheme.element.max_value) / 2**scheme.element.emax
    return min(max(floor + up - subtracted, lowest), highest)


def tensor_scale(x: Sequence[Any], scheme: Scheme) -> Any:
    """g of a tensor, NVFP4."""
    gmpy2, single = gmp(), context(BINARY32)
    if scheme.tensor_scale is TensorScaleRule.UNIT:
        return gmpy2.mpfr(1)
    if scheme.tensor_scale is TensorScaleRule.ONE_ROUNDING:
        amax = max((abs(v) for v in x if gmpy2.is_finite(v)), default=gmpy2.mpfr(0))
        if amax == 0:
            return gmpy2.mpfr(1)
        return min(single.div(gmpy2.mpfr(2688), amax), number(0x7F7FFFFF))
    amax = _clamp(_amax(x), _floor(scheme), None)
    return single.mul(single.div(gmpy2.mpfr(1), amax), gmpy2.mpfr(2688))


def nvfp4_block(x: Sequence[Any], scheme: Scheme, randoms: Sequence[int | None], g: Any) -> tuple[int, list[int]]:
    """Scale byte and codes under an NVFP4 scheme."""
    gmpy2, single = gmp(), context(BINARY32)
    y = [single.mul(v, g) for v in x]
    six = gmpy2.mpfr(6)

    def codes(values: Sequence[Any]) -> list[int]:
        pairs = zip(values, randoms, strict=True)
        return [element(v, scheme.element, scheme.rounding, scheme.nan, r) for v, r in pairs]

    if scheme.nonfinite is NonFinite.MARK_BLOCK and not all(gmpy2.is_finite(v) for v in x):
        return 0x7F, codes(y)
    if scheme.zero_block is ZeroBlock.BYTE_ZERO and all(v == 0 for v in y):
        return 0, codes(y)
    amax = _amax(y)
    if scheme.scale_rule is ScaleRule.AMAX_TIMES_SIXTH:
        quotient = single.mul(amax, single.div(gmpy2.mpfr(1), six))
    else:
        quotient = single.div(amax, six)
    clamped = _clamp(quotient, _floor(scheme), gmpy2.mpfr(448))
    scale = element(clamped, E4M3, Rounding.TIES_TO_EVEN, None, None)
    divisor = gmpy2.mpfr(0.001953125)  # the least scale, in place of 0 and of NaN
    if scale != 0 and not E4M3.is_nan(scale):
        value = E4M3.magnitude_value(scale)
        divisor = gmpy2.mpfr(gmpy2.mpq(value.numerator, value.denominator))
    return scale, codes([_clamp(single.div(v, divisor), -six, six) for v in y])


def rtn_block(x: Sequence[Any], scheme: Scheme, randoms: Sequence[int | None]) -> tuple[int, list[int]]:
    """Scale code and codes on the rtn_xxfp4 path."""
    gmpy2, high = gmp(), context(scheme.high)
    assert scheme.scale_scale is not None  # of the family asked
    divisor = high.mul(high.plus(gmpy2.mpq(scheme.scale_scale)), _global(scheme))
    largest = gmpy2.mpfr(gmpy2.mpq(scheme.scale.max_value))
    smallest = -largest if scheme.scale.signed else gmpy2.mpfr(gmpy2.mpq(scheme.scale.min_positive))
    wide = _clamp(high.div(_amax(x), divisor), smallest, largest)
    scale = _cast_scale(wide, scheme)
    unit = _unit(scale, scheme)
    e = [high.div(v, unit) for v in x]
    return scale, [element(v, scheme.element, scheme.rounding, scheme.nan, r) for v, r in zip(e, randoms, strict=True)]


def _cast_scale(value: Any, scheme: Scheme) -> int:
    """PyTorch's cast: through binary32; E8M0 up from 1.5 on, and from the first number above its least."""
    gmpy2 = gmp()
    value = context(BINARY32).plus(value)
    if scheme.scale is not E8M0:
        return element(value, scheme.scale, Rounding.TIES_TO_EVEN, None, None)
    if gmpy2.is_nan(value):
        return 0xFF
    least = gmpy2.exp2(-127)
    if value <= least:
        return 0
    floor = gmpy2.get_exp(value) - 1
    up = floor < -126 or gmpy2.mpq(value) / gmpy2.mpq(2) ** floor >= gmpy2.mpq(3, 2)
    return int(floor + up + E8M0.bias)


def _unit(scale: int, scheme: Scheme) -> Any:
    return context(scheme.high).mul(_code_value(scale, scheme.scale), _global(scheme))


def _global(scheme: Scheme) -> Any:
    assert scheme.global_scale is not None  # of the family asked
    return context(scheme.high).plus(gmp().mpq(scheme.global_scale))


def _code_value(code: int, fmt: FloatFormat) -> Any:
    value = fmt.value(code)
    return gmp().mpfr(value) if isinstance(value, float) else gmp().mpfr(gmp().mpq(value), 64)


def _amax(x: Sequence[Any]) -> Any:
    """The largest magnitude, NaN if any is NaN."""
    gmpy2 = gmp()
    nan = [v for v in x if gmpy2.is_nan(v)]
    return nan[0] if nan else max((abs(v) for v in x), default=gmpy2.mpfr(0))


def _floor(scheme: Scheme) -> Any:
    assert scheme.scale_floor is not None  # every NVFP4 scheme has it
    return gmp().mpfr(gmp().mpq(scheme.scale_floor), 53)


def _clamp(value: Any, lowest: Any, highest: Any) -> Any:
    """NaN stays."""
    if value < lowest:
        return lowest
    return highest if highest is not None and value > highest else value


def quantize_block(x: Sequence[Any], scheme: Scheme, randoms: Sequence[int | None], g: Any) -> tuple[int, list[int]]:
    """Scale code and codes of one block; g of NVFP4, else unused."""
    if scheme.family == "nvfp4":
        return nvfp4_block(x, scheme, randoms, g)
    return (rtn_block if scheme.family == "rtn_xxfp4" else power_of_two_block)(x, scheme, randoms)


def decode(code: int, scale: int, scheme: Scheme, g: Any, fmt: FloatFormat) -> Any:
    """The value of a code under a scale code, as `fmt` holds it."""
    value, out = _code_value(code, scheme.element), context(fmt)
    single = context(BINARY32)
    if scheme.family == "nvfp4":
        product = single.mul(value, _code_value(scale, scheme.scale))
        return out.plus(product if g is None else single.div(product, g))
    if scheme.family == "rtn_xxfp4":
        product = context(scheme.high).mul(value, _unit(scale, scheme))
        return out.plus(single.plus(product) if scheme.high is BINARY64 and fmt is not BINARY64 else product)
    unit = _code_value(scale, scheme.scale)
    if scheme.scale.is_nan(scale) and scheme.nonfinite is NonFinite.IGNORE_NAN:
        unit = gmp().inf()
    return out.mul(value, unit)


def pattern_text(value: Any, fmt: FloatFormat) -> str:
    """The bits of a value that the format holds."""
    gmpy2 = gmp()
    digits = fmt.bits // 4
    assert fmt.inf_magnitude is not None  # outputs are IEEE formats
    sign = fmt.sign_mask if gmpy2.is_signed(value) else 0
    if gmpy2.is_nan(value):
        return f"{fmt.inf_magnitude | 1 << (fmt.mantissa_bits - 1):0{digits}x}"
    if gmpy2.is_infinite(value):
        return f"{sign | fmt.inf_magnitude:0{digits}x}"
    if value == 0:
        return f"{sign:0{digits}x}"
    exponent = max(gmpy2.get_exp(value) - 1, fmt.emin)
    steps = int(gmpy2.mpq(abs(value)) * gmpy2.mpq(2) ** (fmt.mantissa_bits - exponent))
    return f"{sign | steps + ((exponent - fmt.emin) << fmt.mantissa_bits):0{digits}x}"
