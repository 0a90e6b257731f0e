"""The NumPy reference of weight schemes: SPEC.md section 5 on integer bit patterns, vectorised.

Codes come out of the words by shifts of 64-bit integers; products are exact integers (`bits_numbers`) and are rounded
where the scheme says so. Work goes in chunks, so that memory beyond the result is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats import BINARY16, BINARY32, FloatFormat
from lowbit.references.bits_numbers import Numbers, of_integers, of_patterns, product, to_patterns
from lowbit.references.bits_rounding import Ints, narrow
from lowbit.references.weights_arguments import OUTPUTS, dtype_name, output_format, output_shape
from lowbit.rules import Arithmetic, OutputRounding, ZeroPoint
from lowbit.weights import SCB_FACTOR, WeightScheme, WordPacking

CHUNK = 1 << 16
"""Weights worked on together: few enough that their integers stay in the processor's cache, half the time of 2**20."""


def dequantize(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat = BINARY16) -> npt.NDArray[Any]:
    """The weights that stored tensors stand for, as bit patterns of a format.

    Args:
      tensors: NumPy arrays under the names of `weight_tensors.entries(scheme)`; bfloat16 is the dtype of ml_dtypes, or
        the bit patterns as uint16.
      scheme: any of `lowbit.weights`.
      fmt: binary16, bfloat16 or binary32.
    Returns:
      uint16 or uint32, (K, N) for awq, gptq and squeezellm, (N, K) for int8, `shape` for nf4 and fp4. NaN is the
      format's canonical one.
    Raises:
      ArgumentError, DtypeError, ShapeError: as `weights_arguments.output_shape`; another format.
    Exactness: bit-exact with `references.weights_exact.dequantize`.
    Spec: SPEC.md 5.
    """
    shape = output_shape(tensors, scheme)
    out = np.empty(shape, np.uint16 if output_format(fmt).bits == 16 else np.uint32)
    if not out.size:
        return out
    match scheme.family:
        case "awq" | "gptq":
            _fill_grouped(out, tensors, scheme, fmt)
        case "nf4" | "fp4":
            _fill_blocks(out.reshape(-1), tensors, scheme, fmt)
        case "int8":
            _fill_channels(out, tensors, scheme, fmt)
        case _:
            _fill_tables(out, tensors, scheme, fmt)
    return out


def _fill_grouped(out: npt.NDArray[Any], tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat) -> None:
    rows, columns = out.shape
    assert scheme.zero_packing is not None  # every scheme of these families has zero points
    zeros = codes_at(tensors["qzeros"], scheme.zero_packing, np.arange(columns))
    if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        zeros = (zeros + 1) & ((1 << scheme.bits) - 1)
    patterns, source = _patterns(tensors["scales"])
    scales = of_patterns(patterns, source)
    given = tensors.get("g_idx")
    groups = np.arange(rows) // scheme.group_size(rows) if given is None else np.asarray(given, dtype=np.int64)
    for part in _spans(rows, columns):
        index = np.arange(part.start, part.stop)
        if scheme.packing.axis == 0:
            codes = codes_at(tensors["qweight"], scheme.packing, index)
        else:
            codes = codes_at(tensors["qweight"][part], scheme.packing, np.arange(columns))
        group = groups[part]
        out[part] = _rounded(product(of_integers(codes - zeros[group]), scales.take(group)), source, scheme, fmt)


