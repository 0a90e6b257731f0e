"""The element stage of the PyTorch reference against the scalar one.

The codes of a format change at a few hundred patterns only, so agreement at every breakpoint and one ulp to either
side, together with monotony, is agreement on all of binary32. Runs on the CPU, and on the GPU too where there is one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import E2M1, E4M3, E5M2, E8M0, LOW_BIT, FloatFormat
from lowbit.references import exact, ladders, tensors
from lowbit.rules import NanCode, Rounding

from .tensor_checks import DEVICES, INF, SIGN, SPECIALS, floats, rule_of

DETERMINISTIC = tuple(rule for rule in Rounding if rule is not Rounding.STOCHASTIC)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def ladder_codes(patterns: np.ndarray, element: FloatFormat, rounding: Rounding, nan: NanCode | None) -> np.ndarray:
    """The codes by `exact.breakpoints` and a search in NumPy."""
    codes = np.zeros(patterns.shape, dtype=np.uint8)
    for negative in (False, True):
        firsts, steps = (
            np.array(column) for column in zip(*exact.breakpoints(element, rounding, negative), strict=True)
        )
        chosen = (patterns >> 31) == negative
        codes[chosen] = steps[np.searchsorted(firsts, patterns[chosen].astype(np.int64), side="right") - 1]
        codes[chosen & ((patterns & ~np.uint32(SIGN)) > INF)] = exact.nan_code(element, nan, negative)
    return codes


@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("element", LOW_BIT, ids=lambda e: e.name)
def test_breakpoints_and_one_ulp_to_either_side(element, rounding, device):
    patterns = set(SPECIALS)
    for negative in (False, True):
        for first, _ in exact.breakpoints(element, rounding, negative):
            patterns |= {max(first - 1, SIGN * negative), first, first + 1}
    ordered = sorted(patterns)
    expected = [exact.encode(exact.pattern_float(p), element, rounding, rule_of(element)) for p in ordered]
    actual = tensors.encode(floats(ordered, device), element, rounding, rule_of(element))
    assert actual.dtype == torch.uint8
    assert actual.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("element", LOW_BIT, ids=lambda e: e.name)
def test_all_values_of_two_byte_dtypes(element, dtype, device):
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = x.to(torch.float32)
    patterns = wide.numpy().view(np.uint32)
    sign = np.arange(65536, dtype=np.uint32) >> 15 << 31
    patterns = np.where(np.isnan(wide.numpy()), sign | 0x7FC00000, patterns)  # a widened NaN keeps its sign
    for rounding in DETERMINISTIC:
        for nan in NanCode if element.nan_magnitude is None else (None,):
            actual = tensors.encode(x.to(device), element, rounding, nan)
            expected = ladder_codes(patterns, element, rounding, nan)
            assert np.array_equal(actual.cpu().numpy(), expected), (rounding, nan)


@pytest.mark.parametrize("nan", NanCode)
def test_nan_codes(nan, device):
    x = floats([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], device)
    want = {
        NanCode.POSITIVE_MAX: [7, 7, 7, 7],
        NanCode.SIGNED_MAX: [7, 7, 15, 15],
        NanCode.NEGATIVE_ZERO: [8, 8, 8, 8],
        NanCode.ZERO: [0, 0, 0, 0],
    }
    assert tensors.encode(x, E2M1, Rounding.TIES_TO_EVEN, nan).tolist() == want[nan]
    for element, canonical in ((E4M3, 0x7F), (E5M2, 0x7F), (E8M0, 0xFF)):
        assert tensors.encode(x, element, Rounding.TIES_TO_EVEN, nan).tolist() == [canonical] * 4


def test_nan_without_a_rule():
    with pytest.raises(ArgumentError, match="nan: got None with NaN in x"):
        tensors.encode(torch.tensor([1.0, math.nan]), E2M1, Rounding.TIES_TO_EVEN)
    assert tensors.encode(torch.tensor([1.0, 6.0]), E2M1, Rounding.TIES_TO_EVEN).tolist() == [2, 7]


def test_element_bugs(device):
    x = torch.tensor([0.25, 1.25, 2.5, 5.0, 2.500004, 5.015625, -0.0, -1e-40, 0.75, 0.0], device=device)
    assert tensors.encode(x, E2M1, Rounding.TIES_TO_EVEN).tolist() == [0, 2, 4, 6, 5, 7, 8, 8, 2, 0]


@pytest.mark.parametrize("element", LOW_BIT, ids=lambda e: e.name)
def test_stochastic_rounding_over_all_random_bytes(element, device):
    steps = exact.breakpoints(element, Rounding.TOWARD_ZERO, False)
    chosen = steps[:: max(1, len(steps) // 6)]
    patterns = [p for first, _ in chosen for p in (first, first + 1, first + 0x0300001, max(first - 1, 0))]
    patterns = [*SPECIALS, *patterns, *(SIGN | p for p in patterns)]
    bits = torch.tensor([0, 1, 2, 63, 64, 127, 128, 129, 200, 254, 255], dtype=torch.uint8)
    x = floats(patterns, device).unsqueeze(-1).expand(-1, len(bits))
    actual = tensors.encode(
        x, element, Rounding.STOCHASTIC, rule_of(element), random_bits=bits.expand(len(patterns), -1)
    )
    expected = [
        [
            exact.encode(exact.pattern_float(p), element, Rounding.STOCHASTIC, rule_of(element), random=r)
            for r in bits.tolist()
        ]
        for p in patterns
    ]
    assert actual.tolist() == expected


def test_stochastic_means(device):
    # FBGEMM's and MSLK's stochastic casts: means 1, 2, 4 moved and 0.1 was always 0
    x = torch.tensor([1.0, 2.0, 4.0, 0.1, -2.75, 5.0], device=device).unsqueeze(-1).expand(-1, 256)
    bits = torch.arange(256, dtype=torch.uint8, device=device).expand(6, -1)
    codes = tensors.encode(x, E2M1, Rounding.STOCHASTIC, random_bits=bits)
    table = torch.tensor([float(E2M1.value(code)) for code in range(16)], dtype=torch.float64, device=device)
    means = table[codes.long()].mean(dim=-1).tolist()
    assert means == [1.0, 2.0, 4.0, math.floor(0.2 * 256) / 256 * 0.5, -2.75, 5.0]


def test_random_bits_are_needed_and_checked():
    x = torch.ones(4)
    with pytest.raises(ArgumentError, match="random_bits: got None"):
        tensors.encode(x, E2M1, Rounding.STOCHASTIC)
    with pytest.raises(ShapeError, match="random_bits: got shape"):
        tensors.encode(x, E2M1, Rounding.STOCHASTIC, random_bits=torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(DtypeError, match="random_bits: got"):
        tensors.encode(x, E2M1, Rounding.STOCHASTIC, random_bits=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DtypeError, match="x: got"):
        tensors.encode(x.double(), E2M1, Rounding.TIES_TO_EVEN)


def test_element_table_is_the_encoder(device):
    boundaries, codes = tensors.element_table(E2M1, Rounding.TIES_TO_EVEN, NanCode.SIGNED_MAX, torch.device(device))
    # -0 … -Inf, negative NaN, +0 … +Inf, positive NaN: as int32, ascending
    assert codes.tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 15, 0, 1, 2, 3, 4, 5, 6, 7, 7]
    assert boundaries.tolist() == sorted(boundaries.tolist())
    assert boundaries[9].item() == 0x3E800001  # above 0.25


@pytest.mark.parametrize("element", LOW_BIT, ids=lambda e: e.name)
def test_codes_of_patterns(element, device):
    for rounding in DETERMINISTIC[::3]:
        nan = NanCode.SIGNED_MAX if element.nan_magnitude is None else None
        firsts = [first for first, _ in ladders.element_rows(element, rounding, nan)]
        for start in (0, *firsts[1::5], INF - 500, SIGN - 500, SIGN | INF - 500, 2**32 - 1000):
            start = min(max(start - 500, 0), 2**32 - 1000)
            actual = tensors.codes_of_patterns(start, 1000, element, rounding, nan, device)
            x = floats(np.arange(start, start + 1000, dtype=np.uint64).astype(np.uint32))
            assert torch.equal(actual.cpu(), tensors.encode(x, element, rounding, nan)), hex(start)


def test_codes_of_patterns_ranges():
    with pytest.raises(ArgumentError, match="start, count"):
        tensors.codes_of_patterns(2**32 - 1, 2, E2M1, Rounding.TIES_TO_EVEN, NanCode.ZERO)
    assert tensors.codes_of_patterns(2**32 - 1, 1, E2M1, Rounding.TIES_TO_EVEN, NanCode.SIGNED_MAX).tolist() == [15]
    assert tensors.codes_of_patterns(7, 0, E2M1, Rounding.TIES_TO_EVEN, NanCode.ZERO).shape == (0,)
    # all of the positive numbers in eight runs
    whole = tensors.codes_of_patterns(0x3E000000, 0x03000000, E2M1, Rounding.TIES_TO_EVEN, NanCode.ZERO)
    assert torch.unique_consecutive(whole).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
