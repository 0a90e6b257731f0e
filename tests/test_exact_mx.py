"""The exact reference's MX4 and MXFP4: what SPEC.md 3.1 and 3.2 state, and real bugs with their right values.

Cases named after a repository and a number are public reports of a wrong result.
"""

import dataclasses
import math
from fractions import Fraction

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit import schemes
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, BINARY64, E2M1, E4M3, E5M2
from lowbit.references import exact_random
from lowbit.references.exact import dequantize, quantize, scale_exponent
from lowbit.schemes import Encoded

FLT_MAX = float(np.finfo(np.float32).max)
NAN, INF = math.nan, math.inf
NEGATIVE_NAN = math.copysign(math.nan, -1.0)
NAN32 = 0x7FFFFFFF


def block(scheme_name, *values):
    """One block that begins with these values and goes on with zeros."""
    scheme = schemes.get(scheme_name)
    return np.array([*values, *[0.0] * (scheme.block - len(values))], np.float32)


def encoded(scheme_name, *values, **options):
    """Scale byte and first codes of one block."""
    result = quantize(block(scheme_name, *values), schemes.get(scheme_name), **options)
    return int(result.scales[0]), result.codes[: len(values)].tolist()


def decoded(scheme_name, scale, codes, fmt=BINARY32):
    scheme = schemes.get(scheme_name)
    full = np.array([*codes, *[0] * (scheme.block - len(codes))], np.uint8)
    result = dequantize(Encoded(full, np.array([scale], np.uint8)), scheme, fmt)
    return [f"{p:0{fmt.bits // 4}x}" for p in result[: len(codes)].tolist()]


def test_mxfp4_ties_to_even_at_scale_one():
    # triton#8110, ROCm/aiter#3992: ties away gave 1 3 5 7. Model-Optimizer: 0.75 → 1, +0 → 8.
    assert encoded("mxfp4_floor", 6.0, 0.25, 1.25, 2.5, 5.0, 0.75, 0.0, -0.0, -1e-40) == (
        127,
        [7, 0, 2, 4, 6, 2, 0, 8, 8],
    )


EXPONENTS = [
    # scheme, amax, scale byte, code of amax or None; each with what went wrong elsewhere
    ("mxfp4_floor", 5.0, 127, 6),  # triton#8413: floor(amax / 6) = 126
    ("mxfp4_floor", 6.0, 127, 7),  # vllm#53110: 129, emax not subtracted; compressed-tensors#538: 125
    ("mxfp4_even", 7.0, 128, 6),  # significand 1.75: up
    ("mx4_even_exclusive_e2m1_g32", 7.0, 127, 7),  # FBGEMM's "even": not up
    ("mx4_even_exclusive_e2m1_g32", math.nextafter(7.0, 8.0) + 4e-7, 128, None),
    ("mxfp4_even", 6.9999995, 127, 7),
    ("mx4_even_exclusive_e3m0_g32", 12.0, 127, None),  # the bound is 1.5 without a mantissa bit
    ("mx4_even_exclusive_e3m0_g32", 12.000001, 128, None),
    ("mx4_floor_e2m1_g32", 1048575.9375, 144, None),  # FBGEMM: 18 + 127, log2 rounded
    ("mx4_ceil_e2m1_g32", 2.0**20 * (1 + 2.0**-23), 146, None),  # FBGEMM: 18 + 127
    ("mx4_ceil_e2m1_g32", 2.0**20, 145, 6),
    ("mx4_nearest_e2m1_g32", 1.4142135, 125, None),  # 0x3fb504f3 is just below the square root of 2
    ("mx4_nearest_e2m1_g32", 1.4142137, 126, None),  # 0x3fb504f4 just above
    ("mx4_floor_e3m0_g32", 8.0, 127, 6),  # e = 3 for E3M0
    ("mx4_floor_e3m0_g32", 15.999999, 127, 7),
    ("mxfp4_floor", 2.0**-126, 0, 4),  # torchao: code 2, divided by 2**-126 and stored as 2**-127
    ("mxfp4_floor", 2.0**-125, 0, 6),  # torchao: 4
    ("mxfp4_floor", 2.0**-149, 0, 0),
    ("mxfp4_even", 1.75 * 2.0**127, 253, 6),  # torchao: 0xff, a finite block turned NaN
    ("mxfp4_rceil", 6.0, 127, 7),
    ("mxfp4_rceil", 6.1, 128, 5),
    ("mxfp4_rceil", FLT_MAX, 253, 6),
    ("mxfp4_rceil", 2.0**-149, 0, 0),
    ("mxfp4_floor", FLT_MAX, 252, 7),
    ("mxfp4_ceil", FLT_MAX, 253, 6),
    ("mxfp4_ceil", 6.0, 128, 5),
    ("mx4_ceil_e2m1_g32", FLT_MAX, 252, 7),  # 126 clamped to 125
    ("mx4_ceil_e2m1_g32", 0.0, 0, 0),  # amax 0 counts as 2**-126, and -128 is clamped
    ("mx4_floor_e3m0_g32", 2.0**-149, 0, 0),
    ("mxfp4_ceil", 0.0, 0, 0),
]


