"""The device side of `gptq.py`, where the layout is drawn and the formula stands.

A tile is BLOCK_P packs by BLOCK_N columns; a pack is the words of one column that hold whole fields: one word of 32 / b
fields, or three words of 32 fields of 3 bits. Fields of a pack are rows of the result. They are decoded and stored one
after another, each as a (BLOCK_P, BLOCK_N) tensor of the same layout as the words, so that no thread needs another's
words and every store runs along the columns. Where each row has its own group, a few at a time are a round of a loop:
unrolled, so many loads of zero points take seconds to compile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import remaining, tile_count
from lowbit_kernels._weight_codec import narrow, number, tile_of, widen_scale

BY_TILE, BY_ROW, BY_INDEX = 0, 1, 2
"""Where a row's group comes from: one for the whole tile; k // G; g_idx[k]."""

_BY_TILE = tl.constexpr(BY_TILE)
_BY_INDEX = tl.constexpr(BY_INDEX)


@triton.constexpr_function
def words_of_pack(BITS: int) -> int:
    return 3 if BITS == 3 else 1


@triton.constexpr_function
def rows_of_pack(BITS: int) -> int:
    return 32 if BITS == 3 else 32 // BITS


@triton.constexpr_function
def columns_of_unit(BITS: int) -> int:
    """Zero points that are decoded from one field of `_zero_fields`."""
    return 4 if BITS == 8 else 8


@triton.constexpr_function
def repeated(field: int, BITS: int) -> int:
    """A field in every place of a word, as int32."""
    word = sum(field << at for at in range(0, 32 - BITS + 1, BITS))
    return word - (1 << 32) if word >> 31 else word


@triton.constexpr_function
def byte_number(BYTE: int) -> str:
    """PTX that makes the float32 2**23 + byte of a byte of $1."""
    return f"{{ prmt.b32 $0, $1, 0x4b000000, 0x754{BYTE}; }}"


