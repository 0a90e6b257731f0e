"""The three references of weight schemes on values written by hand, each from SPEC.md section 5 or a reported bug."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lowbit import weights
from lowbit.formats import BFLOAT16, BINARY16, BINARY32

from .weight_builders import halves, integer_scheme, words
from .weight_checks import REFERENCES, dequantize, values

ROW = np.arange(8)

pytestmark = pytest.mark.parametrize("reference", REFERENCES)


def test_an_awq_word(reference: str) -> None:
    """GPTQModel's converter gave 0 2 4 6 1 3 5 7."""
    tensors = {"qweight": words(0x75316420)[None], "qzeros": words(0)[None], "scales": halves(1, 8)}
    assert values(reference, (tensors, weights.get("awq_gk"))) == [ROW.tolist()]
    tensors |= {"qweight": words(0)[None], "qzeros": words(0x75316420)[None]}
    assert values(reference, (tensors, weights.get("awq_gk"))) == [(-ROW).tolist()]


def test_awq_codes_are_unsigned_and_zeros_are_as_stored(reference: str) -> None:
    """15, not -1 (AutoAWQ#329); q 5 with z 0 is 5, not -10 nor 4 (GPTQModel#2350)."""
    case = integer_scheme("awq_gk", [[15] * 8, [5] * 8, [0] * 8], [[0] * 8], halves(1, 8))
    assert values(reference, case) == [[15] * 8, [5] * 8, [0] * 8]
    case = integer_scheme("awq_gk", [[0] * 8, [15] * 8], [[15] * 8], halves(1, 8))
    assert values(reference, case) == [[-15] * 8, [0] * 8]


def test_rows_from_32_on_have_the_second_group(reference: str) -> None:
    """vllm#39705: a tile of 64 rows took group 0's scale."""
    scales = np.repeat(np.array([[1], [10]], np.float16), 8, 1)
    case = integer_scheme("awq_g32", np.ones((64, 8), int), np.zeros((2, 8), int), scales)
    assert values(reference, case) == [[1] * 8] * 32 + [[10] * 8] * 32


def test_one_group_of_all_rows(reference: str) -> None:
    """vllm#37329: G = -1 made a negative stride."""
    case = integer_scheme("awq_gk", np.full((128, 8), 2), [[1] * 8], np.full((1, 8), 3, np.float16))
    assert values(reference, case) == [[3] * 8] * 128


@pytest.mark.parametrize("columns", [8, 64, 72, 200])
def test_every_column_has_its_own_scale_and_zero(reference: str, columns: int) -> None:
    """vllm#13227: the tail of N was wrong. Scale n + 1, z = n mod 16, q = 15: all differ."""
    n = np.arange(columns)
    expected = [((n + 1) * (15 - n % 16)).tolist()]
    for name, rows in (("awq_gk", 1), ("gptq4_v1_gk", 8)):
        case = integer_scheme(name, np.full((rows, columns), 15), n[None] % 16, (n + 1)[None].astype(np.float16))
        assert values(reference, case) == expected * rows


def test_zeros_of_version_1_wrap_around_alone(reference: str) -> None:
    """AutoGPTQ#325: 0x777777F7 is 8 0 8 8 8 8 8 8; a carry made a neighbour 9."""
    tensors = {"qweight": np.full((1, 8), -0x77777778, np.int32), "qzeros": words(0x777777F7)[None]}  # q = 8
    assert (
        values(reference, ({**tensors, "scales": halves(1, 8)}, weights.get("gptq4_v1_gk")))
        == [[0, 8, 0, 0, 0, 0, 0, 0]] * 8
    )


def test_zeros_of_version_2_are_as_stored(reference: str) -> None:
    """vllm#26343: stored 8, q 8 is 0; read as version 1 it is -1."""
    tensors = {"qweight": words(*[0x88888888] * 8)[None], "qzeros": words(0x88888888)[None], "scales": halves(1, 8)}
    assert values(reference, (tensors, weights.get("gptq4_v2_gk"))) == [[0] * 8] * 8
    assert values(reference, (tensors, weights.get("gptq4_v1_gk"))) == [[-1] * 8] * 8


def test_g_idx_decides_the_group(reference: str) -> None:
    """AutoGPTQ#62: 10 1 10 1, not 1 1 10 10; under either name, and beyond any order."""
    scales = np.repeat(np.array([[1], [10]], np.float16), 8, 1)
    codes, zeros = np.full((8, 8), 9), np.full((2, 8), 8)
    g_idx = [1, 0, 1, 0, 0, 0, 1, 1]
    expected = [[[1, 10][group]] * 8 for group in g_idx]
    for name in ("gptq4_v1_g4+act_order", "gptq4_v1_g4"):
        assert values(reference, integer_scheme(name, codes, zeros, scales, g_idx)) == expected
    assert values(reference, integer_scheme("gptq4_v1_g4", codes, zeros, scales)) == [[1] * 8] * 4 + [[10] * 8] * 4


def test_the_last_group_may_be_short(reference: str) -> None:
    scales = np.repeat(np.array([[1], [10]], np.float16), 8, 1)
    case = integer_scheme("gptq4_v1_g128", np.full((136, 8), 9), np.full((2, 8), 8), scales)
    assert values(reference, case) == [[1] * 8] * 128 + [[10] * 8] * 8


