"""Stored weights as text: which entry of a weight's tensors stands in which field of a case, and how.

An entry that is a tuple has one field a part, named after both: ``sparse_values``. Floating entries are bit patterns,
so that no conversion decides what is read; NumPy has no bfloat16, whose patterns stay uint16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.cases.weight_parts import as_stored
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FORMATS, FloatFormat
from lowbit.vectors.hextext import octets, words, write_octets, write_words
from lowbit.weight_tensors import INT, SCALE, SHAPE, Part, Stored, entries, shapes
from lowbit.weights import WeightScheme

OUTPUTS: dict[str, FloatFormat] = {fmt.name: fmt for fmt in (BINARY16, BFLOAT16, BINARY32)}
"""The formats of outputs, each a field of a case."""

INDICES = ("g_idx", "sparse_crow_indices", "sparse_col_indices", "full_rows_indices")
"""Fields that are lists of JSON numbers."""

SHORT = ("code2",)
"""Fields that may stop early; what is left out is 0."""

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A field that holds a tensor.

    Attributes:
      name: in the file.
      entry: of the tensors' mapping. part: its place where the entry is a tuple.
      dtype: as `weight_tensors` names it.
    """

    name: str
    entry: str
    part: int | None
    dtype: str


def fields_of(scheme: WeightScheme) -> Iterator[Field]:
    """The fields of tensors that a case of the scheme may have, in order of its entries."""
    for stored in entries(scheme):
        parts: tuple[Stored | Part, ...] = stored.parts or (stored,)
        for place, part in enumerate(parts):
            if part.dtype not in (SHAPE, INT):
                name = f"{stored.name}_{part.name}" if stored.parts else stored.name
                yield Field(name, stored.name, place if stored.parts else None, part.dtype)


def write_weight(arrays: Mapping[str, Any], scheme: WeightScheme, shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields of a stored weight of that output shape; the inverse of `read_weight`."""
    found: dict[str, Any] = {"shape": list(shape)}
    for field in fields_of(scheme):
        value = arrays.get(field.entry)
        if value is None:
            continue
        array = value if field.part is None else value[field.part]
        if field.name in INDICES:
            found[field.name] = array.tolist()
        elif field.dtype in ("uint8", "int8"):
            found[field.name] = write_octets(array.view(np.uint8).ravel())
        elif field.dtype == "int32":
            found[field.name] = write_words(array.view(np.uint32).ravel())
        else:
            fmt = _format_of(array)
            patterns = array.view(f"u{array.dtype.itemsize}")
            if field.name in SHORT:
                patterns = patterns[: np.flatnonzero(patterns).max(initial=0) + 1]
            found[field.name] = write_patterns(patterns, fmt)
            if field.dtype == SCALE:
                found["scale_format"] = fmt.name
    if "block_size2" in arrays:
        found["block_size2"] = arrays["block_size2"]
    return found


def read_weight(fields: Mapping[str, Any], scheme: WeightScheme) -> Arrays:
    """The stored tensors of a case, as references and adapters take them.

    Raises:
      ArgumentError: a field has another number of items than the shape wants, or is missing.
      ShapeError: no such output can be stored.
    """
    shape = tuple(fields["shape"])
    found: Arrays = {"shape": shape} if scheme.family in ("nf4", "fp4") else {}
    if scheme.nested:
        found["block_size2"] = fields["block_size2"]
    lengths = shapes(scheme, shape, block_size2=fields.get("block_size2", 256))
    for field in fields_of(scheme):
        text = fields.get(field.name)
        if text is None:
            if field.name != "g_idx":
                raise ArgumentError(f"{field.name}: got none, want it for {scheme.name}")
            continue
        array = _read(field, text, fields)
        want = lengths[field.name] if field.name in lengths else _length_of_part(field.name, fields, shape)
        if field.name in SHORT and array.size < math.prod(want):
            array = np.pad(array, (0, math.prod(want) - array.size))
        if array.size != math.prod(want):
            raise ArgumentError(f"{field.name}: got {array.size} items, want {math.prod(want)} for shape {shape}")
        array = array.reshape(want)
        if field.part is None:
            found[field.entry] = array
        else:
            found[field.entry] = (*found.get(field.entry, ()), array)
    return found


def write_patterns(patterns: Any, fmt: FloatFormat) -> str:
    """Bit patterns of a format, 4 or 8 digits each, separated by spaces."""
    return " ".join(f"{int(pattern):0{fmt.bits // 4}x}" for pattern in np.asarray(patterns).ravel())


def write_answer(patterns: Any, fmt: FloatFormat) -> str:
    """Bit patterns of an output: as `write_patterns`, every NaN as the quiet one that means any NaN."""
    infinity = fmt.max_magnitude + 1
    quiet = infinity | 1 << (fmt.mantissa_bits - 1)
    found = np.asarray(patterns).astype(np.int64)
    return write_patterns(np.where(found & fmt.magnitude_mask > infinity, quiet, found), fmt)


def _read(field: Field, text: Any, fields: Mapping[str, Any]) -> np.ndarray:
    if field.name in INDICES:
        return np.array(text, np.int32)
    if field.dtype in ("uint8", "int8"):
        return octets(text).view(field.dtype)
    if field.dtype == "int32":
        return words(text).view(np.int32)
    fmt = FORMATS[fields["scale_format"]] if field.dtype == SCALE else BINARY32
    return as_stored(words(text), fmt)


def _length_of_part(name: str, fields: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a field that `weight_tensors.shapes` does not tell."""
    if name == "offset":
        return (1,)
    if name == "sparse_crow_indices":
        return (shape[1] + 1,)
    if name.startswith("sparse_"):
        return (len(fields["sparse_col_indices"]),)
    channels = len(fields["full_rows_indices"])
    return (channels,) if name == "full_rows_indices" else (shape[0], channels)


def _format_of(array: np.ndarray) -> FloatFormat:
    return {"float16": BINARY16, "uint16": BFLOAT16, "float32": BINARY32}[str(array.dtype)]
