"""Device functions for E4M3 scales: their bytes, and correctly rounded quotients without a division an element.

    encode_e4m3(x) -> int32 byte              x: float32, 0 <= x <= 448, ties to even
    decode_e4m3(byte) -> float32              byte: int32 0..255, sign and NaN included
    divide_by_six(x) -> float32               RN32(x / 6)
    reciprocal_pair(s) -> (high, low)         1 / s, s an E4M3 value above 0
    divide_by_scale(y, s, high, low) -> float32       RN32(y / s)
    nearest_e2m1(q, TO_EVEN) -> uint32        E2M1 magnitude code in the low four bits
    least_code(v, twice, once, half) -> uint32        the same of v, by factors of 2, 1 and 1 / 2
    below_reciprocal(high, low) -> float32            one unit in the last place below RN32(1 / s)
    multiply_upward(y, r) -> float32                  |y| * r, rounded upward; PTX alone

No fp8 cast is used (Triton's interpreter's are wrong), no `/` (approximate on a GPU) and no division instruction.

How a quotient is formed. With high + low = (1 / d)(1 + t), the two operations

    q = fma(y, high, RN32(y * low))           round (y / d)(1 + u), |u| <= |t| + 2**-41, once

* d = s has a significand m of at most four bits. Let y / d lie in the normal range. Between y / d, whose denominator is
  the odd part of m (at most 15), and any midpoint of two binary32 numbers it does not equal there are at least
  1 / 30 units in the last place, 2**-29 of its value; and it equals none: 2 * y would be the odd part times an odd
  number of 25 bits. |t| <= 2**-34 is far less, so q = RN32(y / d) always. d = 6 has the odd part 3.
* `low` restores what one Newton step cannot, so `high` need not be the correctly rounded reciprocal: two steps from
  an integer guess leave an error of 2**-17, its square is 2**-34. A correctly rounded division of 1 by s would do too,
  and costs more.
* Where y / d leaves the normal range: a block amax that small ends at the clamp of its scale; an element that small
  rounds to 0 by every nearest rule and by the stochastic one (its eight bits are 0), whatever the last bits of q are.
  Rules that round away from zero ask whether RN32(y / s) is 0 and need `tl.div_rn`.

The interpreter of triton before 3.9 rounds the product inside an fma; there the quotients are divisions, which are
exact in any interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton._C import libtriton

from lowbit_kernels._codec import power_of_two_constant
from lowbit_kernels._launch import INTERPRETED

FUSED = tl.constexpr(not INTERPRETED or hasattr(getattr(libtriton, "interpreter", None), "fma_fp32"))
"""Whether `tl.fma` rounds once."""

UPWARD = tl.constexpr(
    """{
.reg .f32 magnitude;
abs.f32 magnitude, $1;
mul.rp.f32 $0, magnitude, $2;
}"""
)
"""The product of a magnitude, rounded toward positive infinity; subnormals are kept."""

SIXTH_HIGH = tl.constexpr(float.fromhex("0x1.555556p-3"))  # RN32(1 / 6)
SIXTH_LOW = tl.constexpr(float.fromhex("-0x1.555556p-28"))  # RN32(1 / 6 - RN32(1 / 6))


@triton.jit
def encode_e4m3(x):
    """x: any shape, float32, 0 <= x <= 448. -> int32 bytes 0..0x7E, nearest, ties to even, gradual underflow.

    Normal values lose 20 bits of their own pattern; below 2**-6 the addition of 2**14, whose unit in the last place
    is E4M3's least positive value 2**-9, rounds once and leaves the byte in the low bits.
    """
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    subnormal = (x + 16384.0).to(tl.int32, bitcast=True) - ((127 + 14) << 23)
    return tl.where(bits < ((127 - 6) << 23), subnormal, normal)


@triton.jit
def decode_e4m3(byte):
    """byte: any shape, int32 0..255. -> float32, exact; 0x7F and 0xFF are NaN, 0x80 is -0."""
    bits = ((byte & 0x7F) << 20) | ((byte & 0x80) << 24)
    value = bits.to(tl.float32, bitcast=True) * power_of_two_constant(127 - 7)
    return tl.where((byte & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def divide_by_six(x):
    """x: any shape, float32, 0 <= x <= FLT_MAX. -> float32 RN32(x / 6) from 2**-90 upwards, about x / 6 below."""
    if FUSED:
        return tl.fma(x, SIXTH_HIGH, x * SIXTH_LOW)
    return tl.div_rn(x, tl.full(x.shape, 6.0, tl.float32))


@triton.jit
def reciprocal_pair(s):
    """s: any shape, float32, values of E4M3 above 0. -> float32 high, low with high + low = 1 / s to 2**-34."""
    guess = (0x7EF311C7 - s.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)  # to 2**-4
    high = tl.fma(tl.fma(-guess, s, 1.0), guess, guess)  # to 2**-8
    high = tl.fma(tl.fma(-high, s, 1.0), high, high)  # to 2**-17
    return high, tl.fma(-high, s, 1.0) * high


@triton.jit
def divide_by_scale(y, s, high, low):
    """y: any shape, float32, finite; s: E4M3 values above 0, and their `reciprocal_pair`, broadcastable.

    -> float32 RN32(y / s) where that is at least 2**-90 in magnitude, about y / s below.
    """
    if FUSED:
        return tl.fma(y, high, y * low)
    return tl.div_rn(y, tl.broadcast_to(s, y.shape))


@triton.jit
def least_code(v, twice, once, half):
    """The E2M1 magnitude code of v, of which multiples by 2, 1 and 1/2 are formed with these factors."""
    halves = tl.fma(v, twice, 8388608.0).to(tl.uint32, bitcast=True)
    ones = tl.fma(v, once, 8388610.0).to(tl.uint32, bitcast=True)
    twos = tl.fma(v, half, 8388612.0).to(tl.uint32, bitcast=True)
    return tl.minimum(tl.minimum(tl.minimum(halves, ones), twos), 0x4B000007)


@triton.jit
def nearest_e2m1(q, TO_EVEN: tl.constexpr):
    """q: any shape, float32 >= 0, or NaN. -> uint32 whose low four bits are the E2M1 magnitude, NaN 7.

    The magnitude code of v is the least of 2v, v + 2 and v / 2 + 4 (steps of 1/2, 1 and 2 between codes), and 7.
    Adding 2**23, whose unit in the last place is 1, rounds each to an integer, once and ties to even; rounding is
    monotone, so the least rounded one is the rounded least. The patterns of positive floats order as integers, and
    NaN, of either sign, is larger than all of them.

    Without TO_EVEN ties go toward zero: v = q (1 - 2**-24) lies below a tie T where q = T, and above it where q is
    larger, because the next binary32 number is at least T (1 + 2**-23 / 1.75). That needs FUSED.
    """
    ONE: tl.constexpr = 1.0 if TO_EVEN else 1.0 - 2.0**-24
    return least_code(q, 2.0 * ONE, ONE, 0.5 * ONE)


@triton.jit
def below_reciprocal(high, low):
    """RN32(1 / s) of a `reciprocal_pair`, and from there one unit in the last place down."""
    return ((high + low).to(tl.int32, bitcast=True) - 1).to(tl.float32, bitcast=True)


@triton.jit
def multiply_upward(y, r):
    """y: any shape, float32; r: broadcastable. -> float32 |y| * r, rounded toward positive infinity, by PTX."""
    r = tl.broadcast_to(r, y.shape)
    return tl.inline_asm_elementwise(UPWARD, "=f,f,f", [y, r], dtype=tl.float32, is_pure=True, pack=1)
