"""Where the rtn_xxfp4 path has answers of its own: its casts, zeros, NaN, Inf, and an identity with another recipe.

Everything runs on the CPU, and on the GPU too where there is one: the bits must be the same.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit.formats import E2M1, E4M3
from lowbit.references import exact
from lowbit.references.rtn import dequant_xxfp4, rtn_xxfp4
from lowbit.references.rtn_casts import cast
from lowbit.rules import Rounding

from .rtn_checks import DEVICES, FORMATS, HALVES, bits, codes_of, scale_bytes


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def test_e8m0_cast(device):
    least, half = 2.0**-127, 2.0**-126
    rows = [
        (0.0, 0),
        (2.0**-149, 0),
        (least, 0),
        (least + 2.0**-149, 1),
        (1.5 * least, 1),
        (half, 1),
        (1.5 * half - 2.0**-149, 1),
        (1.5 * half, 2),
        (1.0, 127),
        (math.nextafter(1.5, 0), 128),  # binary64 passes through binary32, where it is 1.5
        (1.5 - 2.0**-24, 128),
        (1.5 - 2.0**-23, 127),
        (1.5, 128),
        (3.0, 129),
        (2.0**127, 254),
        (1e300, 254),
        (math.inf, 254),
        (math.nan, 255),
    ]
    x = torch.tensor([[amax, 0.0] for amax, _ in rows], dtype=torch.float64, device=device)
    result = rtn_xxfp4(x, scale_dtype=torch.float8_e8m0fnu, scale_scale=1.0)
    assert scale_bytes(result) == [byte for _, byte in rows]


def test_e8m0_cast_of_binary32_data():
    rows = [(1.5, 128), (math.nextafter(1.5, 0), 127), (1.0, 127)]
    x = torch.tensor([[float(np.float32(amax)), 0.0] for amax, _ in rows])
    x[1, 0] = torch.tensor(0x3FBFFFFF, dtype=torch.int32).view(torch.float32)  # 1.5 less one ulp
    assert scale_bytes(rtn_xxfp4(x, scale_dtype=torch.float8_e8m0fnu, scale_scale=1.0)) == [b for _, b in rows]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_e4m3_cast_of_every_two_byte_value(dtype, device):
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
    table = torch.tensor([float(E4M3.value(code)) for code in range(256)], dtype=torch.float64)
    scale = rtn_xxfp4(torch.stack([x, x], dim=-1), scale_dtype=torch.float8_e4m3fn, scale_scale=1.0)["scale_quant"]
    codes = scale.view(torch.uint8).flatten().cpu()
    magnitudes = x.cpu().to(torch.float64).abs()
    # the nearest of the 127 values, ties to the even code; NaN is 0x7F whatever its sign
    distance = (magnitudes.clamp(max=448).unsqueeze(-1) - table[:127]).abs()
    nearest = distance.argmin(dim=-1)
    tie = distance.gather(1, nearest[:, None])[:, 0] == distance.gather(1, (nearest + 1).clamp(max=126)[:, None])[:, 0]
    expected = torch.where(tie & (nearest % 2 == 1), nearest + 1, nearest)
    expected = torch.where(torch.isnan(magnitudes), 0x7F, expected)
    assert torch.equal(codes, expected.to(torch.uint8))


def test_casts_from_binary64_pass_through_binary32():
    # 1.0625 is the midpoint of E4M3's 1 and 1.125; a little more goes up, unless binary32 has made it a tie
    x = torch.tensor([[1.0625 + 2.0**-40, 0.0]], dtype=torch.float64)
    assert scale_bytes(rtn_xxfp4(x, scale_dtype=torch.float8_e4m3fn, scale_scale=1.0)) == [0x38]
    x = torch.tensor([[1.0625 + 2.0**-20, 0.0]], dtype=torch.float64)
    assert scale_bytes(rtn_xxfp4(x, scale_dtype=torch.float8_e4m3fn, scale_scale=1.0)) == [0x39]
    for dtype, tie in ((torch.bfloat16, 1 + 2.0**-8), (torch.float16, 1 + 2.0**-11)):
        x = torch.tensor([[tie + 2.0**-40, 0.0]], dtype=torch.float64)
        assert rtn_xxfp4(x, scale_dtype=dtype, scale_scale=1.0)["scale_quant"].tolist() == [[1.0]]


def test_e8m0_values(device):
    codes = torch.arange(256, dtype=torch.uint8, device=device).view(torch.float8_e8m0fnu)
    values = dequant_xxfp4(torch.full((256, 1), 0x22, dtype=torch.uint8, device=device), codes.unsqueeze(-1))[:, 0]
    expected = torch.tensor([*(2.0 ** (byte - 127) for byte in range(255)), math.nan], dtype=torch.float64)
    assert torch.equal(bits(values), bits(expected))  # byte 0 is 2^-127 (pytorch#125557), 255 is NaN


@pytest.mark.parametrize(
    "scale_dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
)
def test_all_zero_group(scale_dtype, device):
    x = torch.tensor([[0.0, -0.0]], dtype=torch.float64, device=device)
    result = rtn_xxfp4(x, scale_dtype=scale_dtype)
    assert cast(result["scale_quant"], torch.float64).tolist() == [[0.0]]
    assert codes_of(result["e2m1"]) == [7, 7]  # 0/0
    assert bits(result["fake_quant"]).tolist() == [[0, 0]]  # +6 * 0


def test_a_scale_that_rounds_to_zero(device):
    x = torch.tensor([[1e-4, -1e-4, 0.0, -0.0]], device=device)  # a sixth of it is below half of 2^-9
    result = rtn_xxfp4(x, scale_dtype=torch.float8_e4m3fn)
    assert scale_bytes(result) == [0]
    assert codes_of(result["e2m1"]) == [7, 15, 7, 7]
    assert torch.equal(bits(result["fake_quant"]), bits(torch.tensor([[0.0, -0.0, 0.0, 0.0]])))


def test_an_e8m0_scale_is_never_zero():
    x = torch.tensor([[0.0, -0.0]])
    result = rtn_xxfp4(x, scale_dtype=torch.float8_e8m0fnu)
    assert scale_bytes(result) == [0]
    assert codes_of(result["e2m1"]) == [0, 8]


@pytest.mark.parametrize("scale_dtype", FORMATS, ids=str)
def test_nan_in_a_group(scale_dtype, device):
    x = torch.tensor([[math.nan, 1.0, -1.0, 0.0], [1.0, 2.0, 3.0, 6.0]], dtype=torch.float64, device=device)
    x[0, 0] = torch.tensor(-0x8000000000000, dtype=torch.int64).view(torch.float64)  # a NaN with the sign bit
    result = rtn_xxfp4(x, scale_dtype=scale_dtype)
    scale = result["scale_quant"]
    assert torch.isnan(cast(scale, torch.float64)).tolist() == [[True], [False]]
    if scale_dtype.itemsize == 1:
        assert scale_bytes(result)[0] == FORMATS[scale_dtype].nan_magnitude
    assert codes_of(result["e2m1"])[:4] == [7, 7, 7, 7]
    assert torch.isnan(result["fake_quant"]).tolist() == [[True] * 4, [False] * 4]
    assert result["fake_quant"][1].tolist() == [1.0, 2.0, 3.0, 6.0]


@pytest.mark.parametrize("scale_dtype", FORMATS, ids=str)
def test_inf_in_a_group(scale_dtype, device):
    x = torch.tensor([[math.inf, -math.inf, 1.0, 0.0]], dtype=torch.float64, device=device)
    result = rtn_xxfp4(x, scale_dtype=scale_dtype)
    assert cast(result["scale_quant"], torch.float64).tolist() == [[torch.finfo(scale_dtype).max]]
    assert codes_of(result["e2m1"]) == [7, 15, 0, 0]


def test_three_quarters_identity(device):
    rng = np.random.default_rng(11)
    x = rng.standard_normal((512, 32)).astype(np.float32) * np.exp2(rng.integers(-100, 100, (512, 1))).astype(
        np.float32
    )
    grid = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 7.5]
    x[:16, :16] = np.array(grid, dtype=np.float32)
    x[:16, 16:] = -np.array(grid, dtype=np.float32)
    x[:16] *= np.exp2(np.arange(-8, 8, dtype=np.float32))[:, None]
    x[16:20] = np.float32(2.0**-125) * rng.integers(-4, 5, (4, 32)) / 4  # at and above the least amax
    x[16:20, 0] = np.float32(2.0**-125)
    x[20], x[21] = 0.0, -0.0
    result = rtn_xxfp4(
        torch.from_numpy(x).to(device),
        32,
        torch.float8_e8m0fnu,
        4.0,
        1 / 3,
        "zero",
        high_dtype=torch.float64,
    )
    amax = np.abs(x.astype(np.float64)).max(axis=1)
    exponent = np.where(amax == 0, -127, np.frexp(np.where(amax == 0, 1, amax))[1] - 3)  # floor(log2 amax) - 2
    scaled = x * np.exp2(-exponent[:, None].astype(np.float64)) * 0.75  # exact: 26 bits
    codes = [exact.encode(value, E2M1, Rounding.TIES_TOWARD_ZERO) for value in scaled.flatten().tolist()]
    values = np.array([float(E2M1.value(code)) for code in codes]).reshape(x.shape)
    recipe = (values * np.exp2(exponent[:, None].astype(np.float64)) * (4 / 3)).astype(np.float32)
    assert codes_of(result["e2m1"]) == codes
    assert torch.equal(bits(result["fake_quant"]), bits(torch.from_numpy(recipe)))
    nonzero = amax > 0
    assert (np.array(scale_bytes(result))[nonzero] == exponent[nonzero] + 127 + 2).all()
