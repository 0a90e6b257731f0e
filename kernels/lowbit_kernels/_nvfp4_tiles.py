"""Where the NVFP4 kernels that read x read and write: tiles of (BLOCK_M, 16) elements, or (BLOCK_M, 8) words of two.

    tile_of(tile, rows, groups, ...) -> (first_row, first_group, row, group, exists)
    inside(rows, groups, ...) -> which blocks of a tile lie within an extent
    load_blocks(x_ptr, ...) -> the elements, or words, of a tile's blocks

BLOCK_M = BLOCK_ROWS * BLOCK_GROUPS blocks of 16 elements. Few variants are compiled, because no integer argument is a
part of one; what the compiler has to know of them the launcher says in constexprs:

    FLAT        there is one row
    ROW_UNIT    row strides are counted in so many elements (or words): in 16 bytes where all are, else one by one
    ADJACENT    the column stride is 1
    WHOLE       every tile is full, so that nothing is masked
    WIDE        offsets within a tile need 64 bits
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import remaining, tile_count


@triton.jit
def tile_of(
    tile,
    rows,
    groups,
    FLAT: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    """Tile number `tile`, counted along a row's groups first.

    -> first row and first group (int64 scalars); row and group of each block within the tile, and whether it exists,
    each (BLOCK_ROWS * BLOCK_GROUPS,).
    """
    first_row = tl.full((), 0, tl.int64)
    first_group = tile.to(tl.int64) * BLOCK_GROUPS
    if not FLAT:
        across = tile_count(groups, BLOCK_GROUPS)
        first_row = (tile // across).to(tl.int64) * BLOCK_ROWS
        first_group = (tile % across).to(tl.int64) * BLOCK_GROUPS
    group = tl.arange(0, BLOCK_ROWS * BLOCK_GROUPS)
    row = tl.zeros_like(group)
    if BLOCK_ROWS > 1:
        row = group // BLOCK_GROUPS
        group = group % BLOCK_GROUPS
    exists = inside(rows, groups, first_row, first_group, row, group, BLOCK_ROWS, BLOCK_GROUPS)
    if WIDE:
        row = row.to(tl.int64)
        group = group.to(tl.int64)
    return first_row, first_group, row, group, exists


@triton.jit
def inside(rows, groups, first_row, first_group, row, group, BLOCK_ROWS: tl.constexpr, BLOCK_GROUPS: tl.constexpr):
    """Which blocks of a tile lie within an extent."""
    return (row < remaining(rows, first_row, BLOCK_ROWS)) & (group < remaining(groups, first_group, BLOCK_GROUPS))


@triton.jit
def load_blocks(
    x_ptr,
    first_row,
    first_group,
    row,
    group,
    exists,
    row_step,
    column_stride,
    PER_BLOCK: tl.constexpr,
    FLAT: tl.constexpr,
    ROW_UNIT: tl.constexpr,
    ADJACENT: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """PER_BLOCK consecutive elements (or words; then strides count words) of each block: (BLOCK_M, PER_BLOCK)."""
    start = first_group * PER_BLOCK
    offsets = group[:, None] * PER_BLOCK + tl.arange(0, PER_BLOCK)[None, :]
    if not ADJACENT:
        start *= column_stride
        offsets *= column_stride
    if not FLAT:
        start += first_row * row_step * ROW_UNIT
        offsets += row[:, None] * row_step * ROW_UNIT
    if WHOLE:
        return tl.load(x_ptr + start + offsets)
    return tl.load(x_ptr + start + offsets, mask=exists[:, None], other=0)
