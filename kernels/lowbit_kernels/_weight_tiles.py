"""How much of a weight one program decodes; every bit of a result is the same for any of it.

    TILES                               operation → `Tile`, to replace when tuning for another device
    ROUNDS                              bits → rows of GPTQ decoded at a time, each of its own group
    tile_for(name, rows, columns, depth) -> Tile           of few sizes
    group_rows(tile_rows, group, total) -> (rows, uniform) the rows of a tile, and whether they share a group
    shift_or_size(size, least, total) -> (shift, SIZE)     of blocks, one of the two being 0
    warps_for(tile, elements) -> int                       fewer than the tile's where there is less to store
    alignment(*lengths) -> int                             the largest power of two, at most 8, that divides all

Rows are those of the packed tensor (of AWQ and int8 those of the weight), columns those of the weight; for the flat
4-bit tensors of bitsandbytes rows are units of 8 elements.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lowbit_kernels._launch import INTERPRETED, power_of_two


class Tile(NamedTuple):
    """One program's share.

    Args:
      rows, columns: decoded at once; powers of two.
      steps: how many such blocks of rows a program decodes, the columns staying the same.
      warps: of a program.
    """

    rows: int
    columns: int = 8
    steps: int = 1
    warps: int = 4


TILES: dict[str, Tile] = {
    "awq": Tile(rows=8, columns=1024),
    "gptq2": Tile(rows=1, columns=1024),
    "gptq3": Tile(rows=1, columns=512, warps=2),
    "gptq4": Tile(rows=2, columns=1024),
    "gptq8": Tile(rows=4, columns=1024),
    "gptq_g_idx": Tile(rows=1, columns=512, warps=2),
    "nf4": Tile(rows=256, warps=1),
    "nf4_nested": Tile(rows=256, warps=1),
    "int8": Tile(rows=4, columns=1024),
    "squeezellm3": Tile(rows=1, columns=256),
    "squeezellm4": Tile(rows=4, columns=128, steps=2, warps=2),
}

ROUNDS = {2: 4, 3: 4, 4: 8, 8: 4}
"""Rows that a thread of `gptq.py` decodes at a time where each has its own group, by bits of a code."""

_NARROW = 1 << 8
"""Up to so many columns a tile has so many: one cut to size is another kernel, whose compilation costs more."""

_LOW = 8
"""Rows that a tile has at least, if it is not made lower still."""

_INTERPRETED_ELEMENTS = 1 << 17
_INTERPRETED_COLUMNS = 1 << 9
_LEAST_UNIFORM = 1 << 20 if INTERPRETED else 4
"""Fewer rows of a common group than this are not worth a program of their own."""


SPARSE = (256, 256) if INTERPRETED else (4, 64)
"""Channels of a program of the sparse kernels, and their entries that it takes at a time."""

FULL_ROWS = (1024, 16) if INTERPRETED else (128, 4)
"""Rows and channels of a program of the kernel that adds full rows."""


def tile_for(name: str, rows: int, columns: int, depth: int = 1) -> Tile:
    """The tile of an operation on so many rows and columns, all above 0; in the interpreter one for its costs.

    Args:
      depth: elements that one place of the tile decodes to.
    """
    tile = TILES[name]
    if INTERPRETED:
        wide = max(min(power_of_two(columns), _INTERPRETED_COLUMNS), 8)
        most = max(_INTERPRETED_ELEMENTS // (power_of_two(depth) * wide), 1)
        return Tile(min(most, power_of_two(rows)), wide)
    if depth > 1 and rows < tile.rows:  # a tall one, as none above is, would be many instructions for nothing
        tile = tile._replace(rows=min(tile.rows, max(power_of_two(rows), _LOW)))
    if columns <= _NARROW < tile.columns:
        tile = tile._replace(columns=_NARROW)
    return tile


def group_rows(rows: int, group: int, total: int) -> tuple[int, bool]:
    """Fits the rows of a tile to groups.

    Args:
      rows: that a tile would have; a power of two.
      group: rows that share a scale.
      total: all rows.

    Returns:
      The rows that a tile gets, and whether all of them always belong to one group.
    """
    if group >= total or group % rows == 0:
        return rows, True
    common = math.gcd(group, rows)
    if common >= min(rows, _LEAST_UNIFORM):
        return common, True
    return rows, False


def shift_or_size(size: int, least: int, total: int) -> tuple[int, int]:
    """A block's size as a shift and 0, so that one kernel does for all such sizes, or as 0 and itself, a constexpr.

    Args:
      least: size that a kernel shifts by, a power of two. It counts in places of so many elements.
      total: elements. A block that holds all of them counts as the least power of two that does, so that places in
        int32 are shifted by less than 32 and divided by an int32.
    """
    if size >= total:
        size = power_of_two(max(total, least))
    if size >= least and size & (size - 1) == 0:
        return size.bit_length() - 1, 0
    return 0, size


def warps_for(tile: Tile, elements: int) -> int:
    """The warps of a program that stores so many elements at a time: a thread has at least 8, one store of 16 bits."""
    return max(min(tile.warps, elements // 256), 1)


def alignment(*lengths: int) -> int:
    """The largest power of two, at most 8, that divides every length."""
    return math.gcd(8, *lengths)
