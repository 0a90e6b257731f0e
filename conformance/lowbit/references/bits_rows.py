"""What the bit-level reference checks of its arguments, and how it walks over a tensor of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.references.bits_elements import CHUNK


def float32_array(name: str, x: Any) -> npt.NDArray[np.float32]:
    """The argument `name`, if it is float32."""
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise DtypeError(f"{name}: got {x.dtype}, want float32 (widen binary16 and bfloat16 first: that is exact)")
    return x


def float32_scalar(given: Any) -> np.float32:
    """A tensor scale as a scalar. A Python number is taken if binary32 holds it; any other dtype is refused."""
    array = np.asarray(given)
    if array.size != 1:
        raise ShapeError(f"tensor_scale: got shape {array.shape}, want one element")
    if type(given) in (int, float):  # not their subclass np.float64, which says that it is no binary32
        with np.errstate(over="ignore"):
            scalar = np.float32(given)
        if math.isnan(given) or float(scalar) == given:
            return scalar
    if array.dtype != np.float32:
        raise DtypeError(f"tensor_scale: got {array.dtype}, want float32")
    return np.float32(array.reshape(-1)[0])


def checked(name: str, given: Any, dtype: type, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The argument `name`, if it is of that dtype and shape."""
    array = np.asarray(given)
    if array.dtype != dtype:
        raise DtypeError(f"{name}: got {array.dtype}, want {np.dtype(dtype)}")
    if array.shape != shape:
        raise ShapeError(f"{name}: got shape {array.shape}, want {shape}")
    return array


class RandomBits:
    """Random integers by position: those given, else those that a seed gives.

    Args:
      name: the argument that gives them.
      given: of `shape`, or None.
      seed: used where none are given.
      shape: of the tensor, or of its scales; the row-major index counts.
      draw: `philox.element_bytes` or `philox.scale_words`.
    Raises:
      ArgumentError: neither is there.
    """

    def __init__(self, name: str, given: Any, seed: int | None, shape: tuple[int, ...], draw: Callable[..., Any]):
        self._columns, self._seed, self._draw = shape[-1], seed, draw
        self._given: npt.NDArray[Any] | None = None
        if given is not None:
            rows = int(np.prod(shape[:-1], dtype=np.int64))
            self._given = checked(name, given, draw(0, 0).dtype, shape).reshape(rows, shape[-1])
        elif seed is None:
            raise ArgumentError(f"{name}: got None and no seed, want either for a stochastic scheme")

    def part(self, row: slice, column: slice) -> npt.NDArray[Any]:
        """Those of a contiguous part of the matrix (several whole rows, or part of one)."""
        if self._given is not None:
            return self._given[row, column]
        shape = row.stop - row.start, column.stop - column.start
        return self._draw(self._seed, shape[0] * shape[1], row.start * self._columns + column.start).reshape(shape)


def spans(rows: int, columns: int, block: int) -> Iterator[tuple[slice, slice, slice]]:
    """Parts of a matrix of at most about CHUNK elements, each contiguous: its rows, its columns, their blocks."""
    if not rows or not columns:
        return
    if columns <= CHUNK:
        step = CHUNK // columns
        for row in range(0, rows, step):
            yield slice(row, min(row + step, rows)), slice(0, columns), slice(0, -(-columns // block))
        return
    step = CHUNK // block * block
    for row in range(rows):
        for column in range(0, columns, step):
            end = min(column + step, columns)
            yield slice(row, row + 1), slice(column, end), slice(column // block, -(-end // block))


def whole_blocks(part: npt.NDArray[Any], block: int) -> npt.NDArray[Any]:
    """(rows, columns) as whole blocks (N, block), each row padded with zeros."""
    missing = -part.shape[1] % block
    if missing:
        part = np.pad(part, ((0, 0), (0, missing)))
    return part.reshape(-1, block)
