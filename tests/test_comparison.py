"""Counts that stay exact, memory that stays bounded, and samples spread over kinds and through the tensor."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.compare import (
    Comparison,
    arrays,
    compare_codes,
    compare_encoded,
    failure,
    kinds,
    merge,
)
from lowbit.compare.comparison import shares, spread, thin
from lowbit.errors import ArgumentError
from lowbit.formats import E2M1
from lowbit.references import bits
from lowbit.schemes import Encoded

MXFP4 = schemes.get("mxfp4_floor")


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def codes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def random_case(n: int) -> tuple[np.ndarray, Encoded, Encoded]:
    generator = np.random.default_rng(7)
    x = generator.standard_normal((n // 32, 32)).astype(np.float32)
    expected = bits.quantize(x, MXFP4)
    noise = generator.integers(0, 16, x.shape).astype(np.uint8)
    scales = expected.scales ^ (generator.integers(0, 50, expected.scales.shape) == 0).astype(np.uint8)
    return x, Encoded(noise, scales), expected


def test_counts_are_exact_and_both_kinds_of_array_agree() -> None:
    """10^6 mismatches over several pieces: every count equals one taken the plain way."""
    x, actual, expected = random_case(1 << 21)
    found = compare_encoded(x, actual, expected, MXFP4, max_samples=40)
    wrong = actual.codes != expected.codes
    scaled = np.repeat(actual.scales != expected.scales, 32, axis=1)
    assert found.mismatched == int(wrong.sum()) + int((actual.scales != expected.scales).sum()) > 10**6
    assert found.kinds["scaled"] == int((wrong & scaled).sum())
    sign = (actual.codes ^ expected.codes == 8) & (expected.codes & 7 != 0)
    both = ((actual.codes ^ expected.codes) & 8 != 0) & (actual.codes & 7 != 0) & (expected.codes & 7 != 0)
    assert found.kinds["sign"] == int((both & ~scaled).sum()) > int((sign & ~scaled).sum())
    assert sum(found.kinds.values()) == found.mismatched
    assert len(found.samples) == 40
    assert {sample.kind for sample in found.samples} == set(found.kinds)
    as_tensors = [Encoded(*(None if p is None else torch.from_numpy(p) for p in side)) for side in (actual, expected)]
    assert compare_encoded(torch.from_numpy(x), *as_tensors, MXFP4, max_samples=40) == found
    assert compare_encoded(torch.from_numpy(x), as_tensors[0], expected, MXFP4, max_samples=40) == found


def test_memory_does_not_grow_with_the_number_of_mismatches() -> None:
    def peak(n: int) -> int:
        x, right = np.ones(n, np.float32), np.zeros(n, np.uint8)
        wrong = right + 1
        tracemalloc.start()
        found = compare_codes(x, wrong, right, E2M1)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.mismatched == n
        return most

    few, many = peak(2 * arrays.PIECE), peak(3 * arrays.CHUNK)
    assert many < few + 2 * arrays.CHUNK * 8  # a chunk's mask and places, whatever the length
    assert many < 200 << 20


def test_samples_hold_the_first_mismatch_and_are_spread() -> None:
    n = 100_000
    found = compare_codes(np.ones(n, np.float32), np.full(n, 3, np.uint8), np.full(n, 2, np.uint8), E2M1, max_samples=5)
    assert [sample.index for sample in found.samples] == [0, 24999, 49999, 74999, 99999]
    assert compare_codes(floats(1), codes(3), codes(2), E2M1, max_samples=0).samples == ()


def test_shares_give_rare_kinds_their_place() -> None:
    assert shares({"value": 10**9, "tie": 2, "sign": 1}, 20) == {"sign": 1, "tie": 2, "value": 17}
    assert shares({"value": 5}, 20) == {"value": 5}
    assert shares({"tie": 5, "nan": 5, "sign": 5}, 2) == {"nan": 1, "sign": 1, "tie": 0}  # gravest first
    assert spread(10, 3) == [0, 4, 9]
    assert spread(3, 1) == [0]


def test_merge_adds_counts_and_keeps_every_kind() -> None:
    parts = [compare_codes(floats(1), codes(3), codes(2), E2M1, start=i, max_samples=20) for i in range(300)] + [
        compare_codes(floats(-0.0), codes(0), codes(8), E2M1, tensor="others", start=300)
    ]
    found = merge(parts, max_samples=10)
    assert (found.tensor, found.compared, found.mismatched) == ("codes + others", 301, 301)
    assert found.kinds == {"zero_sign": 1, "rounding": 300}
    assert len(found.samples) == 10
    assert found.samples[0].index == 300
    assert found.samples[1].index == 0
    assert merge([]) == Comparison("", 0)
    assert len(thin(list(found.samples), 3)) == 3


def test_failure_is_one_mismatch_of_a_known_kind() -> None:
    found = failure("error", tensor="call", message="boom")
    assert (found.ok, found.mismatched, found.kinds, found.message) == (False, 1, {"error": 1}, "boom")
    with pytest.raises(ArgumentError, match="kind"):
        failure("whatever", tensor="x", message="")


def test_every_kind_is_explained() -> None:
    produced = {
        "padding",
        "scaled",
        "scale",
        "tensor_scale",
        "byte",
        "shape",
        "dtype",
        *kinds.CODE_KINDS,
        *kinds.VALUE_KINDS,
    }
    assert produced <= set(kinds.KINDS)
    assert kinds.ordered({"value": 1, "new": 2, "error": 3}) == {"error": 3, "value": 1, "new": 2}
