"""NumPy arrays and torch tensors under one set of names.

NumPy 2 and torch share the names that a comparison needs, so most code takes the module itself (`namespace`) and
works on both. This module never imports torch: a tensor can only be handed over once somebody else has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from lowbit.errors import DtypeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, BINARY64, FloatFormat

CHUNK = 1 << 22
"""Elements compared together."""

PIECE = 1 << 19
"""Differing elements classed together: bounds the memory of a comparison however many elements differ."""

FLOATS: dict[str, FloatFormat] = {
    "float16": BINARY16,
    "bfloat16": BFLOAT16,
    "float32": BINARY32,
    "float64": BINARY64,
}
"""The formats of floating dtypes, by the dtype's name."""


def namespace(*arrays: Any) -> Any:
    """torch if any of the arrays is a tensor, else numpy."""
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(array, torch.Tensor) for array in arrays):
        return torch
    return np


def dtype_name(array: Any) -> str:
    """The dtype without its library: ``uint8``, ``bfloat16``, ``float8_e4m3fn``."""
    return str(array.dtype).removeprefix("torch.")


def describe(array: Any) -> str:
    """Shape and dtype, as messages show them."""
    return f"{tuple(array.shape)} {dtype_name(array)}" if hasattr(array, "shape") else f"{type(array).__name__}"


def place(array: Any, like: Any) -> Any:
    """The array as the kind, and on the device, of another one; the bits stay."""
    xp = namespace(like)
    if namespace(array) is np:
        array = np.asarray(array)
        return array if xp is np else xp.from_numpy(_ordinary(array)).to(like.device)
    return host(array) if xp is np else array.to(like.device)


def host(array: Any) -> np.ndarray:
    """A NumPy array of the same bits. dtypes that NumPy lacks come back as unsigned integers of their width."""
    if namespace(array) is np:
        return np.asarray(array)
    array = array.detach().cpu()
    if dtype_name(array) == "bfloat16":
        return array.view(sys.modules["torch"].int16).numpy().view(np.uint16)
    if dtype_name(array).startswith(("float8", "float4")):
        array = array.view(sys.modules["torch"].uint8)
    return array.numpy()


def bits(array: Any) -> Any:
    """The same memory as integers of the elements' width: signed in torch, which has few operations on others."""
    xp = namespace(array)
    size = array.element_size() if xp is not np else array.dtype.itemsize
    name = "uint8" if size == 1 else f"int{8 * size}"
    return array if dtype_name(array) == name else array.view(getattr(xp, name))


def as_bytes(array: Any) -> Any:
    """(N,) uint8. The array's memory in row-major order."""
    xp = namespace(array)
    if xp is np:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return array.contiguous().reshape(-1).view(xp.uint8)


def widen(array: Any) -> Any:
    """A binary32, binary16 or bfloat16 array as float32, exactly.

    Raises:
      DtypeError: any other dtype, which might not fit.
    """
    if dtype_name(array) not in ("float32", "float16", "bfloat16"):
        raise DtypeError(f"x: got dtype {dtype_name(array)}, want float32, float16 or bfloat16")
    xp = namespace(array)
    return array.astype(np.float32) if xp is np else array.to(xp.float32)


def ones(array: Any) -> Any:
    """1, of an array's shape, dtype and device."""
    return namespace(array).ones_like(array)


def flatnonzero(mask: Any) -> Any:
    """(N,) int64. The places where a flat mask is true."""
    return np.flatnonzero(mask) if namespace(mask) is np else mask.nonzero().reshape(-1)


def differing(actual: Any, expected: Any, unequal: Any = None) -> Iterator[Any]:
    """Yields the flat places at which two flat arrays differ, ascending, a bounded number at a time.

    Args:
      actual, expected: (N,) of one shape and width; `expected` is brought to `actual`'s device in pieces.
      unequal: (actual, expected) -> mask, `!=` if None.
    """
    for start in range(0, actual.shape[0], CHUNK):
        a = actual[start : start + CHUNK]
        e = place(expected[start : start + CHUNK], a)
        mask = a != e if unequal is None else unequal(a, e)
        if bool(mask.any()):
            places = start + flatnonzero(mask)
            for first in range(0, places.shape[0], PIECE):
                yield places[first : first + PIECE]


def take(array: Any, places: Any) -> Any:
    """Elements of a flat array at places, on the places' device."""
    return place(array[place(places, array)], places)


def take_wide(array: Any, places: Any) -> Any:
    """The same of a floating array, widened to float32."""
    return place(widen(array[place(places, array)]), places)


def _ordinary(array: np.ndarray) -> np.ndarray:
    """An array that torch can take: contiguous, writable, of a dtype that torch has."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "V" or array.dtype.name not in _TORCH_DTYPES:
        array = array.view(f"u{array.dtype.itemsize}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.view(f"i{array.dtype.itemsize}")
    return array if array.flags.writeable else array.copy()


_TORCH_DTYPES = frozenset(
    (
        "bool",
        "uint8",
        "int8",
        "float16",
        "float32",
        "float64",
        *(f"{sign}int{8 * n}" for sign in ("", "u") for n in (2, 4, 8)),
    )
)
