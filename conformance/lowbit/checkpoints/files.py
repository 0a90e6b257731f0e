"""Real weights as input: the floating tensors of a safetensors file, streamed.

The file is read in runs of bounded length and never held whole. Its header is parsed here, because a bounded run of
*any* shape (one row of 2**31 elements included) and bfloat16 without torch are wanted; the layout is 8 bytes of
header length, little-endian, then JSON, then the data.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowbit import schemes
from lowbit.errors import ArgumentError, NothingCompared, Unsupported
from lowbit.references import bits
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Scheme

CHUNK = 1 << 22
"""Elements read at a time unless told otherwise: 16 MiB as float32, and some ten times that inside a reference."""

COLUMN_STEP = math.lcm(*(scheme.block for scheme in schemes.select()))
"""Where a row is cut, it is cut at a multiple of this, so that no block of any scheme is."""

_WIDTHS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
"""Bits of an element of each dtype of the safetensors format."""

_READ_AS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The dtypes that widen exactly to binary32, as NumPy reads them."""

_STORED_AS = {**_READ_AS, **dict.fromkeys(("U8", "F8_E4M3", "F8_E8M0"), "u1"), "I8": "i1", "I32": "<i4", "I64": "<i8"}
"""The dtypes of quantised weights, as NumPy reads them: bfloat16 and 8-bit floats are bit patterns."""


class NoTensorScale(Unsupported):
    """A tensor that is read in parts, whose scale cannot be given to a part."""


@dataclass(frozen=True)
class Entry:
    """A tensor of the file, seen as a matrix: all leading dimensions are rows, a vector or a scalar is one row.

    Args:
      name: as the file has it, verbatim: it may hold markup.
      shape, dtype: as the file has them.
      start: the first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: int

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def skipped(self) -> str | None:
        """Why the tensor is not judged; None if it is."""
        if self.dtype not in _READ_AS:
            if self.dtype == "F64":
                return "F64: rounding it to binary32 first would judge other values than the file's"
            if self.dtype.startswith("F"):
                return f"{self.dtype}: quantised already"
            return f"{self.dtype}: not floating"
        return None if self.elements else "no elements"


@dataclass(frozen=True)
class Chunk:
    """A run of consecutive elements of one tensor: whole rows, or a piece of one row.

    Args:
      row, column: of the first element.
      values: (rows, columns) float32, exactly the file's values; for an F16 or BF16 tensor a cast back loses nothing.
      whole: whether this is all of the tensor, so that a scheme may take the tensor's scale from it.
    """

    row: int
    column: int
    values: np.ndarray
    whole: bool


def tensors(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Every tensor of a safetensors file, in the order of their data.

    Raises:
      ArgumentError: no such file, not a safetensors file, or truncated.
      NothingCompared: the file is empty or holds no tensor.
    """
    path = Path(path)
    header, data = _header(path)
    header.pop("__metadata__", None)
    size = path.stat().st_size
    entries = [_entry(path, name, fields, data, size) for name, fields in header.items()]
    if not entries:
        raise NothingCompared(f"{path} holds no tensor, want a floating one")
    return tuple(sorted(entries, key=lambda entry: (entry.start, entry.name)))


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """What a safetensors file says of itself in its header, beside the tensors.

    Raises:
      ArgumentError, NothingCompared: as `tensors`; metadata that are not texts by name.
    """
    said = _header(Path(path))[0].get("__metadata__") or {}
    if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
        raise ArgumentError(f"{path}: __metadata__ is {said!r}, want texts by name")
    return said


def array(path: str | os.PathLike[str], entry: Entry) -> np.ndarray:
    """A whole tensor as it is stored: bfloat16 as uint16 and 8-bit floats as uint8 bit patterns.

    Raises:
      ArgumentError: a dtype that no quantised weight is stored in, or the file has become shorter.
    """
    if entry.dtype not in _STORED_AS:
        raise ArgumentError(f"{path}: {entry.name!r} is {entry.dtype}, want one of {', '.join(_STORED_AS)}")
    with Path(path).open("rb") as file:
        return _stored(file, entry, 0, entry.elements, _STORED_AS).reshape(entry.shape)


