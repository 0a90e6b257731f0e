"""The three references of NF4, FP4, int8 and SqueezeLLM on values written by hand, from SPEC.md 5.3 to 5.5."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from lowbit import weights
from lowbit.formats import BFLOAT16, BINARY16, BINARY32

from .weight_builders import csr, f32, four_bits, int8, nested, squeezed
from .weight_checks import REFERENCES, dequantize, values

pytestmark = pytest.mark.parametrize("reference", REFERENCES)


def test_codebooks_under_absmax_1(reference: str) -> None:
    """bitsandbytes#2025: FP4 code 1 is 1/192, 0x3baaaaab, not 0x3baaaaa4."""
    for name, book in (("nf4_b64", weights.NF4_CODEBOOK), ("fp4_b64", weights.FP4_CODEBOOK)):
        case = four_bits(name, np.arange(16), [1], (16,))
        assert dequantize(reference, *case, BINARY32).tolist() == list(book)
    assert dequantize(reference, *case, BINARY16)[8] == 0x8000


def test_blocks_are_flat_and_cross_rows(reference: str) -> None:
    """bitsandbytes 0.50.2 on the CPU: rows of 96 are no blocks of their own. #1884: n = 65, and shape (5, 3)."""
    case = four_bits("nf4_b64", np.full(192, 15), [1, 2, 3], (2, 96))
    expected = np.repeat([1, 2, 3], 64).reshape(2, 96)
    assert values(reference, case) == expected.tolist()
    case = four_bits("nf4_b64", np.full(65, 15), [1, 2], (65,))
    assert values(reference, case) == [1] * 64 + [2]
    case = four_bits("nf4_b64", [15, 0, 7] * 5, [2], (5, 3))
    assert values(reference, case) == [[2, -2, 0]] * 5


