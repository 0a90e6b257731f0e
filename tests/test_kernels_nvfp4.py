"""The NVFP4 kernels, bit for bit: on the GPU where there is one, else in Triton's interpreter.

The integer reference decides; the sentences of SPEC.md 3.3 and the public bugs stand here by hand as well, so that
kernel and reference cannot be wrong together.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from lowbit.formats import E2M1, E4M3
from lowbit.references import exact
from lowbit.rules import Rounding
from lowbit_kernels import quantize_nvfp4

from .nvfp4_checks import DEVICE, DTYPES, SCHEMES, check, codes, e4m3, float32, on, raw, with_pin

RNG = np.random.default_rng(20240611)
FLT_MAX = float(np.finfo(np.float32).max)
BFLOAT16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
"""Every bfloat16 pattern."""

FINITE = BFLOAT16[BFLOAT16.float().isfinite()]
NONFINITE = [float("nan"), float("inf"), -float("nan"), -float("inf")]
RULES = [rule.value for rule in Rounding if rule is not Rounding.STOCHASTIC]
EVERY_RULE = pytest.mark.parametrize("rule", RULES)
EVERY_SCHEME = pytest.mark.parametrize("scheme", SCHEMES)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def block(*values: float, amax: float = 6.0) -> torch.Tensor:
    """One float32 block: the values, zeros, and amax last; under g = 1 and amax 6 its scale is 1."""
    return on([*values, *[0.0] * (15 - len(values)), amax], torch.float32)


def quantized(x: torch.Tensor, g: float | None = 1.0, **options) -> tuple[list[int], list[int], float]:
    """Codes, scale bytes and g of a small tensor, as lists."""
    packed, scales, scale = quantize_nvfp4(x, tensor_scale=g, **options)
    return codes(packed).reshape(-1).tolist(), raw(scales).reshape(-1).tolist(), scale.item()


# What public libraries got wrong, and what is right here. Under g = 1 a block of amax 6 has scale 1.
@pytest.mark.parametrize(
    ("values", "expected", "amax"),
    [
        pytest.param([0.25, 1.25, 2.5, 5.0], [0, 2, 4, 6], 6.0, id="triton#8110: ties go to the even code"),
        pytest.param([0.75, 1.75, 3.5], [2, 4, 6], 6.0, id="the other ties"),
        pytest.param([2.500004, 5.015625], [5, 7], 6.0, id="compressed-tensors#822: not rounded to bfloat16 first"),
        pytest.param([-0.0, -1e-40, 0.0, 1e-40], [8, 8, 0, 0], 6.0, id="the sign of zero is kept"),
        pytest.param([1.0, 2.0], [2, 4], 6.0, id="triton#5197: element 0 in the low nibble"),
        pytest.param([4.6875], [6], 0.9375 * 6, id="triton#10661: 4.6875 / 0.9375 is 5 exactly"),
        pytest.param([4.6875], [4], 1.875 * 6, id="a product with the reciprocal is above the tie 2.5"),
        pytest.param([-6.3, 6.1], [15, 7], 6.3, id="saturation under the scale 1, to which 6.3 / 6 rounds"),
        pytest.param([8.9 * 2**-9, -7 * 2**-9], [7, 15], 8.9 * 2**-9, id="saturation far off, under the scale 2**-9"),
    ],
)
def test_elements_by_hand(values, expected, amax):
    got, _, _ = quantized(block(*values, amax=amax))
    assert got[: len(expected)] == expected


def test_element_zero_is_in_the_low_nibble():
    packed, _, _ = quantize_nvfp4(block(1.0, 2.0), tensor_scale=1.0)
    assert raw(packed)[0] == 0x42  # triton#5197 gave 0x24


@pytest.mark.parametrize(
    ("scheme", "tensor_amax", "block_amax", "byte"),
    [
        ("nvfp4", 6.0, 4.5, 0x7A),  # a reciprocal of 1 / 6 gives 0x7B
        ("nvfp4", 7.0, 5.75, 0x7C),  # dividing by g gives 0x7B
        ("nvfp4", 7.0, 6.25, 0x7C),
        ("nvfp4_two_level", 7.0, 6.25, 0x7D),  # its g has two roundings
    ],
)
def test_the_block_scale_has_the_named_roundings(scheme, tensor_amax, block_amax, byte):
    _, scales, _ = quantized(torch.cat([block(amax=tensor_amax), block(amax=block_amax)]), None, scheme=scheme)
    assert scales == [0x7E, byte]


@pytest.mark.parametrize(
    ("g", "scale", "x", "code"),
    [(448.0, 128.0, 1.0, 6), (512.0, 240.0, 2.34375, 6)],  # x / (s / g) and x * (g / s) round elsewhere: 5 and 7
)
def test_the_element_is_divided_by_the_scale_not_multiplied(g, scale, x, code):
    got, scales, _ = quantized(block(x, amax=scale * 6 / g), g)
    assert (scales[0], got[0]) == (exact.encode(scale, E4M3, Rounding.TIES_TO_EVEN), code)


@EVERY_SCHEME
def test_zero_blocks(scheme):
    """MSLK#486, FBGEMM, Model-Optimizer#1397, compressed-tensors#595: byte 0, codes ±0, a finite g."""
    x = torch.zeros(2, 16, device=DEVICE)
    x[0, 3] = -0.0
    got, scales, g = quantized(x, None, scheme=scheme)
    assert got == [0, 0, 0, 8] + [0] * 28
    assert scales == [0, 0]
    assert g == (np.float32(1) / np.float32(1e-12) * np.float32(2688) if scheme == "nvfp4_two_level" else 1)
    x[1, 5] = 3.0  # the zero block beside another one
    got, scales, _ = quantized(x, None, scheme=scheme)
    assert got[:16] == [0, 0, 0, 8] + [0] * 12
    assert scales[0] == 0


