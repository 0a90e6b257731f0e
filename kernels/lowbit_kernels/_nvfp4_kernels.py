"""The quantising kernels behind `nvfp4.py`, which draws the format.

    amax_kernel            x → one partial maximum a program          ┐ only where g is computed
    tensor_scale_kernel    partial maxima → g                         ┘
    quantize_kernel        x, g → packed codes, scale bytes           one pass, nothing between memory and registers

Tiles are (BLOCK_M, 16): BLOCK_M = BLOCK_ROWS * BLOCK_GROUPS blocks of 16 elements. With PAIRS (see `_pairs.py`, the
usual case) they are (BLOCK_M, 8) words of two elements, and a block is in one thread. Every load and store is masked by
the blocks that exist.

|RN32(x * g)| does not fall where |x| grows, so amax(y) = RN32(amax(x) * g): integer maxima of the patterns of x, among
which Inf and then NaN are the largest, and one multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs
from lowbit_kernels._codec import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    NAN_POSITIVE_MAX,
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
    divide_by_scale,
    divide_by_six,
    encode_e4m3,
    nearest_e2m1,
    reciprocal_pair,
)
from lowbit_kernels._philox import RANDOM_TILE, draw_bytes, philox_words
from lowbit_kernels.swizzle import swizzled_offset

COMPUTED, GIVEN, UNIT = 0, 1, 2
"""Where g comes from: the kernels before, the caller, or nowhere (1)."""

_COMPUTED = tl.constexpr(COMPUTED)
_GIVEN = tl.constexpr(GIVEN)
_UNIT = tl.constexpr(UNIT)
_BFLOAT16 = tl.constexpr(_pairs.BFLOAT16)
_FLOAT16 = tl.constexpr(_pairs.FLOAT16)
_FLOAT32 = tl.constexpr(_pairs.FLOAT32)
_RANDOM_TILE = tl.constexpr(RANDOM_TILE)

SPAN = tl.constexpr(2688.0)  # 6 * 448, the largest value that codes and scale can hold
LEAST_AMAX = tl.constexpr(0x2B8CBCCC)  # RN32(1e-12)
LARGEST_BITS = tl.constexpr(0x7F7FFFFF)  # FLT_MAX


@triton.jit
def _bits(x):
    return x.to(tl.int32, bitcast=True)


@triton.jit
def _float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _tile(tile, rows, groups, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr):
    """Tile number `tile`, counted along a row's groups first.

    -> first row and first group (int64 scalars); row and group of each block within the tile, and whether it exists,
    each (BLOCK_ROWS * BLOCK_GROUPS,).
    """
    across = tl.cdiv(groups, BLOCK_GROUPS)
    first_row = (tile // across).to(tl.int64) * BLOCK_ROWS
    first_group = (tile % across).to(tl.int64) * BLOCK_GROUPS
    local = tl.arange(0, BLOCK_ROWS * BLOCK_GROUPS)
    row = local // BLOCK_GROUPS
    group = local % BLOCK_GROUPS
    exists = (row < rows - first_row) & (group < groups - first_group)
    if WIDE:
        row = row.to(tl.int64)
        group = group.to(tl.int64)
    return first_row, first_group, row, group, exists


@triton.jit
def _load(x_ptr, first_row, first_group, row, group, exists, row_stride, column_stride, PER_BLOCK: tl.constexpr):
    """PER_BLOCK consecutive elements (or words; then strides count words) of each block: (BLOCK_M, PER_BLOCK)."""
    start = x_ptr + first_row * row_stride + first_group * PER_BLOCK * column_stride
    lane = tl.arange(0, PER_BLOCK)[None, :]
    offsets = row[:, None] * row_stride + (group[:, None] * PER_BLOCK + lane) * column_stride
    return tl.load(start + offsets, mask=exists[:, None], other=0)


@triton.jit
def _keys(x, LIMIT: tl.constexpr, PAIRS: tl.constexpr):
    """Left-aligned magnitude patterns as uint32, of a pair the larger; with a LIMIT, those from it on count as 0.

    A high half keeps its neighbour's bits below its own; they decide nothing between different magnitudes.
    """
    if PAIRS == _FLOAT32:
        low = x.to(tl.uint32) << 1
        high = (x >> 32).to(tl.uint32) << 1
    elif PAIRS:
        low = x.to(tl.uint32, bitcast=True) << 17
        high = x.to(tl.uint32, bitcast=True) << 1
    else:
        low = _bits(widen(x)).to(tl.uint32, bitcast=True) << 1
        high = low
    if LIMIT:
        low = tl.where(low >= LIMIT, 0, low)
        high = tl.where(high >= LIMIT, 0, high)
    return tl.maximum(low, high)


@triton.jit
def _largest_key(
    x_ptr,
    rows,
    groups,
    row_stride,
    column_stride,
    tiles,
    LIMIT: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """The largest key of this program's tiles, as a uint32 scalar."""
    PER_BLOCK: tl.constexpr = 8 if PAIRS else 16
    largest = tl.zeros((BLOCK_ROWS * BLOCK_GROUPS, PER_BLOCK), tl.uint32)
    tile = tl.program_id(0)
    while tile < tiles:  # older interpreters cannot take tensors as the bounds of a range
        first_row, first_group, row, group, exists = _tile(tile, rows, groups, WIDE, BLOCK_ROWS, BLOCK_GROUPS)
        x = _load(x_ptr, first_row, first_group, row, group, exists, row_stride, column_stride, PER_BLOCK)
        largest = tl.maximum(largest, _keys(x, LIMIT, PAIRS))
        tile += tl.num_programs(0)
    return tl.max(tl.max(largest, axis=1), axis=0)


