"""The bit-level reference, MX4 and MXFP4: what SPEC.md section 3 states, and known faults of this kind."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from lowbit import schemes
from lowbit.errors import ArgumentError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E2M1
from lowbit.references import bits
from lowbit.rules import ScaleRule
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


KNOWN_SCALES = [  # cases/known_bugs.md, block scale, and the formulas' edges: scheme, amax, byte, code of amax
    ("mxfp4_floor", 5.0, 127, 6),  # triton#8413; 5 is a tie of 4 and 6
    ("mxfp4_floor", 6.0, 127, 7),  # vllm#53110, compressed-tensors#538
    ("mxfp4_even", 7.0, 128, 6),  # significand 1.75 goes up
    ("mx4_even_exclusive_e2m1_g32", 7.0, 127, 7),  # and here it does not
    ("mxfp4_even", 1.75 * 2.0**127, 253, 6),  # torchao: finite block turned NaN
    ("mx4_floor_e2m1_g32", 1048575.9375, 144, 7),  # FBGEMM: log2 rounded
    ("mx4_ceil_e2m1_g32", 2.0**20 * (1 + 2.0**-23), 146, 4),
    ("mxfp4_floor", 2.0**-126, 0, 4),  # torchao: divided by 2**-126, stored 2**-127
    ("mxfp4_floor", 2.0**-125, 0, 6),
    ("mxfp4_rceil", 6.0, 127, 7),
    ("mxfp4_rceil", 6.1, 128, 5),
    ("mxfp4_rceil", float(np.nextafter(np.float32(6), np.float32(7))), 128, 5),
    ("mxfp4_ceil", 4.0, 127, 6),
    ("mxfp4_ceil", 4.0 * (1 + 2.0**-23), 128, 4),
    ("mxfp4_floor", FLT_MAX, 252, 7),
    ("mxfp4_ceil", FLT_MAX, 253, 6),
    ("mxfp4_rceil", FLT_MAX, 253, 6),
    ("mx4_ceil_e2m1_g32", FLT_MAX, 252, 7),  # clamped to E = 125, 8 saturates
    ("mx4_ceil_e3m0_g32", FLT_MAX, 252, 6),  # e = 3: 8 of at most 16
    ("mx4_floor_e3m0_g32", 1.0, 124, 6),
    ("mx4_even_exclusive_e3m0_g32", 1.5, 124, 7),  # m = 0: up above significand 1.5; 12 is a tie of 8 and 16
    ("mx4_even_exclusive_e3m0_g32", 1.5 * (1 + 2.0**-22), 125, 6),
    ("mx4_nearest_e2m1_g32", 2.0**-149, 0, 0),
]


@pytest.mark.parametrize(("name", "amax", "byte", "code"), KNOWN_SCALES)
def test_known_scales(name, amax, byte, code):
    assert quantize(name, amax) == (byte, [code])
    assert quantize(name, 0.0, -amax)[0] == byte, "amax is a magnitude"


def test_nearest_goes_up_from_sqrt_2():
    """0x3FB504F3 is below sqrt 2 (its square below 2), 0x3FB504F4 above; exactly, without log2."""
    below, above = np.array([0x3FB504F3, 0x3FB504F4], dtype=np.uint32).view(np.float32)
    assert float(below) ** 2 < 2 < float(above) ** 2
    for power in (-100, -3, 0, 5, 100):
        scale = np.float32(2.0**power)
        assert quantize("mx4_nearest_e2m1_g32", below * scale)[0] == 125 + power
        assert quantize("mx4_nearest_e2m1_g32", above * scale)[0] == 126 + power


@pytest.mark.parametrize(
    ("rule", "up_from"),
    [
        (ScaleRule.FLOOR, None),
        (ScaleRule.CEIL, 1),
        (ScaleRule.NEAREST, 0xB504F4 - (1 << 23)),
        (ScaleRule.EVEN_EXCLUSIVE, 0x600001),
        (ScaleRule.EVEN, 0x600000),
        (ScaleRule.RCEIL, 0x400001),
    ],
    ids=lambda v: v.value if isinstance(v, ScaleRule) else "",
)
def test_scale_rules_in_every_binade(rule, up_from):
    """Exponent up from this mantissa on, in every binade; clamped at both ends; subnormals end at byte 0."""
    family = "mx4_{}_e2m1_g32" if rule in (ScaleRule.NEAREST, ScaleRule.EVEN_EXCLUSIVE) else "mxfp4_{}"
    scheme = schemes.get(family.format(rule.value))
    low, high = scheme.exponent_range
    mantissas = np.array(
        [0, 1, 0x3504F3, 0x3504F4, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF]
    )
    for field in range(255):
        amax = (mantissas + (field << 23)).astype(np.uint32).view(np.float32)
        exponents = [field - 127 - 2 + (up_from is not None and int(m) >= up_from) for m in mantissas]
        if field == 0:
            exponents = [low] * len(exponents)  # the largest, rounded up, is 2**-126, and -128 is clamped
        expected = [min(max(e, low), high) + 127 for e in exponents]
        assert bits.scale_codes(amax, scheme).tolist() == expected, field


def test_stochastic_exponent():
    """floor of (bits + (r & (2**(23 - m) - 1))): the carry happens in the mantissa's upper part only."""
    scheme = schemes.get("mx4_stochastic_e2m1_g32")
    amax = np.full(4, 1.75, dtype=np.float32)  # mantissa 0x600000; 0x200000 carries
    r = np.array([0x1FFFFF, 0x200000, 0x7FFFFFFF, 0x40400000], dtype=np.int32)
    assert bits.scale_codes(amax, scheme, random_bits=r).tolist() == [125, 126, 126, 125], "22 random bits count"
    e3m0 = schemes.get("mx4_stochastic_e3m0_g32")
    r = np.array([0x1FFFFF, 0x200000, 0x400000, 0x3FFFFFFF], dtype=np.int32)
    one = np.full(4, 1.5, dtype=np.float32)  # m = 0: 23 random bits; mantissa 0x400000
    assert bits.scale_codes(one, e3m0, random_bits=r).tolist() == [124, 124, 125, 125]
    zeros = np.zeros(2, dtype=np.float32)
    assert bits.scale_codes(zeros, scheme, random_bits=r[2:]).tolist() == [0, 0]
    with pytest.raises(ArgumentError, match="scale_random_bits"):
        bits.scale_codes(one, scheme)