def _fill_blocks(out: npt.NDArray[Any], tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat) -> None:
    absmax = _nested_absmax(tensors) if scheme.nested else _patterns(tensors["absmax"])[0].astype(np.int64)
    codebook = of_patterns(np.array(scheme.codebook), BINARY32)
    packed = tensors["packed"].reshape(-1, 1)
    step = max(1, CHUNK // scheme.group)
    for block in range(0, absmax.size, step):
        # Every product that the block's codes can have: 16 a block.
        scales = of_patterns(absmax[block : block + step, None], BINARY32)
        rounded = to_patterns(product(codebook, scales), BINARY32)
        table = to_patterns(of_patterns(rounded, BINARY32), fmt).astype(out.dtype)
        start, stop = block * scheme.group, min((block + step) * scheme.group, out.size)
        for first in range(start, stop, CHUNK):
            place = np.arange(first, min(first + CHUNK, stop))
            codes = codes_at(packed, scheme.packing, place)[:, 0]
            out[first : first + place.size] = table[place // scheme.group - block, codes]


def _fill_channels(out: npt.NDArray[Any], tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat) -> None:
    patterns, source = _patterns(tensors["scale"])
    scales = of_patterns(patterns[:, None], source)
    for part in _spans(*out.shape):
        exact = product(of_integers(tensors["weight"][part]), scales.take(part))
        if scheme.arithmetic is Arithmetic.EXACT_PRODUCT:
            out[part] = _rounded(exact, source, scheme, fmt)
            continue
        value = of_patterns(to_patterns(exact, BINARY32), BINARY32)
        if scheme.arithmetic is Arithmetic.SCB_PRODUCT:
            factor = of_patterns(np.array(SCB_FACTOR), BINARY32)
            value = of_patterns(to_patterns(product(value, factor), BINARY32), BINARY32)
        out[part] = to_patterns(value, fmt)


def _fill_tables(out: npt.NDArray[Any], tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat) -> None:
    rows, columns = out.shape
    patterns, source = _patterns(tensors["lookup_table"])
    alone = scheme.arithmetic is Arithmetic.LOOKUP
    table = to_patterns(of_patterns(patterns, source), fmt if alone else BINARY32)
    channel = np.arange(columns)
    for part in _spans(rows, columns):
        codes = codes_at(tensors["qweight"], scheme.packing, np.arange(part.start, part.stop))
        values = table[channel, codes]
        if alone:
            out[part] = values
            continue
        if scheme.sparse:
            k, n, entries = _single_entries(tensors["sparse"], part)
            values[k, n] = _sum32(values[k, n], entries)
        if scheme.full_rows:
            indices, added = tensors["full_rows"]
            values[:, indices] = _sum32(values[:, indices], _patterns(added)[0][part])
        out[part] = to_patterns(of_patterns(values, BINARY32), fmt)


def codes_at(words: npt.NDArray[Any], packing: WordPacking, places: Ints) -> Ints:
    """The codes at places along `packing.axis` of a matrix of words.

    Args:
      words: (R, C) int32 or uint8.
      places: (P,) int. Ascending or not, within the matrix.
    Returns:
      (P, C) int64 where the axis is 0, else (R, P).
    """
    run = len(packing.order)
    held_by = np.argsort(packing.order)  # the inverse of the permutation: place in its run -> field
    first = (places // run * run + held_by[places % run]) * packing.bits
    word, shift = first // packing.word_bits, (first % packing.word_bits).astype(np.uint64)
    whole = words.view(f"u{words.dtype.itemsize}")
    low = np.take(whole, word, packing.axis).astype(np.uint64)
    if packing.word_bits % packing.bits:  # a code may reach into the next word
        following = np.minimum(word + 1, whole.shape[packing.axis] - 1)
        low |= np.take(whole, following, packing.axis).astype(np.uint64) << np.uint64(packing.word_bits)
    shifts = shift[:, None] if packing.axis == 0 else shift[None, :]
    return ((low >> shifts) & np.uint64((1 << packing.bits) - 1)).astype(np.int64)


def _rounded(exact: Numbers, source: FloatFormat, scheme: WeightScheme, fmt: FloatFormat) -> Ints:
    if scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE:
        exact = of_patterns(to_patterns(exact, source), source)
    return to_patterns(exact, fmt)


def _nested_absmax(tensors: Mapping[str, Any]) -> Ints:
    """Binary32 patterns of RN32(RN32(code2[q8] * absmax2) + offset)."""
    codes = tensors["absmax"]
    values = of_patterns(_patterns(tensors["code2"])[0][codes], BINARY32)
    scales, _ = _patterns(tensors["absmax2"])
    scale = of_patterns(scales[np.arange(codes.size) // tensors["block_size2"]], BINARY32)
    offset = _patterns(tensors["offset"])[0].reshape(1)
    return _sum32(to_patterns(product(values, scale), BINARY32), offset)


def _sum32(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> Ints:
    """RN32(a + b) of binary32 patterns.

    The double-precision sum has one rounding to 53 bits, and a second one to 24 bits cannot differ from a single one:
    53 >= 2 * 24 + 2 (Figueroa, 1995). A sum below 2**-126 is a multiple of 2**-149 and exact in both.
    """
    with np.errstate(invalid="ignore"):
        wide = [part.astype(np.uint32).view(np.float32).astype(np.float64) for part in (a, b)]
        return narrow(wide[0] + wide[1], BINARY32)


def _single_entries(sparse: Any, part: slice) -> tuple[Ints, Ints, npt.NDArray[Any]]:
    """Row within the part, column and binary32 pattern of the CSR entries of some rows of (K, N)."""
    starts, places, values = sparse
    n = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    here = (places >= part.start) & (places < part.stop)
    return places[here] - part.start, n[here], _patterns(values)[0][here]


def _spans(rows: int, columns: int) -> list[slice]:
    step = max(1, CHUNK // columns)
    return [slice(row, min(row + step, rows)) for row in range(0, rows, step)]


def _patterns(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], FloatFormat]:
    """The bit patterns of a floating array, and their format."""
    fmt = OUTPUTS[dtype_name(array)]
    patterns = np.ascontiguousarray(array).view(np.uint16 if fmt.bits == 16 else np.uint32)
    return patterns.reshape(array.shape), fmt
