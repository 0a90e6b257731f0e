"""How much of a weight one program decodes; every bit of a result is the same for any of it.

    TILES                               operation → `Tile`, to replace when tuning for another device
    tile_for(name, rows, columns, depth) -> Tile           cut down to what there is
    group_rows(tile_rows, group, total) -> (rows, uniform) the rows of a tile, and whether they share a group
    warps_for(tile, elements) -> int                       fewer than the tile's where there is less to store
    alignment(*lengths) -> int                             the largest power of two, at most 8, that divides all

Rows are those of the packed tensor (of AWQ and int8 those of the weight), columns those of the weight; for the flat
4-bit tensors of bitsandbytes rows are units of 8 elements.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lowbit_kernels._launch import INTERPRETED


class Tile(NamedTuple):
    """One program's share.

    Args:
      rows, columns: decoded at once; powers of two.
      steps: how many such blocks of rows a program decodes at most, the columns staying the same.
      warps: of a program.
      down: whether neighbouring programs lie below each other, not beside each other.
    """

    rows: int
    columns: int = 8
    steps: int = 1
    warps: int = 4
    down: bool = False


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
    "squeezellm4": Tile(rows=4, columns=128, steps=32, warps=2),
}

_LEAST_PROGRAMS = 1 << 10
"""With fewer programs a large GPU would be idle in part; those of several steps then take fewer."""

_INTERPRETED_ELEMENTS = 1 << 17
_INTERPRETED_COLUMNS = 1 << 9
_LEAST_UNIFORM = 1 << 20 if INTERPRETED else 4
"""Fewer rows of a common group than this are not worth a program of their own."""


SPARSE = (256, 256) if INTERPRETED else (4, 64)
"""Channels of a program of the sparse kernels, and their entries that it takes at a time."""

FULL_ROWS = (1024, 16) if INTERPRETED else (128, 4)
"""Rows and channels of a program of the kernel that adds full rows."""


def tile_for(name: str, rows: int, columns: int, depth: int = 1) -> Tile:
    """The tile of an operation on so many rows and columns, all above 0.

    Args:
      depth: elements that one place of the tile decodes to.
    """
    tile = TILES[name]
    if INTERPRETED:
        wide = max(min(_power_of_two(columns), _INTERPRETED_COLUMNS), 8)
        tile = Tile(max(_INTERPRETED_ELEMENTS // (_power_of_two(depth) * wide), 1), wide)
    if tile.steps > 1:
        blocks = -(-rows // tile.rows) * -(-columns // tile.columns)
        most = 1 << (max(blocks // _LEAST_PROGRAMS, 1).bit_length() - 1)  # a constexpr: few values
        tile = tile._replace(steps=min(tile.steps, most))
    if rows >= tile.rows and columns >= tile.columns:
        return tile
    return tile._replace(
        rows=min(tile.rows, _power_of_two(rows)), columns=min(tile.columns, max(_power_of_two(columns), 8))
    )


def _power_of_two(length: int) -> int:
    """The least that is not below a length of 1 or more; triton's function costs as much as a launch."""
    return 1 << (length - 1).bit_length()


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


def warps_for(tile: Tile, elements: int) -> int:
    """The warps of a program that stores so many elements at a time: a thread has at least 8, one store of 16 bits."""
    return max(min(tile.warps, elements // 256), 1)


def alignment(*lengths: int) -> int:
    """The largest power of two, at most 8, that divides every length."""
    return math.gcd(8, *lengths)
