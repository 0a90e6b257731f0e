"""The bit-level reference, NVFP4 and rtn_xxfp4: what SPEC.md section 3 states, and known faults of this kind."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from lowbit import schemes
from lowbit.errors import ArgumentError, DtypeError
from lowbit.formats import BFLOAT16, BINARY32, E2M1
from lowbit.references import bits
from lowbit.references.bits_elements import encode_scaled
from lowbit.rules import Rounding
from lowbit.schemes import Encoded

INF, NAN = float("inf"), float("nan")
FLT_MAX = float(np.finfo(np.float32).max)
PATTERNS = {"binary32": np.uint32, "binary16": np.uint16, "bfloat16": np.uint16}


def block(scheme: schemes.Scheme, *values: float) -> np.ndarray:
    """One block that starts with these values and goes on with zeros."""
    x = np.zeros((1, scheme.block), dtype=np.float32)
    x[0, : len(values)] = values
    return x


def quantize(name: str, *values: float, **options) -> tuple[int, list[int]]:
    """The scale byte of one block, and the codes of the values given."""
    scheme = schemes.get(name)
    encoded = bits.quantize(block(scheme, *values), scheme, **options)
    assert encoded.codes.shape == (1, scheme.block)
    assert encoded.scales.shape == (1, 1)
    return int(encoded.scales[0, 0]), encoded.codes[0, : len(values)].tolist()


def dequantize(name: str, codes: list[int], scale: int, g: float | None = None, fmt=BINARY32) -> list[float]:
    scheme = schemes.get(name)
    padded = np.zeros((1, scheme.block), dtype=np.uint8)
    padded[0, : len(codes)] = codes
    scales = np.full((1, 1), scale, dtype=np.uint8)
    tensor_scale = None if g is None else np.float32(g)
    pattern = bits.dequantize(Encoded(padded, scales, tensor_scale), scheme, fmt)
    assert pattern.dtype == PATTERNS[fmt.name]
    dtype = {"binary32": np.float32, "binary16": np.float16, "bfloat16": ml_dtypes.bfloat16}[fmt.name]
    return [float(v) for v in pattern.view(dtype)[0, : len(codes)]]


def test_nvfp4_tensor_scale():
    scheme = schemes.get("nvfp4")
    for x, g in (([6.0], 448.0), ([7.0, INF, NAN], 384.0), ([0.0], 1.0), ([INF], 1.0), ([1e-40], FLT_MAX)):
        assert float(bits.quantize(block(scheme, *x), scheme).tensor_scale) == g
    assert bits.quantize(np.zeros((0, 16), dtype=np.float32), scheme).tensor_scale == 1


@pytest.mark.parametrize(
    ("name", "tensor_amax", "block_amax", "byte"),
    [
        ("nvfp4", 6.0, 4.5, 0x7A),
        ("nvfp4", 7.0, 5.75, 0x7C),
        ("nvfp4", 7.0, 6.25, 0x7C),
        ("nvfp4_two_level", 7.0, 6.25, 0x7D),  # through its g: RN32(RN32(1/7) * 2688) is above 384
    ],
)
def test_nvfp4_stated_scales(name, tensor_amax, block_amax, byte):
    scheme = schemes.get(name)
    x = np.concatenate([block(scheme, tensor_amax), block(scheme, -block_amax)])
    assert bits.quantize(x, scheme).scales[1, 0] == byte


@pytest.mark.parametrize(
    ("g", "amax", "byte", "x", "code"),
    [
        (448.0, 12.0 / 7, 0x70, 1.0, 6),  # SPEC.md 6: 448 / 128 = 3.5, a tie
        (512.0, 2.8125, 0x77, 2.34375, 6),  # 1200 / 240 = 5, a tie that reciprocals miss
        (1.0, 5.625, 0x37, 4.6875, 6),  # triton#10661: 4.6875 / 0.9375 = 5
        (1.0, 11.25, 0x3F, 4.6875, 4),  # 4.6875 / 1.875 = 2.5
    ],
)
def test_nvfp4_divides(g, amax, byte, x, code):
    assert quantize("nvfp4", amax, x, tensor_scale=np.float32(g))[0] == byte
    assert quantize("nvfp4", amax, x, tensor_scale=np.float32(g))[1][1] == code


def test_nvfp4_zero_and_tiny_blocks():
    """MSLK#486, Model-Optimizer#1397, compressed-tensors#595: nothing but finite codes and scales."""
    assert quantize("nvfp4", 0.0, -0.0) == (0, [0, 8])
    x = np.concatenate([block(schemes.get("nvfp4"), 6.0), block(schemes.get("nvfp4"), 1e-7, -1e-9, 0.0)])
    encoded = bits.quantize(x, schemes.get("nvfp4"))
    assert encoded.scales[:, 0].tolist() == [0x7E, 1], "the least scale, not 0"
    assert encoded.codes[1, :3].tolist() == [0, 8, 0]
    underflow = quantize("nvfp4", 2.0**-149, -(2.0**-140), tensor_scale=np.float32(2.0**-20))
    assert underflow == (0, [0, 8]), "a zero block is one of y, not of x"


