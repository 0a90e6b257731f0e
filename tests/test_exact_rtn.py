"""The exact reference's rtn_xxfp4 schemes (SPEC.md 3.4), judged by the same formulas in PyTorch on the CPU."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, BINARY64, E2M1
from lowbit.references import exact_rtn
from lowbit.references.exact import dequantize, encode, pattern_float, quantize
from lowbit.rules import Rounding
from lowbit.schemes import Encoded

FLT_MAX = float(np.finfo(np.float32).max)
NAN, INF = math.nan, math.inf


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


def rtn_by_torch(x, scheme):
    """SPEC.md 3.4 as PyTorch computes it on the CPU: codes by distance, scale bytes, decoded values."""
    high = torch.float64 if scheme.high is BINARY64 else torch.float32
    scale_dtype = {"e8m0": torch.float8_e8m0fnu, "e4m3": torch.float8_e4m3fn}[scheme.scale.name]
    wide, info = x.to(high), torch.finfo(scale_dtype)
    gs = float(scheme.global_scale)
    scale = wide.abs().amax(-1, keepdim=True) / torch.tensor(float(scheme.scale_scale) * gs, dtype=high)
    stored = torch.clamp(scale, info.min, info.max).to(scale_dtype)
    unit = stored.to(high) * gs
    return wide / unit, stored.view(torch.uint8).ravel().tolist(), unit


@pytest.mark.parametrize("name", [name for name in schemes.names() if name.startswith("rtn")])
def test_rtn_agrees_with_torch(name):
    scheme = schemes.get(name)
    generator = torch.Generator().manual_seed(3)
    special = torch.zeros(6, scheme.block)
    special[1, :3] = torch.tensor([1.0, NAN, -2.0])
    special[2, :4] = torch.tensor([1.0, INF, -INF, -0.0])
    special[3, :3] = torch.tensor([1e-45, -1e-38, 0.0])
    special[4, :5] = torch.tensor([6.0, 0.25, -0.25, 5.0, -5.0])
    special[5, :2] = torch.tensor([FLT_MAX, -1.0])
    random = torch.randn(6, scheme.block, generator=generator) * torch.exp2(torch.arange(6)[:, None] * 9.0 - 30)
    x = torch.cat([special, random])
    elements, scales, unit = rtn_by_torch(x, scheme)
    result = quantize(x.numpy(), scheme)
    assert result.scales.ravel().tolist() == scales
    expected = [encode(v, E2M1, scheme.rounding, scheme.nan) for v in elements.ravel().tolist()]
    assert result.codes.ravel().tolist() == expected
    assert result.tensor_scale == np.float32(float(scheme.global_scale))
    grid = torch.tensor([float(E2M1.value(code)) for code in range(16)], dtype=unit.dtype)
    values = grid[torch.from_numpy(result.codes).long()] * unit
    with np.errstate(all="ignore"):
        assert_same_bits(dequantize(result, scheme), values.to(torch.float32).view(torch.int32), BINARY32)
        assert_same_bits(dequantize(result, scheme, BFLOAT16), values.to(torch.bfloat16).view(torch.int16), BFLOAT16)
        assert_same_bits(dequantize(result, scheme, BINARY16), values.to(torch.float16).view(torch.int16), BINARY16)


def assert_same_bits(actual, expected, fmt):
    mask = (1 << fmt.bits) - 1
    for a, e in zip(actual.ravel().tolist(), expected.ravel().tolist(), strict=True):
        assert a == e & mask or (fmt.is_nan(a) and fmt.is_nan(e & mask))


def test_rtn_dialect_of_zero_scales_nan_and_inf():
    assert encoded("rtn_nvfp4", 0.0, -0.0) == (0, [7, 7])  # 0/0
    assert encoded("rtn_nvfp4", 1e-4, -1e-4, 0.0) == (0, [7, 15, 7])  # a scale that rounds to 0
    assert decoded("rtn_nvfp4", 0, [7, 15]) == ["00000000", "80000000"]
    assert encoded("rtn_mxfp4", 0.0, -0.0) == (0, [0, 8])  # clamped to 2**-127: no zero there
    assert encoded("rtn_mxfp4", NAN, 1.0, -1.0) == (255, [7, 7, 7])
    assert encoded("rtn_nvfp4", 1.0, NAN, -1.0) == (0x7F, [7, 7, 7])
    assert encoded("rtn_mxfp4", INF, -INF, 1.0, -0.0) == (254, [7, 15, 0, 8])
    assert encoded("rtn_nvfp4", INF, 448.0 * 5) == (0x7E, [7, 6])


def test_rtn_cast_to_e8m0():
    def byte(value):
        return exact_rtn._cast(int(np.float32(value).view(np.uint32)), BINARY32, schemes.get("rtn_mxfp4").scale)

    below = float(np.nextafter(np.float32(1.5), np.float32(0)))
    assert [byte(v) for v in (1.0, below, 1.5, 1.9999999, 2.0, 3.0)] == [127, 127, 128, 128, 128, 129]
    assert [byte(v) for v in (2.0**-149, 2.0**-127, 2.0**-127 + 2.0**-149, 2.0**-126)] == [0, 0, 1, 1]
    assert [byte(v) for v in (NAN, 2.0**127)] == [255, 254]
    # from binary64 through binary32: 1.5 - 2**-30 becomes 1.5 first
    bits = int(np.float64(1.5 - 2.0**-30).view(np.uint64))
    assert exact_rtn._cast(bits, BINARY64, schemes.get("rtn_mxfp4").scale) == 128


def test_three_quarters_identity():
    # arXiv 2502.20586: E = floor(log2 amax) - 2, x * 3/4 rounded ties toward zero; scale bytes are 2 higher.
    scheme = schemes.get("rtn_mxfp4_three_quarters")
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((12, 32)) * 2.0 ** rng.integers(-100, 100, (12, 1))).astype(np.float32)
    x[0], x[1] = 0.0, np.linspace(-8, 8, 32)
    x[2, 0], x[2, 1:] = 2.0**-125, 0.75 * 2.0**-125
    result = quantize(x, scheme)
    values = dequantize(result, scheme)
    for row in range(len(x)):
        amax = float(abs(x[row]).max())
        exponent = math.frexp(amax)[1] - 3 if amax else -127
        if amax:
            assert result.scales[row, 0] == exponent + 2 + 127
        for k, v in enumerate(x[row].tolist()):
            scaled = Fraction(v) * Fraction(3, 4) / Fraction(2) ** exponent
            code = encode(math.copysign(float(scaled), v), E2M1, Rounding.TIES_TOWARD_ZERO)
            assert result.codes[row, k] == code
            back = Fraction(E2M1.value(code)) * Fraction(2) ** exponent * Fraction(4, 3)
            assert pattern_float(int(values[row, k])) == float(np.float32(float(back)))


def test_rtn_casts_of_binary64_pass_through_binary32():
    scheme = schemes.get("rtn_mxfp4_three_quarters")
    scales = np.arange(110, 142, dtype=np.uint8)
    codes = np.tile(np.arange(32, dtype=np.uint8) % 16, (32, 1))
    unit = torch.from_numpy(scales).view(torch.float8_e8m0fnu).to(torch.float64)[:, None] * float(scheme.global_scale)
    grid = torch.tensor([float(E2M1.value(code)) for code in range(16)], dtype=torch.float64)
    expected = (grid[torch.from_numpy(codes).long()] * unit).to(torch.float16).view(torch.int16)
    assert_same_bits(dequantize(Encoded(codes, scales[:, None]), scheme, BINARY16), expected, BINARY16)
