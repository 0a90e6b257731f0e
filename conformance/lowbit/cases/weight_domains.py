"""Whole domains of a weight's arithmetic: every scale under every code and zero point, every value of a table.

Inputs are made of few stored columns repeated and of bit patterns counted up, so that large ones cost little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.cases.weight_parts import Ints, as_stored
from lowbit.cases.weights import Arrays, periods, store
from lowbit.formats import BFLOAT16, FloatFormat
from lowbit.rules import Grouping
from lowbit.weights import WeightScheme


def rows_of(scheme: WeightScheme, zeros: Ints) -> int:
    """K of `scale_columns`."""
    codes, (period, _) = 1 << scheme.bits, periods(scheme)
    span = codes if scheme.group == -1 else -(-codes // scheme.group) * scheme.group
    return -(-span // period) * period * len(zeros)


def scale_columns(scheme: WeightScheme, zeros: Ints, columns: int) -> Arrays:
    """A weight without scales in which every column holds each code under each of some zero points.

    Args:
      zeros: (Z,) zero points, one a group; one of them only where the scheme has one group.
      columns: N.

    Returns:
      A mapping to which scales (groups, N) are added, of which each column has one pattern in every group.
    """
    _, zero_period = periods(scheme)
    rows = rows_of(scheme, zeros)
    span = rows // len(zeros)
    spread = np.repeat(zeros, span // (span if scheme.group == -1 else scheme.group))
    values = np.resize(np.arange(1 << scheme.bits), rows)
    narrow = store(scheme, np.tile(values[:, None], (1, zero_period)), zeros=np.tile(spread[:, None], (1, zero_period)))
    found = {name: np.tile(array, (1, columns // zero_period)) for name, array in narrow.items()}
    if scheme.grouping is Grouping.ACT_ORDER:
        found["g_idx"] = (np.arange(len(values)) // scheme.group_size(len(values))).astype(np.int32)
    return found


def sixteen_bit_values() -> npt.NDArray[np.uint32]:
    """(131072,) binary32 patterns. Every value of binary16 and of bfloat16, NaN and Inf included."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    half = patterns.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    return np.concatenate([half, patterns << np.uint32(16)])


def turning_points(fmt: FloatFormat) -> npt.NDArray[np.uint32]:
    """Binary32 patterns at which a cast to 16 bits changes its mind: every value of `fmt`, every midpoint, each ± 1.

    Beyond the greatest finite value the midpoint to the next power of two is among them; NaN and Inf too.
    """
    positive = np.arange(fmt.max_magnitude + 2, dtype=np.int64)
    if fmt is BFLOAT16:
        grid = positive << 16
    else:
        grid = positive.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32).astype(np.int64)
        grid[-1] = 0x47800000  # 2**16, the place of Inf on the grid
    wide = grid.astype(np.uint32).view(np.float32).astype(np.float64)
    if fmt is BFLOAT16:
        wide[-1] = 2.0**128
    middles = ((wide[1:] + wide[:-1]) / 2).astype(np.float32).view(np.uint32).astype(np.int64)
    points = np.concatenate([grid, middles])
    near = np.unique(np.concatenate([points - 1, points, points + 1, [0x7F800000, 0x7F800001, 0x7FC00000]]))
    near = near[(near >= 0) & (near <= 0x7FFFFFFF)].astype(np.uint32)
    return np.concatenate([near, near | np.uint32(0x80000000)])


def cast_tables(scheme: WeightScheme, patterns: Any, source: FloatFormat) -> Iterator[Arrays]:
    """Weights whose tables hold all of the patterns, each of them looked up.

    Args:
      patterns: (P,) of the source's width.
    """
    codes = 1 << scheme.bits
    period, _ = periods(scheme)
    rows = -(-codes // period) * period
    width = 1 << 14
    for start in range(0, len(patterns), width * codes):
        part = np.asarray(patterns[start : start + width * codes])
        columns = -(-len(part) // codes)
        column = store(scheme, np.resize(np.arange(codes), rows)[:, None], None)["qweight"]
        table = as_stored(np.resize(part, (columns, codes)), source)
        yield {"qweight": np.tile(column, (1, columns)), "lookup_table": table}
