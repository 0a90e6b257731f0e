"""Stored weights worth trying: every code in every lane, zero points and scales of every kind, shapes of every class.

A weight is a mapping of NumPy arrays under the names of `weight_tensors.entries`; bfloat16 is stored as uint16
patterns. Scales are made as bit patterns, so that no conversion decides what is tried. Nothing here knows a right
answer; the references do.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.cases.weight_parts import (
    Ints,
    as_stored,
    full_row_entries,
    numbered,
    random_patterns,
    sparse_entries,
    special_patterns,
)
from lowbit.formats import BINARY32, FloatFormat
from lowbit.packing_weights import pack_codes, pack_zeros
from lowbit.rules import Grouping
from lowbit.weight_tensors import shapes
from lowbit.weights import WeightScheme

Arrays = dict[str, Any]

FLAT = ("nf4", "fp4")
"""Families whose tensors are flat: outputs of any shape."""

COLUMNS = (8, 24, 32, 40, 72, 200)
"""N of outputs: below, at and above a tile's column counts, few of them powers of two."""

SCALES = {"awq": "scales", "gptq": "scales", "int8": "scale", "squeezellm": "lookup_table", "nf4": "absmax"}
SCALES["fp4"] = SCALES["nf4"]
"""What the entry is called that holds scales or tables, unless they are nested."""


def store(
    scheme: WeightScheme,
    codes: Any,
    scales: Any = None,
    *,
    source: FloatFormat | None = None,
    zeros: Any = None,
    **others: Any,
) -> Arrays:
    """The stored tensors of codes.

    Args:
      codes: (K, N), for int8 (N, K), for nf4 and fp4 any shape, which is stored too.
      scales: bit patterns, of the shape of the scheme's scales, absmax or tables; None where `others` holds them.
      source: their format, None for the first that the scheme has.
      zeros: (groups, N) zero points, not fields. None for 0.
      others: entries as they are.
    """
    codes = np.asarray(codes)
    name = {"int8": "weight"}.get(scheme.family, "packed" if scheme.family in FLAT else "qweight")
    arrays: Arrays = {name: pack_codes(codes, scheme)}
    if scheme.family in FLAT:
        arrays["shape"] = tuple(codes.shape)
    if scheme.zero_packing is not None:
        points = np.zeros(shapes(scheme, codes.shape)["scales"], np.int64) if zeros is None else zeros
        arrays["qzeros"] = pack_zeros(points, scheme)
    if scales is not None:
        arrays[SCALES[scheme.family]] = as_stored(scales, source or scheme.scale_formats[0])
    return arrays | others


