"""Scales and scaling in the PyTorch reference: against the scalar one, and the answers to known bugs written out.

Runs on the CPU, and on the GPU too where there is one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.errors import ArgumentError
from lowbit.references import exact, ladders, tensor_blocks, tensors
from lowbit.rules import ScaleRule
from lowbit.schemes import Scheme

from .tensor_checks import DEVICES, INF, floats

POWER_OF_TWO = [schemes.get(name) for name in schemes.names() if schemes.get(name).exponent_range is not None]
RULES = list({(s.family, s.element, s.scale_rule): s for s in POWER_OF_TWO}.values())


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def scale_byte(amax: float, scheme: Scheme, random: int | None = None) -> int:
    return exact.scale_exponent(amax, scheme, random=random) + 127


@pytest.mark.parametrize("scheme", [s for s in RULES if s.scale_rule is not ScaleRule.STOCHASTIC], ids=lambda s: s.name)
def test_exponents_at_every_threshold_and_one_ulp_to_either_side(scheme, device):
    starts = ladders.exponent_starts(scheme)
    assert len(starts) == scheme.exponent_range[1] - scheme.exponent_range[0]
    patterns = {p for s in starts for p in (s - 1, s, s + 1) if p < INF}
    patterns |= {
        exponent << 23 | mantissa
        for exponent in range(255)
        for mantissa in (0, 1, 0x3504F3, 0x3504F4, 0x600000, 0x7FFFFF)
    }
    ordered = sorted(patterns)
    expected = [scale_byte(exact.pattern_float(p), scheme) for p in ordered]
    assert tensors.scale_codes(floats(ordered, device), scheme).tolist() == expected


@pytest.mark.parametrize("scheme", [s for s in RULES if s.scale_rule is ScaleRule.STOCHASTIC], ids=lambda s: s.name)
def test_stochastic_exponents(scheme, device):
    rng = np.random.default_rng(2)
    patterns = [*range(3), *(e << 23 | m for e in range(0, 255, 9) for m in (0, 1, 0x400000, 0x7FFFFF)), 0x7F7FFFFF]
    randoms = rng.integers(0, 2**31, len(patterns)).tolist()
    randoms[-1] = 2**31 - 1  # carries into the pattern of Inf
    expected = [scale_byte(exact.pattern_float(p), scheme, r) for p, r in zip(patterns, randoms, strict=True)]
    bits = torch.tensor(randoms, dtype=torch.int32)
    assert tensors.scale_codes(floats(patterns, device), scheme, random_bits=bits).tolist() == expected
    with pytest.raises(ArgumentError, match="random_bits: got None"):
        tensors.scale_codes(floats(patterns, device), scheme)


def one_block(scheme_name: str, amax: float, *rest: float, device: str = "cpu", **options) -> tuple[int, list[int]]:
    """Scale byte and the leading codes of a block of amax, the rest, and zeros."""
    scheme = schemes.get(scheme_name)
    x = torch.zeros(scheme.block)
    x[: 1 + len(rest)] = torch.tensor([amax, *rest], dtype=torch.float64).to(torch.float32)
    encoded = tensors.quantize(x.to(device), scheme, **options)
    return encoded.scales.item(), encoded.codes[: 1 + len(rest)].tolist()


@pytest.mark.parametrize(
    ("scheme", "x", "byte", "codes"),
    [
        ("mxfp4_floor", [5.0], 127, [6]),  # triton#8413
        ("mxfp4_floor", [6.0, 0.25, 1.25, 2.5, 5.0], 127, [7, 0, 2, 4, 6]),  # vllm#53110, triton#8110
        ("mxfp4_even", [7.0], 128, [6]),
        ("mx4_even_exclusive_e2m1_g32", [7.0], 127, [7]),  # FBGEMM: the two taken for one
        ("mx4_floor_e2m1_g32", [1048575.9375], 144, [7]),  # log2 rounded
        ("mx4_ceil_e2m1_g32", [2.0**20 * (1 + 2.0**-23)], 146, [4]),
        ("mxfp4_floor", [2.0**-126], 0, [4]),  # torchao: divided by 2^-126, stored 2^-127
        ("mxfp4_floor", [2.0**-125], 0, [6]),
        ("mxfp4_even", [1.75 * 2.0**127], 253, [6]),  # torchao: a finite block turned NaN
        ("mxfp4_rceil", [6.1, 6.0], 128, [5, 5]),  # kekzl/imp#250: codes with the stored scale
        ("mxfp4_floor", [math.nan, 1.0, -6.0, -0.0], 255, [7, 2, 15, 8]),  # as if the scale were 1
        ("mxfp4_floor", [-math.inf, 0.5], 255, [15, 1]),
        ("mxfp4_floor", [0.0, -0.0], 0, [0, 8]),
        ("mx4_ceil_e2m1_g32", [0.0, -0.0], 0, [0, 8]),
        ("mx4_ceil_e2m1_g32", [math.nan, -1.0], 125, [7, 14]),  # NaN does not enter amax: E = -2, -1 becomes -4
        ("mx4_ceil_e2m1_g32", [math.inf, 2.0**125], 252, [7, 2]),
        ("mx4_floor_e3m0_g32", [16.0], 128, [6]),  # E = 4 - 3, so 8
    ],
)
def test_block_scales_written_out(scheme, x, byte, codes, device):
    assert one_block(scheme, *x, device=device) == (byte, codes)


def test_signed_nan_of_mx4(device):
    for dtype, raw in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16), (torch.float16, torch.int16)):
        x = torch.zeros(32, dtype=dtype)
        x.view(raw)[:2] = torch.tensor([0x7FC00000, -0x400000]) >> (0 if raw == torch.int32 else 16)  # fp16: NaN too
        encoded = tensors.quantize(x.to(device), schemes.get("mx4_ceil_e2m1_g32"))
        assert encoded.codes[:3].tolist() == [7, 15, 0]


@pytest.mark.parametrize("rounding", ["toward_positive", "toward_negative"])
def test_directed_rules_see_what_falls_below_binary32(rounding, device):
    # 2^-149 * 2^-125 is no binary32 number; rounded to zero first it would stay 0
    byte, codes = one_block(f"mxfp4_floor+{rounding}", 2.0**127, 2.0**-149, -(2.0**-149), 0.0, device=device)
    assert byte == 252
    assert codes == ([6, 1, 8, 0] if rounding == "toward_positive" else [6, 0, 9, 0])


@pytest.mark.parametrize(
    ("scheme", "g", "x", "byte", "codes"),
    [
        ("nvfp4", 1.0, [6.0, 0.25, 1.25, 2.5, 5.0, -0.0], 0x38, [7, 0, 2, 4, 6, 8]),
        ("nvfp4_two_level", 1.0, [6.0, 0.75, 1.25, 2.5, 5.0, -0.0], 0x38, [7, 1, 2, 4, 6, 8]),
        ("nvfp4", 1.0, [0.0, -0.0], 0, [0, 8]),  # MSLK#486, FBGEMM: zero block
        ("nvfp4_two_level", 1.0, [0.0, -0.0], 0, [0, 8]),
        ("nvfp4", 1.0, [6 * 2.0**-12, -(2.0**-20)], 1, [2, 8]),  # a scale under 2^-10: 2^-9 is the least
        ("nvfp4_two_level", 1.0, [6 * 2.0**-12, 2.0**-10], 0, [1, 1]),  # stored 0, divided by 2^-9
        ("nvfp4", 1.0, [math.nan, 1.0, -6.0], 0x7F, [7, 2, 15]),  # as if s were 1
        ("nvfp4", 1.0, [math.inf, 1.0, -6.0], 0x7F, [7, 2, 15]),
        ("nvfp4", 2.0**100, [2.0**100, 1.0, 2.0**-100], 0x7E, [7, 7, 0]),  # y overflows: b = 448
        ("nvfp4_two_level", 2.0, [math.nan, 1.0], 0x7F, [7, 7]),  # s' = 2^-9
        ("nvfp4", 1.0, [11.25, 4.6875], 0x3F, [7, 4]),  # s = 1.875: 4.6875 / 1.875 is 2.5 and no more
        ("nvfp4", 448.0, [6 * 128 / 448, 1.0], 0x70, [7, 6]),  # SPEC.md 6's nibble: s = 128, 3.5 is a tie
    ],
)
def test_nvfp4_written_out(scheme, g, x, byte, codes, device):
    assert one_block(scheme, *x, device=device, tensor_scale=np.float32(g)) == (byte, codes)


@pytest.mark.parametrize(
    ("x", "byte", "codes"),
    [
        ([math.nan, 1.0, -1.0], 0x7F, [7, 7, 15]),  # s' = 2^-9
        ([math.inf, 449.0, -64.0], 0x7E, [7, 2, 8]),
        ([6.0, 3.0], 0x38, [7, 5]),
    ],
)
def test_one_level(x, byte, codes, device):
    assert one_block("nvfp4_one_level", *x, device=device) == (byte, codes)
    encoded = tensors.quantize(
        torch.tensor([*x, *[0.0] * (16 - len(x))], device=device), schemes.get("nvfp4_one_level")
    )
    assert encoded.tensor_scale.tolist() == [1.0]


@pytest.mark.parametrize(
    ("scheme", "x", "g"),
    [
        ("nvfp4", [0.0], 1.0),  # compressed-tensors#595: a finite global scale
        ("nvfp4", [], 1.0),
        ("nvfp4", [math.nan, math.inf], 1.0),
        ("nvfp4", [7.0, math.inf, math.nan], 384.0),
        ("nvfp4", [3.0, -5.0], float(np.float32(2688) / np.float32(5))),
        ("nvfp4", [2.0**-149], float(np.finfo(np.float32).max)),
        ("nvfp4_two_level", [3.0, -5.0], float(np.float32(np.float32(1) / np.float32(5)) * np.float32(2688))),
        ("nvfp4_two_level", [0.0], float(np.float32(np.float32(1) / np.float32(1e-12)) * np.float32(2688))),
        ("nvfp4_two_level", [], float(np.float32(np.float32(1) / np.float32(1e-12)) * np.float32(2688))),
        ("nvfp4_two_level", [math.inf], 0.0),
        ("nvfp4_two_level", [math.inf, math.nan], math.nan),
        ("rtn_mxfp4_three_quarters", [1.0], float(np.float32(1 / 3))),
    ],
)
def test_tensor_scales(scheme, x, g, device):
    actual = tensor_blocks.tensor_scale(torch.tensor(x, device=device), schemes.get(scheme))
    assert actual.dtype == torch.float32
    assert actual.shape == (1,)
    assert np.array_equal(actual.cpu().numpy(), np.array([g], dtype=np.float32), equal_nan=True)


def test_division_by_six_and_its_reciprocal_differ(device):
    # One ulp below six times the midpoint 0.07421875 of 0x19 and 0x1A; RN32(1/6) is above 1/6 and makes it a tie.
    amax = torch.tensor([float.fromhex("0x1.c7fffep-2")], device=device)
    assert tensors.scale_codes(amax, schemes.get("nvfp4_two_level")).tolist() == [25]
    assert tensors.scale_codes(amax, schemes.get("nvfp4_two_level_cuda")).tolist() == [26]


def test_two_level_inf_and_nan(device):
    scheme = schemes.get("nvfp4_two_level")
    x = torch.zeros(2, 16, device=device)
    x[0, :3] = torch.tensor([math.inf, -1.0, 1.0])
    x[1, :2] = torch.tensor([3.0, -2.0])
    encoded = tensors.quantize(x, scheme)
    assert encoded.tensor_scale.tolist() == [0.0]
    assert encoded.scales.flatten().tolist() == [0x7F, 0]
    assert encoded.codes[:, :3].tolist() == [[7, 8, 0], [0, 8, 0]]
    x[1, 5] = math.nan
    encoded = tensors.quantize(x, scheme)
    assert encoded.scales.flatten().tolist() == [0x7F, 0x7F]
    assert (encoded.codes == 7).all()


@pytest.mark.parametrize(
    "given", [0.0, -1.0, math.inf, math.nan, 0.1, torch.ones(2), torch.ones(1, dtype=torch.bfloat16)]
)
def test_a_given_tensor_scale_is_checked(given):
    with pytest.raises(ValueError, match="tensor_scale: got"):
        tensors.quantize(torch.ones(16), schemes.get("nvfp4"), tensor_scale=given)


@pytest.mark.parametrize("name", ["nvfp4_one_level", "mxfp4_floor", "mx4_ceil_e2m1_g32", "rtn_mxfp4"])
def test_schemes_that_take_no_tensor_scale(name):
    with pytest.raises(ValueError, match=r"tensor_scale: got .* takes no tensor scale"):
        tensors.quantize(torch.ones(32), schemes.get(name), tensor_scale=np.float32(1))


def test_the_forms_of_a_given_tensor_scale():
    expected = tensors.quantize(torch.ones(16), schemes.get("nvfp4"), tensor_scale=np.float32(0.5))
    for given in (0.5, torch.tensor(0.5), torch.tensor([[0.5]]), np.array([0.5], dtype=np.float32)):
        actual = tensors.quantize(torch.ones(16), schemes.get("nvfp4"), tensor_scale=given)
        assert actual.tensor_scale.shape == (1,)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