def test_mxfp4_special_blocks():
    """Any NaN or Inf: byte 255, codes as if the scale were 1."""
    assert quantize("mxfp4_floor", NAN, 1.0, -6.0, 100.0, 0.2) == (255, [7, 2, 15, 7, 0])
    assert quantize("mxfp4_floor", -INF, 1.0, 0.5) == (255, [15, 2, 1])
    assert quantize("mxfp4_floor+nan_negative_zero", -NAN, 1.0) == (255, [8, 2])
    assert quantize("mxfp4_floor", 0.0, -0.0) == (0, [0, 8])
    for name in ("mxfp4_floor", "mxfp4_ceil", "mxfp4_even", "mxfp4_rceil"):
        assert quantize(name, FLT_MAX)[0] < 255, "a finite block never gets the NaN byte"


def test_mx4_special_blocks():
    """NaN does not enter amax and keeps its sign; Inf gives E = 125 under every rule, and saturates."""
    negative_nan = float(np.array(0xFFC00000, dtype=np.uint32).view(np.float32))
    assert quantize("mx4_ceil_e2m1_g32", NAN, negative_nan, 4.0) == (127, [7, 15, 6])
    assert quantize("mx4_ceil_e2m1_g32", NAN) == (0, [7])
    for rule in ("ceil", "floor", "nearest", "even_exclusive", "stochastic"):
        for element in ("e2m1", "e3m0"):
            byte, codes = quantize(f"mx4_{rule}_{element}_g32", INF, -INF, 1.0, -0.0, seed=0)
            assert (byte, codes) == (252, [7, 15, 0, 8]), "Inf is not 2**128, which E3M0 could hold at this scale"
    assert quantize("mx4_ceil_e2m1_g32", 0.0, -0.0) == (0, [0, 8])