@triton.jit
def amax_kernel(
    x_ptr,
    partial_ptr,
    rows,
    groups,
    row_stride,
    column_stride,
    tiles,
    FINITE: tl.constexpr,
    PAIRS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """One int32 a program: the largest float32 magnitude pattern of its tiles; with FINITE of the finite elements only.

    Only a program that meets Inf or NaN reads its tiles again and leaves them out.
    """
    INFINITE: tl.constexpr = 0xF8000000 if PAIRS == _FLOAT16 else 0xFF000000
    top = _largest_key(x_ptr, rows, groups, row_stride, column_stride, tiles, 0, PAIRS, WIDE, BLOCK_ROWS, BLOCK_GROUPS)
    if FINITE:
        again = top >= INFINITE
        if again:
            top = _largest_key(
                x_ptr, rows, groups, row_stride, column_stride, tiles, INFINITE, PAIRS, WIDE, BLOCK_ROWS, BLOCK_GROUPS
            )
    if PAIRS == _FLOAT16:
        bits = _bits((top >> 17).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32))
    elif PAIRS == _BFLOAT16:
        bits = (top >> 1).to(tl.int32, bitcast=True) & 0x7FFF0000
    else:
        bits = (top >> 1).to(tl.int32, bitcast=True)
    tl.store(partial_ptr + tl.program_id(0), bits)


@triton.jit
def tensor_scale_kernel(partial_ptr, count, g_ptr, CANONICAL: tl.constexpr, BLOCK: tl.constexpr):
    """g of the largest of `count` <= BLOCK patterns, 0 of none. Divisions are correctly rounded.

    canonical    a = 0: 1, else min(RN32(2688 / a), FLT_MAX)
    else         RN32(RN32(1 / max(a, RN32(1e-12))) * 2688), which gives 0 for Inf and NaN for NaN
    """
    index = tl.arange(0, BLOCK)
    bits = tl.max(tl.load(partial_ptr + index, mask=index < count, other=0), axis=0)
    if CANONICAL:
        g = tl.div_rn(SPAN, _float(tl.where(bits == 0, 0x3F800000, bits)))
        g = tl.where(bits == 0, 1.0, _float(tl.minimum(_bits(g), LARGEST_BITS)))
    else:
        g = tl.div_rn(1.0, _float(tl.maximum(bits, LEAST_AMAX))) * SPAN
    tl.store(g_ptr, g)


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
def _codes(x, g, scale, high, low, random, ROUNDING: tl.constexpr):
    """int32 E2M1 codes in the low four bits of (BLOCK_M, n) elements; scale, high, low: (BLOCK_M, 1).

    The limits 6 * scale are exact. `tl.minimum` returns the number where the other is NaN, whatever its sign, so
    that NaN gets the code of +6. The sign is y's, that of zero included.
    """
    limit = scale * 6.0
    y = tl.minimum(x * g, limit)
    sign = _bits(y) & ~MAGNITUDE_BITS
    NEAREST: tl.constexpr = FUSED & ((ROUNDING == TIES_TO_EVEN) | (ROUNDING == TIES_TOWARD_ZERO))
    if NEAREST:  # an interpreter that does not fuse does not drop NaN either
        q = divide_by_scale(tl.abs(y), scale, high, low)  # NaN for an infinite y
        return nearest_e2m1(q, ROUNDING == TIES_TO_EVEN).to(tl.int32, bitcast=True) | (sign >> 28) & 8
    y = tl.minimum(tl.abs(y), limit)
    q = divide_by_scale(y, scale, high, low)
    MAY_NOT_VANISH: tl.constexpr = (ROUNDING == TOWARD_NEGATIVE) | (ROUNDING == TOWARD_POSITIVE)
    if MAY_NOT_VANISH:  # these two ask whether RN32(y / s) is 0
        q = tl.div_rn(y, tl.broadcast_to(scale, y.shape))
    return encode_e2m1(_float(_bits(q) | sign), random, ROUNDING, NAN_POSITIVE_MAX)


