"""The exact reference's NVFP4 schemes: the outcomes that SPEC.md 3.3 states, and real bugs with their right values.

Cases named after a repository and a number are public reports of a wrong result.
"""

import math

import gmpy2
import ml_dtypes
import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E2M1
from lowbit.references.exact import dequantize, encode, quantize
from lowbit.rules import Rounding
from lowbit.schemes import Encoded

FLT_MAX = float(np.finfo(np.float32).max)
NAN, INF = math.nan, math.inf
NEGATIVE_NAN = math.copysign(math.nan, -1.0)


def block(scheme_name, *values):
    """One block that begins with these values and goes on with zeros."""
    scheme = schemes.get(scheme_name)
    return np.array([*values, *[0.0] * (scheme.block - len(values))], np.float32)


def encoded(scheme_name, *values, **options):
    """Scale byte and first codes of one block."""
    result = quantize(block(scheme_name, *values), schemes.get(scheme_name), **options)
    return int(result.scales[0]), result.codes[: len(values)].tolist()


def decoded(scheme_name, scale, codes, fmt=BINARY32, tensor_scale=None):
    scheme = schemes.get(scheme_name)
    full = np.array([*codes, *[0] * (scheme.block - len(codes))], np.uint8)
    result = dequantize(Encoded(full, np.array([scale], np.uint8), tensor_scale), scheme, fmt)
    return [f"{p:0{fmt.bits // 4}x}" for p in result[: len(codes)].tolist()]


def g_of(name, *values):
    return quantize(block(name, *values), schemes.get(name)).tensor_scale


def test_nvfp4_tensor_scale_is_one_rounding_of_the_finite_amax():
    assert g_of("nvfp4", 6.0, -INF, NAN) == np.float32(448)
    assert g_of("nvfp4", -7.0) == np.float32(384)
    assert g_of("nvfp4", 0.0, -0.0) == 1  # compressed-tensors#595: Inf
    assert g_of("nvfp4", INF, NAN) == 1
    assert g_of("nvfp4", 1e-45) == np.float32(FLT_MAX)  # 2688 / a is beyond binary32
    assert g_of("nvfp4", FLT_MAX).view(np.uint32) == 0x05280001  # 2688 * 2**-128 * (1 + 2**-24): up
    with gmpy2.context(precision=24):
        assert float(g_of("nvfp4", 0.7)) == float(gmpy2.mpfr(2688) / gmpy2.mpfr(float(np.float32(0.7))))


def test_two_level_tensor_scale_is_two_roundings():
    # RN32(1/7) * 2688 is not 384 but one ulp above.
    assert g_of("nvfp4_two_level", 7.0).view(np.uint32) == 0x43C00001
    assert g_of("nvfp4", 7.0).view(np.uint32) == 0x43C00000
    floor = np.float32(1e-12)
    assert g_of("nvfp4_two_level", 0.0) == (np.float32(1) / floor) * np.float32(2688)
    assert g_of("nvfp4_two_level", 1e-45) == g_of("nvfp4_two_level", 0.0)
    assert g_of("nvfp4_one_level", 1e30) == 1


def two_blocks(name, first, second, **options):
    x = np.stack([block(name, *first), block(name, *second)])
    result = quantize(x, schemes.get(name), **options)
    return result.tensor_scale, result.scales.ravel().tolist(), result.codes.tolist()


def test_two_level_one_nan_spoils_the_tensor():
    g, scales, codes = two_blocks("nvfp4_two_level", [1.0, NAN, -0.0], [2.0, -3.0])
    assert math.isnan(g)
    assert scales == [0x7F, 0x7F]
    assert codes == [[7] * 16] * 2


def test_two_level_inf_makes_g_zero():
    g, scales, codes = two_blocks("nvfp4_two_level", [1.0, -INF, -2.0, INF], [2.0, -3.0])
    assert g == 0
    assert scales == [0x7F, 0x00]
    assert codes[0] == [0, 7, 8, 7, *[0] * 12]
    assert codes[1] == [0, 8, *[0] * 14]
    # and decodes as IEEE says: 0/0 and NaN/0
    assert decoded("nvfp4_two_level", 0x7F, [0, 7], tensor_scale=g) == ["7fffffff"] * 2
    assert decoded("nvfp4_two_level", 0x38, [0, 2, 9], tensor_scale=g) == ["7fffffff", "7f800000", "ff800000"]


def test_one_level_keeps_nan_and_inf_in_their_blocks():
    g, scales, codes = two_blocks("nvfp4_one_level", [2.0**-9, NAN, -0.01], [448.0 * 6, -INF, 448.0 * 6])
    assert g == 1
    assert scales == [0x7F, 0x7E]
    assert codes[0][:3] == [2, 7, 15]  # divided by 2**-9
    assert codes[1][:3] == [7, 15, 7]


