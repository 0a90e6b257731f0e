"""Numbers that look random and are the same everywhere: words of Philox4x32-10, made into values exactly."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from lowbit.references.philox import philox4x32

SEED = 20260829
"""First key word of everything drawn; the second is the CRC of a name, so that one draw never shifts another."""

FINITE_PATTERNS = 0x7F800000


def words(name: str, count: int) -> npt.NDArray[np.uint32]:
    """(count,) uint32."""
    counter = np.zeros((-(-count // 4), 4), np.uint64)
    counter[:, 0] = np.arange(len(counter), dtype=np.uint64)
    return philox4x32((SEED, zlib.crc32(name.encode("ascii"))), counter).reshape(-1)[:count]


def octets(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Bytes of that shape."""
    return (words(name, int(np.prod(shape))) >> np.uint32(24)).astype(np.uint8).reshape(shape)


def integers31(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """31-bit integers of that shape."""
    return (words(name, int(np.prod(shape))) >> np.uint32(1)).astype(np.int32).reshape(shape)


def finite_patterns(name: str, count: int) -> npt.NDArray[np.float32]:
    """(count,) float32. Finite bit patterns, all equally likely, to within 2**-8."""
    drawn = words(name, count)
    sign, rest = drawn & np.uint32(0x80000000), drawn & np.uint32(0x7FFFFFFF)
    return (sign | rest % np.uint32(FINITE_PATTERNS)).view(np.float32)


def ordinary(name: str, count: int, exponent: int = 0) -> npt.NDArray[np.float32]:
    """(count,) float32. A bell of integers times 2**(exponent - 15): magnitudes up to 4 * 2**exponent, most below 2."""
    halves = words(name, 2 * count).reshape(count, 2)
    parts = np.stack([halves & np.uint32(0xFFFF), halves >> np.uint32(16)]).astype(np.int64)
    return np.ldexp((parts.sum(axis=(0, 2)) - 2 * 0xFFFF).astype(np.float32), exponent - 15)


def through_bfloat16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The values without the bits that bfloat16 lacks."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