def test_nvfp4_special_blocks():
    """The block stores 0x7F, its codes are those of y at scale 1; others do not notice."""
    scheme = schemes.get("nvfp4")
    x = np.concatenate([block(scheme, NAN, 6.0, -2.0, 0.0), block(scheme, -INF, 0.001, -0.0), block(scheme, 6.0, 3.0)])
    encoded = bits.quantize(x, scheme)
    assert encoded.tensor_scale == 448
    assert encoded.scales[:, 0].tolist() == [0x7F, 0x7F, 0x7E]
    assert encoded.codes[:, :4].tolist() == [[7, 7, 15, 0], [15, 1, 8, 0], [7, 5, 0, 0]]
    assert quantize("nvfp4", NAN, 1.0, -0.5, tensor_scale=np.float32(1)) == (0x7F, [7, 2, 9])


def test_nvfp4_overflowing_products_saturate():
    """Only with a given g: y is Inf from finite x, and b = 448."""
    assert quantize("nvfp4", 1e30, -1e30, 1e-30, tensor_scale=np.float32(1e30)) == (0x7E, [7, 15, 0])


def test_two_level():
    name = "nvfp4_two_level"
    scheme = schemes.get(name)
    below = block(scheme, 1e-9, -1e-9)  # its scale rounds to 0: stored 0, decodes to 0, divided by 2**-9
    encoded = bits.quantize(np.concatenate([block(scheme, 6.0, 2.5, -5.0, -0.0), below]), scheme)
    reciprocal = np.float32(1) / np.float32(6)
    assert encoded.tensor_scale == reciprocal * np.float32(2688)
    assert encoded.scales[:, 0].tolist() == [0x7E, 0]
    assert encoded.codes[0, :4].tolist()[2:] == [14, 8]
    assert encoded.codes[1, :2].tolist() == [0, 8]
    zero = bits.quantize(block(scheme, 0.0, -0.0), scheme)
    assert (zero.scales[0, 0], zero.codes[0, :2].tolist()) == (0, [0, 8])
    assert zero.tensor_scale == np.float32(1) / np.float32(1e-12) * np.float32(2688)


def test_two_level_ties_toward_zero():
    assert quantize("nvfp4_two_level", 6.0, 2.5, -5.0, 0.25, tensor_scale=np.float32(1)) == (0x38, [7, 4, 14, 0])
    assert quantize("nvfp4", 6.0, 2.5, -5.0, 0.25, tensor_scale=np.float32(1)) == (0x38, [7, 4, 14, 0])
    assert quantize("nvfp4_two_level", 6.0, 3.5, 1.75, tensor_scale=np.float32(1)) == (0x38, [7, 5, 3])
    assert quantize("nvfp4", 6.0, 3.5, 1.75, tensor_scale=np.float32(1)) == (0x38, [7, 6, 4])


def test_two_level_propagates():
    """One NaN: g NaN, every code 7, every scale 0x7F. Inf: g = 0, its block 0x7F with ±0 and 7, the others 0."""
    scheme = schemes.get("nvfp4_two_level")
    x = np.concatenate([block(scheme, NAN, 1.0), block(scheme, -2.0)])
    encoded = bits.quantize(x, scheme)
    assert np.isnan(encoded.tensor_scale)
    assert (encoded.codes == 7).all()
    assert (encoded.scales == 0x7F).all()
    x = np.concatenate([block(scheme, -INF, 1.0, -1.0), block(scheme, -2.0, 2.0)])
    encoded = bits.quantize(x, scheme)
    assert encoded.tensor_scale == 0
    assert encoded.scales[:, 0].tolist() == [0x7F, 0]
    assert encoded.codes[:, :3].tolist() == [[7, 0, 8], [8, 0, 0]]