@triton.jit
def field_number(word, INDEX: tl.constexpr, BITS: tl.constexpr, PTX: tl.constexpr):
    """word: any shape, int32 fields of 2, 4 or 8 bits. -> float32 2**23 + field INDEX, counted from the lowest."""
    if PTX:
        spread = word
        if BITS != 8:  # a field a byte: the compiler does this once for all fields that lie alike
            spread = (word >> (INDEX * BITS % 8)) & repeated((1 << BITS) - 1, 8)
        ASSEMBLY: tl.constexpr = byte_number(INDEX * BITS // 8)
        bits = tl.inline_asm_elementwise(ASSEMBLY, "=r,r", [spread], dtype=tl.int32, is_pure=True, pack=1)
        return bits.to(tl.float32, bitcast=True)
    else:
        return number((word >> (INDEX * BITS)) & ((1 << BITS) - 1))


@triton.jit
def load_words(start, row_stride, exists, BITS: tl.constexpr):
    """start: (BLOCK_P, BLOCK_N) pointers to the first word of each pack. -> a tuple of its words."""
    if BITS == 3:
        first = tl.load(start, mask=exists, other=0)
        second = tl.load(start + row_stride, mask=exists, other=0)
        # one by one: twice an int32 may not be one
        return first, second, tl.load(start + row_stride + row_stride, mask=exists, other=0)
    else:
        return (tl.load(start, mask=exists, other=0),)


@triton.jit
def field(words, INDEX: tl.constexpr, BITS: tl.constexpr):
    """words: of `load_words`. -> int32, field INDEX of each pack: BITS bits from bit INDEX * BITS of its words on."""
    SHIFT: tl.constexpr = INDEX * BITS % 32
    MASK: tl.constexpr = (1 << BITS) - 1
    low = words[INDEX * BITS // 32] >> SHIFT
    if SHIFT + BITS > 32:
        low = (low & ((1 << (32 - SHIFT)) - 1)) | (words[INDEX * BITS // 32 + 1] << (32 - SHIFT))
    return low & MASK


@triton.jit
def advance(words, BITS: tl.constexpr, COUNT: tl.constexpr):
    """words: of `load_words`. -> the same without their lowest COUNT fields; what moves in above is undefined."""
    if BITS == 3:
        first = words[0].to(tl.uint32) >> (3 * COUNT)
        second = words[1].to(tl.uint32) >> (3 * COUNT)
        above = 32 - 3 * COUNT
        return (
            first.to(tl.int32) | (words[1] << above),
            second.to(tl.int32) | (words[2] << above),
            words[2] >> (3 * COUNT),
        )
    else:
        return (words[0] >> (BITS * COUNT),)


@triton.jit
def packed_number(words, INDEX: tl.constexpr, BITS: tl.constexpr, PTX: tl.constexpr):
    """words: of `load_words`. -> float32 2**23 + field INDEX of each pack."""
    if BITS == 3:
        return number(field(words, INDEX, BITS))
    else:
        return field_number(words[0], INDEX, BITS, PTX)


@triton.jit
def _zero_fields(row, unit, exists, BITS: tl.constexpr):
    """The packed zero points of units of 8 columns, of 4 where BITS is 8.

    row: pointers to the first word of the first unit's 32 columns; unit: int, counted from there; both broadcast.
    -> int32, the first zero point in the lowest bits. For 3 bits a unit can begin in one word and end in the next.
    """
    if BITS == 2:
        return tl.load(row + (unit >> 1), mask=exists, other=0) >> ((unit & 1) * 16)
    elif BITS == 3:
        bit = unit * 24
        start = bit & 31
        low = tl.load(row + (bit >> 5), mask=exists, other=0).to(tl.uint32) >> start.to(tl.uint32)
        high = tl.load(row + (bit >> 5) + 1, mask=exists & (start > 8), other=0)
        return low.to(tl.int32) | (high << ((32 - start) & 31))
    else:
        return tl.load(row + unit, mask=exists, other=0)


@triton.jit
def _two(word, FIRST: tl.constexpr, SECOND: tl.constexpr, BITS: tl.constexpr, PTX: tl.constexpr):
    return tl.join(field_number(word, FIRST, BITS, PTX), field_number(word, SECOND, BITS, PTX))


@triton.jit
def load_zeros(
    row,
    unit,
    exists,
    added,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BITS: tl.constexpr,
    PTX: tl.constexpr,
):
    """row: (ROWS, 1) pointers; unit: (1, COLUMNS / 8) int. -> (ROWS, COLUMNS) float32 2**23 + zero point.

    added: to the stored zero points modulo 2**BITS, 0 or 1 in each field of a word, or 0 or 1 where BITS is 3.
    """
    UNIT: tl.constexpr = columns_of_unit(BITS)
    fields = _zero_fields(row, unit, exists, BITS)
    if BITS == 3:
        shift = tl.arange(0, UNIT) * BITS
        zeros = tl.reshape(fields[:, :, None] >> shift[None, None, :], (ROWS, COLUMNS))
        return number((zeros + added) & 7)
    else:
        HIGH: tl.constexpr = repeated(1 << (BITS - 1), BITS)
        fields = ((fields & ~HIGH) + added) ^ (fields & HIGH)  # no carry leaves a field
        if UNIT == 8:
            even = tl.join(_two(fields, 0, 4, BITS, PTX), _two(fields, 2, 6, BITS, PTX))
            odd = tl.join(_two(fields, 1, 5, BITS, PTX), _two(fields, 3, 7, BITS, PTX))
        else:
            even, odd = _two(fields, 0, 2, BITS, PTX), _two(fields, 1, 3, BITS, PTX)
        return tl.reshape(tl.join(even, odd), (ROWS, COLUMNS))


@triton.jit(
    do_not_specialize=["packs", "units", "groups", "group_size", "row_stride_units", "added", "hidden"],
    do_not_specialize_on_alignment=["g_idx_ptr"],
)
def dequantize_gptq_kernel(
    qweight_ptr,
    qzeros_ptr,
    scales_ptr,
    g_idx_ptr,
    out_ptr,
    packs,
    units,
    groups,
    group_size,
    row_stride_units,
    added,
    hidden,
    BITS: tl.constexpr,
    GROUPS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    STEPS: tl.constexpr,
    ROUND: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PTX: tl.constexpr,
):
    """A column of BLOCK_P * STEPS packs.

    units: N / ALIGN, so that the compiler knows what N is a multiple of; row_stride_units likewise.
    added: to the stored zero points, of `load_zeros`.
    ROUND: rows of a pack that are decoded at a time, of 3 bits all or at most 8; where each has its own group, their
    zero points and scales are loaded before the first of them is stored.
    hidden: 0, which the compiler must not know: it then takes words of zero points for unaligned and gives a thread
    one at a time, the one that its columns need; of 8 bits these are two.
    PTX: whether fields become floats by byte permutations of NVIDIA's, two instructions in place of three.
    """
    PACK: tl.constexpr = rows_of_pack(BITS)
    WORDS: tl.constexpr = words_of_pack(BITS)
    UNIT: tl.constexpr = columns_of_unit(BITS)
    if WIDE:
        units = units.to(tl.int64)
        row_stride_units = row_stride_units.to(tl.int64)
    columns = units * ALIGN
    row_stride = row_stride_units * ALIGN
    tile, column_tile = tile_of(tile_count(columns, BLOCK_N))
    first_column = column_tile.to(tl.int64) * BLOCK_N
    pack = tl.arange(0, BLOCK_P)
    column = tl.arange(0, BLOCK_N)[None, :]
    left = remaining(columns, first_column, BLOCK_N)
    column_exists = column < left
    unit = tl.arange(0, BLOCK_N // UNIT)[None, :]
    unit_exists = unit * UNIT < left
    zeros_columns = columns // 32 * BITS + columns % 32 * BITS // 32
    zeros_start = qzeros_ptr + first_column // 32 * BITS
    if BITS != 8:
        zeros_start += hidden
    scales_start = scales_ptr + first_column + column
    # BLOCK_N may be below 32: the units before this tile in the words that hold 32 columns
    unit = unit + (first_column % 32 // UNIT).to(tl.int32)
    local = pack.to(tl.int64)[:, None] if WIDE else pack[:, None]

    for step in range(STEPS):
        first = (tile * STEPS + step) * BLOCK_P
        pack_exists = (pack < packs - first)[:, None]
        exists = pack_exists & column_exists
        start = qweight_ptr + first.to(tl.int64) * WORDS * row_stride + first_column
        words = load_words(start + local * WORDS * row_stride + column, row_stride, exists, BITS)
        at = out_ptr + first.to(tl.int64) * PACK * columns + first_column + local * PACK * columns + column
        if GROUPS == _BY_TILE:
            # a step below the last row of packs stores nothing, but must not read behind the last group either
            group = (tl.minimum(first, packs - 1) * PACK // group_size).to(tl.int64)
            row = zeros_start + group * zeros_columns + tl.zeros((1, 1), tl.int32)
            zeros = load_zeros(row, unit, unit_exists, added, 1, BLOCK_N, BITS, PTX)
            scales = widen_scale(tl.load(scales_start + group * columns, mask=column_exists, other=0.0))
            for _ in range(0, PACK, ROUND):
                for i in tl.static_range(ROUND):
                    result = (packed_number(words, i, BITS, PTX) - zeros) * scales  # (BLOCK_P, BLOCK_N)
                    tl.store(at + i * columns, narrow(result, out_ptr.dtype.element_ty), mask=exists)
                if ROUND < PACK:
                    words = advance(words, BITS, ROUND)
                    at += ROUND * columns
        else:
            for ahead in range(0, PACK, ROUND):
                zeros_ahead = ()
                scales_ahead = ()
                for i in tl.static_range(ROUND):
                    k = (first + pack) * PACK + ahead + i  # (BLOCK_P,)
                    if GROUPS == _BY_INDEX:
                        group = tl.load(g_idx_ptr + k, mask=pack < packs - first, other=0)[:, None]
                    else:
                        group = (k // group_size)[:, None]
                    known = pack_exists & (group >= 0) & (group < groups)
                    if WIDE:
                        group = group.to(tl.int64)
                    row = zeros_start + group * zeros_columns
                    live = known & unit_exists
                    zeros_ahead += (load_zeros(row, unit, live, added, BLOCK_P, BLOCK_N, BITS, PTX),)  # type: ignore[assignment]
                    live = known & column_exists
                    loaded = tl.load(scales_start + group * columns, mask=live, other=float("nan"))
                    scales_ahead += (loaded,)  # type: ignore[assignment]
                for i in tl.static_range(ROUND):
                    result = packed_number(words, i, BITS, PTX) - zeros_ahead[i]
                    result = result * widen_scale(scales_ahead[i])
                    tl.store(at + i * columns, narrow(result, out_ptr.dtype.element_ty), mask=exists)
                if ROUND < PACK:
                    words = advance(words, BITS, ROUND)
                    at += ROUND * columns
