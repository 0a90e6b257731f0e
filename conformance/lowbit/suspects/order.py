"""Faults of order: the right codes or scales of a block quantiser in the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lowbit import packing
from lowbit.rules import ScaleLayout
from lowbit.schemes import Encoded
from lowbit.suspects.trial import Suspect, Trial

Order = Callable[[int], Any]


def split_half(block: int) -> Any:
    """Byte j holds element j low and element j + block/2 high, read as neighbours."""
    return np.arange(block).reshape(2, block // 2).T.reshape(-1)


LANES: tuple[tuple[str, str, Order], ...] = (
    ("nibbles_swapped", "neighbouring nibbles swapped", lambda n: np.arange(n) ^ 1),
    ("nibbles_split_half", "nibbles in split halves: element j low, j + block/2 high", split_half),
    ("bytes_reversed", "the bytes of each 32-bit word reversed", lambda n: np.arange(n) ^ 6),
    ("lanes_reversed", "each block's elements in reverse order", lambda n: np.arange(n)[::-1]),
)
"""Orders of the elements of a block: name, text, and the lane of which each lane has the code."""


def unswizzled(scales: Any) -> Any:
    """What reading the plain order as SWIZZLE_32_4_4 gives.

    Args:
      scales: (rows, columns) uint8.
    """
    rows, columns = scales.shape
    buffer = np.zeros(packing.swizzled_size(rows, columns), dtype=np.uint8)
    buffer[: scales.size] = scales.reshape(-1)
    return packing.unswizzle(buffer, rows, columns)


MOVES: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("swizzle_omitted", "scales stored in plain order instead of SWIZZLE_32_4_4", unswizzled),
    ("scales_transposed", "scales stored column by column", lambda s: s.T.copy()),
    ("scale_of_next", "each block stored with the next block's scale", lambda s: np.roll(s, -1)),
    ("scale_of_previous", "each block stored with the previous block's scale", lambda s: np.roll(s, 1)),
)
"""Moves of scales between blocks: name, text, and what becomes of the (rows, blocks a row) scales."""


def _lanes(trial: Trial, order: Order) -> Encoded:
    """The right codes, lane i of each block taken from lane order[i]."""
    return trial.expected._replace(codes=trial.expected.codes[:, order(trial.scheme.block)])


def _moved(trial: Trial, move: Callable[[Any], Any]) -> Encoded | None:
    """The right scales, moved between blocks: move((rows, blocks a row) array) -> array of that size."""
    if trial.grid is None or trial.expected.scales.size < 2:
        return None
    return trial.expected._replace(scales=np.asarray(move(trial.expected.scales.reshape(trial.grid))).reshape(-1, 1))


def _scale_first(trial: Trial) -> Encoded | None:
    """What reading [1 scale byte][block/2 bytes of codes] as [codes][scale] gives."""
    if trial.scheme.scale_layout is not ScaleLayout.INTERLEAVED:
        return None
    codes, scales = trial.expected[:2]
    stream = np.concatenate([scales, packing.pack_nibbles(codes)], axis=1)
    return trial.expected._replace(codes=packing.unpack_nibbles(stream[:, :-1]), scales=stream[:, -1:])


def _scales_at_end(trial: Trial) -> Encoded | None:
    """What reading [all codes of a row][all its scales] as the one stream gives."""
    if trial.scheme.scale_layout is not ScaleLayout.INTERLEAVED or trial.grid is None or trial.grid[1] < 2:
        return None
    codes, scales = trial.expected[:2]
    rows, blocks = trial.grid
    packed = packing.pack_nibbles(codes).reshape(rows, -1)
    stream = np.concatenate([packed, scales.reshape(rows, blocks)], axis=1)
    packed, scales = packing.deinterleave(stream, trial.scheme.block)
    return trial.expected._replace(
        codes=packing.unpack_nibbles(packed).reshape(codes.shape), scales=scales.reshape(-1, 1)
    )


ORDER: tuple[Suspect, ...] = (
    *(Suspect(name, text, partial(_lanes, order=order), last=True) for name, text, order in LANES),
    *(Suspect(name, text, partial(_moved, move=move), last=True) for name, text, move in MOVES),
    Suspect("scale_first", "the scale byte stored before the codes of its block", _scale_first, last=True),
    Suspect(
        "scales_at_end", "the scales stored after all codes of a row, not block by block", _scales_at_end, last=True
    ),
)
"""Faults of order."""