def test_one_level():
    """g = 1 and may not be given; a NaN block stores 0x7F and uses 2**-9, an Inf block 0x7E."""
    assert quantize("nvfp4_one_level", 6.0, -3.0) == (0x38, [7, 13])
    assert quantize("nvfp4_one_level", NAN, 2.0**-9, -(2.0**-8), 1.0) == (0x7F, [7, 2, 12, 7])
    assert quantize("nvfp4_one_level", INF, 448.0, -INF, 1.0) == (0x7E, [7, 2, 15, 0])
    scheme = schemes.get("nvfp4_one_level")
    assert bits.quantize(block(scheme, 1.0), scheme).tensor_scale == 1
    with pytest.raises(ArgumentError, match="tensor_scale"):
        bits.quantize(block(scheme, 1.0), scheme, tensor_scale=np.float32(1))


def test_two_level_cuda_multiplies_by_a_sixth():
    """RN32(amax * RN32(1/6)) and RN32(amax / 6) straddle an E4M3 midpoint for some amax, and only then differ."""
    middles = ((np.arange(0x10, 0x7E) + 0.5) / 8 % 1 + 1) * 2.0 ** ((np.arange(0x10, 0x7E) >> 3) - 7)
    near = (middles * 6).astype(np.float32).view(np.uint32)[:, None] + np.arange(-2, 3, dtype=np.int64)
    amax = near.astype(np.uint32).view(np.float32)
    over = bits.scale_codes(amax, schemes.get("nvfp4_two_level"))
    times = bits.scale_codes(amax, schemes.get("nvfp4_two_level_cuda"))
    for scheme_codes, quotient in ((over, amax / np.float32(6)), (times, amax * np.float32(1 / 6))):
        np.testing.assert_array_equal(scheme_codes, quotient.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    assert (over != times).any()


@pytest.mark.parametrize("g", [0.0, -1.0, NAN, INF, -INF])
@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_two_level"])
def test_a_given_factor_is_finite_and_positive(name, g):
    scheme = schemes.get(name)
    with pytest.raises(ArgumentError, match=r"tensor_scale: got .*, want finite and above 0"):
        bits.quantize(block(scheme, 1.0), scheme, tensor_scale=np.float32(g))


def test_a_given_factor_is_one_float32():
    """flashinfer#3398: a bf16 factor read as fp32."""
    scheme = schemes.get("nvfp4")
    x = block(scheme, 1.0)
    for wrong in (ml_dtypes.bfloat16(2.0), np.float64(2.0), np.float16(2.0), np.int32(2), 0.1):
        with pytest.raises(DtypeError, match="tensor_scale"):
            bits.quantize(x, scheme, tensor_scale=wrong)
    with pytest.raises(ArgumentError, match="one element"):
        bits.quantize(x, scheme, tensor_scale=np.ones(2, dtype=np.float32))
    for right in (np.float32(2), np.array([2], dtype=np.float32), 2.0, 2):
        assert bits.quantize(x, scheme, tensor_scale=right).tensor_scale == 2
    for other in ("mx4_ceil_e2m1_g32", "mxfp4_floor", "rtn_mxfp4"):
        with pytest.raises(ArgumentError, match="tensor_scale"):
            bits.quantize(block(schemes.get(other), 1.0), schemes.get(other), tensor_scale=np.float32(1))


def test_rtn_zero_groups():
    """An E8M0 scale of a zero group is 2**-127; an E4M3 one is 0, and 0/0 is NaN: code 7. Both decode to ±0."""
    assert quantize("rtn_mxfp4", 0.0, -0.0) == (0, [0, 8])
    assert quantize("rtn_nvfp4", 0.0, -0.0) == (0, [7, 7])
    assert quantize("rtn_nvfp4", 1e-5, -1e-5, 0.0) == (0, [7, 15, 7])
    assert dequantize("rtn_nvfp4", [7, 15], 0) == [0.0, -0.0]


@pytest.mark.parametrize(("name", "top"), [("rtn_mxfp4", 254), ("rtn_nvfp4", 0x7E), ("rtn_mxfp4_three_quarters", 254)])
def test_rtn_nonfinite_groups(name, top):
    """NaN: NaN scale, all codes 7. Inf: the largest scale, ±Inf to ±6."""
    nan = 255 if top == 254 else 0x7F
    assert quantize(name, NAN, 1.0, -1.0, 0.0) == (nan, [7, 7, 7, 7])
    assert quantize(name, INF, -INF, 0.5, -0.0) == (top, [7, 15, 0, 8])


def test_rtn_e8m0_cast():
    """Up from significand 1.5; up to 2**-127 byte 0, then 1 as far as 2**-126."""
    scheme = schemes.get("rtn_mxfp4_three_quarters")  # amax / (4/3), in binary64
    for wanted, byte in (
        (1.0, 127),
        (1.5, 128),
        (float(np.nextafter(np.float32(1.5), np.float32(0))), 127),
        (2.0**-127, 0),
        (2.0**-127 + 2.0**-149, 1),
        (2.0**-126 - 2.0**-149, 1),
        (2.0**-126, 1),
        (1.5 * 2.0**-126, 2),
    ):
        amax = wanted * 4 / 3
        # The nearest binary32 amax may not give `wanted` again, so the cast is tried on what it does give.
        got = np.float32(float(np.float32(amax)) / (4 * (1 / 3)))
        if got == np.float32(wanted):
            assert bits.scale_codes(np.array([amax], dtype=np.float32), scheme)[0] == byte, wanted
    divided_by_six = {6.0: 127, 9.0: 128, 8.999999: 127, 6 * 2.0**-127: 0, 6 * (2.0**-127 + 2.0**-149): 1, 0.0: 0}
    for amax, byte in divided_by_six.items():
        assert bits.scale_codes(np.array([amax], dtype=np.float32), schemes.get("rtn_mxfp4"))[0] == byte, amax


def test_rtn_tie_modes():
    for mode, expected in (
        ("", [2, 10, 6, 14]),
        ("+ties_toward_zero", [1, 9, 5, 13]),
        ("+ties_down", [1, 10, 5, 14]),
        ("+ties_up", [2, 9, 6, 13]),
    ):
        assert quantize(f"rtn_nvfp4{mode}", 6.0, 0.75, -0.75, 3.5, -3.5) == (0x38, [7, *expected])


def test_three_quarters_is_the_published_recipe():
    """arXiv 2502.20586: E = floor(log2 amax) - 2, x * 3/4 rounded ties toward zero; scale bytes are 2 higher here."""
    recipe, floor = schemes.get("rtn_mxfp4_three_quarters"), schemes.get("mxfp4_floor")
    rng = np.random.default_rng(6)
    x = rng.standard_normal((4000, 32)) * 2.0 ** rng.integers(-123, 125, (4000, 1))
    x = (x.astype(np.float32).view(np.uint32) & rng.choice(np.array([-1, -1 << 12, -1 << 20]), (4000, 1))).astype(
        np.uint32
    )
    x = np.concatenate([x.view(np.float32), np.zeros((1, 32), dtype=np.float32)])
    actual, scales = bits.quantize(x, recipe), bits.quantize(x, floor).scales
    some = (np.abs(x).max(axis=1) >= 2.0**-125)[:, None]
    np.testing.assert_array_equal(actual.scales, np.where(some, scales + 2, 0))
    exponent = np.where(some, scales.astype(np.int64) - 127, 0)
    expected = encode_scaled(x.astype(np.float64) * 0.75, E2M1, Rounding.TIES_TOWARD_ZERO, None, exponent=exponent)
    np.testing.assert_array_equal(actual.codes, expected)


def test_decoding_nvfp4():
    """RN32(RN32(value * s) / g), then RN; negative and NaN scale bytes as E4M3 has them; no g, no division."""
    assert dequantize("nvfp4", [7, 3], 0x38) == [6.0, 1.5]
    assert dequantize("nvfp4", [7, 3, 9], 0x38, 3.0) == [2.0, 0.5, float(np.float32(-0.5) / np.float32(3))]
    assert dequantize("nvfp4", [2, 10], 0xB8) == [-1.0, 1.0]
    for nan in (0x7F, 0xFF):
        assert all(math.isnan(v) for v in dequantize("nvfp4", [0, 5], nan, 1.0))
    assert math.isnan(dequantize("nvfp4_two_level", [0], 0, 0.0)[0]), "0/0, as PyTorch has it"
    twice = float(np.float32(5.5) / np.float32(448))
    assert dequantize("nvfp4", [3], 0x47, 448.0) == [float(np.float32(1.5 * 3.75) / np.float32(448))]
    assert dequantize("nvfp4", [2], 0x4B, 448.0, fmt=BFLOAT16) == [float(ml_dtypes.bfloat16(np.float32(twice)))]
