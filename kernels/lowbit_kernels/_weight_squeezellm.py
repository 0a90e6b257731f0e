"""The device side of `squeezellm.py`, where the layout is drawn and the formula stands.

Tables. A program takes the tables of its columns, rounded to the output's dtype, and every code looks its entry up by
`tl.gather`, which keeps them in shared memory: entry c of column n at place c * BLOCK_C + n, so that the threads of a
warp, side by side along the columns, never meet in one bank. With LANES = 2 a place holds two neighbouring columns of
16 bits, one in each half, and so does a stored word.

Sums. What a CSR matrix or a full row adds is rare: the place is decoded once more, from memory, and overwritten.

Malformed sums. Flags say what is wrong; where one is set every value becomes NaN, and nothing else is read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import remaining, tile_count
from lowbit_kernels._weight_codec import narrow, tile_of, widen_scale
from lowbit_kernels._weight_gptq import load_words, rows_of_pack, words_of_pack

FLAGS = ("crow_indices", "col_indices", "duplicate entry", "indices", "duplicate row")
"""What each flag says is wrong; the buffer has room for FLAG_ROOM."""

FLAG_ROOM = 8
_FLAG_ROOM = tl.constexpr(FLAG_ROOM)


@triton.jit
def _any_flag(flags_ptr):
    return tl.max(tl.load(flags_ptr + tl.arange(0, _FLAG_ROOM)), axis=0) != 0


@triton.jit
def _codes(words, PACKS: tl.constexpr, COLUMNS: tl.constexpr, BITS: tl.constexpr):
    """words: of `load_words`, each (PACKS, COLUMNS). -> (PACKS * rows of a pack, COLUMNS) int32 codes."""
    PACK: tl.constexpr = rows_of_pack(BITS)
    index = tl.arange(0, PACK)[None, :, None]
    first = words[0][:, None, :]
    if BITS == 3:
        second, third = words[1][:, None, :], words[2][:, None, :]
        bit = index * 3
        shift = bit & 31
        low = tl.where(bit < 32, first, tl.where(bit < 64, second, third)).to(tl.uint32) >> shift.to(tl.uint32)
        codes = low.to(tl.int32) | ((tl.where(bit < 32, second, third) << 1) << (31 - shift))
    else:
        codes = first >> (index * BITS)
    return tl.reshape(codes & ((1 << BITS) - 1), (PACKS * PACK, COLUMNS))


@triton.jit
def _entries(table_ptr, column, exists, COLUMNS: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr):
    """column: (COLUMNS,). -> (2**BITS, COLUMNS) int32, the entries' bits in dtype."""
    entry = tl.arange(0, 1 << BITS)[:, None]
    exists = tl.broadcast_to(exists[None, :], (1 << BITS, COLUMNS))
    values = narrow(
        widen_scale(tl.load(table_ptr + (column * (1 << BITS))[None, :] + entry, mask=exists, other=0.0)), dtype
    )
    if dtype == tl.float32:
        return values.to(tl.int32, bitcast=True)
    else:
        return values.to(tl.uint16, bitcast=True).to(tl.int32)


@triton.jit
def _look_up(table, codes, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ENTRIES: tl.constexpr):
    """table: (ENTRIES * COLUMNS,) int32; codes: (ROWS, COLUMNS). -> (ROWS, COLUMNS) int32."""
    place = codes * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return tl.reshape(tl.gather(table, tl.reshape(place, (ROWS * COLUMNS,)), 0), (ROWS, COLUMNS))