@pytest.mark.parametrize(("name", "amax", "byte", "code"), EXPONENTS)
def test_block_scales_at_their_thresholds(name, amax, byte, code):
    amax = float(np.float32(amax))
    actual_byte, codes = encoded(name, amax)
    assert actual_byte == byte
    assert scale_exponent(amax, schemes.get(name)) == byte - 127
    if code is not None:
        assert codes == [code]


@given(amax=st.floats(0, width=32, exclude_min=True, allow_infinity=False))
@settings(max_examples=200, deadline=None)
def test_scale_rules_are_what_their_inequalities_say(amax):
    exact = Fraction(amax)

    def exponent(name):
        return scale_exponent(amax, schemes.get(name))

    def clamped(exponent, highest):
        return min(max(exponent, -127), highest)

    floor = math.frexp(amax)[1] - 1
    ceil = floor if exact == Fraction(2) ** floor else floor + 1
    assert exponent("mxfp4_floor") == clamped(floor - 2, 127)
    assert exponent("mxfp4_ceil") == clamped(ceil - 2, 127)
    assert exponent("mx4_ceil_e3m0_g8") == clamped(ceil - 3, 125)
    rceil = exponent("mxfp4_rceil")
    assert rceil == 127 or 6 * Fraction(2) ** rceil >= exact
    assert rceil == -127 or 6 * Fraction(2) ** (rceil - 1) < exact
    if amax >= 2.0**-120:
        bits = int(np.float32(amax).view(np.uint32))
        assert exponent("mxfp4_even") == (bits + 2**21 >> 23) - 129
        assert exponent("mx4_even_exclusive_e2m1_g32") == clamped((bits + 2**21 - 1 >> 23) - 129, 125)
        assert exponent("mx4_even_exclusive_e3m0_g32") == clamped((bits + 2**22 - 1 >> 23) - 130, 125)
        with gmpy2.context(precision=200):
            nearest = math.floor(gmpy2.log2(gmpy2.mpfr(amax)) + 0.5)
        assert exponent("mx4_nearest_e2m1_g32") == clamped(nearest - 2, 125)


def test_stochastic_exponent_adds_the_low_bits_of_r():
    scheme = schemes.get("mx4_stochastic_e2m1_g32")
    assert [scale_exponent(1.0, scheme, random=r) for r in (0, 2**22 - 1, 2**31 - 1)] == [-2, -2, -2]
    assert scale_exponent(1.5, scheme, random=2**22 - 1) == -2  # 0.5 + (0.5 - 2**-23) < 1
    above = float(np.nextafter(np.float32(1.5), np.float32(2)))
    assert [scale_exponent(above, scheme, random=r) for r in (2**22 - 2, 2**22 - 1, 2**22, 2**23 - 1)] == [
        -2,
        -1,
        -2,
        -1,
    ]
    e3m0 = schemes.get("mx4_stochastic_e3m0_g32")
    assert [scale_exponent(above, e3m0, random=r) for r in (2**22 - 2, 2**22 - 1, 2**22)] == [-3, -2, -2]
    assert scale_exponent(FLT_MAX, scheme, random=2**31 - 1) == 125
    with pytest.raises(ArgumentError, match="scale_random_bits: got None"):
        scale_exponent(1.0, scheme)


def test_stochastic_exponent_of_every_row_gets_its_own_bits():
    # FBGEMM loads the bits under a mask of one row's groups, so that later rows get none.
    scheme = schemes.get("mx4_stochastic_e2m1_g8")
    x = np.full((3, 16), 1.75, np.float32)
    bits = np.array([[0, 2**22 - 1], [2**22 - 1, 0], [2**31 - 1, 2**22]], np.int32)
    assert quantize(x, scheme, scale_random_bits=bits).scales.tolist() == [[125, 126], [126, 125], [126, 125]]
    seed = 0x123456789ABCDEF
    words = [exact_random.scale_word(seed, group) for group in range(6)]
    drawn = quantize(x, scheme, scale_random_bits=np.array(words, np.int32).reshape(3, 2))
    assert drawn.scales.tolist() == quantize(x, scheme, seed=seed).scales.tolist()
    assert len({word & 2**21 for word in words}) == 2  # both outcomes are drawn


