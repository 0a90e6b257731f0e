"""Plain quantisers of real weights, for round trips: the nearest code a group, nothing learnt, nothing calibrated.

They make every weight scheme's stored tensors from a matrix of numbers, so that quantise, pack, dequantise can be
followed by a bound: where a scale times an integer is stored, no finite weight moves by more than half a scale (before
the output is rounded), because scales are rounded up. How a library finds its codes is another matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError, DtypeError
from lowbit.formats import BINARY16, BINARY32, FloatFormat
from lowbit.packing_weights import pack_codes, pack_zeros
from lowbit.references.bits_rounding import narrow
from lowbit.rules import Arithmetic, Grouping
from lowbit.weight_tensors import shapes
from lowbit.weights import WeightScheme

Wide = npt.NDArray[np.float64]

OUTLIERS = 0.005
"""Share of the weights that get an entry in a sparse term."""

FULL_ROWS = 4
"""Output channels, at most, that get a full row."""


def quantize(
    weight: npt.NDArray[np.floating[Any]],
    scheme: WeightScheme,
    *,
    scale_format: FloatFormat | None = None,
    block_size2: int = 256,
) -> dict[str, Any]:
    """The stored tensors of a weight.

    Args:
      weight: float32 or float64, finite. (K, N) for awq, gptq and squeezellm, (N, K) for int8, any for nf4 and fp4.
      scheme: any of `lowbit.weights`. Under act-order rows of large weights share groups.
      scale_format: of scales or tables, one of the scheme's; None takes the first. bfloat16 is stored as uint16.
      block_size2: blocks that share an absmax2, for nested schemes.

    Returns:
      NumPy arrays under the names of `weight_tensors.entries(scheme)`.

    Raises:
      ArgumentError: NaN or Inf; a format that the scheme's scales cannot have.
      DtypeError: another dtype.
      ShapeError: a shape that the scheme cannot store.
    """
    if weight.dtype not in (np.float32, np.float64):
        raise DtypeError(f"weight: got {weight.dtype}, want float32 or float64")
    if not np.isfinite(weight).all():
        raise ArgumentError("weight: got NaN or Inf, want finite numbers")
    fmt = scheme.scale_formats[0] if scale_format is None else scale_format
    if fmt not in scheme.scale_formats:
        names = ", ".join(f.name for f in scheme.scale_formats)
        raise ArgumentError(f"scale_format: got {fmt.name}, want one of {names} for {scheme.name}")
    shapes(scheme, weight.shape, block_size2=block_size2)
    wide = weight.astype(np.float64)
    match scheme.family:
        case "awq" | "gptq":
            return _grouped(wide, scheme, fmt)
        case "nf4" | "fp4":
            return _blocks(wide, scheme, block_size2)
        case "int8":
            return _channels(wide, scheme, fmt)
        case _:
            return _tables(wide, scheme, fmt)


def _grouped(weight: Wide, scheme: WeightScheme, fmt: FloatFormat) -> dict[str, Any]:
    rows, columns = weight.shape
    group = np.arange(rows) // scheme.group_size(rows)
    if scheme.grouping is Grouping.ACT_ORDER:
        by_size = np.argsort(-np.abs(weight).max(axis=1, initial=0), kind="stable")
        group = group[np.argsort(by_size)]
    low, high = np.zeros((2, scheme.groups(rows), columns))
    np.minimum.at(low, group, weight)  # a range that holds 0, so that 0 has a zero point
    np.maximum.at(high, group, weight)
    most = scheme.code_range[1]
    scales, patterns = _rounded_up((high - low) / most, fmt)
    zeros = np.clip(np.rint(-low / scales), 0, most).astype(np.int64)
    codes = np.clip(np.rint(weight / scales[group]) + zeros[group], 0, most).astype(np.int64)
    tensors = {"qweight": pack_codes(codes, scheme), "qzeros": pack_zeros(zeros, scheme), "scales": patterns}
    return tensors | ({"g_idx": group.astype(np.int32)} if scheme.family == "gptq" else {})


def _blocks(weight: Wide, scheme: WeightScheme, block_size2: int) -> dict[str, Any]:
    flat = weight.reshape(-1)
    absmax = _largest(flat, scheme.group).astype(np.float32)
    block = np.arange(flat.size) // scheme.group
    relative = flat / np.where(absmax == 0, 1, absmax)[block]
    codebook = np.array(scheme.codebook, np.uint32).view(np.float32).astype(np.float64)
    tensors: dict[str, Any] = {"packed": pack_codes(_nearest(codebook, relative), scheme), "shape": weight.shape}
    if not scheme.nested:
        return {**tensors, "absmax": absmax}
    offset = np.float32(absmax.mean() if absmax.size else 0)
    centred = absmax.astype(np.float64) - offset
    absmax2 = _largest(centred, block_size2).astype(np.float32)
    code2 = ((np.arange(256) - 127) / 128).astype(np.float32)
    steps = np.where(absmax2 == 0, 1, absmax2)[np.arange(absmax.size) // block_size2]
    codes = _nearest(code2.astype(np.float64), centred / steps).astype(np.uint8)
    tensors |= {"absmax": codes, "code2": code2, "absmax2": absmax2}
    return {**tensors, "offset": offset.reshape(1), "block_size2": block_size2}


def _channels(weight: Wide, scheme: WeightScheme, fmt: FloatFormat) -> dict[str, Any]:
    largest = np.abs(weight).max(axis=1, initial=0)
    if scheme.arithmetic is Arithmetic.SCB_PRODUCT:
        steps, patterns = _rounded_up(largest, fmt)
        steps = steps / 127
    else:
        steps, patterns = _rounded_up(largest / 127, fmt)
    codes = np.clip(np.rint(weight / steps[:, None]), -127, 127)
    return {"weight": pack_codes(codes.astype(np.int64), scheme), "scale": patterns}


def _tables(weight: Wide, scheme: WeightScheme, fmt: FloatFormat) -> dict[str, Any]:
    rows, columns = weight.shape
    entries = 1 << scheme.bits
    middles = (np.arange(entries) + 0.5) / entries
    table = np.quantile(weight, middles, axis=0).T if rows else np.zeros((columns, entries))
    stored = table.astype(np.float16 if fmt is BINARY16 else np.float32)
    codes = np.empty(weight.shape, np.int64)
    for n in range(columns):
        codes[:, n] = _nearest(stored[n].astype(np.float64), weight[:, n])
    tensors: dict[str, Any] = {"qweight": pack_codes(codes, scheme), "lookup_table": stored}
    rest = weight - stored.astype(np.float64)[np.arange(columns), codes]
    if scheme.sparse:
        chosen = np.zeros(rest.size, np.bool_)
        chosen[np.argsort(-np.abs(rest), axis=None, kind="stable")[: int(np.ceil(OUTLIERS * rest.size))]] = True
        channel, row = np.nonzero(chosen.reshape(rest.shape).T)
        starts = np.concatenate([[0], np.bincount(channel, minlength=columns).cumsum()])
        values = rest[row, channel].astype(np.float32)
        tensors["sparse"] = (starts.astype(np.int32), row.astype(np.int32), values)
        rest[row, channel] = 0
    if scheme.full_rows:
        indices = np.argsort(-np.abs(rest).sum(axis=0), kind="stable")[:FULL_ROWS]
        tensors["full_rows"] = (indices.astype(np.int32), rest[:, indices].astype(np.float32))
    return tensors


def _largest(flat: Wide, block: int) -> Wide:
    """The largest magnitude of every block, the last one short."""
    padded = np.pad(np.abs(flat), (0, -flat.size % block))
    return padded.reshape(-1, block).max(axis=1, initial=0)


def _nearest(table: Wide, values: Wide) -> npt.NDArray[np.int64]:
    """The code of the table's nearest entry; of two equally near the smaller one, of two equal ones the first."""
    ascending, codes = np.unique(table, return_index=True)
    return codes[np.searchsorted((ascending[1:] + ascending[:-1]) / 2, values)]


def _rounded_up(values: Wide, fmt: FloatFormat) -> tuple[Wide, npt.NDArray[Any]]:
    """Positive numbers in a format, no less than they are, 1 in place of 0: as float64, and as they are stored."""
    values = np.where(values == 0, 1, values)
    patterns = narrow(values, fmt)
    patterns = np.where(_widened(patterns, fmt) < values, patterns + 1, patterns)
    stored = patterns.astype(np.uint16 if fmt.bits == 16 else np.uint32)
    if fmt in (BINARY16, BINARY32):
        stored = stored.view(np.float16 if fmt is BINARY16 else np.float32)
    return _widened(patterns, fmt), stored


def _widened(patterns: npt.NDArray[np.int64], fmt: FloatFormat) -> Wide:
    if fmt is BINARY16:
        return patterns.astype(np.uint16).view(np.float16).astype(np.float64)
    shift = BINARY32.bits - fmt.bits  # bfloat16 is the upper half of binary32
    return (patterns << shift).astype(np.uint32).view(np.float32).astype(np.float64)
