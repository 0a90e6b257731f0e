"""The device side of `mxfp4.py`, where the layout is drawn and the formula stands.

Tiles are (BLOCK_M, 32): BLOCK_M = BLOCK_ROWS * BLOCK_GROUPS blocks of 32 elements, one pass, one load of each element.
With PAIRS (see `_pairs.py`, the usual case) they are (BLOCK_M, 16) words of two elements. Every load and store is
masked by the blocks that exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs
from lowbit_kernels._codec import (
    INFINITY_BITS,
    MAGNITUDE_BITS,
    NAN_POSITIVE_MAX,
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
from lowbit_kernels._philox import draw_bytes
from lowbit_kernels.swizzle import swizzled_offset


@triton.jit
def _block_scale(amax, RULE: tl.constexpr):
    """amax: (BLOCK_M,) int32 bits, NaN and Inf included. -> stored byte, and 2**-E as (BLOCK_M, 1) float32."""
    marked = amax >= INFINITY_BITS
    byte = scale_byte(amax, 0, RULE, 1, 2, 253)
    factor = inverse_power_of_two(tl.where(marked, 127, byte))
    return tl.where(marked, 255, byte), factor[:, None]


@triton.jit(do_not_specialize=["key_low", "key_high"])
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
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    HARDWARE: tl.constexpr = False,
):
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
    start = x_ptr + first_row * row_stride + first_group * LANES * column_stride
    offsets = (group[:, None] * LANES + tl.arange(0, LANES)[None, :]) * column_stride
    if BLOCK_ROWS > 1:
        offsets += row[:, None] * row_stride
    loaded = tl.load(start + offsets, mask=inside, other=0)

    number = (first_row + row) * groups + first_group + group  # (BLOCK_M,) int64, of the block in x
    if PAIRS:
        byte, factor = _block_scale(_pairs.amax_bits(loaded, False, PAIRS), RULE)
        packed = _pairs.encode_pairs(loaded, factor, ROUNDING, NAN_POSITIVE_MAX, 2, PAIRS, HARDWARE)  # (BLOCK_M, 16)
    else:
        x = widen(loaded)  # (BLOCK_M, 32)
        bits = x.to(tl.int32, bitcast=True)
        byte, factor = _block_scale(tl.max(bits & MAGNITUDE_BITS, axis=1), RULE)
        random = draw_bytes(number * 32, random_ptr, inside, key_low, key_high, RANDOM, BLOCK_M, 32)
        NARROW: tl.constexpr = x_ptr.dtype.element_ty != tl.float32
        codes = encode_e2m1(x * factor, random, ROUNDING, NAN_POSITIVE_MAX, NARROW, bits)
        packed = pack_pairs(codes, BLOCK_M, 32)  # (BLOCK_M, 16)

    packed_start = packed_ptr + (first_row * groups + first_group) * 16
    packed_offsets = (row[:, None] * groups + group[:, None]) * 16 + tl.arange(0, 16)[None, :]
    tl.store(packed_start + packed_offsets, packed.to(tl.uint8), mask=exists[:, None])
    if SWIZZLE:
        # programs cover the padded extent and write its zeros too
        within = row < remaining(padded_rows, first_row, BLOCK_ROWS)
        within &= group < remaining(padded_groups, first_group, BLOCK_GROUPS)
        offset = swizzled_offset(first_row + row, first_group + group, padded_groups)
        tl.store(scales_ptr + offset, tl.where(exists, byte, 0).to(tl.uint8), mask=within)
    else:
        tl.store(scales_ptr + first_row * groups + first_group + row * groups + group, byte.to(tl.uint8), mask=exists)


@triton.jit
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