@triton.jit
def _pair_bytes(block, key_low, key_high, RANDOM: tl.constexpr):
    """The random bytes of both elements of each word: (BLOCK_M, 8) int32, 0 without RANDOM_TILE.

    block: (BLOCK_M,) int64. The block's number in x is the number of the Philox counter that has its 16 bytes.
    """
    if RANDOM == _RANDOM_TILE:
        w0, w1, w2, w3 = philox_words(block[:, None], key_low, key_high, 0)
        lane = tl.arange(0, 8)[None, :]
        word = tl.where(lane < 4, tl.where(lane < 2, w0, w1), tl.where(lane < 6, w2, w3))
        word = (word >> ((lane & 1) * 16).to(tl.uint32)).to(tl.int32, bitcast=True)
        return word & 0xFF, (word >> 8) & 0xFF
    else:
        return 0, 0


@triton.jit(do_not_specialize=["key_low", "key_high"])
def quantize_kernel(
    x_ptr,
    g_ptr,
    packed_ptr,
    scales_ptr,
    tensor_scale_ptr,
    random_ptr,
    rows,
    groups,
    row_stride,
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
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    HARDWARE: tl.constexpr = False,
):
    BLOCK_M: tl.constexpr = BLOCK_ROWS * BLOCK_GROUPS
    PER_BLOCK: tl.constexpr = 8 if PAIRS else 16
    first_row, first_group, row, group, exists = _tile(
        tl.program_id(0), padded_rows, padded_groups, WIDE, BLOCK_ROWS, BLOCK_GROUPS
    )
    within = exists  # of the padded extent
    if SWIZZLE:
        exists = (row < rows - first_row) & (group < groups - first_group)
    g = 1.0 if ORIGIN == _UNIT else tl.load(g_ptr)
    if ORIGIN != _COMPUTED:
        tl.store(tensor_scale_ptr, g, mask=tl.program_id(0) == 0)

    loaded = _load(x_ptr, first_row, first_group, row, group, exists, row_stride, column_stride, PER_BLOCK)
    if PAIRS:
        amax = _pairs.amax_bits(loaded, False, PAIRS)  # (BLOCK_M,)
    else:
        x = widen(loaded)  # (BLOCK_M, 16)
        amax = tl.max(_bits(x) & MAGNITUDE_BITS, axis=1)

    byte, scale = _block_scale(amax, g, CANONICAL, ORIGIN)
    reciprocal, remainder = reciprocal_pair(scale)
    number = (first_row + row) * groups + first_group + group  # (BLOCK_M,) int64, of the block in x
    scale = scale[:, None]
    reciprocal = reciprocal[:, None]
    remainder = remainder[:, None]
    EVEN_PAIRS: tl.constexpr = PAIRS != 0 and CANONICAL and ROUNDING == TIES_TO_EVEN
    if EVEN_PAIRS:  # 0 < g < Inf, so that only x can be NaN, and its signs are y's
        low, high = _pairs.magnitudes(loaded, PAIRS)  # (BLOCK_M, 8)
        if HARDWARE:
            first = divide_by_scale(_float(low) * g, scale, reciprocal, remainder)
            second = divide_by_scale(_float(high) * g, scale, reciprocal, remainder)
            both = convert_pair(first, second)
        else:
            first = nearest_e2m1(divide_by_scale(_float(low) * g, scale, reciprocal, remainder), True)
            second = nearest_e2m1(divide_by_scale(_float(high) * g, scale, reciprocal, remainder), True)
            both = (first + second * 16).to(tl.int32, bitcast=True)
        packed = both | _pairs.sign_bits(loaded, True, PAIRS)
    elif PAIRS:
        low, high = _pairs.signed(loaded, PAIRS)  # (BLOCK_M, 8)
        low_random, high_random = _pair_bytes(number, key_low, key_high, RANDOM)
        first = _codes(_float(low), g, scale, reciprocal, remainder, low_random, ROUNDING)
        second = _codes(_float(high), g, scale, reciprocal, remainder, high_random, ROUNDING)
        packed = first | (second << 4)
    else:
        inside = tl.broadcast_to(exists[:, None], (BLOCK_M, 16))
        random = draw_bytes(number * 16, random_ptr, inside, key_low, key_high, RANDOM, BLOCK_M, 16)
        packed = pack_pairs(_codes(x, g, scale, reciprocal, remainder, random, ROUNDING), BLOCK_M, 16)

    packed_start = packed_ptr + (first_row * groups + first_group) * 8
    packed_offsets = (row[:, None] * groups + group[:, None]) * 8 + tl.arange(0, 8)[None, :]
    tl.store(packed_start + packed_offsets, packed.to(tl.uint8), mask=exists[:, None])
    if SWIZZLE:
        # programs cover the padded extent and write its zeros too
        offsets = swizzled_offset(first_row + row, first_group + group, padded_groups)
        tl.store(scales_ptr + offsets, tl.where(exists, byte, 0).to(tl.uint8), mask=within)
    else:
        tl.store(scales_ptr + first_row * groups + first_group + row * groups + group, byte.to(tl.uint8), mask=exists)