@triton.jit(
    do_not_specialize=["packs", "lanes", "row_stride", "hidden"],
    do_not_specialize_on_alignment=["qweight_ptr", "flags_ptr", "out_ptr"],
)
def dequantize_squeezellm_kernel(
    qweight_ptr,
    table_ptr,
    flags_ptr,
    out_ptr,
    packs,
    lanes,
    row_stride,
    hidden,
    LANE_COUNT: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    BITS: tl.constexpr,
    LANES: tl.constexpr,
    FLAGGED: tl.constexpr,
    WIDE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """BLOCK_P * STEPS packs by BLOCK_C lanes of LANES columns.

    In each step programs that run at a time decode rows beside each other, which memory writes faster than scattered
    ones; the steps of one program are therefore far apart.

    row_stride: in lanes. With LANES = 2 addresses are multiples of a lane, 8 bytes of qweight and 4 of out.
    LANE_COUNT, ROW_STRIDE: lanes and row_stride as constants, which makes the addresses of all rows of a tile immediate
    offsets from one; or 0.
    hidden: 0, which the compiler must not know: it then takes words for unaligned and gives neighbouring threads
    neighbouring lanes, one each.
    """
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if LANES == 2:
        qweight_ptr = qweight_ptr.to(tl.pointer_type(tl.int64), bitcast=True)
        out_ptr = out_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
    if LANE_COUNT:
        lanes = LANE_COUNT
    if ROW_STRIDE:
        row_stride = ROW_STRIDE
    PACK: tl.constexpr = rows_of_pack(BITS)
    WORDS: tl.constexpr = words_of_pack(BITS)
    ENTRIES: tl.constexpr = 1 << BITS
    ROWS: tl.constexpr = BLOCK_P * PACK
    down = tile_count(packs, BLOCK_P * STEPS)
    tile, lane_tile = tile_of(tile_count(lanes, BLOCK_C))
    first_lane = lane_tile.to(tl.int64) * BLOCK_C
    lane = tl.arange(0, BLOCK_C)
    lane_exists = lane < remaining(lanes, first_lane, BLOCK_C)
    tables = table_ptr + first_lane * (LANES * ENTRIES)
    table = _entries(tables, lane * LANES, lane_exists, BLOCK_C, BITS, dtype)
    if LANES == 2:
        table |= _entries(tables, lane * 2 + 1, lane_exists, BLOCK_C, BITS, dtype) << 16
    table = tl.reshape(table, (ENTRIES * BLOCK_C,))
    malformed = False
    if FLAGGED:
        malformed = _any_flag(flags_ptr)

    pack = tl.arange(0, BLOCK_P)
    row = tl.arange(0, ROWS)
    local_pack = (pack.to(tl.int64) if WIDE else pack)[:, None]
    local_row = (row.to(tl.int64) if WIDE else row)[:, None]
    lane_at = (lane + hidden)[None, :]
    for step in range(STEPS):
        first = (step * down + tile) * BLOCK_P
        left = packs - first
        start = qweight_ptr + first.to(tl.int64) * WORDS * row_stride + first_lane
        exists = (pack < left)[:, None] & lane_exists[None, :]
        words = load_words(start + local_pack * WORDS * row_stride + lane_at, row_stride, exists, BITS)
        if LANES == 2:
            low, high = _low_words(words, BITS), _high_words(words, BITS)
            found = _look_up(table, _codes(low, BLOCK_P, BLOCK_C, BITS), ROWS, BLOCK_C, ENTRIES) & 0xFFFF
            upper = _look_up(table, _codes(high, BLOCK_P, BLOCK_C, BITS), ROWS, BLOCK_C, ENTRIES)
            found |= upper & -0x10000
        else:
            found = _look_up(table, _codes(words, BLOCK_P, BLOCK_C, BITS), ROWS, BLOCK_C, ENTRIES)
        if FLAGGED:
            found = tl.where(malformed, -1, found)  # every bit set is NaN in each format
        at = out_ptr + first.to(tl.int64) * PACK * lanes + first_lane + local_row * lanes + lane_at
        exists = (row < left * PACK)[:, None] & lane_exists[None, :]
        if LANES == 2:
            tl.store(at, found, mask=exists)
        elif dtype == tl.float32:
            tl.store(at, found.to(tl.float32, bitcast=True), mask=exists)
        else:
            tl.store(at, found.to(tl.int16).to(dtype, bitcast=True), mask=exists)


@triton.jit
def _low_words(words, BITS: tl.constexpr):
    """The even column's words of pairs."""
    if BITS == 3:
        return words[0].to(tl.int32), words[1].to(tl.int32), words[2].to(tl.int32)
    else:
        return (words[0].to(tl.int32),)


@triton.jit
def _high_words(words, BITS: tl.constexpr):
    """The odd column's words of pairs."""
    if BITS == 3:
        return (words[0] >> 32).to(tl.int32), (words[1] >> 32).to(tl.int32), (words[2] >> 32).to(tl.int32)
    else:
        return ((words[0] >> 32).to(tl.int32),)


@triton.jit
def _entry_at(qweight_ptr, table_ptr, row, column, row_stride, column_stride, exists, BITS: tl.constexpr):
    """row, column: any shape, int64. -> float32, the table's value of that weight."""
    PACK: tl.constexpr = rows_of_pack(BITS)
    WORDS: tl.constexpr = words_of_pack(BITS)
    bit = (row % PACK * BITS).to(tl.int32)
    shift = bit & 31
    at = qweight_ptr + (row // PACK * WORDS + (bit >> 5)) * row_stride + column * column_stride
    code = tl.load(at, mask=exists, other=0).to(tl.uint32) >> shift.to(tl.uint32)
    if BITS == 3:
        high = tl.load(at + row_stride, mask=exists & (shift > 29), other=0)
        code = code | ((high << 1) << (31 - shift)).to(tl.uint32)
    code = code.to(tl.int32) & ((1 << BITS) - 1)
    return widen_scale(tl.load(table_ptr + column * (1 << BITS) + code, mask=exists, other=0.0))


@triton.jit(do_not_specialize=["rows", "columns", "count"])
def check_sparse_kernel(
    crow_ptr, col_ptr, seen_ptr, flags_ptr, rows, columns, count, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr
):
    """Sets flags 0 to 2 where a CSR matrix of (rows, columns) with `count` entries is malformed.

    seen_ptr: a bit for each place of the matrix, all 0.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    exists = row < rows
    start = tl.load(crow_ptr + row, mask=exists, other=0).to(tl.int64)
    end = tl.load(crow_ptr + row + 1, mask=exists, other=0).to(tl.int64)
    sound = (start >= 0) & (start <= end) & (end <= count)
    sound = sound & ((row != 0) | (start == 0)) & ((row != rows - 1) | (end == count))
    tl.atomic_max(flags_ptr + tl.zeros_like(row), 1, mask=exists & ~sound)
    end = tl.where(exists & sound, end, start)
    for first in range(0, tl.max(end - start, axis=0), BLOCK_E):
        entry = start[:, None] + first + tl.arange(0, BLOCK_E)[None, :]
        live = entry < end[:, None]
        column = tl.load(col_ptr + entry, mask=live, other=0).to(tl.int64)
        inside = (column >= 0) & (column < columns)
        tl.atomic_max(flags_ptr + 1 + tl.zeros_like(entry), 1, mask=live & ~inside)
        place = row[:, None] * columns + column
        bit = (tl.full((), 1, tl.int32) << (place & 31).to(tl.int32)).to(tl.int32)
        before = tl.atomic_or(seen_ptr + (place >> 5), bit, mask=live & inside)
        tl.atomic_max(flags_ptr + 2 + tl.zeros_like(entry), 1, mask=live & inside & ((before & bit) != 0))


@triton.jit(do_not_specialize=["rows", "count"])
def check_full_rows_kernel(indices_ptr, owner_ptr, flags_ptr, rows, count, BLOCK: tl.constexpr):
    """Writes which full row each channel has into owner_ptr, all -1 before; sets flags 3 and 4."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = position < count
    row = tl.load(indices_ptr + position, mask=exists, other=0).to(tl.int64)
    inside = (row >= 0) & (row < rows)
    tl.atomic_max(flags_ptr + 3 + tl.zeros_like(row), 1, mask=exists & ~inside)
    before = tl.atomic_xchg(owner_ptr + row, position, mask=exists & inside)
    tl.atomic_max(flags_ptr + 4 + tl.zeros_like(row), 1, mask=exists & inside & (before >= 0))


@triton.jit(do_not_specialize=["rows", "columns", "count", "row_stride", "column_stride"])
def add_full_rows_kernel(
    qweight_ptr,
    table_ptr,
    indices_ptr,
    values_ptr,
    flags_ptr,
    out_ptr,
    rows,
    columns,
    count,
    row_stride,
    column_stride,
    BITS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Overwrites column indices[r] of out, (rows, columns), by RN32(entry + values[k, r]); values: (rows, count)."""
    if _any_flag(flags_ptr) == 0:
        across = tile_count(count, BLOCK_R)
        row = (tl.program_id(0) // across).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]
        position = tl.program_id(0) % across * BLOCK_R + tl.arange(0, BLOCK_R)
        column = tl.load(indices_ptr + position, mask=position < count, other=0).to(tl.int64)[None, :]
        exists = (row < rows) & (position < count)[None, :]
        value = _entry_at(qweight_ptr, table_ptr, row, column, row_stride, column_stride, exists, BITS)
        value += tl.load(values_ptr + row * count + position[None, :], mask=exists, other=0.0)
        tl.store(out_ptr + row * columns + column, narrow(value, out_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["columns", "full_count", "row_stride", "column_stride"])
def add_sparse_kernel(
    qweight_ptr,
    table_ptr,
    crow_ptr,
    col_ptr,
    values_ptr,
    owner_ptr,
    full_ptr,
    flags_ptr,
    out_ptr,
    columns,
    full_count,
    row_stride,
    column_stride,
    BITS: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """Overwrites out[k, n] by RN32(entry + value), plus the full row that n owns, for each stored entry (n, k)."""
    if _any_flag(flags_ptr) == 0:
        column = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        exists = column < columns
        start = tl.load(crow_ptr + column, mask=exists, other=0).to(tl.int64)
        end = tl.load(crow_ptr + column + 1, mask=exists, other=0).to(tl.int64)
        for first in range(0, tl.max(end - start, axis=0), BLOCK_E):
            entry = start[:, None] + first + tl.arange(0, BLOCK_E)[None, :]
            live = entry < end[:, None]
            row = tl.load(col_ptr + entry, mask=live, other=0).to(tl.int64)
            channel = tl.broadcast_to(column[:, None], (BLOCK_R, BLOCK_E))
            value = _entry_at(qweight_ptr, table_ptr, row, channel, row_stride, column_stride, live, BITS)
            value += tl.load(values_ptr + entry, mask=live, other=0.0)
            if FULL:
                owner = tl.load(owner_ptr + channel, mask=live, other=-1)
                owned = live & (owner >= 0)
                full = tl.load(full_ptr + row * full_count + owner, mask=owned, other=0.0)
                value = tl.where(owned, value + full, value)
            tl.store(out_ptr + row * columns + channel, narrow(value, out_ptr.dtype.element_ty), mask=live)
