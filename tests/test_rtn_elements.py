"""rtn_e2m1 and unpack_e2m1, sentence by sentence of SPEC.md 3.4, and what all functions of the path refuse.

Everything runs on the CPU, and on the GPU too where there is one: the bits must be the same.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import E2M1
from lowbit.references import exact
from lowbit.references.rtn import MODES, dequant_xxfp4, rtn_e2m1, rtn_xxfp4, unpack_e2m1
from lowbit.rules import NanCode

from .rtn_checks import DATA, DEVICES, HALVES, RULES, bits, codes_of


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def ladder_codes(values: np.ndarray, mode: str) -> np.ndarray:
    """The code of every float32 by the exact breakpoints; NaN is 7."""
    patterns = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    codes = np.full(patterns.shape, 7, dtype=np.uint8)
    for negative in (False, True):
        firsts, steps = (
            np.array(column) for column in zip(*exact.breakpoints(E2M1, RULES[mode], negative), strict=True)
        )
        chosen = ((patterns >> 31) == negative) & ~np.isnan(values)
        codes[chosen] = steps[np.searchsorted(firsts, patterns[chosen].astype(np.int64), side="right") - 1]
    return codes


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES)
def test_all_values_of_two_byte_dtypes(dtype, mode, device):
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
    expected = ladder_codes(x.cpu().to(torch.float32).numpy(), mode)
    values, packed = rtn_e2m1(x, mode, return_packed=True)
    assert codes_of(packed) == expected.tolist()
    grid = torch.tensor([float(E2M1.value(code)) for code in range(16)], dtype=dtype)
    assert values.dtype == dtype
    assert torch.equal(bits(values), bits(grid[torch.from_numpy(expected).long()]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_and_their_neighbours(dtype, mode, device):
    # Two ulps of binary64 around a midpoint are within half an ulp of binary32: nothing may be narrowed first.
    kind = np.float32 if dtype == torch.float32 else np.float64
    points = [0.0, np.finfo(kind).smallest_subnormal, np.finfo(kind).max, math.inf]
    grid = [float(v) for v in E2M1.magnitudes]
    for point in (*grid[1:], *((a + b) / 2 for a, b in itertools.pairwise(grid))):
        points += [np.nextafter(kind(point), kind(0)), point, np.nextafter(kind(point), kind(9))]
    x = torch.tensor([sign * float(p) for p in points for sign in (1.0, -1.0)], dtype=dtype, device=device)
    expected = [exact.encode(v, E2M1, RULES[mode], NanCode.POSITIVE_MAX) for v in x.tolist()]
    assert codes_of(rtn_e2m1(x, mode, return_packed=True)[1]) == expected


def test_modes_at_midpoints_written_out(device):
    # 0.25 0.75 1.25 1.75 2.5 3.5 5, then the same negative: up to even codes, toward zero, toward -Inf, toward +Inf
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    x = torch.tensor([*middles, *(-m for m in middles)], device=device)
    want = {
        "even": [0, 2, 2, 4, 4, 6, 6, 8, 10, 10, 12, 12, 14, 14],
        "zero": [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14],
        "down": [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15],
        "up": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    }
    for mode in MODES:
        assert codes_of(rtn_e2m1(x, mode, return_packed=True)[1]) == want[mode], mode


def test_specials(device):
    nan = torch.tensor([0x7FC00000, -0x400000], dtype=torch.int32).view(torch.float32)
    x = torch.cat([torch.tensor([0.0, -0.0, math.inf, -math.inf, 1e-40, -1e-40]), nan]).to(device)
    values, packed = rtn_e2m1(x, return_packed=True)
    assert codes_of(packed) == [0, 8, 7, 15, 0, 8, 7, 7]
    assert torch.equal(bits(values), bits(torch.tensor([0.0, -0.0, 6.0, -6.0, 0.0, -0.0, 6.0, 6.0])))


def test_rounding_once_from_binary32():
    # compressed-tensors#822, #824: both are ties or below only after a rounding to bfloat16
    x = torch.tensor([2.500004, 5.015625])
    assert codes_of(rtn_e2m1(x, return_packed=True)[1]) == [5, 7]
    assert codes_of(rtn_e2m1(x, return_packed=True, high_dtype=torch.bfloat16)[1]) == [4, 6]


def test_packing(device):
    x = torch.tensor([[1.0, 2.0], [-0.5, 6.0]], device=device)
    values, packed = rtn_e2m1(x, return_packed=True)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == [[0x42], [0x79]]  # element 0 in the low nibble
    assert torch.equal(values, x)
    values, packed = rtn_e2m1(x)
    assert packed.shape == (0,)
    assert packed.dtype == torch.uint8


def test_an_odd_last_dimension_raises_when_packing():
    x = torch.zeros(2, 3)
    assert rtn_e2m1(x)[0].shape == (2, 3)
    with pytest.raises(ShapeError, match=r"\(2, 3\).*even last dimension"):
        rtn_e2m1(x, return_packed=True)
    with pytest.raises(ShapeError, match="even last dimension"):
        rtn_xxfp4(x, scale_dtype=torch.float32)


@pytest.mark.parametrize("dtype", DATA)
def test_unpack(dtype, device):
    packed = torch.arange(256, dtype=torch.uint8, device=device).reshape(4, 64)
    expected = [float(E2M1.value(nibble)) for byte in range(256) for nibble in (byte & 15, byte >> 4)]
    expected_bits = bits(torch.tensor(expected, dtype=dtype).reshape(4, 128))
    assert torch.equal(bits(unpack_e2m1(packed, dtype)), expected_bits)
    assert torch.equal(bits(unpack_e2m1(packed.view(torch.float4_e2m1fn_x2), dtype)), expected_bits)


def test_unpack_defaults_to_float64():
    assert unpack_e2m1(torch.tensor([0x42], dtype=torch.uint8)).dtype == torch.float64


def test_refusals():
    with pytest.raises(ArgumentError, match="mode: got 'away'"):
        rtn_e2m1(torch.zeros(2), "away")
    with pytest.raises(DtypeError, match=r"x: got torch\.int32"):
        rtn_e2m1(torch.zeros(2, dtype=torch.int32))
    with pytest.raises(DtypeError, match="x_packed: got"):
        unpack_e2m1(torch.zeros(2))
    with pytest.raises(DtypeError, match="scale_dtype: got"):
        rtn_xxfp4(torch.zeros(2), scale_dtype=torch.int32)
    with pytest.raises(ShapeError, match="group_size: got 3"):
        rtn_xxfp4(torch.zeros(8), 3, torch.float32)
    with pytest.raises(ArgumentError, match="group_size: got 0"):
        rtn_xxfp4(torch.zeros(8), 0, torch.float32)
    with pytest.raises(ArgumentError, match="global_scale: got a tensor of shape"):
        rtn_xxfp4(torch.zeros(8), scale_dtype=torch.float32, global_scale=torch.ones(2))
    with pytest.raises(ShapeError, match="existing_scale: got shape"):
        rtn_xxfp4(torch.zeros(2, 8), 4, existing_scale=torch.ones(2, 1))
    with pytest.raises(ShapeError, match="scale_quant: got shape"):
        dequant_xxfp4(torch.zeros(2, 4, dtype=torch.uint8), torch.ones(2, 3))
