"""The exact reference's roundings, IEEE arithmetic and random bits, against numpy's, torch's and known answers."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, BINARY64, E2M1, E4M3, E8M0
from lowbit.references import exact_arithmetic, exact_random
from lowbit.references.exact import round_to
from lowbit.rules import Rounding

R = Rounding
PATTERNS32 = st.integers(0, (1 << 32) - 1) | st.sampled_from(
    [0, 1, 0x80000000, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001]
)


@given(PATTERNS32, PATTERNS32)
@settings(max_examples=400, deadline=None)
@example(0x40960000, 0x3F700000)  # 4.6875 / 0.9375 = 5 exactly; an approximate division gives 0x40a00001
@example(0x00000001, 0x3F000000)  # a tie below the least subnormal, to even: 0
@example(0x7F7FFFFF, 0x3F800001)  # overflows
@example(0x00000000, 0x7F800000)  # 0 * Inf
@example(0x80000000, 0x00000000)  # 0 / 0
def test_arithmetic_is_ieee_as_numpy_has_it(a, b):
    x, y = np.uint32(a).view(np.float32), np.uint32(b).view(np.float32)
    with np.errstate(all="ignore"):
        for actual, expected in [
            (exact_arithmetic.multiply(a, b), x * y),
            (exact_arithmetic.divide(a, b), x / y),
            (exact_arithmetic.maximum(a, b), np.maximum(x, y)),
            (exact_arithmetic.minimum(a, b), np.minimum(x, y)),
        ]:
            if np.isnan(expected):
                assert BINARY32.is_nan(actual)
            elif expected == 0 and x == y == 0:
                assert actual & 0x7FFFFFFF == 0  # which zero is larger is nobody's rule
            else:
                assert actual == expected.view(np.uint32)


@given(st.floats(), st.floats())
@settings(max_examples=150, deadline=None)
def test_binary64_arithmetic_is_pythons(x, y):
    a, b = (int(np.float64(v).view(np.uint64)) for v in (x, y))
    with np.errstate(all="ignore"):
        for actual, expected in [
            (exact_arithmetic.multiply(a, b, BINARY64), np.float64(x) * np.float64(y)),
            (exact_arithmetic.divide(a, b, BINARY64), np.float64(x) / np.float64(y)),
        ]:
            if math.isnan(expected):
                assert BINARY64.is_nan(actual)
            else:
                assert actual == expected.view(np.uint64)


def test_arithmetic_keeps_an_operands_nan_and_clamp_keeps_nan():
    assert exact_arithmetic.multiply(0xFFC00001, 0x3F800000) == 0xFFC00001
    assert exact_arithmetic.clamp(0x7FC00000, 0, 0x3F800000) == 0x7FC00000
    assert exact_arithmetic.clamp(0xC0000000, 0x00000001, 0x3F800000) == 0x00000001
    assert exact_arithmetic.largest_magnitude([0xC0000000, 0x3F800000]) == 0x40000000
    assert BINARY32.is_nan(exact_arithmetic.largest_magnitude([0x3F800000, 0xFFC00000, 0x7F800000]))
    assert exact_arithmetic.largest_magnitude([]) == 0


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=400, deadline=None)
@example(3.4028235677973366e38)  # half a step beyond FLT_MAX: a tie that goes to Inf
@example(2.0**-150)
@example(65520.0)
def test_round_to_binary32_and_binary16_as_numpy_casts(x):
    with np.errstate(all="ignore"):
        single, half = int(np.float64(x).astype(np.float32).view(np.uint32)), np.float64(x).astype(np.float16)
    negative = math.copysign(1, x) < 0
    assert round_to(Fraction(x), BINARY32, negative=negative) == single
    assert round_to(Fraction(x), BINARY16, negative=negative) == int(half.view(np.uint16))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None)
@example(3.3961775292304601e38)  # a bfloat16 tie that overflows
def test_round_to_bfloat16_as_torch_casts(x):
    expected = torch.tensor(x, dtype=torch.float32).to(torch.bfloat16).view(torch.int16).item() & 0xFFFF
    assert round_to(Fraction(x), BFLOAT16, negative=math.copysign(1, x) < 0) == expected


def test_round_to_overflow_follows_the_direction():
    beyond = Fraction(2) ** 200
    assert [round_to(beyond, BINARY32, rule) for rule in (R.TIES_TO_EVEN, R.TIES_TOWARD_ZERO)] == [0x7F800000] * 2
    assert round_to(beyond, BINARY32, saturate=True) == 0x7F7FFFFF
    assert round_to(-beyond, BINARY32, R.TOWARD_ZERO) == 0xFF7FFFFF
    assert round_to(beyond, BINARY32, R.TOWARD_NEGATIVE) == 0x7F7FFFFF
    assert round_to(-beyond, BINARY32, R.TOWARD_NEGATIVE) == 0xFF800000
    tie = (BINARY32.max_value + Fraction(2) ** 128) / 2
    assert [round_to(tie, BINARY32, rule) for rule in (R.TIES_TOWARD_ZERO, R.TIES_AWAY)] == [0x7F7FFFFF, 0x7F800000]
    assert round_to(Fraction(500), E4M3) == 0x7E  # no Inf there: saturates in any case
    assert round_to(Fraction(0), BINARY32, negative=True) == 0x80000000
    assert round_to(Fraction(-1, 2**200), BINARY32) == 0x80000000
    with pytest.raises(ArgumentError, match="want none below zero"):
        round_to(Fraction(-1), E8M0)
    with pytest.raises(ArgumentError, match="rounding: got STOCHASTIC"):
        round_to(Fraction(1), E2M1, R.STOCHASTIC)


def test_binary32_constants_of_the_schemes():
    assert round_to(Fraction(1, 6), BINARY32) == 0x3E2AAAAB
    assert round_to(Fraction("1e-12"), BINARY32) == 0x2B8CBCCC


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        # The known answers that Random123 ships for philox4x32, ten rounds.
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(key, counter, words):
    assert exact_random.philox4x32(key, counter) == words


def test_draws_count_bytes_and_words_as_the_specification_says():
    # Seed 0, counter 0, stream 0 is the first known answer: bytes little-endian, word after word.
    assert [exact_random.element_byte(0, i) for i in (0, 1, 2, 3, 4, 15)] == [0xD5, 0xE8, 0x27, 0x66, 0x8D, 0x9B]
    seed, index = 0x299F31D0A4093822, (5 << 36) + 16 + 6
    words = exact_random.philox4x32((0xA4093822, 0x299F31D0), (1, 5, 0, 0))
    assert exact_random.element_byte(seed, index) == words[1] >> 16 & 0xFF
    words = exact_random.philox4x32((0xA4093822, 0x299F31D0), (2, 0, 1, 0))
    assert [exact_random.scale_word(seed, 8 + k) for k in range(4)] == [word >> 1 for word in words]
    assert exact_random.element_byte(-1, 3) == exact_random.element_byte((1 << 64) - 1, 3)
    with pytest.raises(ArgumentError, match="seed"):
        exact_random.element_byte(1 << 64, 0)
