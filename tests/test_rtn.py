"""rtn_xxfp4 and dequant_xxfp4, sentence by sentence of SPEC.md 3.4.

The right values come from Fractions and `exact.round_to`, or are written out. Everything runs on the CPU, and on the
GPU too where there is one: the bits must be the same.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from lowbit.errors import ShapeError
from lowbit.formats import E2M1
from lowbit.references import exact
from lowbit.references.rtn import MODES, dequant_xxfp4, rtn_e2m1, rtn_xxfp4
from lowbit.references.rtn_casts import cast

from .rtn_checks import COMBINATIONS, DATA, DEVICES, FORMATS, RULES, bits, codes_of, holds, scale_bytes


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def rounded(value: Fraction, dtype: torch.dtype) -> Fraction:
    """One rounding to a dtype. The values tried do not overflow."""
    return Fraction(exact.pattern_float(exact.round_to(value, FORMATS[dtype]), FORMATS[dtype]))


def casted(value: Fraction, source: torch.dtype, target: torch.dtype) -> Fraction:
    if source == torch.float64 and target.itemsize < 4:
        value = rounded(value, torch.float32)
    if target == torch.float8_e8m0fnu:
        return e8m0_value(rounded(value, torch.float32))
    return rounded(value, target)


def e8m0_value(value: Fraction) -> Fraction:
    """Up iff the significand is at least 1.5, where (2^-127, 2^-126) goes up altogether."""
    least = Fraction(2) ** -127
    if value <= least:
        return least
    exponent = math.frexp(value)[1] - 1
    if exponent == -127:
        return 2 * least
    return Fraction(2) ** (exponent + (value / Fraction(2) ** exponent >= Fraction(3, 2)))


def oracle(x, dtype, high, scale_dtype, rounded_to, scale_scale, global_scale, mode):
    """A group of finite values: codes, scale, decoded values."""
    x = [casted(Fraction(value), dtype, high) for value in x]
    factor = casted(Fraction(global_scale), torch.float64, high)
    divisor = casted(rounded(Fraction(scale_scale) * factor, torch.float64), torch.float64, high)
    info = torch.finfo(scale_dtype)
    scale = min(max(rounded(max(map(abs, x)) / divisor, high), Fraction(info.min)), Fraction(info.max))
    scale = casted(scale, high, scale_dtype)
    step = rounded(casted(scale, scale_dtype, high) * factor, high)
    codes = [exact.encode(float(rounded(value / step, high)), E2M1, RULES[mode]) for value in x]
    decoded = [
        casted(casted(rounded(Fraction(E2M1.value(code)) * step, high), high, rounded_to), rounded_to, dtype)
        for code in codes
    ]
    return codes, scale, decoded


@pytest.mark.parametrize(("dtype", "high", "scale_dtype"), COMBINATIONS, ids=str)
def test_every_operation_is_rounded_once(dtype, high, scale_dtype, device):
    rng = np.random.default_rng(3)
    for k, mode in enumerate(MODES):
        scale_scale, global_scale = ((6.0, 1.0), (4.0, 1 / 3), (6.1, 0.7), (3.0, 1.25))[k]
        round_dtype = DATA[(k + DATA.index(dtype)) % 4]
        x = torch.from_numpy(rng.standard_normal((2, 16)) * 2.0 ** rng.integers(-3, 4, (2, 1))).to(dtype)
        result = rtn_xxfp4(
            x.to(device), 8, scale_dtype, scale_scale, global_scale, mode, high_dtype=high, round_dtype=round_dtype
        )
        codes, scales, decoded = [], [], []
        for group in x.reshape(-1, 8).tolist():
            parts = oracle(group, dtype, high, scale_dtype, round_dtype, scale_scale, global_scale, mode)
            codes += parts[0]
            scales.append(parts[1])
            decoded += [
                math.copysign(float(v), -1.0 if c & 8 else 1.0) for v, c in zip(parts[2], parts[0], strict=True)
            ]
        assert result["scale_quant"].dtype == scale_dtype
        assert result["scale_quant"].shape == (2, 2)
        assert list(map(Fraction, cast(result["scale_quant"], torch.float64).flatten().tolist())) == scales
        assert codes_of(result["e2m1"]) == codes
        assert result["fake_quant"].dtype == dtype
        assert torch.equal(bits(result["fake_quant"]), bits(torch.tensor(decoded, dtype=dtype).reshape(2, 16)))


@pytest.mark.parametrize(("dtype", "high", "scale_dtype"), COMBINATIONS, ids=str)
def test_dequant_reproduces_fake_quant(dtype, high, scale_dtype, device):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(12, 16, generator=generator, dtype=torch.float64)
    x[1, :8], x[2, 3], x[3, 4], x[4, 5] = 0.0, math.nan, math.inf, -math.inf
    x[5:9] *= torch.tensor([[1e-40], [1e-7], [1e4], [1e38]], dtype=torch.float64)
    x = x.to(dtype).to(device)
    for round_dtype, mode in zip(DATA, MODES, strict=True):
        result = rtn_xxfp4(x, 8, scale_dtype, 4.0, 1 / 3, mode, high_dtype=high, round_dtype=round_dtype)
        again = dequant_xxfp4(result["e2m1"], result["scale_quant"], 1 / 3, dtype, high, round_dtype)
        assert torch.equal(bits(again), bits(result["fake_quant"]))
        # the returned global scale serves as well as the number
        again = dequant_xxfp4(result["e2m1"], result["scale_quant"], result["global_scale"], dtype, high, round_dtype)
        assert torch.equal(bits(again), bits(result["fake_quant"]))


def test_defaults():
    x = torch.tensor([[3.0, -6.0, 1.0, 0.5]], dtype=torch.float64)
    result = rtn_xxfp4(x)
    assert sorted(result) == ["e2m1", "fake_quant", "global_scale", "scale_quant"]
    assert result["scale_quant"].dtype == torch.float64  # group -1 is the whole row, scale = 6 / (6 * 1)
    assert result["scale_quant"].tolist() == [[1.0]]
    assert result["global_scale"].dtype == torch.float64
    assert codes_of(result["e2m1"]) == [5, 15, 2, 1]
    decoded = dequant_xxfp4(result["e2m1"], result["scale_quant"])
    assert decoded.dtype == torch.float64
    assert torch.equal(decoded, x)


def test_dequant_defaults_follow_its_dtype():
    packed = torch.tensor([0x73], dtype=torch.uint8)  # 1.5 and 6
    scale = torch.tensor([1 + 2.0**-8 + 2.0**-10], dtype=torch.float32)
    # high = bfloat16 rounds the scale to 1 + 2^-7 before it multiplies, and then a tie to even; float32 keeps it
    assert dequant_xxfp4(packed, scale, dtype=torch.bfloat16).tolist() == [1.515625, 6.0625]
    wide = dequant_xxfp4(packed, scale, dtype=torch.bfloat16, high_dtype=torch.float32)
    assert wide.tolist() == [1.5078125, 6.03125]
    # a round_dtype on the way is a second rounding
    assert dequant_xxfp4(packed, scale, 1.0, torch.float32, None, torch.bfloat16).tolist() == wide.tolist()


@pytest.mark.parametrize("scale_dtype", FORMATS, ids=str)
@pytest.mark.parametrize("high", DATA, ids=str)
def test_a_bound_that_high_dtype_cannot_hold(high, scale_dtype):
    x = torch.ones(8, dtype=high)
    if holds(high, scale_dtype):
        rtn_xxfp4(x, scale_dtype=scale_dtype)
    else:
        with pytest.raises(RuntimeError, match="scale_dtype: the bound"):
            rtn_xxfp4(x, scale_dtype=scale_dtype)
    # torch's own clamp draws the line at the same place
    info = torch.finfo(scale_dtype)
    if holds(high, scale_dtype):
        x.clamp(info.min, info.max)
    else:
        with pytest.raises(RuntimeError, match="without overflow"):
            x.clamp(info.min, info.max)


def test_the_bound_does_not_matter_with_an_existing_scale():
    x = torch.ones(8)
    rtn_xxfp4(x, existing_scale=torch.ones(1, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="high_dtype"):
        rtn_xxfp4(x)  # the default scale_dtype, float64, with float32 data


def test_a_number_does_not_promote_and_a_tensor_does(device):
    x = torch.tensor([[1.0, -0.5]], dtype=torch.float32, device=device)
    # 1/6.1 in binary32 and in binary64
    narrow = rtn_xxfp4(x, scale_dtype=torch.float32, scale_scale=6.1)["scale_quant"]
    assert narrow.tolist() == [[float(np.float32(1) / np.float32(6.1))]]
    for shape in ((), (1,)):
        factor = torch.full(shape, 6.1, dtype=torch.float64, device=device)
        wide = rtn_xxfp4(x, scale_dtype=torch.float64, scale_scale=factor)  # and binary64 holds its bounds
        assert wide["scale_quant"].tolist() == [[1 / 6.1]]
        assert wide["fake_quant"].dtype == torch.float32


def test_a_number_is_not_rounded_to_the_dtype_of_the_data():
    # 5 / 6.1 in bfloat16; with 6.1 rounded to bfloat16 first (6.09375) times 1.5 the divisor would be 9.125, not 9.1875
    x = torch.tensor([[9.0, 0.0]], dtype=torch.bfloat16)
    result = rtn_xxfp4(x, scale_dtype=torch.bfloat16, scale_scale=6.11, global_scale=1.5)
    assert Fraction(6.11) * Fraction(3, 2) > Fraction(9.15625)  # the midpoint of 9.125 and 9.1875
    assert Fraction(6.09375) * Fraction(3, 2) < Fraction(9.15625)
    expected = rounded(Fraction(9) / Fraction(9.1875), torch.bfloat16)
    assert result["scale_quant"].tolist() == [[float(expected)]]


def test_global_scale_multiplies_on_decoding():
    x = torch.tensor([[12.0, 1.0]], dtype=torch.float64)
    result = rtn_xxfp4(x, global_scale=4.0)
    assert result["scale_quant"].tolist() == [[0.5]]  # 12 / (6 * 4)
    assert codes_of(result["e2m1"]) == [7, 1]  # 12 / (0.5 * 4) = 6; 1 / 2 = 0.5
    assert result["fake_quant"].tolist() == [[12.0, 1.0]]


def test_the_clamp_has_a_lower_bound():
    x = torch.tensor([[1e6, 0.0]])
    assert scale_bytes(rtn_xxfp4(x, scale_dtype=torch.float8_e4m3fn, scale_scale=-1.0)) == [0xFE]  # -448
    assert scale_bytes(rtn_xxfp4(x, scale_dtype=torch.float8_e8m0fnu, scale_scale=-1.0)) == [0]  # 2^-127


def test_division_is_a_division(device):
    # triton#10661 and the counter-example of z3: a product with the reciprocal lies just above a tie
    x = torch.tensor([[4.6875, 0.0], [4.6875, 0.0]], device=device)
    scale = torch.tensor([[0.9375], [1.875]], device=device)
    assert codes_of(rtn_xxfp4(x, existing_scale=scale)["e2m1"]) == [6, 0, 4, 0]
    assert rtn_xxfp4(x[:1], existing_scale=scale[:1])["e2m1"].tolist() == [[6]]  # a lone scale is no number either


@pytest.mark.parametrize("scale_dtype", FORMATS, ids=str)
def test_existing_scale_keeps_its_dtype_and_value(scale_dtype, device):
    x = torch.tensor([[1.0, -3.0, 200.0, 0.25], [5.0, 0.1, 0.0, 2.0]], device=device)
    scale = cast(torch.tensor([[0.5, 16.0], [1.0, 0.5]], device=device), scale_dtype)
    result = rtn_xxfp4(x, 2, torch.float8_e4m3fn, existing_scale=scale, global_scale=2.0)
    assert result["scale_quant"] is scale
    assert codes_of(result["e2m1"]) == [2, 13, 7, 0, 4, 0, 0, 4]  # 1 -3 | 6.25 .0078 | 2.5 .05 | 0 2
    assert result["fake_quant"].tolist() == [[1.0, -3.0, 192.0, 0.0], [4.0, 0.0, 0.0, 2.0]]


def test_existing_scale_is_not_clamped_or_cast():
    scale = torch.tensor([1e6], dtype=torch.float32)  # beyond E4M3's 448
    result = rtn_xxfp4(torch.tensor([6e6, 0.0]), scale_dtype=torch.float8_e4m3fn, existing_scale=scale)
    assert codes_of(result["e2m1"]) == [7, 0]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 32), (2, 3, 32), (32,)])
def test_shapes(shape):
    x = torch.ones(shape)
    result = rtn_xxfp4(x, 16 if shape[-1] else -1, torch.float32)
    assert result["fake_quant"].shape == shape
    assert result["e2m1"].shape == (*shape[:-1], shape[-1] // 2)
    assert result["scale_quant"].shape == (*shape[:-1], shape[-1] // 16)
    again = dequant_xxfp4(result["e2m1"], result["scale_quant"], dtype=torch.float32)
    assert torch.equal(again, result["fake_quant"])


def test_no_dimension():
    with pytest.raises(ShapeError, match="no dimension"):
        rtn_xxfp4(torch.tensor(1.0), scale_dtype=torch.float32)


def test_strides_and_gradients_do_not_matter():
    big = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    for x in (big[:, :32], big[:, ::2], big.T[:32], big[::2, 16:48]):
        expected = rtn_xxfp4(x.contiguous(), 2, torch.float32)
        actual = rtn_xxfp4(x.requires_grad_(), 2, torch.float32)
        assert torch.equal(actual["e2m1"], expected["e2m1"])
        assert torch.equal(actual["fake_quant"], expected["fake_quant"])
        assert not actual["fake_quant"].requires_grad
        big = big.detach()


def test_the_input_is_left_alone():
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(2))
    copy = x.clone()
    rtn_xxfp4(x, 16, torch.float32)
    rtn_e2m1(x)
    assert torch.equal(x, copy)


@pytest.mark.skipif(len(DEVICES) == 1, reason="no GPU: there is nothing to compare the CPU with")
def test_cpu_and_gpu_give_the_same_bits():
    generator = torch.Generator().manual_seed(9)
    for dtype, high, scale_dtype in COMBINATIONS:
        raw = torch.randint(-(2**63), 2**63 - 1, (256, 64), generator=generator)
        anything = raw.view(dtype)[:, :64]  # every binade, NaN and Inf among them
        x = torch.cat([anything, torch.randn(256, 64, generator=generator).to(dtype)])
        for mode in MODES:
            on_cpu = rtn_xxfp4(x, 16, scale_dtype, 6.0, 1 / 3, mode, high_dtype=high)
            on_gpu = rtn_xxfp4(x.cuda(), 16, scale_dtype, 6.0, 1 / 3, mode, high_dtype=high)
            for name in ("e2m1", "scale_quant", "fake_quant"):
                assert torch.equal(bits(on_gpu[name]), bits(on_cpu[name])), (dtype, high, scale_dtype, mode, name)