def test_two_level_stores_an_underflowed_scale_as_zero():
    # MSLK#486: x * Inf. Here the codes are finite, and the block decodes to zeros.
    g, scales, codes = two_blocks("nvfp4_two_level", [6.0], [1e-6, -1e-6, 0.0, -0.0])
    assert scales == [0x7E, 0x00]
    y = float(np.float32(1e-6) * g)
    assert y / 6 < 2**-10  # half the least E4M3 value
    assert codes[1][:4] == [encode(y / 2**-9, E2M1, Rounding.TIES_TOWARD_ZERO), 8, 0, 8]
    assert decoded("nvfp4_two_level", 0, [0, 7, 8, 15], tensor_scale=g) == [
        "00000000",
        "00000000",
        "80000000",
        "80000000",
    ]


def test_nvfp4_zero_blocks_and_tiny_blocks_stay_finite():
    # FBGEMM: codes 0x77 from 0/0. Model-Optimizer#1397: scale byte 0x7f.
    _, scales, codes = two_blocks("nvfp4", [6.0, -0.0], [0.0, -0.0])
    assert scales == [0x7E, 0]
    assert codes == [[7, 8, *[0] * 14], [0, 8, *[0] * 14]]
    _, scales, codes = two_blocks("nvfp4", [6.0], [1e-6, -1e-6])
    assert scales == [0x7E, 0x01]  # b is clamped to 2**-9
    assert codes[1][:2] == [0, 8]
    # Zero is decided on y: 1e-45 * g underflows.
    _, scales, _ = two_blocks("nvfp4", [1e30], [1e-15, 1e-45])
    assert scales == [0x7E, 1]
    _, scales, codes = two_blocks("nvfp4", [1e30], [-1e-20], tensor_scale=np.float32(1e-30))
    assert scales == [0x23, 0]  # 1/6
    assert codes[1][0] == 8


def test_nvfp4_marks_a_block_with_nan_or_inf():
    g, scales, codes = two_blocks("nvfp4", [0.0022, NAN, NEGATIVE_NAN, -INF, -0.0], [6.0, 3.0])
    assert g == 448
    assert scales == [0x7F, 0x7E]
    assert codes[0][:5] == [2, 7, 7, 15, 8]  # y = 0.9856 encoded as if s were 1
    assert codes[1][:2] == [7, 5]


def test_nvfp4_y_that_overflows_saturates():
    _, scales, codes = two_blocks("nvfp4", [1e30, -1e30, 1.0], [1.0, 0.5], tensor_scale=np.float32(1e10))
    assert scales == [0x7E, 0x7E]
    assert codes[0][:3] == [7, 15, 7]


WITNESSES = [
    # scheme, tensor amax, block amax, scale byte (SPEC.md section 6)
    ("nvfp4", 6.0, 4.5, 0x7A),  # exactly half way: to even
    ("nvfp4", 7.0, 5.75, 0x7C),
    ("nvfp4", 7.0, 6.25, 0x7C),
    ("nvfp4_two_level", 7.0, 6.25, 0x7D),  # through its g
]


@pytest.mark.parametrize(("name", "tensor_amax", "block_amax", "byte"), WITNESSES)
def test_nvfp4_scale_witnesses(name, tensor_amax, block_amax, byte):
    assert two_blocks(name, [tensor_amax], [-block_amax])[1][1] == byte


NIBBLES = [
    # g, block amax that gives the scale, scale byte, x, code
    (448.0, 6 * 128 / 448, 0x70, 1.0, 6),  # 3.5 to even; reciprocal forms give 5
    (512.0, 6 * 240 / 512, 0x77, 2.34375, 6),  # 5.0 to even; reciprocal forms give 7
    (1.0, 6 * 0.9375, 0x37, 4.6875, 6),  # triton#10661: 4.6875 / 0.9375 came out as 5.0000005, and 7
    (1.0, 6 * 1.875, 0x3F, 4.6875, 4),  # 2.5; x * (1/s) is 2.5000002, and 5
]


@pytest.mark.parametrize(("g", "amax", "byte", "x", "code"), NIBBLES)
def test_nvfp4_divides_with_one_rounding(g, amax, byte, x, code):
    assert encoded("nvfp4", amax, x, tensor_scale=np.float32(g)) == (byte, [7, code])


def test_two_level_cuda_multiplies_by_a_sixth():
    def e4m3(value):
        return int(np.float32(value).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))

    # Just below six times a midpoint of E4M3 that goes up, the product with RN32(1/6) reaches the midpoint.
    six, sixth = np.float32(6), np.float32(1) / np.float32(6)
    amax = np.nextafter(np.float32(9.5 * 6), np.float32(0))
    expected = [e4m3(amax / six), e4m3(amax * sixth)]
    assert expected == [0x51, 0x52]  # 9 and 10
    names = "nvfp4_two_level", "nvfp4_two_level_cuda"
    assert [encoded(name, amax, tensor_scale=np.float32(1))[0] for name in names] == expected


