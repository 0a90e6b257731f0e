"""Numbers as the files write them: lower-case hex, the most significant digit first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def words(text: str) -> npt.NDArray[np.uint32]:
    """Hex words separated by spaces."""
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


def octets(text: str) -> npt.NDArray[np.uint8]:
    """Two hex digits a byte, with or without spaces between."""
    return np.frombuffer(bytes.fromhex(text), dtype=np.uint8).copy()  # torch wants arrays that can be written to


def digits(text: str) -> npt.NDArray[np.uint8]:
    """One hex digit a code."""
    return np.array([int(digit, 16) for digit in text], dtype=np.uint8)


def float32(text: str | None) -> np.float32 | None:
    return None if text is None else np.uint32(int(text, 16)).view(np.float32)


def word(value: int) -> str:
    """Eight digits."""
    return f"{value:08x}"


def write_words(values: Iterable[int]) -> str:
    """The inverse of `words`."""
    return " ".join(f"{int(value):08x}" for value in values)


def write_octets(values: Iterable[int]) -> str:
    """The inverse of `octets`, without spaces."""
    return bytes(int(value) for value in values).hex()


def write_digits(values: Iterable[int]) -> str:
    """The inverse of `digits`."""
    return "".join(f"{int(value):x}" for value in values)


def patterns(values: npt.NDArray[np.float32]) -> list[int]:
    """The binary32 patterns of a float32 array, row-major."""
    return np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(-1).tolist()