def test_scales_that_underflow():
    """Canonical scales end at 2**-9 and are used as stored; the other schemes store 0 and divide by 2**-9."""
    x = block(2.0**-11, 2.0**-12, 2.0**-9 * 0.75, amax=2.0**-9)
    assert quantized(x)[:2] == ([0, 0, 2, *[0] * 12, 2], [0x01])  # 2**-11 is the tie .25
    got, scales, _ = quantized(x, None, scheme="nvfp4_one_level")
    assert (scales, got[2], got[15]) == ([0x00], 1, 2)  # .75 is a tie toward zero


def test_y_that_is_zero_decides_the_zero_block():
    got, scales, _ = quantized(block(-1e-30, amax=1e-20), 1e-30)
    assert scales == [0x00]
    assert got == [8, *[0] * 15]
    _, scales, _ = quantized(block(amax=float32(1).item()), 1.0)  # the least y above 0
    assert scales == [0x01]


def test_y_that_overflows_saturates():
    got, scales, _ = quantized(block(1e30, -1e30, 1.0, -1e-37, amax=1e38), 1e30)
    assert scales == [0x7E]
    assert got == [7, 15, 7, 8, *[0] * 11, 7]


def test_nonfinite_blocks_of_the_canonical_scheme():
    """0x7F; codes as if the scale were 1; NaN is code 7 whatever its sign; the tensor's other blocks do not notice."""
    x = torch.cat([block(*NONFINITE, 1.0, -2.6, 0.25, amax=6.0), block(float("inf"), -0.3, amax=96.0), block(3.0)])
    got, scales, _ = quantized(x, 1.0)
    assert scales == [0x7F, 0x7F, 0x38]
    assert got[:7] == [7, 7, 7, 15, 2, 13, 0]
    assert got[16:18] == [7, 9]
    assert quantized(x, None)[2] == 28.0  # 2688 over 96, the largest finite magnitude


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_inf_in_two_level(value):
    """g = 0: the block of the Inf stores 0x7F, its finite elements are ±0, the Inf is 7; other blocks are 0."""
    x = torch.cat([block(1.0, -1.0, value), block(1.0, -2.0)])
    got, scales, g = quantized(x, None, scheme="nvfp4_two_level")
    assert (g, scales) == (0.0, [0x7F, 0x00])
    assert got[:3] == [0, 8, 7]
    assert got[16:18] == [0, 8]


