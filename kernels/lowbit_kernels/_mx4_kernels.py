"""The device side of `mx4.py`, where the layout is drawn and the formula stands, for any call of it.

Tiles are (BLOCK_M, GROUP): BLOCK_M = BLOCK_ROWS * BLOCK_GROUPS groups, one pass, one load of each element. With PAIRS
(see `_pairs.py`, the usual case) they are (BLOCK_M, GROUP / 2) words of two elements. Every load and store is masked by
the groups, and the columns, that exist.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels import _pairs
from lowbit_kernels._codec import (
    MAGNITUDE_BITS,
    NAN_SIGNED_MAX,
    cast_exact,
    decode_e2m1,
    decode_e3m0,
    encode_e2m1,
    encode_e3m0,
    inverse_power_of_two,
    join_codes,
    pack_pairs,
    philox_word,
    power_of_two,
    remaining,
    scale_byte,
    tile_origin,
    widen,
)
from lowbit_kernels._philox import RANDOM_GIVEN, RANDOM_INDEX, draw_bytes

SCALE_LIMIT = tl.constexpr(125 + 127)
_GIVEN = tl.constexpr(RANDOM_GIVEN)
_SEEDED = tl.constexpr(RANDOM_INDEX)
_NAN_TO_NEGATIVE = tl.constexpr(0x80000000 - 0x7F800001)  # added to a magnitude's bits


@triton.jit
def _scale_random(scale_random_ptr, number, exists, key_low, key_high, SCALE_RANDOM: tl.constexpr):
    """number: (BLOCK_M,) int64, of the group. -> (BLOCK_M,) int32, 31 random bits each; 0 without."""
    if SCALE_RANDOM == _GIVEN:
        return tl.load(scale_random_ptr + number, mask=exists, other=0)
    elif SCALE_RANDOM == _SEEDED:
        return (philox_word(number, key_low, key_high, 1) >> 1).to(tl.int32)
    else:
        return 0


@triton.jit(do_not_specialize=["rows", "lanes", "groups", "row_stride", "column_stride", "key_low", "key_high"])
def quantize(
    x_ptr,
    stream_ptr,
    random_ptr,
    scale_random_ptr,
    rows,
    lanes,
    groups,
    row_stride,
    column_stride,
    key_low,
    key_high,
    RULE: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    ROUNDING: tl.constexpr,
    RANDOM: tl.constexpr,
    SCALE_RANDOM: tl.constexpr,
    PAIRS: tl.constexpr,
    STRIDED: tl.constexpr,
    UNIT: tl.constexpr,
    WIDE: tl.constexpr,
    PTX: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """lanes: what there is to load of a row, elements or words. It and row_stride are in units of UNIT.

    column_stride: counts where STRIDED; else it is 1.
    """
    BLOCK_M: tl.constexpr = BLOCK_ROWS * BLOCK_GROUPS
    BYTES: tl.constexpr = GROUP // 2
    LANES: tl.constexpr = BYTES if PAIRS else GROUP
    MANTISSA_BITS: tl.constexpr = 3 - EXPONENT_BITS
    first_row, first_group = tile_origin(groups, BLOCK_ROWS, BLOCK_GROUPS)
    local = tl.arange(0, BLOCK_M)  # (BLOCK_M,) groups of this tile
    row = local // BLOCK_GROUPS
    group = local % BLOCK_GROUPS
    exists = (row < remaining(rows, first_row, BLOCK_ROWS)) & (group < remaining(groups, first_group, BLOCK_GROUPS))
    if WIDE:
        row = row.to(tl.int64)
        group = group.to(tl.int64)

    lane = group[:, None] * LANES + tl.arange(0, LANES)[None, :]  # (BLOCK_M, LANES), from this tile's first
    row_lanes = lanes.to(tl.int64) * UNIT
    inside = exists[:, None] & (lane < remaining(row_lanes, first_group * LANES, BLOCK_GROUPS * LANES))
    start = first_group * LANES
    offsets = lane
    if STRIDED:
        start *= column_stride
        offsets *= column_stride
    if BLOCK_ROWS > 1:
        offsets += row[:, None] * row_stride * UNIT
    loaded = tl.load(x_ptr + first_row * row_stride * UNIT + start + offsets, mask=inside, other=0)

    number = (first_row + row) * groups + first_group + group  # (BLOCK_M,) int64, of the group
    scale_random = _scale_random(scale_random_ptr, number, exists, key_low, key_high, SCALE_RANDOM)
    if PAIRS:
        amax = _pairs.amax_bits(loaded, True, PAIRS, PTX)  # (BLOCK_M,) bits, without NaN
        byte = scale_byte(amax, scale_random, RULE, MANTISSA_BITS, EXPONENT_BITS, SCALE_LIMIT)
        factor = inverse_power_of_two(byte)[:, None]
        packed = _pairs.encode_pairs(loaded, factor, ROUNDING, NAN_SIGNED_MAX, EXPONENT_BITS, PAIRS, False, PTX)
    else:
        x = widen(loaded)  # (BLOCK_M, GROUP)
        bits = x.to(tl.int32, bitcast=True)
        keys = (bits & MAGNITUDE_BITS) + _NAN_TO_NEGATIVE
        amax = tl.maximum(tl.max(keys, axis=1), _NAN_TO_NEGATIVE) - _NAN_TO_NEGATIVE
        byte = scale_byte(amax, scale_random, RULE, MANTISSA_BITS, EXPONENT_BITS, SCALE_LIMIT)
        scaled = x * inverse_power_of_two(byte)[:, None]
        first = (first_row + row) * row_lanes + (first_group + group) * GROUP  # (BLOCK_M,) int64, of the unpadded x
        random = draw_bytes(first, random_ptr, inside, key_low, key_high, RANDOM, BLOCK_M, GROUP)
        NARROW: tl.constexpr = x_ptr.dtype.element_ty != tl.float32
        if EXPONENT_BITS == 2:
            codes = encode_e2m1(scaled, random, ROUNDING, NAN_SIGNED_MAX, NARROW, bits)  # (BLOCK_M, GROUP)
        else:
            codes = encode_e3m0(scaled, random, ROUNDING, NAN_SIGNED_MAX, NARROW, bits)
        packed = pack_pairs(codes, BLOCK_M, GROUP)

    stream = stream_ptr + (first_row * groups + first_group) * (BYTES + 1)
    offset = (row * groups + group) * (BYTES + 1)  # (BLOCK_M,)
    packed_offsets = offset[:, None] + tl.arange(0, BYTES)[None, :]
    tl.store(stream + packed_offsets, packed.to(tl.uint8), mask=exists[:, None])  # (BLOCK_M, BYTES)
    tl.store(stream + offset + BYTES, byte.to(tl.uint8), mask=exists)


@triton.jit(do_not_specialize=["rows", "lanes", "groups"])
def dequantize(
    stream_ptr,
    out_ptr,
    rows,
    lanes,
    groups,
    EXPONENT_BITS: tl.constexpr,
    PAIRS: tl.constexpr,
    UNIT: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """lanes: what there is to store of a row, elements or words, in units of UNIT."""
    BLOCK_M: tl.constexpr = BLOCK_ROWS * BLOCK_GROUPS
    BYTES: tl.constexpr = GROUP // 2
    LANES: tl.constexpr = BYTES if PAIRS else GROUP
    first_row, first_group = tile_origin(groups, BLOCK_ROWS, BLOCK_GROUPS)
    local = tl.arange(0, BLOCK_M)  # (BLOCK_M,) groups of this tile
    row = local // BLOCK_GROUPS
    group = local % BLOCK_GROUPS
    exists = (row < remaining(rows, first_row, BLOCK_ROWS)) & (group < remaining(groups, first_group, BLOCK_GROUPS))
    if WIDE:
        row = row.to(tl.int64)
        group = group.to(tl.int64)

    stream = stream_ptr + (first_row * groups + first_group) * (BYTES + 1)
    offset = (row * groups + group) * (BYTES + 1)  # (BLOCK_M,)
    byte = tl.load(stream + offset + BYTES, mask=exists, other=0).to(tl.int32)
    scale = power_of_two(byte)[:, None]
    packed_offsets = offset[:, None] + tl.arange(0, BYTES)[None, :]
    packed = tl.load(stream + packed_offsets, mask=exists[:, None], other=0).to(tl.int32)  # (BLOCK_M, BYTES)
    if PAIRS:
        low, high = packed & 7, (packed >> 4) & 7
        if EXPONENT_BITS == 2:
            low, high = decode_e2m1(low) * scale, decode_e2m1(high) * scale  # exact, or Inf, or NaN for 0 * Inf
        else:
            low, high = decode_e3m0(low) * scale, decode_e3m0(high) * scale
        values = _pairs.to_words(low, high, packed, PAIRS)  # (BLOCK_M, BYTES)
    else:
        codes = join_codes(packed, BLOCK_M, BYTES)  # (BLOCK_M, GROUP)
        value = decode_e2m1(codes) if EXPONENT_BITS == 2 else decode_e3m0(codes)
        values = cast_exact(value * scale, out_ptr.dtype.element_ty)

    lane = group[:, None] * LANES + tl.arange(0, LANES)[None, :]  # (BLOCK_M, LANES), from this tile's first
    row_lanes = lanes.to(tl.int64) * UNIT
    inside = exists[:, None] & (lane < remaining(row_lanes, first_group * LANES, BLOCK_GROUPS * LANES))
    offsets = lane
    if BLOCK_ROWS > 1:
        offsets += row[:, None] * row_lanes
    tl.store(out_ptr + first_row * row_lanes + first_group * LANES + offsets, values, mask=inside)
