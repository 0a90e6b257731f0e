"""The quantising kernels behind `nvfp4.py`, which draws the format.

    quantize_kernel        x, g → packed codes, scale bytes           one pass, nothing between memory and registers

A g that is computed comes from the kernels of `_nvfp4_amax.py`.

Tiles are those of `_nvfp4_tiles.py`. With PAIRS (see `_pairs.py`, the usual case) they are (BLOCK_M, 8) words of two
elements, and a block is in one thread. PTX swaps a device function for an equal one that only NVIDIA's GPUs have.

|RN32(x * g)| does not fall where |x| grows, so amax(y) = RN32(amax(x) * g): integer maxima of the patterns of x, among
which Inf and then NaN are the largest, and one multiplication.

How a code is found with one multiplication instead of a quotient. s has eight significands and E2M1 seven ties T. The
code of RN32(y / s) is that of y / s (lemma quotient/decides), and changes where |y| passes s * T. A product |y| * r
grows with |y|; so it decides the same if s * T and the two binary32 numbers next to it fall on the right sides of T.
With r one unit in the last place below RN32(1 / s) they do, for every s:

* the exact product, as an fma takes it: that of s * T is below T, the next one above. Ties go toward zero.
* the product rounded upward: where a tie goes up, to an even code, s * T gives T and the number before less; where it
  goes down s * T gives at most T, and the next number more. (Rounded to nearest it does not do: s = 15 / 8.)

Rounded upward a product reaches T exactly if it is above the number before T, however far from T it is: products so
small that they are subnormal keep code 0, large and infinite ones code 7, and NaN stays NaN. The lemmas nvfp4_quotient
say it of every s and y. Only PTX multiplies upward; elsewhere ties to even take the correctly rounded quotient. Codes
that a seed rounds take a product with RN32(1 / s), cut off, in PTX (`_stochastic_pairs.py`), else that quotient too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs, _stochastic_pairs
from lowbit_kernels._codec import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    NAN_POSITIVE_MAX,
    STOCHASTIC,
    TIES_TO_EVEN,
    TIES_TOWARD_ZERO,
    TOWARD_NEGATIVE,
    TOWARD_POSITIVE,
    encode_e2m1,
    pack_pairs,
    power_of_two_constant,
    widen,
)
from lowbit_kernels._e2m1_hardware import convert_pair
from lowbit_kernels._e4m3 import (
    FUSED,
    below_reciprocal,
    divide_by_scale,
    divide_by_six,
    encode_e4m3,
    least_code,
    multiply_upward,
    nearest_e2m1,
    reciprocal_pair,
)
from lowbit_kernels._nvfp4_tiles import inside, load_blocks, tile_of
from lowbit_kernels._philox import RANDOM_TILE, draw_bytes, pair_bytes, pair_words
from lowbit_kernels.swizzle import swizzled_offset

COMPUTED, GIVEN, UNIT = 0, 1, 2
"""Where g comes from: the kernels before, the caller, or nowhere (1)."""

_COMPUTED = tl.constexpr(COMPUTED)
_GIVEN = tl.constexpr(GIVEN)
_UNIT = tl.constexpr(UNIT)
_FLOAT16 = tl.constexpr(_pairs.FLOAT16)
_RANDOM_TILE = tl.constexpr(RANDOM_TILE)

# The signs of $1 .. $4, low elements, and $5 .. $8, high ones, go into bits 3 and 7 of the low bytes of $9 .. $12.
# Selectors of 8 and more give a byte's sign eight times.
SIGNS = tl.constexpr(
    """{
.reg .b32 codes, codes_after, lows, lows_after, highs, highs_after;
prmt.b32 codes, $9, $10, 0x0040;
prmt.b32 codes_after, $11, $12, 0x0040;
prmt.b32 codes, codes, codes_after, 0x5410;
prmt.b32 lows, $1, $2, 0x00FB;
prmt.b32 lows_after, $3, $4, 0x00FB;
prmt.b32 lows, lows, lows_after, 0x5410;
prmt.b32 highs, $5, $6, 0x00FB;
prmt.b32 highs_after, $7, $8, 0x00FB;
prmt.b32 highs, highs, highs_after, 0x5410;
and.b32 lows, lows, 0x08080808;
lop3.b32 highs, highs, 0x80808080, lows, 0xEA;
lop3.b32 $0, codes, highs, 0, 0xFC;
}"""
)
SIGNS_CONSTRAINTS = tl.constexpr("=r" + ",r" * 12)

LARGEST_BITS = tl.constexpr(0x7F7FFFFF)  # FLT_MAX


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _block_scale(amax, g, CANONICAL: tl.constexpr, ORIGIN: tl.constexpr):
    """The stored byte of each block and the value that divides its elements.

    amax: (BLOCK_M,) int32, the largest magnitude pattern of x in the block. g: float32 scalar.
    """
    scaled = _bits(_float(amax) * g) & MAGNITUDE_BITS  # amax(y)
    quotient = divide_by_six(_float(tl.minimum(scaled, LARGEST_BITS)))
    if CANONICAL:
        quotient = tl.maximum(quotient, 0.001953125)  # 2**-9
    # The other schemes' least quotient, 1e-12, becomes byte 0 as 0 does.
    byte = encode_e4m3(tl.minimum(quotient, 448.0))
    scale = _float(byte << 20) * power_of_two_constant(127 - 7)
    if CANONICAL:
        nonfinite = amax >= INFINITY_BITS
        zero = scaled == 0
        byte = tl.where(nonfinite, 0x7F, tl.where(zero, 0, byte))
        scale = tl.where(nonfinite | zero, 1.0, scale)
    else:
        nan = scaled > INFINITY_BITS
        scale = tl.where(nan | (byte == 0), 0.001953125, scale)
        byte = tl.where(nan, 0x7F, byte)
    if ORIGIN == _GIVEN:
        byte = tl.where((g > 0.0) & (g < float("inf")), byte, 0x7F)
    return byte, scale


@triton.jit
def _nearest_quotient(y, scale, high, low, TO_EVEN: tl.constexpr, PTX: tl.constexpr):
    """y: any shape, float32; scale, high, low: broadcastable. Needs FUSED.

    -> uint32 whose low eight bits are the E2M1 magnitude of |y| / scale, at ties the even or the lower one; of NaN 7.
    """
    r = below_reciprocal(high, low)
    if not TO_EVEN:
        return least_code(tl.abs(y), r * 2.0, r, r * 0.5)
    elif PTX:
        return nearest_e2m1(multiply_upward(y, r), True)
    else:
        return nearest_e2m1(divide_by_scale(tl.abs(y), scale, high, low), True)


@triton.jit
def _codes(x, g, scale, high, low, random, ROUNDING: tl.constexpr, PTX: tl.constexpr):
    """int32 E2M1 codes in the low four bits of (BLOCK_M, n) elements; scale, high, low: (BLOCK_M, 1).

    The limits 6 * scale are exact. `tl.minimum` returns the number where the other is NaN, whatever its sign, so
    that NaN gets the code of +6. The sign is y's, that of zero included.
    """
    limit = scale * 6.0
    y = tl.minimum(x * g, limit)
    sign = _bits(y) & ~MAGNITUDE_BITS
    NEAREST: tl.constexpr = FUSED & ((ROUNDING == TIES_TO_EVEN) | (ROUNDING == TIES_TOWARD_ZERO))
    if NEAREST:  # an interpreter that does not fuse does not drop NaN either
        code = _nearest_quotient(y, scale, high, low, ROUNDING == TIES_TO_EVEN, PTX)
        return code.to(tl.int32, bitcast=True) | (sign >> 28) & 8
    y = tl.minimum(tl.abs(y), limit)
    q = divide_by_scale(y, scale, high, low)
    MAY_NOT_VANISH: tl.constexpr = (ROUNDING == TOWARD_NEGATIVE) | (ROUNDING == TOWARD_POSITIVE)
    if MAY_NOT_VANISH:  # these two ask whether RN32(y / s) is 0
        q = tl.div_rn(y, tl.broadcast_to(scale, y.shape))
    return encode_e2m1(_float(_bits(q) | sign), random, ROUNDING, NAN_POSITIVE_MAX)


@triton.jit
def _product(x, g, limit, PTX: tl.constexpr):
    """RN32(x * g) where that is no more than `limit`, else that or more; NaN becomes positive, or the limit.

    PTX: a product that is NaN is the positive one (PTX ISA, `mul`). Not for a constant g, which may be none.
    """
    if PTX:
        return x * g
    else:
        return tl.minimum(x * g, limit)


@triton.jit
def _join_signs(low, high, both, PTX: tl.constexpr):
    """low, high: any shape, float32; both: int32 with their magnitude codes in the low eight bits.

    -> uint8, the codes with the signs of low and high, first element low.
    """
    if PTX:
        return tl.inline_asm_elementwise(
            SIGNS, SIGNS_CONSTRAINTS, [_bits(low), _bits(high), both], dtype=tl.uint8, is_pure=True, pack=4
        )
    else:
        return (both | ((_bits(low) >> 28) & 8) | ((_bits(high) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _nearest_pairs(
    words, g, scale, high, low, TO_EVEN: tl.constexpr, PAIRS: tl.constexpr, HARDWARE: tl.constexpr,
    POSITIVE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """The stored bytes of (BLOCK_M, 8) words, to nearest; scale, high, low: (BLOCK_M, 1).

    HARDWARE: by the device's instruction. POSITIVE: that NaN is in a product, as `_product` has it with PTX.
    """
    first, second = _halves(words, PAIRS)
    limit = scale * 6.0
    first = _product(first, g, limit, POSITIVE)
    second = _product(second, g, limit, POSITIVE)
    if HARDWARE:
        both = convert_pair(
            divide_by_scale(tl.abs(first), scale, high, low), divide_by_scale(tl.abs(second), scale, high, low)
        )
    else:
        first_code = _nearest_quotient(first, scale, high, low, TO_EVEN, PTX)
        both = first_code + _nearest_quotient(second, scale, high, low, TO_EVEN, PTX) * 16
        both = both.to(tl.int32, bitcast=True)
    return _join_signs(first, second, both, PTX)


@triton.jit
def _halves(words, PAIRS: tl.constexpr):
    """The low and the high element of words as float32; a NaN's sign is lost, as in the product that follows."""
    if PAIRS == _FLOAT16:
        low = words.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return low, (words >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        low, high = _pairs.signed(words, PAIRS)
        return _float(low), _float(high)


@triton.jit
def _drawn_pairs(words, g, scale, high, low, random, PAIRS: tl.constexpr, PTX: tl.constexpr):
    """The stored bytes of (BLOCK_M, 8) words, rounded stochastically; scale, high, low: (BLOCK_M, 1).

    random: the words' `pair_words`. With PTX by a product with RN32(1 / s) cut off (`_stochastic_pairs.py`).
    """
    first, second = _halves(words, PAIRS)
    if PTX:
        return _stochastic_pairs.encode_quotients(first * g, second * g, high + low, random)
    else:
        first_random, second_random = pair_bytes(random)
        code = _codes(first, g, scale, high, low, first_random, STOCHASTIC, False)
        return (code | (_codes(second, g, scale, high, low, second_random, STOCHASTIC, False) << 4)).to(tl.uint8)


@triton.jit(
    do_not_specialize=[
        *("rows", "groups", "row_step", "column_stride", "padded_rows", "padded_groups"),
        *("key_low", "key_high"),
    ]
)
def quantize_kernel(
    x_ptr,
    g_ptr,
    packed_ptr,
    scales_ptr,
    tensor_scale_ptr,
    random_ptr,
    rows,
    groups,
    row_step,
    column_stride,
    padded_rows,
    padded_groups,
    key_low,
    key_high,
    CANONICAL: tl.constexpr,
    ORIGIN: tl.constexpr,
    ROUNDING: tl.constexpr,
    RANDOM: tl.constexpr,
    SWIZZLE: tl.constexpr,
    PAIRS: tl.constexpr,
    FLAT: tl.constexpr,
    ROW_UNIT: tl.constexpr,
    ADJACENT: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    HARDWARE: tl.constexpr = False,
    PTX: tl.constexpr = False,
):
    BLOCK_M: tl.constexpr = BLOCK_ROWS * BLOCK_GROUPS
    PER_BLOCK: tl.constexpr = 8 if PAIRS else 16
    first_row, first_group, row, group, within = tile_of(
        tl.program_id(0), padded_rows, padded_groups, FLAT, WIDE, BLOCK_ROWS, BLOCK_GROUPS
    )
    exists = within
    if SWIZZLE:  # programs cover the padded extent
        exists = inside(rows, groups, first_row, first_group, row, group, BLOCK_ROWS, BLOCK_GROUPS)
    g = 1.0 if ORIGIN == _UNIT else tl.load(g_ptr)
    if ORIGIN != _COMPUTED:
        tl.store(tensor_scale_ptr, g, mask=tl.program_id(0) == 0)

    loaded = load_blocks(
        x_ptr, first_row, first_group, row, group, exists, row_step, column_stride,
        PER_BLOCK, FLAT, ROW_UNIT, ADJACENT, WHOLE,
    )  # fmt: skip
    if PAIRS:
        amax = _pairs.amax_bits(loaded, False, PAIRS, PTX)  # (BLOCK_M,)
    else:
        x = widen(loaded)  # (BLOCK_M, 16)
        amax = tl.max(_bits(x) & MAGNITUDE_BITS, axis=1)

    byte, scale = _block_scale(amax, g, CANONICAL, ORIGIN)
    reciprocal, remainder = reciprocal_pair(scale)
    first = first_row * groups + first_group  # of the tile's blocks in x, int64
    block = row * groups + group  # (BLOCK_M,), from there on
    scale = scale[:, None]
    reciprocal = reciprocal[:, None]
    remainder = remainder[:, None]
    TO_EVEN: tl.constexpr = ROUNDING == TIES_TO_EVEN
    NEAREST: tl.constexpr = (FUSED & (TO_EVEN | (ROUNDING == TIES_TOWARD_ZERO))) | HARDWARE
    NEAREST_PAIRS: tl.constexpr = PAIRS != 0 and NEAREST
    if NEAREST_PAIRS:
        POSITIVE: tl.constexpr = PTX and ORIGIN != _UNIT
        packed = _nearest_pairs(
            loaded, g, scale, reciprocal, remainder, TO_EVEN, PAIRS, HARDWARE, POSITIVE, PTX
        )  # (BLOCK_M, 8)
    elif PAIRS and RANDOM == _RANDOM_TILE:
        random = pair_words(first + block, key_low, key_high, 1)
        packed = _drawn_pairs(loaded, g, scale, reciprocal, remainder, random, PAIRS, PTX)  # (BLOCK_M, 8)
    elif PAIRS:
        low, high = _pairs.signed(loaded, PAIRS)  # (BLOCK_M, 8)
        low = _codes(_float(low), g, scale, reciprocal, remainder, 0, ROUNDING, PTX)
        high = _codes(_float(high), g, scale, reciprocal, remainder, 0, ROUNDING, PTX)
        packed = (low | (high << 4)).to(tl.uint8)
    else:
        existing = tl.broadcast_to(exists[:, None], (BLOCK_M, 16))
        random = draw_bytes((first + block) * 16, random_ptr, existing, key_low, key_high, RANDOM, BLOCK_M, 16)
        codes = _codes(x, g, scale, reciprocal, remainder, random, ROUNDING, PTX)
        packed = pack_pairs(codes, BLOCK_M, 16).to(tl.uint8)

    packed_offsets = block[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(packed_ptr + first * 8 + packed_offsets, packed, mask=None if WHOLE else exists[:, None])
    if SWIZZLE:
        # 128 rows and 4 groups make a piece of the buffer; tiles begin with a group of a piece's first
        scales_ptr += (first_row >> 7) * 128 * padded_groups + (first_group >> 2) * 512
        offsets = swizzled_offset((first_row & 127).to(tl.int32) + row, group, padded_groups)
        if not WHOLE:
            byte = tl.where(exists, byte, 0)
        tl.store(scales_ptr + offsets, byte.to(tl.uint8), mask=None if WHOLE else within)
    else:
        tl.store(scales_ptr + first + block, byte.to(tl.uint8), mask=None if WHOLE else exists)