def test_scale_exponent_refuses_what_has_none():
    for name, amax in [("mxfp4_floor", INF), ("mxfp4_floor", NAN), ("mx4_ceil_e2m1_g32", NAN), ("mxfp4_floor", -1.0)]:
        with pytest.raises(ArgumentError, match="amax: got"):
            scale_exponent(amax, schemes.get(name))
    with pytest.raises(ArgumentError, match="scheme: got nvfp4"):
        scale_exponent(1.0, schemes.get("nvfp4"))
    assert scale_exponent(INF, schemes.get("mx4_ceil_e2m1_g32")) == 125


def test_rceil_codes_use_the_stored_scale():
    # kekzl/imp#250: 6.0 gave code 7, having been scaled by the unrounded scale.
    assert encoded("mxfp4_rceil", 6.1, 6.0) == (128, [5, 5])


def test_mxfp4_marks_a_block_with_nan_or_inf():
    assert encoded("mxfp4_floor", 2.0, NAN, -3.0, 1e30) == (255, [4, 7, 13, 7])
    assert encoded("mxfp4_rceil", -INF, NEGATIVE_NAN, 0.75) == (255, [15, 7, 2])
    assert encoded("mxfp4_floor+nan_signed_max", NEGATIVE_NAN, NAN)[1] == [15, 7]
    assert encoded("mxfp4_floor+nan_negative_zero", NEGATIVE_NAN, NAN)[1] == [8, 8]
    x = np.stack([block("mxfp4_floor", NAN), block("mxfp4_floor", 6.0)])
    assert quantize(x, schemes.get("mxfp4_floor")).scales.tolist() == [[255], [127]]  # other blocks are not touched


def test_mx4_nan_does_not_enter_amax_and_inf_does():
    assert encoded("mx4_floor_e2m1_g32", 6.0, NAN, NEGATIVE_NAN, 3.0) == (127, [7, 7, 15, 5])
    assert encoded("mx4_floor_e2m1_g32", INF, 1.0, -INF, 1.5 * 2.0**127) == (252, [7, 0, 15, 7])
    assert encoded("mx4_ceil_e2m1_g32", NAN, INF, 1.0) == (252, [7, 7, 0])
    # A group of nothing but NaN has amax 0.
    assert encoded("mx4_ceil_e2m1_g8", *[NAN] * 8) == (0, [7] * 8)


def test_mx4_elements_round_ties_away():
    assert encoded("mx4_floor_e2m1_g32", 6.0, 0.25, -1.25, 2.5, 5.0, 5.5, 7.0) == (127, [7, 1, 11, 5, 7, 7, 7])
    # FBGEMM sends E3M0 inputs in [0.125, 0.25) scales to 0.
    assert encoded("mx4_floor_e3m0_g32", 8.0, 0.125, 0.2, 0.12, -12.0) == (127, [6, 1, 1, 0, 15])


def test_mx4_exponent_minus_127_is_exact():
    assert encoded("mx4_floor_e2m1_g32", 2.0**-126, 2.0**-129, 2.0**-130, 2.0**-149) == (0, [4, 1, 0, 0])


@pytest.mark.parametrize("name", ["mx4_floor_e2m1_g32+stochastic", "mxfp4_floor+stochastic"])
@pytest.mark.parametrize("value", [1.0, 2.0, 4.0, 0.1, -0.1, 0.3, 5.5, 6.0])
def test_stochastic_elements_average_to_x(name, value):
    # FBGEMM's stochastic_casting: means 1.25, 2.5, 5 and 0 for 1, 2, 4 and 0.1. TransformerEngine#3281: all zero.
    scheme = schemes.get(name)
    x = np.zeros((256, 32), np.float32)
    x[:, 0], x[:, 1] = 6.0, value
    bits = np.zeros((256, 32), np.uint8)
    bits[:, 1] = np.arange(256)
    codes = quantize(x, scheme, random_bits=bits).codes
    assert set(codes[:, 0].tolist()) == {7}
    values = [Fraction(E2M1.value(code)) for code in codes[:, 1].tolist()]
    mean, exact = abs(sum(values)) / 256, abs(Fraction(float(np.float32(value))))
    neighbours = sorted({abs(v) for v in values})
    assert mean == exact if len(neighbours) == 1 else 0 <= exact - mean < (neighbours[1] - neighbours[0]) / 256


