"""Comparison of bits: what counts as a mismatch, of which kind, exactly how many, and which are shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.compare import (
    compare_bytes,
    compare_codes,
    compare_encoded,
    kinds,
)
from lowbit.errors import ArgumentError, DtypeError
from lowbit.formats import E2M1, E4M3, E5M2, E8M0, FloatFormat
from lowbit.references import bits
from lowbit.rules import Rounding
from lowbit.schemes import Encoded

MXFP4 = schemes.get("mxfp4_floor")


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def codes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def block(values: dict[int, float], scheme: schemes.Scheme = MXFP4) -> np.ndarray:
    """(1, block) of zeros with some lanes set."""
    x = np.zeros((1, scheme.block), dtype=np.float32)
    for lane, value in values.items():
        x[0, lane] = value
    return x


def on_both(array: np.ndarray) -> list:
    return [array, torch.from_numpy(array)]


@pytest.mark.parametrize(
    ("x", "actual", "expected", "element", "kind"),
    [
        (0.25, 0x1, 0x0, E2M1, "tie"),  # 0.25 is midway between 0 and 0.5
        (-0.25, 0x9, 0x8, E2M1, "tie"),
        (-0.25, 0x0, 0x9, E2M1, "tie"),  # +0 and -0.5 are neighbours on the line too
        (0.25000003, 0x0, 0x1, E2M1, "rounding"),  # one ulp above the midpoint
        (2.5, 0x5, 0x4, E2M1, "tie"),
        (5.015625, 0x6, 0x7, E2M1, "rounding"),  # first rounded to bfloat16
        (1.0, 0x4, 0x2, E2M1, "value"),
        (1.25, 0x4, 0x1, E2M1, "value"),  # midway between codes that are no neighbours
        (-0.0, 0x0, 0x8, E2M1, "zero_sign"),
        (1.0, 0xA, 0x2, E2M1, "sign"),
        (3.0, 0xC, 0x5, E2M1, "sign"),
        (7.0, 0x6, 0x7, E2M1, "saturation"),
        (np.inf, 0x0, 0x7, E2M1, "saturation"),
        (np.nan, 0x8, 0x7, E2M1, "nan"),
        (1.0, 0x42, 0x2, E2M1, "value"),  # no code at all: garbage in the high nibble
        (1.0, 0x7F, 0x38, E4M3, "nan"),
        (500.0, 0x7D, 0x7E, E4M3, "saturation"),
        (1.0625, 0x39, 0x38, E4M3, "tie"),
        (2.0**-10, 0x01, 0x00, E4M3, "tie"),  # half the least subnormal
        (61440.0, 0x7C, 0x7B, E5M2, "saturation"),
        (1.5, 0x80, 0x7F, E8M0, "tie"),
        (-1.0, 0x00, 0xFF, E8M0, "nan"),
        (1.0, 0x80, 0x7F, E8M0, "rounding"),
    ],
)
def test_kind_of_a_code(x: float, actual: int, expected: int, element: FloatFormat, kind: str) -> None:
    for as_given in (floats(x), torch.tensor([x])):
        found = compare_codes(as_given, codes(actual), codes(expected), element)
        assert (found.compared, found.mismatched, found.kinds) == (1, 1, {kind: 1})
        (sample,) = found.samples
        assert (sample.kind, sample.actual, sample.expected) == (kind, actual, expected)
        assert sample.x_bits == int(floats(x).view(np.uint32)[0])


def test_equal_codes_are_no_mismatch_even_of_nan() -> None:
    found = compare_codes(floats(np.nan, 1), codes(0x7F, 0x38), codes(0x7F, 0x38), E4M3)
    assert found.ok
    assert (found.compared, found.kinds, found.samples) == (2, {}, ())


def test_sample_says_all_that_is_needed_to_work_it_out() -> None:
    x = floats(1, 0.25).reshape(2)
    found = compare_codes(x, codes(2, 1), codes(2, 0), E2M1, start=1 << 40, rounding=Rounding.TIES_TO_EVEN)
    (sample,) = found.samples
    assert sample.coordinates == ((1 << 40) + 1,)
    assert sample.index == (1 << 40) + 1
    assert (sample.x, sample.x_bits, sample.format) == (0.25, 0x3E800000, "e2m1")
    assert (sample.value_actual, sample.value_expected, sample.distance) == (0.5, 0.0, 1)
    assert sample.rule == "ties_to_even"


@pytest.mark.parametrize("scheme", ["mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4", "nvfp4_two_level", "rtn_nvfp4"])
def test_tie_under_a_block_scale(scheme: str) -> None:
    """An element that is exactly midway after scaling is a tie; one ulp beside it is not."""
    rules = schemes.get(scheme)
    x = block({0: 6.0 * 1.75, 1: 1.25 * 1.75, 2: np.nextafter(np.float32(1.25 * 1.75), np.float32(9))}, rules)
    expected = bits.quantize(x, rules)
    y, s = kinds.operands(
        x.reshape(-1)[:3],
        np.repeat(expected.scales.reshape(-1), 3)[:3],
        rules,
        None if expected.tensor_scale is None else float(expected.tensor_scale),
    )
    midway = y[1] / s[1] == 1.25
    actual = expected.codes.copy()
    actual[0, 1] = 5 - expected.codes[0, 1] if midway else expected.codes[0, 1] ^ 1
    actual[0, 2] ^= 1
    found = compare_encoded(x, expected._replace(codes=actual), expected, rules)
    assert found.kinds == ({"tie": 1, "rounding": 1} if midway else {"rounding": 2})
    assert scheme.startswith("mx") or midway  # amax / 6 = 1.75 is an E4M3 value, so 1.25 · 1.75 is a midpoint


@pytest.mark.parametrize("scale", [0, 1, 127, 254])
def test_ties_are_exact_at_every_scale(scale: int) -> None:
    """2^-127 · 0.25 is a subnormal, 2^127 · 0.25 is huge: both are ties, neighbours are not."""
    tie = np.ldexp(np.float32(0.25), scale - 127).astype(np.float32)
    x = block({0: tie, 1: np.nextafter(tie, np.float32(np.inf))})
    right = np.zeros((1, 32), np.uint8)
    right[0, 1] = 1
    scales = codes(scale).reshape(1, 1)
    found = compare_encoded(
        x, Encoded(right ^ np.pad([[1, 1]], ((0, 0), (0, 30))).astype(np.uint8), scales), Encoded(right, scales), MXFP4
    )
    assert found.kinds == {"tie": 1, "rounding": 1}


def test_rtn_ties_are_judged_after_its_own_division() -> None:
    """scale · 1/3 rounds in binary64: what decides is the quotient that rtn_xxfp4 computes, here 1 / (4/3) = 0.75."""
    rules = schemes.get("rtn_mxfp4_three_quarters")
    x = block({0: 4.0, 1: 1.0, 2: np.nextafter(np.float32(1), np.float32(2))})
    expected = bits.quantize(x, rules)
    assert expected.codes[0, 1:3].tolist() == [1, 2]  # ties toward zero; above the tie
    wrong = expected.codes.copy()
    wrong[0, 1:3] = 2, 1
    assert compare_encoded(x, expected._replace(codes=wrong), expected, rules).kinds == {"tie": 1, "rounding": 1}


def test_wrong_scale_and_the_codes_it_explains() -> None:
    x = np.tile(np.linspace(-6, 6, 32, dtype=np.float32), (2, 2))
    expected = bits.quantize(x, MXFP4)
    scales = expected.scales.copy()
    scales[1, 0] += 1
    actual = expected.codes.copy()
    actual[1, 3] ^= 2  # in the block with the wrong scale
    actual[0, 40] ^= 8  # in another
    found = compare_encoded(x, Encoded(actual, scales), expected, MXFP4)
    assert found.compared == x.size + 4
    assert found.kinds == {"scale": 1, "scaled": 1, "sign": 1}
    wrong_scale, scaled, _ = found.samples
    assert (wrong_scale.tensor, wrong_scale.coordinates, wrong_scale.x, wrong_scale.lane) == ("scales", (1, 0), -6.0, 0)
    assert (wrong_scale.actual, wrong_scale.expected, wrong_scale.distance) == (128, 127, 1)
    assert (scaled.coordinates, scaled.block, scaled.lane) == ((1, 3), 0, 3)
    assert (scaled.scale_actual, scaled.scale_expected) == (128, 127)


def test_lane_of_a_scale_is_that_of_the_first_nan() -> None:
    x = block({3: 100.0, 5: np.nan, 7: np.nan})
    expected = bits.quantize(x, MXFP4)
    (sample,) = compare_encoded(x, expected._replace(scales=codes(130).reshape(1, 1)), expected, MXFP4).samples
    assert (sample.lane, sample.expected) == (5, 0xFF)


@pytest.mark.parametrize(
    ("actual", "kinds_found"),
    [
        (np.float32(448), {}),
        (np.array([448], np.float32), {}),
        (torch.tensor([448.0]), {}),
        (np.nextafter(np.float32(448), np.float32(0)), {"tensor_scale": 1}),
        (np.float64(448), {"dtype": 1}),
        (np.array([448, 448], np.float32), {"dtype": 1}),
        (None, {"dtype": 1}),
        (448.0, {"dtype": 1}),
    ],
)
def test_tensor_scale_by_its_bits(actual: object, kinds_found: dict[str, int]) -> None:
    rules = schemes.get("nvfp4")
    x = block({0: 6.0}, rules)
    expected = bits.quantize(x, rules)
    assert expected.tensor_scale == 448
    found = compare_encoded(x, expected._replace(tensor_scale=actual), expected, rules)
    assert found.kinds == kinds_found
    assert found.compared == 1 + 1 + 16 - ("dtype" in kinds_found)


def test_nan_tensor_scale_is_compared_by_class() -> None:
    rules = schemes.get("nvfp4_two_level")
    x = block({0: np.nan}, rules)
    expected = bits.quantize(x, rules)
    other = np.array(0xFFC00001, np.uint32).view(np.float32)
    assert compare_encoded(x, expected._replace(tensor_scale=other), expected, rules).ok


def test_code_under_a_wrong_tensor_scale_is_scaled() -> None:
    rules = schemes.get("nvfp4")
    x = block({0: 6.0, 1: 1.0}, rules)
    expected = bits.quantize(x, rules)
    wrong = expected.codes.copy()
    wrong[0, 1] ^= 1
    found = compare_encoded(x, Encoded(wrong, expected.scales, np.float32(447)), expected, rules)
    assert found.kinds == {"tensor_scale": 1, "scaled": 1}


def test_padding_lanes_have_a_kind_of_their_own() -> None:
    rules = schemes.get("mx4_ceil_e2m1_g32")
    x = np.ones((2, 33), np.float32)
    expected = bits.quantize(x, rules)
    wrong = expected.codes.copy()
    wrong[1, 33] = wrong[1, 40] = 3
    wrong[1, 32] ^= 8
    found = compare_encoded(x, expected._replace(codes=wrong), expected, rules)
    assert found.kinds == {"padding": 2, "sign": 1}
    assert (found.samples[0].x, found.samples[0].x_bits, found.samples[0].coordinates) == (None, None, (1, 33))


def test_code_in_a_block_of_zeros_is_no_tie() -> None:
    """Scale byte 0 is no divisor: 0.5 for 0 is a wrong rounding, though 0 · midpoint is 0."""
    rules = schemes.get("nvfp4")
    x = np.zeros((1, 16), np.float32)
    expected = bits.quantize(x, rules)
    wrong = expected.codes.copy()
    wrong[0, 4] = 1
    assert compare_encoded(x, expected._replace(codes=wrong), expected, rules).kinds == {"rounding": 1}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_are_widened(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.25, 6.0] + [0.0] * 30], dtype=dtype)
    expected = bits.quantize(x.float().numpy(), MXFP4)
    wrong = expected.codes.copy()
    wrong[0, 0] = 1
    found = compare_encoded(x, expected._replace(codes=wrong), expected, MXFP4)
    assert found.kinds == {"tie": 1}
    assert found.samples[0].x_bits == 0x3E800000


def test_other_inputs_are_refused() -> None:
    with pytest.raises(DtypeError, match="float64"):
        compare_codes(np.ones(1), codes(1), codes(2), E2M1)
    with pytest.raises(ArgumentError, match="shape of expected"):
        compare_codes(floats(1, 2), codes(1), codes(2), E2M1)
    x = np.ones((1, 64), np.float32)
    narrow = bits.quantize(x[:, :32], MXFP4)
    with pytest.raises(ArgumentError, match=r"\(1, 64\)"):
        compare_encoded(x, narrow, narrow, MXFP4)


@pytest.mark.parametrize("swap", [lambda a: a[:, :16], lambda a: a.reshape(-1), lambda a: a[None]])
def test_wrong_shape_is_a_mismatch_and_never_broadcast(swap) -> None:
    x = block({0: 6.0})
    expected = bits.quantize(x, MXFP4)
    for side in (expected.codes, torch.from_numpy(expected.codes)):
        found = compare_encoded(x, expected._replace(codes=swap(side)), expected, MXFP4)
        assert found.kinds == {"shape": 1}
        assert found.compared == 1  # the scale was comparable
        assert "shape of codes: got" in found.message


def test_wrong_shape_of_scales_leaves_the_codes_comparable() -> None:
    x = block({0: 6.0})
    expected = bits.quantize(x, MXFP4)
    found = compare_encoded(x, Encoded(expected.codes ^ 1, codes(1, 2)), expected, MXFP4)
    assert found.kinds == {"shape": 1, "scaled": 32}


@pytest.mark.parametrize("wrong", [np.int8, np.int32, np.float32, bool])
def test_wrong_dtype_is_a_mismatch_and_never_converted(wrong: type) -> None:
    right = codes(1, 0, 1)
    found = compare_codes(floats(1, 2, 3), right.astype(wrong), right, E2M1)
    assert (found.kinds, found.compared) == ({"dtype": 1}, 0)
    found = compare_bytes(right.astype(wrong), right, tensor="packed")
    assert (found.kinds, found.compared) == ({"dtype": 1}, 0)


def test_something_that_is_no_array_is_a_mismatch() -> None:
    found = compare_codes(floats(1), [1], codes(1), E2M1)
    assert found.kinds == {"dtype": 1}
    assert "list" in found.message


def test_one_byte_float_dtypes_hold_codes() -> None:
    scales = torch.tensor([[127]], dtype=torch.uint8)
    x = block({0: 6.0})
    expected = bits.quantize(x, MXFP4)
    assert compare_encoded(x, Encoded(expected.codes, scales.view(torch.float8_e8m0fnu)), expected, MXFP4).ok


def test_given_tensor_scale_decides_what_is_a_tie() -> None:
    """y = RN32(x · g): with g = 2 and s = 1, x = 0.625 is y = 1.25, a tie."""
    rules = replace(schemes.get("nvfp4"), name="nvfp4")
    x = block({0: 3.0, 1: 0.625}, rules)
    expected = bits.quantize(x, rules, tensor_scale=np.float32(2))
    wrong = expected.codes.copy()
    wrong[0, 1] ^= 1
    assert compare_encoded(x, expected._replace(codes=wrong), expected, rules).kinds == {"tie": 1}