@pytest.mark.parametrize("pattern", [0x7FC00000, 0xFF800001])
def test_nan_in_two_level(pattern):
    x = torch.cat([block(1.0, float32(pattern).item()), block(-1.0)])
    got, scales, g = quantized(x, None, scheme="nvfp4_two_level")
    assert np.isnan(g)
    assert got == [7] * 32
    assert scales == [0x7F, 0x7F]


def test_nonfinite_blocks_of_one_level():
    nan, inf = float("nan"), float("inf")
    x = torch.cat([block(nan, 2.0**-10, -(2.0**-9)), block(inf, -inf, 448.0), block(6.0)])
    got, scales, g = quantized(x, None, scheme="nvfp4_one_level")
    assert (g, scales) == (1.0, [0x7F, 0x7E, 0x38])
    assert got[:3] == [7, 1, 10]  # NaN; the other elements over 2**-9
    assert got[16:19] == [7, 15, 2]


@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4+ties_to_even", "nvfp4_one_level", "nvfp4_one_level+ties_to_even"])
@EVERY_DTYPE
def test_every_nonfinite_value_in_every_position(scheme, dtype):
    x = on(RNG.normal(size=(16, 4, 16)) * 100, dtype)
    for lane in range(16):
        x[lane, torch.arange(4), lane] = on(NONFINITE, dtype)
    check(x, scheme)


@pytest.mark.parametrize("scheme", ["nvfp4_two_level", "nvfp4_two_level+ties_to_even"])
@EVERY_DTYPE
def test_a_nonfinite_value_decides_a_two_level_tensor(scheme, dtype):
    for lane in range(16):
        x = on(RNG.normal(size=(2, 16)), dtype)
        x[1, lane] = NONFINITE[lane % 4]
        check(x, scheme)


@pytest.mark.parametrize("scale", [0x01, 0x03, 0x07, 0x09, 0x38, 0x3B, 0x45, 0x6A, 0x7C, 0x7D, 0x7E])
def test_every_bfloat16_value_under_a_scale(scale):
    check(on(with_pin(FINITE.float().numpy(), 6 * e4m3(scale)), torch.bfloat16), "nvfp4", tensor_scale=1.0)


@EVERY_RULE
def test_every_bfloat16_value_with_every_rule(rule):
    order = torch.from_numpy(RNG.permutation(len(FINITE)))
    for x in (FINITE, FINITE[order]):
        check(on(x.reshape(-1, 16)), f"nvfp4+{rule}", tensor_scale=1.0)
    check(on(FINITE[order].reshape(-1, 16)), f"nvfp4_one_level+{rule}")


@EVERY_SCHEME
@EVERY_DTYPE
def test_realistic_data(scheme, dtype):
    rows = np.exp(RNG.normal(size=(64, 1)) * 3)
    check(on(RNG.normal(size=(64, 512)) * rows, dtype), scheme)


@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4_one_level"])
def test_every_tie_of_the_scale(scheme):
    """amax / 6 exactly between two E4M3 values, and one unit in the last place of amax to either side."""
    values = [Fraction(0), *E4M3.magnitudes[1:]]
    middles = np.array([float((a + b) / 2 * 6) for a, b in itertools.pairwise(values)], dtype=np.float32)
    patterns = middles.view(np.int32)[:, None] + np.arange(-1, 2, dtype=np.int32)
    x = np.zeros((patterns.size, 16), dtype=np.float32)
    x[:, 9] = -patterns.reshape(-1).view(np.float32)
    options = {} if scheme == "nvfp4_one_level" else {"tensor_scale": 1.0}
    _, scales, _ = check(on(x), scheme, **options)
    by_hand = [exact.encode(float(np.float32(a) / np.float32(6)), E4M3, Rounding.TIES_TO_EVEN) for a in -x[:, 9]]
    least = 1 if scheme == "nvfp4" else 0
    assert raw(scales).reshape(-1).tolist() == [max(code, least) for code in by_hand]