def test_seed_counts_elements_of_the_unpadded_tensor():
    scheme = schemes.get("mx4_ceil_e2m1_g32+stochastic")
    x = np.linspace(-1, 1, 4 * 33, dtype=np.float32).reshape(4, 33)
    seed = -5
    bits = np.array([exact_random.element_byte(seed, i) for i in range(x.size)], np.uint8).reshape(x.shape)
    by_bits, by_seed = quantize(x, scheme, random_bits=bits), quantize(x, scheme, seed=seed)
    assert by_bits.codes.shape == (4, 64)
    assert by_bits.codes.tolist() == by_seed.codes.tolist()
    assert by_bits.codes.tolist() != quantize(x, scheme, seed=-6).codes.tolist()


def test_mx4_pads_rows_and_keeps_empty_shapes():
    # FBGEMM#2827: (3, 33) mixed rows up, an empty tensor crashed.
    scheme = schemes.get("mx4_ceil_e2m1_g32")
    x = np.zeros((3, 33), np.float32)
    x[:, 32] = [4.0, -8.0, 0.0]
    result = quantize(x, scheme)
    assert result.codes.shape == (3, 64)
    assert result.scales.tolist() == [[0, 127], [0, 128], [0, 0]]
    assert result.codes[:, 32].tolist() == [6, 14, 0]
    assert not result.codes[:, 33:].any()
    for shape, codes, scales in [((0, 33), (0, 64), (0, 2)), ((2, 0), (2, 0), (2, 0)), ((0,), (0,), (0,))]:
        empty = quantize(np.zeros(shape, np.float32), scheme)
        assert (empty.codes.shape, empty.scales.shape) == (codes, scales)
        assert dequantize(empty, scheme).shape == codes


def test_mx_decoding():
    # pytorch#125557: exp2 flushed byte 0 to zero. sglang#25519: byte 134 decoded to NaN.
    assert decoded("mxfp4_floor", 0, [2, 1, 7, 8]) == ["00400000", "00200000", "01400000", "80000000"]
    assert decoded("mxfp4_floor", 134, [2, 10]) == ["43000000", "c3000000"]
    assert decoded("mxfp4_floor", 127, range(8)) == [
        # tilelang#2704: codes 0 and 1 gave 0.5 and 0.75
        *("00000000", "3f000000", "3f800000", "3fc00000", "40000000", "40400000", "40800000", "40c00000")
    ]
    assert decoded("mx4_ceil_e3m0_g32", 127, range(8)) == [
        *("00000000", "3e800000", "3f000000", "3f800000", "40000000", "40800000", "41000000", "41800000")
    ]


def test_mx_decoding_of_byte_255():
    # transformers: MXFP4's 0xff decoded to Inf.
    assert decoded("mxfp4_floor", 255, [0, 1, 8, 15]) == [f"{NAN32:08x}"] * 4
    assert decoded("mx4_ceil_e2m1_g32", 255, [0, 1, 8, 15]) == ["7fffffff", "7f800000", "7fffffff", "ff800000"]
    assert decoded("mx4_ceil_e2m1_g32", 254, [1, 2, 4]) == ["7e800000", "7f000000", "7f800000"]


def test_mx_decoding_rounds_once_and_overflows_to_inf():
    assert decoded("mxfp4_floor", 253, [6, 7, 5, 15]) == ["7f800000", "7f800000", "7f400000", "ff800000"]
    assert decoded("mxfp4_floor", 127 + 14, [7, 5], BINARY16) == ["7c00", "7a00"]
    assert decoded("mxfp4_floor", 127 - 24, [1, 3, 2, 9], BINARY16) == ["0000", "0002", "0001", "8000"]  # ties to even
    assert decoded("mxfp4_floor", 0, [1, 7], BFLOAT16) == ["0020", "0140"]
    assert decoded("mxfp4_floor", 0, [1], BINARY64) == ["37f0000000000000"]


@pytest.mark.parametrize("name", ["mxfp4_ceil", "mxfp4_even", "mxfp4_rceil"])
def test_a_block_of_flt_max_decodes_to_inf(name):
    byte, codes = encoded(name, FLT_MAX)
    assert decoded(name, byte, codes) == ["7f800000"]


@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_another_element_format_is_one_literal(fmt):
    scheme = dataclasses.replace(schemes.get("mxfp4_floor"), name="mxfp8", element=fmt)
    x = np.zeros(32, np.float32)
    x[:3] = 448.0, -1.0, NAN
    assert quantize(x[:2].repeat(16), scheme).scales.tolist() == [127 + 8 - fmt.emax]
    marked = quantize(x, scheme)
    assert marked.codes[2] == 0x7F
    assert dequantize(marked, scheme).tolist()[0] == NAN32
    plain = Encoded(marked.codes, np.array([127], np.uint8))
    assert dequantize(plain, scheme).tolist()[:3] == [0x43E00000, 0xBF800000, NAN32]