def _several_groups(scheme: WeightScheme) -> int:
    """K of three groups, two of them whole; of 8 bits, where that is much, of two."""
    period, _ = periods(scheme)
    if scheme.group == -1 or scheme.grouping is Grouping.CHANNEL:
        return -(-128 // period) * period
    if scheme.grouping is Grouping.WHOLE:
        return 3 * scheme.group
    return -(-scheme.group * (1 if scheme.bits == 8 else 2) // period) * period + period


def periods(scheme: WeightScheme) -> tuple[int, int]:
    """What K and N must be multiples of, so that codes and zero points fill whole words; (1, 1) for flat tensors."""
    found = [1, 1]
    if scheme.family not in (*FLAT, "int8"):
        for packing in (scheme.packing, scheme.zero_packing):
            if packing is not None:
                found[packing.axis] = max(found[packing.axis], packing.period_codes)
    return found[0], found[1]


def nested_entries(
    scheme: WeightScheme,
    shape: tuple[int, ...],
    seed: int,
    *,
    block_size2: int = 16,
    absmax2: Any = None,
) -> Arrays:
    """The entries of a nested absmax for an output: every code in turn, a table without order, an offset.

    Args:
      absmax2: binary32 patterns, of which as many as fit are taken; None for random ones of real size.
    """
    generator = np.random.default_rng([seed, block_size2])
    found = shapes(scheme, shape, block_size2=block_size2)
    count = found["absmax2"]
    wanted = generator.integers(0x3C000000, 0x3E000000, count) if absmax2 is None else np.resize(absmax2, count)
    blocks = found["absmax"][0]
    return {
        "absmax": (np.arange(blocks) * 59 % 256).astype(np.uint8),
        "code2": generator.uniform(-1, 1, 256).astype(np.float32),
        "absmax2": as_stored(wanted, BINARY32),
        "offset": np.array([0.0283], np.float32),
        "block_size2": block_size2,
    }


def added_entries(scheme: WeightScheme, shape: tuple[int, int], seed: int) -> Arrays:
    """The sparse term and the full rows that a scheme wants, for an output (K, N)."""
    generator = np.random.default_rng([seed, *shape])
    rows, columns = shape
    found: Arrays = {}
    if scheme.sparse:
        found["sparse"] = sparse_entries(columns, rows, generator)
    if scheme.full_rows:
        found["full_rows"] = full_row_entries(columns, rows, generator)
    return found


def group_index(scheme: WeightScheme, rows: int, seed: int) -> npt.NDArray[np.int32]:
    """A g_idx of act-order: every group, rows of one scattered, none of them in its place of rank."""
    groups = np.arange(rows) // scheme.group_size(rows)
    return np.random.default_rng([seed, rows]).permutation(groups).astype(np.int32)


def lanes(scheme: WeightScheme, seed: int = 0, *, source: FloatFormat | None = None) -> Arrays:
    """Every code and every zero point in every lane; scales and tables that say their place."""
    codes, fmt = 1 << scheme.bits, source or scheme.scale_formats[0]
    low = scheme.code_range[0]
    if scheme.family in FLAT:
        count = max(3 * scheme.group, 2 * codes * codes) + scheme.group // 2 + 1
        flat = np.arange(count)
        values = (flat + flat // codes) % codes
        if scheme.nested:
            count = 260 * scheme.group + 1
            values = np.resize(values, count)
            return store(scheme, values, **nested_entries(scheme, (count,), seed))
        return store(scheme, values, numbered((scheme.groups(count),), fmt))
    if scheme.family == "int8":
        values = np.add.outer(np.arange(37) * 7, np.arange(codes + 1)) % codes + low
        return store(scheme, values, numbered((37,), fmt), source=fmt)
    period, zero_period = periods(scheme)
    groups_of_zeros = codes if scheme.zero_packing is not None else 1
    columns = max(zero_period * groups_of_zeros, codes)
    rows = _several_groups(scheme)
    values = np.add.outer(_places(rows, period), _places(columns, zero_period)) % codes
    if scheme.family == "squeezellm":
        extra = added_entries(scheme, (rows, columns), seed)
        return store(scheme, values, numbered((columns, codes), fmt), source=fmt, **extra)
    groups = scheme.groups(rows)
    zeros = np.add.outer(np.arange(groups) * 5, _places(columns, zero_period)) % codes
    extra = {"g_idx": group_index(scheme, rows, seed)} if scheme.grouping is Grouping.ACT_ORDER else {}
    return store(scheme, values, numbered((groups, columns), fmt), source=fmt, zeros=zeros, **extra)


def _places(count: int, period: int) -> Ints:
    """0, 1, 2 … with a step more after every period, so that lanes see other values in every word."""
    place = np.arange(count)
    return place if period == 1 else place + place // period


def special(scheme: WeightScheme, source: FloatFormat, seed: int = 0, *, binade_step: int = 1) -> Arrays:
    """Scales or tables at the edges of their format, each with every code, and with z = 0, half and the greatest."""
    patterns, codes = special_patterns(source, binade_step=binade_step), 1 << scheme.bits
    count = len(patterns)
    if scheme.family in FLAT:
        if scheme.nested:  # the edges scale the second time; the offset cancels some
            size = 16 * count * scheme.group
            entries = nested_entries(scheme, (size,), seed, absmax2=patterns)
            return store(scheme, np.resize(np.arange(codes), size), **entries)
        return store(scheme, np.resize(np.arange(codes), count * scheme.group), patterns)
    if scheme.family == "int8":
        return store(scheme, np.tile(np.arange(-128, 128), (count, 1)), patterns, source=source)
    period, zero_period = periods(scheme)
    if scheme.family == "squeezellm":
        columns = -(-count // codes)
        table = np.resize(patterns, (columns, codes))
        rows = -(-codes // period) * period
        extra = added_entries(scheme, (rows, columns), seed)
        return store(scheme, np.add.outer(np.arange(rows), np.arange(columns)) % codes, table, source=source, **extra)
    rows, shared = _rows_of_pair(scheme)
    sets = 3 if scheme.grouping is Grouping.WHOLE and scheme.group != -1 else 1
    pairs = 3 * count
    columns = -(-pairs // sets // zero_period) * zero_period
    pair = np.arange(sets * columns).reshape(sets, columns) % pairs
    pair = np.repeat(pair, shared, axis=0)
    zeros = np.array([0, codes // 2, codes - 1])[pair % 3]
    values = np.add.outer(np.arange(sets * rows), np.arange(columns)) % codes
    index = (np.arange(rows) // scheme.group_size(rows)).astype(np.int32)
    extra = {"g_idx": index} if scheme.grouping is Grouping.ACT_ORDER else {}
    return store(scheme, values, patterns[pair // 3], source=source, zeros=zeros, **extra)


def _rows_of_pair(scheme: WeightScheme) -> tuple[int, int]:
    """As few rows as hold every code, and how many groups they are; whole groups where a scheme wants them."""
    codes, (period, _) = 1 << scheme.bits, periods(scheme)
    rows = -(-codes // period) * period
    if scheme.group == -1:
        return rows, 1
    groups = -(-rows // scheme.group)
    return (groups * scheme.group if scheme.grouping is Grouping.WHOLE else rows), groups


def random(
    scheme: WeightScheme, shape: tuple[int, ...], seed: int, *, source: FloatFormat | None = None, **nested: Any
) -> Arrays:
    """Any codes, zero points and scales.

    Args:
      nested: as `nested_entries` takes it.
    """
    generator = np.random.default_rng([seed, *shape])
    low, high = scheme.code_range
    fmt = source or scheme.scale_formats[0]
    values = generator.integers(low, high + 1, shape)
    found = shapes(scheme, shape)
    extra: Arrays = {}
    if scheme.family == "squeezellm":
        extra = added_entries(scheme, (shape[0], shape[1]), seed)
    if scheme.nested:
        return store(scheme, values, **nested_entries(scheme, shape, seed, **nested))
    if scheme.grouping is Grouping.ACT_ORDER:
        extra["g_idx"] = group_index(scheme, shape[0], seed)
    count = found[SCALES[scheme.family]]
    zeros = generator.integers(0, high + 1, count) if scheme.zero_packing is not None else None
    return store(scheme, values, random_patterns(count, fmt, generator), source=fmt, zeros=zeros, **extra)


def output_shapes(scheme: WeightScheme, *, every: bool = False) -> list[tuple[int, ...]]:
    """Shapes of outputs, none empty.

    Args:
      every: every K with every N, not each of them once or twice.
    """
    block = scheme.group
    if scheme.family in FLAT:
        found: list[tuple[int, ...]] = [(5, 3), (2, 96), (1,), (65,), (block - 1,), (block + 1,), (3, block + 1)]
        return [*found, (2, 3, 11), (2 * block, 2)] if every else found
    if scheme.family == "int8":
        return [(1, 1), (2, 3), (5, 3), (3, 129), (24, 40), (72, 200), (1, 300), *([(300, 1)] if every else [])]
    _, zero_period = periods(scheme)
    columns = sorted({-(-n // zero_period) * zero_period for n in COLUMNS})
    if scheme.zero_packing is None:
        columns = [1, 3, *columns]
    rows = _rows(scheme)
    if every:
        return list(itertools.product(rows, columns))
    return [(rows[i % len(rows)], n) for i, n in enumerate(columns)]


def empty_shapes(scheme: WeightScheme) -> list[tuple[int, ...]]:
    """Shapes of outputs without an element."""
    if scheme.family in FLAT:
        return [(0,), (0, 5), (3, 0)]
    period, zero_period = periods(scheme)
    rows = scheme.group if scheme.group > 0 else period
    return [(0, 0), (0, zero_period), (rows, 0)]


def _rows(scheme: WeightScheme) -> list[int]:
    """K of outputs: a group, a group and 32 rows, no multiple of it; whole groups alone where a scheme wants them."""
    period, _ = periods(scheme)
    group = 64 if scheme.group == -1 else scheme.group
    if scheme.grouping is Grouping.WHOLE:
        return [16, 128, 48] if scheme.group == -1 else [group, 2 * group, 3 * group]
    if scheme.grouping is Grouping.CHANNEL:
        return [period, 64 + period, 32, 160]
    return [-(-rows // period) * period for rows in (group, group + period, group + 32, 2 * group + 7, 1)]


def replaced(arrays: Mapping[str, Any], **changes: Any) -> Arrays:
    """The mapping with entries exchanged, or taken out where a change is None."""
    return {name: value for name, value in {**arrays, **changes}.items() if value is not None}
