"""A digest over a wrong result: every mismatching place, with what stands there and what should.

It is a sum, so that it is the same however the places are cut into pieces, on every device, and however many samples
are kept; and it is made where the comparison is made, in memory that does not grow with the number of mismatches.
Two different wrong results have one digest with probability 2^-64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from lowbit.compare import arrays

WIDTH = 1 << 64

_FACTORS = (0x9E3779B97F4A7C15 - WIDTH, 0xBF58476D1CE4E5B9 - WIDTH, 0x94D049BB133111EB - WIDTH)
"""Odd 64-bit numbers of Steele's SplitMix64, as signed ones: NumPy and torch wrap these alike."""


def hashes(places: Any, actual: Any, expected: Any) -> Any:
    """A 64-bit hash a mismatching place.

    Args:
      places: (N,) int64. actual, expected: (N,) integers, the bits found there; on the device of `places`.

    Returns:
      (N,) int64, on that device. Shifts are logical and products wrap, so that the bits are those of any library.
    """
    found = places + 1
    for part, factor in zip((actual, expected, None), _FACTORS, strict=True):
        found = found * factor
        found = found ^ ((found >> 29) & 0x7FFFFFFFF)
        if part is not None:
            found = found + _wide(part)
    return found ^ ((found >> 32) & 0xFFFFFFFF)


def total(found: Any) -> int:
    """The sum of hashes, 0 … 2^64 - 1."""
    return int(found.sum()) % WIDTH


def of_text(*words: Any) -> int:
    """A digest of words, 0 … 2^64 - 1."""
    data = "\0".join(map(str, words)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def merged(parts: Iterable[tuple[str, Mapping[str, int], Mapping[str, int]]]) -> dict[str, int]:
    """The digests, by kind, of several comparisons one after another.

    Args:
      parts: tensor, kinds with counts, and digests by kind. A kind without a digest counts by its number.
    """
    found: dict[str, int] = {}
    for position, (tensor, counts, digests) in enumerate(parts):
        for kind, count in counts.items():
            part = of_text(position, tensor, kind, count, digests.get(kind, ""))
            found[kind] = (found.get(kind, 0) + part) % WIDTH
    return found


def of_result(counts: Mapping[str, int], digests: Mapping[str, str]) -> str:
    """One digest of all kinds: ``115:`` (how many mismatches) and 16 hex digits; "" where nothing differs.

    Args:
      digests: as records have them, kind → 16 hex digits.
    """
    if not counts:
        return ""
    words = [f"{kind}={counts[kind]}:{digests.get(kind, '')}" for kind in sorted(counts)]
    return f"{sum(counts.values())}:{of_text(*words):016x}"


def _wide(values: Any) -> Any:
    xp = arrays.namespace(values)
    return values.astype(xp.int64) if hasattr(values, "astype") else values.to(xp.int64)
