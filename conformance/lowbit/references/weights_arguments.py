"""What the references check of a weight's stored tensors before they read one bit: names, dtypes, shapes, indices.

The tables of `lowbit.weight_tensors` say what is wanted; NumPy arrays and torch tensors are judged alike. Scales are
not looked at: NaN, Inf, zero and negative ones are values like any other.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.weight_tensors import INT, SHAPE, Part, Stored, dtypes, entries, optional, rank, shapes
from lowbit.weights import WeightScheme

OUTPUTS: dict[str, FloatFormat] = {"float16": BINARY16, "bfloat16": BFLOAT16, "float32": BINARY32}
"""The formats of outputs, by the names of their dtypes; those of scales too."""


def output_shape(tensors: Mapping[str, Any], scheme: WeightScheme) -> tuple[int, ...]:
    """Checks the tensors of a weight and gives the shape of what they dequantise to.

    Args:
      tensors: NumPy arrays or torch tensors under the names of `weight_tensors.entries(scheme)`. bfloat16 in NumPy is
        the dtype of ml_dtypes, or the bit patterns as uint16.

    Returns:
      (K, N) for awq, gptq and squeezellm, (N, K) for int8, `shape` for nf4 and fp4.

    Raises:
      ArgumentError: a missing or unknown name; an index or a group out of range; an index twice.
      DtypeError: a tensor of another dtype, or no tensor.
      ShapeError: shapes that do not fit one another, or no whole number of words.
    """
    wanted = entries(scheme)
    given = {name: value for name, value in tensors.items() if value is not None}
    for stored in wanted:
        if stored.name not in given and not optional(stored, scheme):
            raise ArgumentError(f"{stored.name}: got none, want {_text(stored, scheme)} for {scheme.name}")
    if unknown := sorted(set(given) - {stored.name for stored in wanted}):
        raise ArgumentError(
            f"{unknown[0]}: got a tensor of that name, want only {', '.join(s.name for s in wanted)} for {scheme.name}"
        )
    for stored in wanted:
        if stored.name in given:
            _check_entry(given[stored.name], stored, scheme)
    shape = _shape(given, scheme)
    found = shapes(scheme, shape, block_size2=given.get("block_size2", 256))
    for name, want in found.items():
        if name in given and tuple(given[name].shape) != want:
            raise ShapeError(
                f"{name}: got shape {tuple(given[name].shape)}, want {want} for {scheme.name} of shape {shape}"
            )
    if "g_idx" in given:
        _check_range("g_idx", given["g_idx"], scheme.groups(shape[0]), "groups")
    if "sparse" in given:
        _check_sparse(*given["sparse"], rows=shape[1], columns=shape[0])
    if "full_rows" in given:
        _check_full_rows(*given["full_rows"], channels=shape[1], length=shape[0])
    return shape


def dtype_name(array: Any) -> str:
    """The dtype as PyTorch names it; uint16 in NumPy stands for bfloat16."""
    name = str(array.dtype).removeprefix("torch.")
    return "bfloat16" if name == "uint16" and isinstance(array, np.ndarray) else name


def output_format(fmt: FloatFormat) -> FloatFormat:
    """The format, if outputs may have it.

    Raises:
      ArgumentError: it may not.
    """
    if fmt not in OUTPUTS.values():
        names = ", ".join(f.name for f in OUTPUTS.values())
        raise ArgumentError(f"fmt: got {getattr(fmt, 'name', fmt)}, want one of {names}")
    return fmt


def _text(stored: Stored, scheme: WeightScheme) -> str:
    if stored.parts:
        return f"a tuple ({', '.join(part.name for part in stored.parts)})"
    if stored.dtype in (SHAPE, INT):
        return "a tuple of ints" if stored.dtype == SHAPE else "an int"
    return f"{' or '.join(dtypes(stored, scheme))} of shape {stored.shape}"


def _check_entry(value: Any, stored: Stored, scheme: WeightScheme) -> None:
    if stored.parts:
        if not isinstance(value, Sequence) or len(value) != len(stored.parts):
            raise ArgumentError(f"{stored.name}: got {type(value).__name__}, want {_text(stored, scheme)}")
        for part, array in zip(stored.parts, value, strict=True):
            _check_tensor(f"{stored.name}.{part.name}", array, part, scheme)
    elif stored.dtype == SHAPE:
        lengths = isinstance(value, Sequence) and not isinstance(value, str)
        if not lengths or not all(isinstance(v, int) and v >= 0 for v in value):
            raise ArgumentError(f"{stored.name}: got {value!r}, want a tuple of ints, none below 0")
    elif stored.dtype == INT:
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{stored.name}: got {value!r}, want an int, at least 1")
    else:
        _check_tensor(stored.name, value, stored, scheme)


def _check_tensor(name: str, array: Any, stored: Stored | Part, scheme: WeightScheme) -> None:
    torch = sys.modules.get("torch")
    if not isinstance(array, np.ndarray) and not (torch is not None and isinstance(array, torch.Tensor)):
        raise DtypeError(f"{name}: got {type(array).__name__}, want a NumPy array or a torch tensor")
    allowed = dtypes(stored, scheme)
    if dtype_name(array) not in allowed:
        raise DtypeError(f"{name}: got {dtype_name(array)}, want {' or '.join(allowed)} for {scheme.name}")
    if stored.name == "offset":
        if math.prod(array.shape) != 1:
            raise ShapeError(f"{name}: got shape {tuple(array.shape)}, want one element")
    elif array.ndim != rank(stored):
        raise ShapeError(f"{name}: got shape {tuple(array.shape)}, want {stored.shape} for {scheme.name}")


def _shape(given: Mapping[str, Any], scheme: WeightScheme) -> tuple[int, ...]:
    """The shape of the output, from the tensor that holds the codes."""
    if scheme.family in ("nf4", "fp4"):
        return tuple(given["shape"])
    if scheme.family == "int8":
        return tuple(given["weight"].shape)
    shape, packing = list(given["qweight"].shape), scheme.packing
    if shape[packing.axis] % packing.period_words:
        raise ShapeError(
            f"qweight: got shape {tuple(shape)}, want dimension {packing.axis} a multiple of {packing.period_words}: "
            f"{packing.period_codes} codes of {packing.bits} bits fill {packing.period_words} words"
        )
    shape[packing.axis] = shape[packing.axis] * packing.word_bits // packing.bits
    return tuple(shape)


def _host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()


def _check_range(name: str, array: Any, count: int, what: str) -> None:
    values = _host(array)
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if wrong.size:
        place = int(wrong[0])
        raise ArgumentError(
            f"{name}: got {int(values[place])} at position {place}, want 0..{count - 1}: {count} {what}"
        )


def _check_sparse(crow: Any, col: Any, values: Any, *, rows: int, columns: int) -> None:
    if tuple(crow.shape) != (rows + 1,):
        raise ShapeError(f"sparse.crow_indices: got shape {tuple(crow.shape)}, want ({rows + 1},) for {rows} channels")
    if tuple(col.shape) != tuple(values.shape):
        raise ShapeError(f"sparse.values: got shape {tuple(values.shape)}, want {tuple(col.shape)} as col_indices")
    starts, places = _host(crow).astype(np.int64), _host(col).astype(np.int64)
    lengths = np.diff(starts)
    if starts[0] != 0 or starts[-1] != places.size or bool((lengths < 0).any()):
        raise ArgumentError(
            f"sparse.crow_indices: got {starts[0]}..{starts[-1]}, want offsets from 0 to {places.size} that never fall"
        )
    _check_range("sparse.col_indices", places, columns, "columns")
    flat = np.sort(np.repeat(np.arange(rows), lengths) * columns + places)
    twice = flat[1:][flat[1:] == flat[:-1]]
    if twice.size:
        row, column = divmod(int(twice[0]), columns)
        raise ArgumentError(f"sparse.col_indices: got column {column} twice in channel {row}, want each once")


def _check_full_rows(indices: Any, values: Any, *, channels: int, length: int) -> None:
    want = (length, *tuple(indices.shape))
    if tuple(values.shape) != want:
        raise ShapeError(f"full_rows.values: got shape {tuple(values.shape)}, want {want}")
    _check_range("full_rows.indices", indices, channels, "channels")
    host = np.sort(_host(indices))
    twice = host[1:][host[1:] == host[:-1]]
    if twice.size:
        raise ArgumentError(f"full_rows.indices: got channel {int(twice[0])} twice, want each once")