def test_three_bits(reference: str) -> None:
    """GPTQModel#2251: fields across words. 0..7 four times, down K for codes and along N for zeros."""
    stream = [0x88FAC688, 0xC688FAC6, 0xFAC688FA]
    qweight = np.repeat(words(*stream)[:, None], 32, 1)
    tensors = {"qweight": qweight, "qzeros": words(0, 0, 0)[None], "scales": halves(1, 32)}
    row = np.arange(32) % 8
    expected = np.repeat(row[:, None], 32, 1)
    assert values(reference, (tensors, weights.get("gptq3_v2_gk"))) == expected.tolist()
    assert values(reference, (tensors, weights.get("gptq3_v1_gk"))) == (expected - 1).tolist()
    tensors["qzeros"] = words(*stream)[None]
    assert values(reference, (tensors, weights.get("gptq3_v2_gk"))) == (expected - row).tolist()


def test_two_bits(reference: str) -> None:
    qweight = np.repeat(words(0xE4E4E4E4)[:, None], 16, 1)  # 0 1 2 3 again and again
    tensors = {"qweight": qweight, "qzeros": words(0)[None], "scales": halves(1, 16)}
    assert values(reference, (tensors, weights.get("gptq2_v1_gk"))) == [[k % 4 - 1] * 16 for k in range(16)]


def test_zeros_of_eight_bits(reference: str) -> None:
    """Stored 127 is z = 128, with q = 128 the value 0; a mask of 0xF made it 128."""
    tensors = {"qweight": words(*[0x80808080] * 4)[None], "qzeros": words(0x7F7F7F7F)[None], "scales": halves(1, 4)}
    assert values(reference, (tensors, weights.get("gptq8_v1_gk"))) == [[0] * 4] * 4


def test_overflow_of_binary16_is_infinity(reference: str) -> None:
    """vllm#16579: 5000 * 15 = 75000 is beyond binary16; bfloat16 has 74752."""
    case = integer_scheme("awq_gk", [[15] * 8], [[0] * 8], np.full((1, 8), 5000, np.float16))
    assert dequantize(reference, *case, BINARY16).tolist() == [[0x7C00] * 8]
    assert dequantize(reference, *case, BFLOAT16).tolist() == [[0x4792] * 8]
    assert values(reference, case) == [[75000] * 8]


def test_one_rounding_or_two(reference: str) -> None:
    """All codes times the binary16 scales of one binade: NumPy's products are exact in float64, cast once or twice."""
    scales = np.arange(0x3C00, 0x4000, dtype=np.uint16)[None].view(np.float16)
    scales = scales[:, ::7][:, :144] if reference == "exact" else scales
    codes = np.repeat(np.arange(16)[:, None], scales.size, 1)
    zeros = np.zeros((1, scales.size), int)
    direct, through = (
        dequantize(reference, *integer_scheme(name, codes, zeros, scales), BFLOAT16)
        for name in ("awq_gk", "awq_gk+through_scale_dtype")
    )
    exact = codes * scales.astype(np.float64)
    assert np.array_equal(direct, exact.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16))
    half = exact.astype(np.float16)
    assert np.array_equal(through, half.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert 0.01 < np.mean(direct != through) < 0.1


def test_zeros_have_the_sign_of_the_product(reference: str) -> None:
    """+0 * s is -0 for a negative s; -1 * +0 and 1 * -0 are -0; 0 * Inf is NaN."""
    scales = np.array([[-1, 1, -0.0, 0.0, np.inf, -np.inf, np.nan, 2**-24]], np.float16)
    case = integer_scheme("awq_gk", [[4] * 8, [3] * 8, [5] * 8], [[4] * 8], scales)
    nan, inf = 0x7E00 | 0x1FF, 0x7C00
    assert dequantize(reference, *case, BINARY16).tolist() == [
        [0x8000, 0, 0x8000, 0, nan, nan, nan, 0],
        [0x3C00, 0xBC00, 0, 0x8000, 0x8000 | inf, inf, nan, 0x8001],
        [0xBC00, 0x3C00, 0x8000, 0, inf, 0x8000 | inf, nan, 1],
    ]


def test_bfloat16_scales(reference: str) -> None:
    """Least subnormal 2**-133: 15 of them in bfloat16, none in binary16. The largest, twice, is Inf everywhere."""
    scales = np.array([[0x0001, 0x7F7F, 0x8001, 0x3F80, 0x3F81, 0x7F80, 0x7FC1, 0x0080]], np.uint16)
    case = integer_scheme("awq_gk", [[15] * 8], [[0] * 8], scales)
    ml = integer_scheme("awq_gk", [[15] * 8], [[0] * 8], scales.view(ml_dtypes.bfloat16))
    bfloat16 = [[0x000F, 0x7F80, 0x800F, 0x4170, 0x4172, 0x7F80, 0x7FFF, 0x0270]]
    assert dequantize(reference, *case, BFLOAT16).tolist() == bfloat16
    assert dequantize(reference, *case, BINARY16)[0, :4].tolist() == [0, 0x7C00, 0x8000, 0x4B80]
    assert dequantize(reference, *case, BINARY32)[0, :2].tolist() == [0x000F0000, 0x7F800000]
    if reference != "tensors":
        assert dequantize(reference, *ml, BFLOAT16).tolist() == bfloat16
