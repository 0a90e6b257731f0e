"""Philox4x32-10, the counter-based generator of stochastic rounding, in NumPy.

A random number depends on the seed, a stream and an index only, so a result depends on neither grid nor device.
Published as J. K. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the known-answer
vectors of the authors' Random123 library are in the tests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowbit.errors import ArgumentError

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
"""Of counter words 0 and 2."""

WEYL = 0x9E3779B9, 0xBB67AE85
"""What the two key words grow by after each round: the golden ratio and sqrt 3 - 1, as 32-bit fractions."""

ROUNDS = 10

ELEMENT_STREAM, SCALE_STREAM = 0, 1
"""Third counter word: of the bytes that round elements, and of the words that round MX4's shared exponents."""

_WORD = 0xFFFFFFFF


def philox4x32(key: tuple[int, int], counter: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """The ten-round permutation of many counters under one key.

    Args:
      key: two 32-bit words.
      counter: (..., 4) of 32-bit words, least significant first.
    Returns:
      (..., 4) uint32.
    Raises:
      ArgumentError: the counter's last dimension is not 4, or a key word has more than 32 bits.
    Exactness: integers only.
    Spec: SPEC.md 2.
    """
    words = np.asarray(counter, dtype=np.uint64)
    if words.ndim == 0 or words.shape[-1] != 4:
        raise ArgumentError(f"counter: got shape {words.shape}, want a last dimension of 4")
    if len(key) != 2 or not all(0 <= k <= _WORD for k in key):
        raise ArgumentError(f"key: got {key}, want two 32-bit words")
    c0, c1, c2, c3 = (words[..., i] for i in range(4))
    low, shift = np.uint64(_WORD), np.uint64(32)
    k0, k1 = int(key[0]), int(key[1])
    for _ in range(ROUNDS):
        # The products of 32-bit words fit 64 bits, high half and low half being what the round needs.
        p0, p1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + WEYL[0]) & _WORD, (k1 + WEYL[1]) & _WORD
    return np.stack((c0, c1, c2, c3), axis=-1).astype(np.uint32)


def element_bytes(seed: int, count: int, start: int = 0) -> npt.NDArray[np.uint8]:
    """The bytes that round elements `start` … `start + count - 1` of a tensor, stream 0.

    Byte i is byte i mod 16, little-endian, of the four words at counter i >> 4.

    Args:
      seed: a 64-bit integer, signed or unsigned.
      count: how many.
      start: row-major index of the first element in the unpadded tensor.
    Returns:
      (count,) uint8.
    Raises:
      ArgumentError: the seed needs more than 64 bits, or count or start is negative.
    Spec: SPEC.md 2.
    """
    words, offset = _words(seed, ELEMENT_STREAM, start, count, 16)
    return words.astype("<u4").view(np.uint8)[offset : offset + count]


def scale_words(seed: int, count: int, start: int = 0) -> npt.NDArray[np.int32]:
    """The 31-bit integers that round the shared exponents of groups `start` … `start + count - 1`, stream 1.

    Group g takes word g mod 4 at counter g >> 2, without its least significant bit.

    Args:
      seed: a 64-bit integer, signed or unsigned.
      count: how many.
      start: index of the first group.
    Returns:
      (count,) int32, none negative.
    Raises:
      ArgumentError: the seed needs more than 64 bits, or count or start is negative.
    Spec: SPEC.md 2.
    """
    words, offset = _words(seed, SCALE_STREAM, start, count, 4)
    return (words[offset : offset + count] >> np.uint32(1)).astype(np.int32)


def _words(seed: int, stream: int, start: int, count: int, each: int) -> tuple[npt.NDArray[np.uint32], int]:
    """The words of the counters that hold `count` items from `start`, `each` a counter; where the first item is."""
    if not -(1 << 63) <= seed < 1 << 64:
        raise ArgumentError(f"seed: got {seed}, want a 64-bit integer")
    if start < 0 or count < 0:
        raise ArgumentError(f"start, count: got {start}, {count}, want none negative")
    seed = int(seed) & ((1 << 64) - 1)
    first = start // each
    index = np.arange(first, (start + count + each - 1) // each, dtype=np.uint64)
    counter = np.zeros((index.size, 4), dtype=np.uint64)
    counter[:, 0] = index & np.uint64(_WORD)
    counter[:, 1] = index >> np.uint64(32)
    counter[:, 2] = stream
    return philox4x32((seed & _WORD, seed >> 32), counter).reshape(-1), start - first * each