def floating(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """The tensors that are judged: F32, F16 and BF16 with at least one element.

    Raises:
      NothingCompared: there is none; names what was skipped and why. Otherwise as `tensors`.
    """
    entries = tensors(path)
    found = tuple(entry for entry in entries if entry.skipped is None)
    if not found:
        reasons = "; ".join(f"{entry.name} ({entry.skipped})" for entry in entries[:5])
        raise NothingCompared(f"{path} holds no floating tensor to judge, of {len(entries)}: {reasons}")
    return found


def chunks(path: str | os.PathLike[str], entry: Entry, *, elements: int = CHUNK) -> Iterator[Chunk]:
    """The values of a tensor, in order, at most `elements` at a time.

    Args:
      elements: the bound, at least `COLUMN_STEP`. A longer row is cut at multiples of `COLUMN_STEP`.

    Raises:
      ArgumentError: `entry.skipped`, `elements` too small, or the file has become shorter.
    """
    if entry.skipped is not None:
        raise ArgumentError(f"entry: {entry.name} cannot be read as float32: {entry.skipped}")
    if elements < COLUMN_STEP:
        raise ArgumentError(f"elements: got {elements}, want at least {COLUMN_STEP}")
    width = entry.columns if entry.columns <= elements else elements // COLUMN_STEP * COLUMN_STEP
    height = max(1, elements // entry.columns)
    whole = height >= entry.rows and width == entry.columns
    with Path(path).open("rb") as file:
        for row in range(0, entry.rows, height):
            for column in range(0, entry.columns, width):
                shape = min(height, entry.rows - row), min(width, entry.columns - column)
                values = _read(file, entry, row * entry.columns + column, shape[0] * shape[1])
                yield Chunk(row, column, values.reshape(shape), whole)


def amax(path: str | os.PathLike[str], entry: Entry, *, finite: bool = False, elements: int = CHUNK) -> np.float32:
    """The largest magnitude of a tensor, by chunks: NaN if it holds one, unless `finite` leaves NaN and Inf out."""
    largest = np.float32(0)
    for chunk in chunks(path, entry, elements=elements):
        magnitudes = np.abs(chunk.values)
        if finite:
            magnitudes[~np.isfinite(magnitudes)] = 0
        largest = np.maximum(largest, magnitudes.max())  # np.maximum keeps NaN
    return np.float32(largest)


def tensor_scale(
    path: str | os.PathLike[str], entry: Entry, scheme: Scheme, *, elements: int = CHUNK
) -> np.float32 | None:
    """The factor g of the whole tensor, to be given to each chunk's quantisation; None where no scheme takes one.

    The formula is the reference's own: g depends on the tensor's amax only, so it is that of one block which holds it.

    Raises:
      NoTensorScale: g is no finite number above 0 (NaN or Inf in the tensor): the tensor can only be judged whole.
    """
    if scheme.tensor_scale not in (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS):
        return None
    block = np.zeros((1, scheme.block), np.float32)
    block[0, 0] = amax(path, entry, finite=scheme.tensor_scale is TensorScaleRule.ONE_ROUNDING, elements=elements)
    g = np.float32(bits.quantize(block, scheme).tensor_scale)
    if not 0 < g < np.inf:
        raise NoTensorScale(
            f"{entry.name}: amax {block[0, 0]} gives {scheme.name} a tensor scale of {g}, which no part of a tensor "
            f"can be given; the tensor has {entry.elements} elements and is read {elements} at a time"
        )
    return g


def pad_columns(x: Any, block: int) -> Any:
    """Rows lengthened with +0 to a multiple of the block, for a scheme that refuses a partial one.

    Args:
      x: (..., K) array or tensor.

    Returns:
      (..., P), x itself where nothing is missing. The padding changes no amax, so no scale and no code of x.
    """
    missing = -x.shape[-1] % block
    if not missing:
        return x
    shape = (*x.shape[:-1], x.shape[-1] + missing)
    padded = np.zeros(shape, x.dtype) if isinstance(x, np.ndarray) else x.new_zeros(shape)
    padded[..., : x.shape[-1]] = x
    return padded


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a file, and the place of its first byte of data."""
    if not path.is_file():
        other = "" if path.exists() else ", or the folder of a checkpoint"
        raise ArgumentError(f"{path} is not a file, want a .safetensors file{other}")
    size = path.stat().st_size
    if size == 0:
        raise NothingCompared(f"{path} is empty, want a .safetensors file with a floating tensor")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ArgumentError(
                f"{path} is not a safetensors file, or is truncated: its first 8 bytes announce a header of "
                f"{length} bytes, the file has {size}"
            )
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=unique)
    except ValueError as error:  # also UnicodeDecodeError
        raise ArgumentError(f"{path} is not a safetensors file: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ArgumentError(f"{path} is not a safetensors file: its header is a {type(header).__name__}")
    return header, 8 + length


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, for `object_pairs_hook`; ValueError if a name stands in it twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name stands in it twice")  # the later tensor would hide the earlier
    return fields


def _entry(path: Path, name: str, fields: Any, data: int, size: int) -> Entry:
    try:
        dtype, (start, end) = fields["dtype"], fields["data_offsets"]
        shape = tuple(map(operator.index, fields["shape"]))
        wanted = math.prod(shape) * _WIDTHS[dtype] // 8
        sound = min((start, *shape)) >= 0 and end - start == wanted
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{path}: the header's entry {name!r} is {fields!r}: {error!r}") from error
    if not sound:
        raise ArgumentError(
            f"{path}: {name!r} is {dtype} of shape {shape}, {wanted} bytes, but has bytes {start} to {end}"
        )
    if data + end > size:
        raise ArgumentError(f"{path} is truncated: {name!r} ends at byte {data + end}, the file has {size}")
    return Entry(name, shape, dtype, data + start)


def _stored(file: Any, entry: Entry, first: int, count: int, dtypes: dict[str, str]) -> np.ndarray:
    dtype = np.dtype(dtypes[entry.dtype])
    raw = np.fromfile(file, dtype, count, offset=entry.start + first * dtype.itemsize - file.tell())
    if raw.size < count:
        raise ArgumentError(f"{file.name} is truncated inside {entry.name!r}: it became shorter while it was read")
    return raw


def _read(file: Any, entry: Entry, first: int, count: int) -> np.ndarray:
    raw = _stored(file, entry, first, count, _READ_AS)
    if entry.dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32, copy=False)
