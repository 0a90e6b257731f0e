"""Philox4x32-10 against the published known answers, and the indexing of SPEC.md section 2."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.errors import ArgumentError
from lowbit.references.philox import element_bytes, philox4x32, scale_words

PI = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0  # the vectors' third key and counter

KNOWN_ANSWERS = [  # Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, answer
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter, key, answer):
    assert tuple(philox4x32(key, counter)) == answer


def test_counters_are_independent_lanes():
    counters = np.arange(24, dtype=np.uint64).reshape(2, 3, 4)
    together = philox4x32((7, 9), counters)
    assert together.shape == (2, 3, 4)
    assert together.dtype == np.uint32
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(together[i], philox4x32((7, 9), counters[i]))


@pytest.mark.parametrize("index", [0, 1, 15, 16, 12345, (1 << 36) - 1, 1 << 36, (1 << 40) + 3])
def test_element_bytes_follow_the_specification(index):
    """Byte i mod 16, little-endian, at counter (i>>4 low, i>>4 high, stream 0, 0), key (seed low, seed high)."""
    seed = 0x0123456789ABCDEF
    words = philox4x32((0x89ABCDEF, 0x01234567), ((index >> 4) & 0xFFFFFFFF, index >> 36, 0, 0))
    expected = b"".join(int(word).to_bytes(4, "little") for word in words)[index % 16]
    assert element_bytes(seed, 1, index)[0] == expected


@pytest.mark.parametrize("group", [0, 1, 3, 4, 1001, (1 << 34) - 1, 1 << 34])
def test_scale_words_follow_the_specification(group):
    """Word g mod 4 at counter g>>2, stream 1, without its least significant bit."""
    words = philox4x32((5, 0), ((group >> 2) & 0xFFFFFFFF, group >> 34, 1, 0))
    assert scale_words(5, 1, group)[0] == int(words[group % 4]) >> 1


def test_known_bytes_and_words():
    """Seed 0: stream 0 starts with the all-zero known answer, least significant byte first."""
    assert element_bytes(0, 6).tolist() == [0xD5, 0xE8, 0x27, 0x66, 0x8D, 0xC5]
    assert element_bytes(0, 6).dtype == np.uint8
    assert scale_words(0, 5).dtype == np.int32
    assert (scale_words(0, 1000) >= 0).all()


@pytest.mark.parametrize("draw", [element_bytes, scale_words])
def test_any_part_is_the_same(draw):
    """A result may not depend on how a tensor was cut into programs."""
    whole = draw(99, 200)
    for start in (0, 1, 3, 4, 15, 16, 17, 199, 200):
        np.testing.assert_array_equal(draw(99, 200 - start, start), whole[start:])
    assert draw(99, 0).size == 0


def test_seeds_are_64_bits():
    np.testing.assert_array_equal(element_bytes(-1, 16), element_bytes((1 << 64) - 1, 16))
    assert (element_bytes(1 << 32, 16) != element_bytes(0, 16)).any(), "the upper half of a seed counts"
    for seed in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(ArgumentError, match="seed"):
            element_bytes(seed, 1)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="counter"):
        philox4x32((0, 0), (0, 0, 0))
    with pytest.raises(ArgumentError, match="key"):
        philox4x32((0, 1 << 32), (0, 0, 0, 0))
    with pytest.raises(ArgumentError, match="start"):
        element_bytes(0, 1, -1)
