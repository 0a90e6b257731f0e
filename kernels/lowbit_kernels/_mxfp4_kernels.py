"""The device side of `mxfp4.py`, where the layout is drawn and the formula stands.

Tiles are (BLOCK_M, 32): BLOCK_M = BLOCK_ROWS * BLOCK_GROUPS blocks of 32 elements, one pass, one load of each element.
With PAIRS (see `_pairs.py`, the usual case) they are (BLOCK_M, 16) words of two elements. Every load and store is
masked by the blocks that exist.
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
    cast_exact,
    decode_e2m1,
    encode_e2m1,
    inverse_power_of_two,
    join_codes,
    pack_pairs,
    power_of_two,
    remaining,
    scale_byte,
    tile_origin,
    widen,
)
from lowbit_kernels._philox import RANDOM_TILE, draw_bytes, pair_bytes, pair_words
from lowbit_kernels.swizzle import swizzled_offset

LENGTHS = ("rows", "groups", "padded_rows", "padded_groups", "row_stride", "column_stride")
"""Arguments of which no kernel is made anew."""

_RANDOM_TILE = tl.constexpr(RANDOM_TILE)


@triton.jit
def _block_scale(amax, RULE: tl.constexpr):
    """amax: (BLOCK_M,) int32 bits, NaN and Inf included. -> stored byte, and 2**-E as (BLOCK_M, 1) float32."""
    marked = amax >= INFINITY_BITS
    byte = scale_byte(amax, 0, RULE, 1, 2, 253)
    factor = inverse_power_of_two(tl.where(marked, 127, byte))
    return tl.where(marked, 255, byte), factor[:, None]


@triton.jit
def _encode_drawn(words, factor, number, key_low, key_high, PAIRS: tl.constexpr, PTX: tl.constexpr):
    """The two codes of each word, rounded stochastically: (BLOCK_M, 16) integers, in the low byte.

    number: (BLOCK_M,) int64, of the block in x: its 32 random bytes are those of two counters.
    """
    random = pair_words(number * 2, key_low, key_high, 2)
    low, high = _pairs.signed(words, PAIRS)
    first, second = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
    if PTX:
        return _stochastic_pairs.encode(first, second, factor, random)
    else:
        first_random, second_random = pair_bytes(random)
        code = encode_e2m1(first * factor, first_random, STOCHASTIC, NAN_POSITIVE_MAX, False, low)
        return code | (encode_e2m1(second * factor, second_random, STOCHASTIC, NAN_POSITIVE_MAX, False, high) << 4)


@triton.jit(do_not_specialize=[*LENGTHS, "key_low", "key_high"])
def quantize(
    x_ptr,
    packed_ptr,
    scales_ptr,
    random_ptr,
    rows,
    groups,
    padded_rows,
    padded_groups,
    row_stride,
    column_stride,
    key_low,
    key_high,
    RULE: tl.constexpr,
    ROUNDING: tl.constexpr,
    RANDOM: tl.constexpr,
    SWIZZLE: tl.constexpr,
    PAIRS: tl.constexpr,
    STRIDED: tl.constexpr,
    UNIT: tl.constexpr,
    WIDE: tl.constexpr,
    PTX: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    HARDWARE: tl.constexpr = False,
):
    """row_stride: in units of UNIT. column_stride: counts where STRIDED; else it is 1."""
    BLOCK_M: tl.constexpr = BLOCK_ROWS * BLOCK_GROUPS
    LANES: tl.constexpr = 16 if PAIRS else 32
    first_row, first_group = tile_origin(padded_groups, BLOCK_ROWS, BLOCK_GROUPS)
    local = tl.arange(0, BLOCK_M)  # (BLOCK_M,) blocks of this tile
    row = local // BLOCK_GROUPS
    group = local % BLOCK_GROUPS
    exists = (row < remaining(rows, first_row, BLOCK_ROWS)) & (group < remaining(groups, first_group, BLOCK_GROUPS))
    if WIDE:
        row = row.to(tl.int64)
        group = group.to(tl.int64)

    inside = tl.broadcast_to(exists[:, None], (BLOCK_M, LANES))
    start = first_group * LANES
    offsets = group[:, None] * LANES + tl.arange(0, LANES)[None, :]
    if STRIDED:
        start *= column_stride
        offsets *= column_stride
    if BLOCK_ROWS > 1:
        offsets += row[:, None] * row_stride * UNIT
    pointers = x_ptr + first_row * row_stride * UNIT + start + offsets
    if PAIRS:
        # a thread then has 64 bytes of x, and stores the codes of these
        VECTOR: tl.constexpr = 512 // x_ptr.dtype.element_ty.primitive_bitwidth
        pointers = tl.max_contiguous(pointers, (1, VECTOR))
    loaded = tl.load(pointers, mask=inside, other=0)

    number = (first_row + row) * groups + first_group + group  # (BLOCK_M,) int64, of the block in x
    if PAIRS:
        byte, factor = _block_scale(_pairs.amax_bits(loaded, False, PAIRS, PTX), RULE)
        if RANDOM == _RANDOM_TILE:
            packed = _encode_drawn(loaded, factor, number, key_low, key_high, PAIRS, PTX)
        else:
            packed = _pairs.encode_pairs(loaded, factor, ROUNDING, NAN_POSITIVE_MAX, 2, PAIRS, HARDWARE, PTX)
    else:
        x = widen(loaded)  # (BLOCK_M, 32)
        bits = x.to(tl.int32, bitcast=True)
        byte, factor = _block_scale(tl.max(bits & MAGNITUDE_BITS, axis=1), RULE)
        random = draw_bytes(number * 32, random_ptr, inside, key_low, key_high, RANDOM, BLOCK_M, 32)
        NARROW: tl.constexpr = x_ptr.dtype.element_ty != tl.float32
        codes = encode_e2m1(x * factor, random, ROUNDING, NAN_POSITIVE_MAX, NARROW, bits)
        packed = pack_pairs(codes, BLOCK_M, 32)

    offsets = (row[:, None] * groups + group[:, None]) * 16 + tl.arange(0, 16)[None, :]  # (BLOCK_M, 16)
    pointers = packed_ptr + (first_row * groups + first_group) * 16 + offsets
    if PAIRS:
        pointers = tl.max_contiguous(pointers, (1, VECTOR))
    tl.store(pointers, packed.to(tl.uint8), mask=exists[:, None])
    if SWIZZLE:
        # programs cover the padded extent and write its zeros too. The scales of 128 rows lie together, and those of
        # the groups before a tile's first one, a multiple of 4, before its own: the rest is counted in 32 bits
        within = row < remaining(padded_rows, first_row, BLOCK_ROWS)
        within &= group < remaining(padded_groups, first_group, BLOCK_GROUPS)
        start = (first_row & -128) * padded_groups + first_group * 128
        offset = swizzled_offset((first_row & 127).to(tl.int32) + row, group, padded_groups)
        tl.store(scales_ptr + start + offset, tl.where(exists, byte, 0).to(tl.uint8), mask=within)
    else:
        tl.store(scales_ptr + first_row * groups + first_group + row * groups + group, byte.to(tl.uint8), mask=exists)


@triton.jit(do_not_specialize=["groups"])
def dequantize(packed_ptr, scales_ptr, out_ptr, groups, PAIRS: tl.constexpr, BLOCK_M: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    group = tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    exists = group < remaining(groups, first, BLOCK_M)
    byte = tl.load(scales_ptr + first + group, mask=exists, other=0).to(tl.int32)
    scale = tl.where(byte == 255, float("nan"), power_of_two(byte))[:, None]

    offsets = group[:, None] * 16 + tl.arange(0, 16)[None, :]
    pointers = packed_ptr + first * 16 + offsets
    if PAIRS:
        # a thread then loads the bytes of those 16 bytes that it stores, and none has to be exchanged
        pointers = tl.max_contiguous(pointers, (1, 128 // out_ptr.dtype.element_ty.primitive_bitwidth))
    packed = tl.load(pointers, mask=exists[:, None], other=0).to(tl.int32)  # (BLOCK_M, 16)
    if PAIRS:
        low = decode_e2m1(packed & 7) * scale  # exact, or Inf
        high = decode_e2m1((packed >> 4) & 7) * scale
        words = _pairs.to_words(low, high, packed, PAIRS)
        tl.store(out_ptr + first * 16 + offsets, words, mask=exists[:, None])
    else:
        value = decode_e2m1(join_codes(packed, BLOCK_M, 16)) * scale  # (BLOCK_M, 32)
        offsets = group[:, None] * 32 + tl.arange(0, 32)[None, :]
        tl.store(out_ptr + first * 32 + offsets, cast_exact(value, out_ptr.dtype.element_ty), mask=exists[:, None])