def test_nvfp4_element_rules():
    x = [6 * 1.0, 0.25, -0.25, 5.0, -5.0]
    codes = {
        "nvfp4": [7, 0, 8, 6, 14],
        "nvfp4_two_level": [7, 0, 8, 6, 14],
        "nvfp4+ties_away": [7, 1, 9, 7, 15],
        "nvfp4+ties_down": [7, 0, 9, 6, 15],
        "nvfp4+ties_up": [7, 1, 8, 7, 14],
        "nvfp4+toward_positive": [7, 1, 8, 7, 14],
    }
    for name, expected in codes.items():
        assert encoded(name, *x, tensor_scale=np.float32(1)) == (0x38, expected), name
    assert encoded("nvfp4", 6.0, 0.75, 1.75, tensor_scale=np.float32(1))[1] == [7, 2, 4]
    assert encoded("nvfp4_two_level", 6.0, 0.75, 1.75, tensor_scale=np.float32(1))[1] == [7, 1, 3]


def torch_nvfp4(x, scheme):
    """SPEC.md 3.3 in binary32 tensor arithmetic on the CPU, which divides; x finite, one block a row."""
    six, span = torch.tensor(6.0), torch.tensor(2688.0)
    if scheme.name == "nvfp4":
        g = torch.minimum(span / x.abs().max(), torch.tensor(FLT_MAX))
    elif scheme.name == "nvfp4_one_level":
        g = torch.tensor(1.0)
    else:
        g = torch.clamp(x.abs().max(), min=1e-12).reciprocal() * span
    y = x * g
    amax = y.abs().amax(-1, keepdim=True)
    b = amax * (torch.tensor(1.0) / six) if scheme.name.endswith("cuda") else amax / six
    floor = 2.0**-9 if scheme.name == "nvfp4" else 1e-12
    s = torch.clamp(b, min=floor, max=448.0).to(torch.float8_e4m3fn)
    if scheme.name == "nvfp4":
        s = torch.where((y == 0).all(-1, keepdim=True), torch.zeros(()), s.float()).to(torch.float8_e4m3fn)
    wide = s.float()
    e = torch.clamp(y / torch.where(wide > 0, wide, torch.tensor(2.0**-9)), -6, 6)
    return g, s.view(torch.uint8).ravel(), e


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_two_level", "nvfp4_one_level", "nvfp4_two_level_cuda"])
def test_nvfp4_agrees_with_the_formulas_in_torch(name):
    scheme = schemes.get(name)
    generator = torch.Generator().manual_seed(11)
    for spread in (0, 8, 30):
        x = torch.randn(12, 16, generator=generator) * torch.exp2(torch.randn(12, 1, generator=generator) * spread)
        x = x.to(torch.bfloat16).float() if spread == 8 else x
        x = torch.where(torch.isfinite(x), x, torch.zeros(()))
        g, scales, e = torch_nvfp4(x, scheme)
        result = quantize(x.numpy(), scheme)
        assert result.tensor_scale == g.item()
        assert result.scales.ravel().tolist() == scales.tolist()
        expected = [encode(v, E2M1, scheme.rounding) for v in e.ravel().tolist()]
        assert result.codes.ravel().tolist() == expected


def test_nvfp4_decoding():
    one = np.float32(1)
    # negative scale bytes are negative E4M3, 0x7f and 0xff NaN
    assert decoded("nvfp4", 0x38, [2, 15, 8], tensor_scale=one) == ["3f800000", "c0c00000", "80000000"]
    assert decoded("nvfp4", 0xB8, [2, 15, 8], tensor_scale=one) == ["bf800000", "40c00000", "00000000"]
    assert decoded("nvfp4", 0x7F, [0, 2], tensor_scale=one) == ["7fffffff"] * 2
    assert decoded("nvfp4", 0xFF, [0, 2]) == ["7fffffff"] * 2
    assert decoded("nvfp4", 0x38, [2]) == ["3f800000"]  # no g, no division
    assert decoded("nvfp4", 0x38, [2], tensor_scale=np.array([3.0], np.float32)) == ["3eaaaaab"]
    assert decoded("nvfp4", 0x38, [5], tensor_scale=np.float32(7)) == ["3edb6db7"]  # 3/7; 3 * RN32(1/7) ends in b8
    assert decoded("nvfp4", 0x38, [2], tensor_scale=np.float32(NAN)) == ["7fffffff"]
    assert decoded("nvfp4", 0x7E, [7], tensor_scale=np.float32(1e-38)) == ["7f800000"]
    # RN16(RN32(1/g)) is not RN16(1/g): binary32 rounds a quotient just above a tie of binary16 onto it.
    ties = [1 + (2 * k + 1) * 2.0**-11 for k in range(0, 100, 2)]
    g = next(g for t in ties if np.float32(1) / (g := np.float32(1 / t)) == t and 1 / float(g) > t)
    direct, through = np.float16(1 / float(g)), np.float16(np.float32(1) / g)
    assert through != direct
    assert decoded("nvfp4", 0x38, [2], BINARY16, tensor_scale=g) == [f"{through.view(np.uint16):04x}"]
    assert decoded("nvfp4", 0x01, [1], BFLOAT16, tensor_scale=np.float32(2.0**120)) == ["0008"]
