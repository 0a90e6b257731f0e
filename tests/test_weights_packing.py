"""Weight codes in words: hand-written words, round trips, and that no code spills into its neighbour."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit import weights
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.packing_weights import pack_codes, pack_words, pack_zeros, unpack_codes, unpack_words, unpack_zeros
from lowbit.weights import WordPacking

from .weight_builders import words
from .weight_checks import a_shape

SCHEMES = weights.select()
WITH_ZEROS = [scheme for scheme in SCHEMES if scheme.zero_packing is not None]


def test_an_awq_word() -> None:
    """Columns 0..7 = 0..7: nibbles from the top 7 5 3 1 6 4 2 0."""
    assert pack_codes(np.arange(8)[None], weights.get("awq_g128")).tolist() == [[0x75316420]]
    assert unpack_codes(words(0x75316420)[None], weights.get("awq_g128")).tolist() == [list(range(8))]
    assert pack_zeros(np.arange(8)[None], weights.get("awq_g128")).tolist() == [[0x75316420]]


def test_gptq_words_of_every_width() -> None:
    """Value i at bits b*i and up, down K: 0..7 four times at 3 bits is 88fac688 c688fac6 fac688fa."""
    rows = {
        2: (np.arange(16) % 4, [0xE4E4E4E4]),
        3: (np.arange(32) % 8, [0x88FAC688, 0xC688FAC6, 0xFAC688FA]),
        4: (np.arange(8), [0x76543210]),
        8: (np.array([1, 2, 3, 255]), [0xFF030201]),
    }
    for bits, (column, expected) in rows.items():
        scheme = weights.get(f"gptq{bits}_v1_g128")
        codes = np.stack([column, np.zeros_like(column)], 1)
        packed = pack_codes(codes, scheme)
        assert packed[:, 0].tolist() == words(*expected).tolist()
        assert not packed[:, 1].any()
        assert np.array_equal(unpack_codes(packed, scheme), codes)


def test_squeezellm_packs_as_gptq_does() -> None:
    codes = np.random.default_rng(0).integers(0, 8, (64, 5))
    expected = pack_codes(codes, weights.get("gptq3_v1_g128"))
    assert np.array_equal(pack_codes(codes, weights.get("squeezellm3")), expected)


def test_zeros_of_version_1_are_stored_less_one_and_wrap_around() -> None:
    """z = 8 0 8 8 8 8 8 8 is stored as 7 f 7 7 7 7 7 7: neither a borrow nor, on the way back, a carry spreads."""
    zeros = np.array([[8, 0, 8, 8, 8, 8, 8, 8]])
    v1, v2 = weights.get("gptq4_v1_g128"), weights.get("gptq4_v2_g128")
    assert pack_zeros(zeros, v1).tolist() == [[0x777777F7]]
    assert unpack_zeros(words(0x777777F7)[None], v1).tolist() == zeros.tolist()
    assert pack_zeros(zeros, v2).tolist() == words(0x88888808)[None].tolist()
    assert unpack_zeros(words(0x88888808)[None], v2).tolist() == zeros.tolist()
    assert unpack_zeros(words(0xFFFFFFFF)[None], weights.get("gptq2_v1_g128")).tolist() == [[0] * 16]
    assert unpack_zeros(words(0xFF7F00FE)[None], weights.get("gptq8_v1_g128")).tolist() == [[255, 1, 128, 0]]


def test_the_even_element_of_nf4_is_in_the_high_nibble() -> None:
    """Three elements fill a byte and a half; the last low nibble is 0."""
    for name in ("nf4_b64", "fp4_b64"):
        packed = pack_codes(np.array([[1, 2, 15]]), weights.get(name))
        assert packed.dtype == np.uint8
        assert packed.tolist() == [0x12, 0xF0]
        assert unpack_codes(packed, weights.get(name), shape=(3, 1)).tolist() == [[1], [2], [15]]


def test_int8_is_as_it_is() -> None:
    stored = pack_codes(np.array([[-128, 127, 0]]), weights.get("int8_channel"))
    assert stored.dtype == np.int8
    assert stored.tolist() == [[-128, 127, 0]]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_round_trips(scheme: weights.WeightScheme) -> None:
    rng = np.random.default_rng(1)
    low, high = scheme.code_range
    shape = a_shape(scheme)
    codes = rng.integers(low, high + 1, shape)
    stored = pack_codes(codes, scheme)
    assert stored.flags.c_contiguous
    assert np.array_equal(unpack_codes(stored, scheme, shape=shape), codes)
    if scheme.zero_packing is not None:
        zeros = rng.integers(0, high + 1, (3, shape[1]))
        assert np.array_equal(unpack_zeros(pack_zeros(zeros, scheme), scheme), zeros)
    strided = np.repeat(codes, 2, axis=-1)[..., ::2]
    assert np.array_equal(pack_codes(strided, scheme), stored)


@pytest.mark.parametrize("scheme", WITH_ZEROS, ids=lambda s: s.name)
def test_every_code_in_every_lane_reaches_no_other(scheme: weights.WeightScheme) -> None:
    packing = scheme.packing
    count, last = packing.period_codes, scheme.code_range[1]
    for code in range(last + 1) if last < 16 else (0, 1, 127, 128, 255):
        codes = np.full((count, count), last - code)
        np.fill_diagonal(codes, code)
        found = unpack_words(pack_words(codes, packing), packing)
        assert np.array_equal(found, codes)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_packing_round_trips(data: st.DataObject) -> None:
    """Widths that no scheme has, any order, either axis."""
    order = tuple(data.draw(st.permutations(range(data.draw(st.sampled_from([1, 2, 4, 8]))))))
    packing = WordPacking(
        word_bits=data.draw(st.sampled_from([8, 32])),
        bits=data.draw(st.integers(1, 8)),
        axis=data.draw(st.integers(0, 1)),
        order=order,
    )
    count = packing.period_codes * len(order) * data.draw(st.integers(0, 2))
    shape = (count, 3) if packing.axis == 0 else (3, count)
    codes = np.random.default_rng(count).integers(0, 1 << packing.bits, shape)
    packed = pack_words(codes, packing)
    assert packed.shape[packing.axis] == packing.words(count)
    assert np.array_equal(unpack_words(packed, packing), codes)


def test_nothing_packs_to_nothing() -> None:
    assert pack_codes(np.zeros((0, 16), int), weights.get("awq_g128")).shape == (0, 2)
    assert pack_codes(np.zeros((32, 0), int), weights.get("gptq3_v1_g128")).shape == (3, 0)
    assert pack_codes(np.zeros((0, 4), int), weights.get("nf4_b64")).shape == (0,)
    assert unpack_codes(np.zeros((3, 0), np.int32), weights.get("gptq3_v1_g128")).shape == (32, 0)


CALLS: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: pack_codes([[0, 1, 2, 3, 4, 16, 6, 7]], weights.get("awq_g128")),
        ArgumentError,
        r"codes: got 16 at (0, 5",
    ),
    (lambda: pack_codes(np.full((8, 1), -1), weights.get("gptq4_v1_g128")), ArgumentError, "codes: got -1 at (0, 0)"),
    (lambda: pack_codes([0, 1, 99], weights.get("nf4_b64")), ArgumentError, "codes: got 99 at (2,), want 0..15"),
    (lambda: pack_codes([[128]], weights.get("int8_channel")), ArgumentError, "got 128 at (0, 0), want -128..127"),
    (lambda: pack_codes([[8]] * 32, weights.get("squeezellm3")), ArgumentError, "codes: got 8 at (0, 0), want 0..7"),
    (
        lambda: pack_zeros([[16] * 8], weights.get("gptq4_v1_g128")),
        ArgumentError,
        "zeros: got 16 at (0, 0), want 0..15",
    ),
    (lambda: pack_zeros([[-1] * 8], weights.get("gptq4_v1_g128")), ArgumentError, "zeros: got -1 at (0, 0)"),
    (lambda: pack_zeros([[0]], weights.get("nf4_b64")), ArgumentError, "nf4_b64, which has no zero points"),
    (lambda: pack_codes(np.zeros((8, 8)), weights.get("awq_g128")), DtypeError, "codes: got float64, want integers"),
    (lambda: pack_codes(np.zeros((2, 9), int), weights.get("awq_g128")), ShapeError, "got 9 along dimension 1"),
    (lambda: pack_codes(np.zeros((31, 2), int), weights.get("gptq3_v1_g128")), ShapeError, "got 31 along dimension 0"),
    (lambda: pack_codes(np.zeros(8, int), weights.get("awq_g128")), ShapeError, "want two dimensions"),
    (lambda: unpack_codes(words(1, 2)[:, None], weights.get("gptq3_v1_g128")), ShapeError, "got 2 words"),
    (
        lambda: unpack_codes(np.zeros((2, 2), np.float16), weights.get("awq_g128")),
        DtypeError,
        "got float16, want int32",
    ),
    (lambda: unpack_codes(np.zeros(2, np.uint8), weights.get("nf4_b64")), ArgumentError, "shape: got None"),
    (lambda: unpack_codes(np.zeros(2, np.uint8), weights.get("nf4_b64"), shape=(5,)), ShapeError, "want (3,) for (5,)"),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS, ids=lambda part: part if isinstance(part, str) else "")
def test_errors_name_the_argument_the_place_and_the_value(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
