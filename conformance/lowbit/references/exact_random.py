"""The random bits that a seed stands for: Philox4x32-10, one counter at a time.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), as counted in SPEC.md section 2:
a draw depends on the seed and on the index of its element or group only.
"""

from __future__ import annotations

from lowbit.errors import ArgumentError

ELEMENTS, SCALES = 0, 1
"""Streams: the third word of the counter."""

_WORD = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


def philox4x32(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The four 32-bit words of one counter, ten rounds."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = product1 >> 32 ^ c1 ^ k0, product1 & _WORD, product0 >> 32 ^ c3 ^ k1, product0 & _WORD
        k0, k1 = k0 + _KEY_STEPS[0] & _WORD, k1 + _KEY_STEPS[1] & _WORD
    return c0, c1, c2, c3


def element_byte(seed: int, index: int) -> int:
    """The 8-bit r of the element with that row-major index in the unpadded x: byte index % 16, little-endian."""
    words = _words(seed, index >> 4, ELEMENTS)
    return words[index % 16 // 4] >> 8 * (index % 4) & 0xFF


def scale_word(seed: int, group: int) -> int:
    """The 31-bit r of the group with that index, for the stochastic shared exponent."""
    return _words(seed, group >> 2, SCALES)[group % 4] >> 1


def _words(seed: int, counter: int, stream: int) -> tuple[int, int, int, int]:
    if not -(1 << 63) <= seed < 1 << 64:
        raise ArgumentError(f"seed: got {seed}, want an integer of 64 bits")
    return philox4x32((seed & _WORD, seed >> 32 & _WORD), (counter & _WORD, counter >> 32, stream, 0))
