"""Device functions that every kernel shares: element codes, power-of-two scales, random bits.

All of them work on the bits of binary32 values; none calls log2, exp2 or a division, and the few multiplications
are by powers of two.

    encode_e2m1(x, random, ROUNDING, NAN, NARROW=False, source=None) -> int32 codes 0..15     x: float32, already scaled
    encode_e3m0(x, random, ROUNDING, NAN, NARROW=False, source=None) -> int32 codes 0..15
    decode_e2m1(codes) -> float32          decode_e3m0(codes) -> float32
    scale_byte(amax_bits, random, RULE, MANTISSA_BITS, ELEMENT_EXPONENT, LIMIT) -> int32 0..LIMIT
    power_of_two(byte) -> float32 2**(byte - 127)        inverse_power_of_two(byte) -> float32 2**(127 - byte)
    widen(x) -> float32            round_bfloat16(x) -> bfloat16, ties to even
    cast_exact(x, dtype) -> float32, float16 or bfloat16, of a float32 that bfloat16 holds exactly
    pack_pairs(codes, ROWS, COLUMNS) -> int32 (ROWS, COLUMNS // 2)      two codes a byte, element 0 in the low nibble
    join_codes(packed, ROWS, COLUMNS) -> int32 (ROWS, COLUMNS * 2)      the inverse of pack_pairs
    tile_count(extent, BLOCK) -> int                                    ceil(extent / BLOCK), without passing 2**31
    tile_origin(groups, BLOCK_ROWS, BLOCK_GROUPS) -> (first_row, first_group)      of this program, int64
    remaining(total, first, BLOCK) -> int32                             how many of a tile's BLOCK rows, groups … exist

Random bits are in `_philox.py`, whose functions are names of this module too.

`ROUNDING`, `NAN` and `RULE` are the small integers of `ROUNDINGS`, `NAN_CODES` and `SCALE_RULES`, because a string
makes a poor constexpr. `random` is an int32 tensor 0..255 for the stochastic rule, else 0. `source` are the int32 bits
of the value that was scaled, wherever it was: they decide the sign, also of a NaN (a multiplication on a GPU gives the
positive one), and whether x is zero (a scaled value can underflow, which the directed rules must not see).

How an element is encoded. An element format has the same gradual underflow as binary32, only nearer to 1:

    |x| * 2**-126, as binary32 bits      0 eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
    E2M1 magnitude and fraction                  ee m ffffffffffffffffffffff      22 fraction bits
    E3M0 magnitude and fraction (2**-124)       eee fffffffffffffffffffffff       23 fraction bits

so that after one multiplication, by 2**(bias - 127), the magnitude code stands above its fraction, subnormals
included, and every rounding rule is one addition and one shift. The multiplication must not lose what decides:

* nearest and directed rules: the low three bits of |x| are first collected into bit 3 ("jammed"). From a quarter of
  the smallest positive element upwards the product is then exact, and no tie or code lies strictly between the two
  values. Below that, the nearest code is 0 whatever was lost, and a directed rule only asks whether x is 0.
* stochastic: the bits under the eight that are compared with `random` are cleared first; what remains has at most
  ten significant bits, and where those leave the range of binary32 the eight bits are 0.
* NARROW promises that x has at most 21 significant bits (any bfloat16 or binary16 value times a power of two), so
  that there is nothing to collect.

The multiplications rely on gradual underflow, which Triton keeps on every target.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit.rules import NanCode, Rounding, ScaleRule
from lowbit_kernels._philox import philox4x32 as philox4x32
from lowbit_kernels._philox import philox_bytes as philox_bytes
from lowbit_kernels._philox import philox_tile as philox_tile
from lowbit_kernels._philox import philox_word as philox_word

ROUNDINGS = {rule.value: number for number, rule in enumerate(Rounding)}
"""Name of a rounding rule → constexpr."""

NAN_CODES = {rule.value: number for number, rule in enumerate(NanCode)}
"""Name of a NaN rule → constexpr."""

SCALE_RULES = {
    rule.value: number
    for number, rule in enumerate(
        (
            ScaleRule.FLOOR,
            ScaleRule.CEIL,
            ScaleRule.NEAREST,
            ScaleRule.EVEN,
            ScaleRule.EVEN_EXCLUSIVE,
            ScaleRule.RCEIL,
            ScaleRule.STOCHASTIC,
        )
    )
}
"""Name of a power-of-two scale rule → constexpr."""

TIES_TO_EVEN = tl.constexpr(ROUNDINGS[Rounding.TIES_TO_EVEN.value])
TIES_TOWARD_ZERO = tl.constexpr(ROUNDINGS[Rounding.TIES_TOWARD_ZERO.value])
TIES_AWAY = tl.constexpr(ROUNDINGS[Rounding.TIES_AWAY.value])
TIES_DOWN = tl.constexpr(ROUNDINGS[Rounding.TIES_DOWN.value])
TIES_UP = tl.constexpr(ROUNDINGS[Rounding.TIES_UP.value])
TOWARD_ZERO = tl.constexpr(ROUNDINGS[Rounding.TOWARD_ZERO.value])
TOWARD_NEGATIVE = tl.constexpr(ROUNDINGS[Rounding.TOWARD_NEGATIVE.value])
TOWARD_POSITIVE = tl.constexpr(ROUNDINGS[Rounding.TOWARD_POSITIVE.value])
STOCHASTIC = tl.constexpr(ROUNDINGS[Rounding.STOCHASTIC.value])

NAN_POSITIVE_MAX = tl.constexpr(NAN_CODES[NanCode.POSITIVE_MAX.value])
NAN_SIGNED_MAX = tl.constexpr(NAN_CODES[NanCode.SIGNED_MAX.value])
NAN_NEGATIVE_ZERO = tl.constexpr(NAN_CODES[NanCode.NEGATIVE_ZERO.value])
NAN_ZERO = tl.constexpr(NAN_CODES[NanCode.ZERO.value])

SCALE_FLOOR = tl.constexpr(SCALE_RULES[ScaleRule.FLOOR.value])
SCALE_CEIL = tl.constexpr(SCALE_RULES[ScaleRule.CEIL.value])
SCALE_NEAREST = tl.constexpr(SCALE_RULES[ScaleRule.NEAREST.value])
SCALE_EVEN = tl.constexpr(SCALE_RULES[ScaleRule.EVEN.value])
SCALE_EVEN_EXCLUSIVE = tl.constexpr(SCALE_RULES[ScaleRule.EVEN_EXCLUSIVE.value])
SCALE_RCEIL = tl.constexpr(SCALE_RULES[ScaleRule.RCEIL.value])
SCALE_STOCHASTIC = tl.constexpr(SCALE_RULES[ScaleRule.STOCHASTIC.value])

MAGNITUDE_BITS = tl.constexpr(0x7FFFFFFF)
INFINITY_BITS = tl.constexpr(0x7F800000)
SMALLEST_ABOVE_ROOT_TWO = tl.constexpr(0x3504F4)  # mantissa of the least binary32 significand >= sqrt 2 (irrational)


@triton.jit
def _encode(
    x,
    random,
    ROUNDING: tl.constexpr,
    NAN: tl.constexpr,
    NARROW: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,
    BIAS: tl.constexpr,
    source,
):
    """x: any shape, float32, scaled. -> int32 codes of a 4-bit format, saturated, sign in bit 3."""
    FRACTION: tl.constexpr = 23 - MANTISSA_BITS
    ONE: tl.constexpr = 1 << FRACTION
    HALF: tl.constexpr = 1 << (FRACTION - 1)
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE_BITS
    if source is not None:
        bits = source
    kept = magnitude
    if ROUNDING == STOCHASTIC:
        kept = magnitude & -(1 << (FRACTION - 8))
    elif not NARROW:
        kept = (magnitude | ((magnitude & 7) + 7)) & -8
    fixed = (kept.to(tl.float32, bitcast=True) * power_of_two_constant(BIAS - 127)).to(tl.int32, bitcast=True)
    fixed = tl.minimum(fixed, 7 << FRACTION)  # saturates Inf and NaN too, and leaves room for the addition
    if ROUNDING == STOCHASTIC:
        # p = fraction / 2**FRACTION; rounds up iff random >= 256 - floor(p * 256), i.e. iff the sum carries
        fixed += random << (FRACTION - 8)
    elif ROUNDING == TIES_TO_EVEN:
        fixed += HALF - 1 + ((fixed >> FRACTION) & 1)
    elif ROUNDING == TIES_TOWARD_ZERO:
        fixed += HALF - 1
    elif ROUNDING == TIES_AWAY:
        fixed += HALF
    elif ROUNDING == TIES_DOWN:
        fixed += HALF - 1 - (bits >> 31)
    elif ROUNDING == TIES_UP:
        fixed += HALF + (bits >> 31)
    elif ROUNDING == TOWARD_NEGATIVE:
        fixed = tl.maximum(fixed, tl.minimum(bits & MAGNITUDE_BITS, 1)) + ((bits >> 31) & (ONE - 1))
    elif ROUNDING == TOWARD_POSITIVE:
        fixed = tl.maximum(fixed, tl.minimum(bits & MAGNITUDE_BITS, 1)) + ((~(bits >> 31)) & (ONE - 1))
    else:
        tl.static_assert(ROUNDING == TOWARD_ZERO, "unknown rounding")
    codes = (fixed >> FRACTION) | ((bits >> 28) & 8)
    if NAN == NAN_POSITIVE_MAX:
        codes = tl.where(magnitude > INFINITY_BITS, 7, codes)
    elif NAN == NAN_NEGATIVE_ZERO:
        codes = tl.where(magnitude > INFINITY_BITS, 8, codes)
    elif NAN == NAN_ZERO:
        codes = tl.where(magnitude > INFINITY_BITS, 0, codes)
    else:
        tl.static_assert(NAN == NAN_SIGNED_MAX, "unknown NaN rule")  # what saturation gave
    return codes


@triton.jit
def power_of_two_constant(EXPONENT: tl.constexpr):
    """2**EXPONENT as a float32 scalar, EXPONENT -126..127."""
    return tl.full((), (EXPONENT + 127) << 23, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def encode_e2m1(x, random, ROUNDING: tl.constexpr, NAN: tl.constexpr, NARROW: tl.constexpr = False, source=None):
    """x: any shape, float32, scaled; random: int32 0..255 of that shape, or 0. -> int32 codes 0..15."""
    return _encode(x, random, ROUNDING, NAN, NARROW, 1, 1, source)


@triton.jit
def encode_e3m0(x, random, ROUNDING: tl.constexpr, NAN: tl.constexpr, NARROW: tl.constexpr = False, source=None):
    """x: any shape, float32, scaled; random: int32 0..255 of that shape, or 0. -> int32 codes 0..15."""
    return _encode(x, random, ROUNDING, NAN, NARROW, 0, 3, source)


@triton.jit
def decode_e2m1(codes):
    """codes: any shape, int32 0..15. -> float32, exact; code 8 is -0."""
    bits = ((codes & 7) << 22) | ((codes & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * power_of_two_constant(126)


@triton.jit
def decode_e3m0(codes):
    """codes: any shape, int32 0..15. -> float32, exact; code 8 is -0."""
    bits = ((codes & 7) << 23) | ((codes & 8) << 28)
    return bits.to(tl.float32, bitcast=True) * power_of_two_constant(124)


@triton.jit
def scale_byte(
    amax_bits,
    random,
    RULE: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,
    ELEMENT_EXPONENT: tl.constexpr,
    LIMIT: tl.constexpr,
):
    """The E8M0 byte of clamp(f(amax) - ELEMENT_EXPONENT, -127, LIMIT - 127).

    amax_bits: any shape, int32. Bits of the magnitude, NaN excluded; Inf gives LIMIT.
    random: int32 31-bit of that shape for the stochastic rule, else 0.
    Every rule is a number added before the exponent is cut off; subnormal amax and 0 end at the clamp in each of them.
    """
    if RULE == SCALE_CEIL:
        amax_bits += 0x7FFFFF
    elif RULE == SCALE_NEAREST:
        amax_bits += 0x800000 - SMALLEST_ABOVE_ROOT_TWO
    elif RULE == SCALE_EVEN:
        amax_bits += 1 << (22 - MANTISSA_BITS)
    elif RULE == SCALE_EVEN_EXCLUSIVE:
        amax_bits += (1 << (22 - MANTISSA_BITS)) - 1
    elif RULE == SCALE_RCEIL:
        # the largest element is (2 - 2**-MANTISSA_BITS) * 2**ELEMENT_EXPONENT
        amax_bits += (1 << (23 - MANTISSA_BITS)) - 1
    elif RULE == SCALE_STOCHASTIC:
        amax_bits += random & ((1 << (23 - MANTISSA_BITS)) - 1)
    else:
        tl.static_assert(RULE == SCALE_FLOOR, "unknown scale rule")
    return tl.minimum(tl.maximum((amax_bits >> 23) - ELEMENT_EXPONENT, 0), LIMIT)


@triton.jit
def power_of_two(byte):
    """byte: any shape, int32 0..255. -> float32 2**(byte - 127), 2**-127 included; 255 gives +Inf."""
    return tl.where(byte == 0, 1 << 22, byte << 23).to(tl.float32, bitcast=True)


@triton.jit
def inverse_power_of_two(byte):
    """byte: any shape, int32 0..253, all that a finite amax gets. -> float32 2**(127 - byte), a normal number.

    x times it is exact unless the product is below 2**-126, where an encoder needs nothing but x's sign and, for the
    directed rules, whether x is 0: it takes both from its `source`.
    """
    return ((254 - byte) << 23).to(tl.float32, bitcast=True)


@triton.jit
def pack_pairs(codes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """codes: (ROWS, COLUMNS) int32 0..15. -> (ROWS, COLUMNS // 2) int32: code 2j | code 2j+1 << 4."""
    low, high = tl.split(tl.reshape(codes, (ROWS, COLUMNS // 2, 2)))
    return low | (high << 4)


@triton.jit
def join_codes(packed, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """packed: (ROWS, COLUMNS) int32 0..255. -> (ROWS, COLUMNS * 2) int32 codes, low nibble first."""
    return tl.reshape(tl.join(packed & 15, (packed >> 4) & 15), (ROWS, COLUMNS * 2))


@triton.jit
def widen(x):
    """x: any shape, float32, bfloat16 or float16. -> float32, exact, subnormals and the sign of NaN included."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype == tl.float16:
        # a GPU's cast makes every NaN the positive one, so the sign is put back
        sign = x.to(tl.int16, bitcast=True).to(tl.int32) & ~MAGNITUDE_BITS
        return (x.to(tl.float32).to(tl.int32, bitcast=True) & MAGNITUDE_BITS | sign).to(tl.float32, bitcast=True)
    else:
        return x


@triton.jit
def cast_exact(x, dtype: tl.constexpr):
    """x: any shape, float32 that bfloat16 holds exactly, or NaN with its top bit set. -> dtype, rounded once.

    dtype: float32, float16 or bfloat16. To bfloat16 by cutting the bits: Triton's interpreter loses subnormals.
    """
    if dtype == tl.bfloat16:
        return (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def round_bfloat16(x):
    """x: any shape, float32. -> bfloat16, nearest, ties to even, subnormals kept; NaN stays NaN.

    In integers because Triton's interpreter truncates.
    """
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded = tl.where((bits & MAGNITUDE_BITS) > INFINITY_BITS, (bits >> 16) | 0x40, rounded)
    return rounded.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def tile_count(extent, BLOCK: tl.constexpr):
    """ceil(extent / BLOCK) of an extent of 1 or more; `tl.cdiv` adds BLOCK first, which an int32 may not hold."""
    return (extent - 1) // BLOCK + 1


@triton.jit
def tile_origin(groups, BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr):
    """The first row and the first group of this program: programs run along a row's groups first.

    groups: of a row, int. -> two int64 scalars.
    """
    across = tile_count(groups, BLOCK_GROUPS)
    program = tl.program_id(0)
    return (program // across).to(tl.int64) * BLOCK_ROWS, (program % across).to(tl.int64) * BLOCK_GROUPS


@triton.jit
def remaining(total, first, BLOCK: tl.constexpr):
    """How many of the rows (groups, columns) first .. first + BLOCK - 1 exist: int32, for masks in 32 bits."""
    return tl.minimum(total - first, BLOCK).to(tl.int32)