@pytest.mark.parametrize("block", [7, 12, 96, 1 << 31, 1 << 40])
def test_blocks_of_any_length(reference: str, block: int) -> None:
    """Odd ones share a byte; a length need not fit 32 bits. In pieces that begin anywhere in a block, too."""
    count = 1001
    each = np.arange(1, -(-count // block) + 1)
    tensors, scheme = four_bits("nf4_b64", np.full(count, 15), each, (count,))
    scheme = replace(scheme, group=block)
    expected = each[np.arange(count) // block].tolist()
    assert values(reference, (tensors, scheme)) == expected
    if reference == "tensors":
        for chunk in (1, 10, 96, 1000):
            pieces = dequantize(reference, tensors, scheme, BINARY32, chunk=chunk).view(np.float32)
            assert pieces.tolist() == expected, chunk


def test_special_absmax(reference: str) -> None:
    """A negative absmax turns signs, that of zero too; Inf and NaN propagate, 0 * Inf is NaN."""
    case = four_bits("nf4_b2", [7, 15] * 5, [-1, np.inf, np.nan, 0.0, 2.0**-149], (10,))
    nan = 0x7FFFFFFF
    assert dequantize(reference, *case, BINARY32).tolist() == [
        *(0x80000000, 0xBF800000, nan, 0x7F800000, nan, nan, 0, 0, 0, 1)
    ]


def test_the_product_is_rounded_to_binary32_first(reference: str) -> None:
    """The product's two roundings, searched for a case where one rounding gives another binary16."""
    rng = np.random.default_rng(3)
    absmax = rng.integers(0x3F800000, 0x40000000, 200_000, dtype=np.uint32).view(np.float32)
    once = (np.float64(f32(weights.NF4_CODEBOOK[1])[0]) * absmax).astype(np.float16)
    twice = (f32(weights.NF4_CODEBOOK[1])[0] * absmax).astype(np.float16)
    assert twice.dtype == once.dtype
    chosen = np.concatenate([absmax[once != twice][:50], absmax[:50]])
    case = four_bits("nf4_b1", np.full(chosen.size, 1), chosen, (chosen.size,))
    expected = (f32(weights.NF4_CODEBOOK[1])[0] * chosen).astype(np.float16)
    assert dequantize(reference, *case, BINARY16).tolist() == expected.view(np.uint16).tolist()


def test_nested_absmax_has_two_roundings(reference: str) -> None:
    """A fused multiply-add gives 0x884a."""
    assert dequantize(reference, *nested(f32(0x3CE920C3)), BINARY16).tolist() == [0x8849]
    assert dequantize(reference, *nested(f32(0x3CE920C3).reshape(())), BINARY16).tolist() == [0x8849]


def test_int8_has_one_scale_a_row(reference: str) -> None:
    """bitsandbytes#1142: SCB [127, 254] scales rows, not columns. -128 is not clamped."""
    case = int8("int8_scb", [[1, 1, 1], [1, 1, 1]], np.array([127, 254], np.float32))
    assert values(reference, case) == [[1, 1, 1], [2, 2, 2]]
    case = int8("int8_channel", [[-128, 127, 0]], np.array([-0.5], np.float32))
    assert dequantize(reference, *case, BINARY16).tolist() == [[0x5400, 0xD3F0, 0x8000]]


def test_the_dialects_of_int8_differ(reference: str) -> None:
    """One rounding to the scale's dtype, to binary32, or two to binary32."""
    codes, scale = [[101, -77]], np.array([0.337], np.float32)
    q = np.array(codes, np.float32)
    scb = (q * scale) * f32(weights.SCB_FACTOR)
    assert dequantize(reference, *int8("int8_scb", codes, scale), BINARY32).tolist() == scb.view(np.uint32).tolist()
    half = scale.astype(np.float16)
    through = (q.astype(np.float16) * half).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert dequantize(reference, *int8("int8_torch", codes, half), BFLOAT16).tolist() == through.tolist()
    exact = (q * scale).astype(np.float16).view(np.uint16)
    assert dequantize(reference, *int8("int8_channel", codes, scale), BINARY16).tolist() == exact.tolist()


def test_tables_of_squeezellm(reference: str) -> None:
    """Eight entries a channel at three bits, each channel its own."""
    codes = np.repeat(np.arange(32)[:, None] % 8, 2, 1)
    table = np.array([np.arange(8), 10 * np.arange(8)], np.float16)
    assert values(reference, squeezed("squeezellm3", codes, table)) == [[k % 8, k % 8 * 10] for k in range(32)]


def test_terms_are_added_in_binary32_one_after_the_other(reference: str) -> None:
    """(1 + 2**-24) + 2**-24 stays 1 in binary32, twice; at places without an entry -0 stays -0."""
    table = np.zeros((2, 16), np.float32)
    table[:, 1], table[:, 2] = 1, -0.0
    codes = np.ones((8, 2), int)
    codes[4:] = 2
    sparse = csr((0, 3, 2.0**-24), (0, 1, 2.0), (1, 4, 0.0), (1, 5, -0.0))
    full = (np.array([0], np.int32), np.full((8, 1), 2.0**-24, np.float32))
    one = 0x3F800000
    case = squeezed("squeezellm4+sparse", codes, table, sparse=sparse)
    assert dequantize(reference, *case, BINARY32).T.tolist() == [
        [one, 0x40400000, one, one, *[0x80000000] * 4],
        [one, one, one, one, 0, 0x80000000, 0x80000000, 0x80000000],
    ]
    case = squeezed("squeezellm4+sparse+full_rows", codes, table, sparse=sparse, full_rows=full)
    assert dequantize(reference, *case, BINARY32)[:, 0].tolist() == [one, 0x40400000, one, one, *[0x33800000] * 4]
    case = squeezed("squeezellm4+full_rows", codes, table, full_rows=full)
    assert dequantize(reference, *case, BINARY32)[:, 1].tolist() == [one] * 4 + [0x80000000] * 4


def test_sums_of_infinities(reference: str) -> None:
    """Inf + Inf is Inf, Inf - Inf is NaN, whichever comes first; an overflowing sum is Inf."""
    inf, largest = np.inf, float.fromhex("0x1.fffffep127")
    table = np.zeros((2, 16), np.float32)
    table[:, :4] = [inf, -inf, largest, 1]
    codes = np.array([[0, 0], [1, 1], [2, 2], [3, 3]] * 2)
    terms = [(0, 0, inf), (0, 1, inf), (0, 2, largest), (0, 3, np.nan), (0, 4, -inf), (0, 5, -inf), (0, 6, -inf)]
    case = squeezed("squeezellm4+sparse", codes, table, sparse=csr(*terms))
    nan, plus, minus = 0x7FFFFFFF, 0x7F800000, 0xFF800000
    assert dequantize(reference, *case, BINARY32)[:, 0].tolist() == [
        *(plus, nan, plus, nan, nan, minus, minus, 0x3F800000)
    ]