@EVERY_RULE
def test_every_breakpoint_of_the_element(rule):
    """y = T * s for each value and tie T and the y next to it, both signs, under scales of every significand."""
    steps = [Fraction(0), *E2M1.magnitudes[1:]]
    targets = sorted({*steps, *((a + b) / 2 for a, b in itertools.pairwise(steps))})
    rows = []
    for scale in (0x01, 0x02, 0x05, 0x07, *range(0x38, 0x40), 0x7A, 0x7E):
        s = Fraction(e4m3(scale))
        patterns = np.array([float(t * s) for t in targets], dtype=np.float32).view(np.int32)
        near = np.unique(np.abs(patterns[:, None] + np.arange(-2, 3, dtype=np.int32))).view(np.float32)
        rows.append(with_pin(np.concatenate([near, -near]), float(6 * s)))
    check(on(np.vstack(rows)), f"nvfp4+{rule}", tensor_scale=1.0)


@pytest.mark.parametrize("rule", ["toward_negative", "toward_positive", "ties_up", "ties_down"])
def test_quotients_that_vanish(rule):
    """RN32(y / s) is 0 from y = 2**-150 * s downwards: a rule that rounds away from zero acts on that 0."""
    tiny = np.arange(0, 2048, dtype=np.uint32).view(np.float32)
    x = with_pin(np.concatenate([tiny, -tiny]), 6 * 448.0)
    packed, _, _ = check(on(x), f"nvfp4+{rule}", tensor_scale=1.0)
    if rule == "toward_positive":
        assert codes(packed).reshape(-1)[:15].tolist() == [0] * 15  # 14 * 2**-149 over 448 is nothing
        assert codes(packed)[225 // 15, 0] == 1  # 225 * 2**-149 over 448 is more than half of 2**-149


@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4_two_level"])
@EVERY_DTYPE
def test_the_tensor_scale(scheme, dtype):
    for amax in (0.0, 1e-45, 1e-40, 1e-30, 9e-13, 1.1e-12, 7e-5, 0.1, 1.0, 7.0, 2688.0, 6e4, 1e30, FLT_MAX):
        x = torch.zeros(3, 32, device=DEVICE)
        x[2, 17] = -amax
        check(x.to(dtype), scheme)
    for position in range(0, 32, 5):  # found wherever it is
        x = on(RNG.normal(size=(2, 16)), dtype)
        x.view(-1)[position] = 1000.0
        assert check(x, scheme)[2].item() == pytest.approx(2.688)


@EVERY_DTYPE
def test_the_tensor_scale_passes_over_nonfinite_values(dtype):
    x = on([[float("inf"), float("nan"), -float("inf"), -float("nan"), 1.5, -2.5] + [0.25] * 10] * 3, dtype)
    assert check(x, "nvfp4")[2].item() == np.float32(2688) / np.float32(2.5)
    assert check(x[:, :4].repeat(1, 4), "nvfp4")[2].item() == 1.0  # nothing finite


@pytest.mark.parametrize("g", [1e-45, 1e-30, 3.7e-3, 1.0, 0.1, 6.02e23, FLT_MAX])
def test_a_given_tensor_scale(g):
    x = on(RNG.normal(size=(4, 64)), torch.float32)
    for scheme in ("nvfp4", "nvfp4_two_level"):
        by_number = check(x, scheme, tensor_scale=g)
        by_tensor = quantize_nvfp4(x, scheme=scheme, tensor_scale=on([g], torch.float32))
        assert all(np.array_equal(raw(a), raw(b)) for a, b in zip(by_number, by_tensor, strict=True))


def test_sharded_weights_share_a_tensor_scale():
    x = on(RNG.normal(size=(64, 64)), torch.bfloat16)
    packed, scales, g = quantize_nvfp4(x)
    for part in (slice(0, 24), slice(24, 64)):
        some = quantize_nvfp4(x[part], tensor_scale=g)
        assert np.array_equal(raw(some[0]), raw(packed[part]))
        assert np.array_equal(raw(some[1]), raw(scales[part]))