def test_mx4_smallest_scale():
    """E = -127 included: x * 2**127 is exact, subnormals too. Ties away."""
    tie = 0.25 * 2.0**-127
    assert quantize("mx4_floor_e2m1_g32", 2.0**-127, 2.0**-128, tie, -tie, 2.0**-149) == (0, [2, 1, 1, 9, 0])
    assert quantize("mx4_ceil_e3m0_g32", 2.0**-127, tie, tie / 2, 2.0**-131) == (0, [3, 1, 1, 0])


def test_mx4_pads_rows():
    """FBGEMM#2827: (3, 33) in groups of 32, each row on its own; the padding counts as +0."""
    scheme = schemes.get("mx4_floor_e2m1_g32")
    x = np.ones((3, 33), dtype=np.float32)
    x[:, 32] = [4.0, 16.0, NAN]
    encoded = bits.quantize(x, scheme)
    assert encoded.codes.shape == (3, 64)
    assert encoded.scales.tolist() == [[125, 127], [125, 129], [125, 0]]
    assert encoded.codes[:, 32].tolist() == [6, 6, 7]
    assert not encoded.codes[:, 33:].any()
    assert encoded.tensor_scale is None


def test_mx4_stochastic_casting_is_unbiased():
    """FBGEMM's stochastic_casting: with a FLOOR scale and amax 6 the means are 1, 2, 4; 0.1 is sometimes 0.5."""
    scheme = schemes.get("mx4_floor_e2m1_g32+stochastic")
    x = np.tile(block(scheme, 6.0, 1.0, 2.0, 4.0, 0.1, 2.75), (256, 1))
    random = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 32, axis=1)
    values = bits.decode(bits.quantize(x, scheme, random_bits=random).codes, E2M1)
    assert values[:, :6].mean(axis=0).tolist() == [6.0, 1.0, 2.0, 4.0, 0.5 * 51 / 256, 2.75]


def test_mxfp4_refuses_partial_blocks():
    with pytest.raises(ShapeError, match=r"33 columns, want a multiple of 32.*pad"):
        bits.quantize(np.ones((1, 33), dtype=np.float32), schemes.get("mxfp4_floor"))


def test_decoding_powers_of_two():
    """One rounding of value * 2**(b - 127): subnormals, overflow and the special bytes."""
    assert dequantize("mxfp4_floor", [1, 2, 7, 15, 0, 8], 127) == [0.5, 1.0, 6.0, -6.0, 0.0, -0.0]
    assert dequantize("mxfp4_floor", [1, 2, 4], 0) == [2.0**-128, 2.0**-127, 2.0**-126], "pytorch#125557: not 0"
    assert dequantize("mxfp4_floor", [2], 134) == [128.0]
    assert dequantize("mxfp4_ceil", [6, 7, 15], 253) == [INF, INF, -INF]
    assert dequantize("mxfp4_ceil", [5, 13], 253) == [3 * 2.0**126, -3 * 2.0**126]
    assert all(math.isnan(v) for v in dequantize("mxfp4_floor", list(range(16)), 255)), "transformers: NaN, not Inf"
    assert dequantize("mx4_ceil_e2m1_g32", [1, 9, 2], 255)[:2] == [INF, -INF]
    assert all(math.isnan(v) for v in dequantize("mx4_ceil_e2m1_g32", [0, 8], 255))
    assert dequantize("mx4_ceil_e3m0_g32", [7, 1, 15], 254) == [INF, 2.0**125, -INF]


def test_decoding_to_16_bits_rounds_once():
    assert dequantize("mxfp4_floor", [3, 1, 7], 102, fmt=BINARY16) == [2.0**-24, 0.0, 1.5 * 2.0**-23]
    assert dequantize("mxfp4_floor", [7, 6, 4], 141, fmt=BINARY16) == [INF, INF, 32768.0]
    assert dequantize("mxfp4_floor", [3, 1], 0, fmt=BFLOAT16) == [1.5 * 2.0**-127, 2.0**-128]
    assert np.signbit(dequantize("mxfp4_floor", [9], 0, fmt=BINARY16)).all()
