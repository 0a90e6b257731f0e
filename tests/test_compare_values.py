"""Comparison of decoded values and of memory: by bits, NaN of values by class, of memory bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.compare import (
    arrays,
    compare_bytes,
    compare_encoded,
    compare_values,
)
from lowbit.errors import ArgumentError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import bits

MXFP4 = schemes.get("mxfp4_floor")


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def codes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def on_both(array: np.ndarray) -> list:
    return [array, torch.from_numpy(array)]


@pytest.mark.parametrize(
    ("actual", "expected", "kind"),
    [
        (0.0, -0.0, "zero_sign"),
        (1.0, -1.0, "sign"),
        (np.nan, 1.0, "nan"),
        (1.0, np.nan, "nan"),
        (np.inf, 3.0, "saturation"),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), "rounding"),
        (1e-45, 0.0, "rounding"),
        (1.0, 1.5, "value"),
    ],
)
def test_kind_of_a_value(actual: float, expected: float, kind: str) -> None:
    for a, e in zip(on_both(floats(actual)), on_both(floats(expected)), strict=True):
        found = compare_values(a, e)
        assert (found.compared, found.kinds) == (1, {kind: 1})


def test_nan_values_are_one_class() -> None:
    payloads = np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32)
    assert compare_values(payloads.view(np.float32), floats(np.nan, np.nan, np.nan)).ok
    assert compare_values(torch.from_numpy(payloads.view(np.float32)), payloads[::-1]).ok


@pytest.mark.parametrize(
    ("dtype", "fmt"), [(torch.bfloat16, BFLOAT16), (torch.float16, BINARY16), (torch.float32, BINARY32)]
)
def test_bit_patterns_stand_for_values(dtype: torch.dtype, fmt: FloatFormat) -> None:
    values = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    patterns = arrays.host(arrays.bits(values)).view(f"u{fmt.bits // 8}").copy()
    assert compare_values(values, patterns).ok
    assert compare_values(patterns, patterns, format=fmt).ok
    patterns[1] ^= 1
    found = compare_values(values, patterns)
    assert found.kinds == {"rounding": 1}
    assert (found.samples[0].format, found.samples[0].value_actual) == (fmt.name, -2.0)


def test_values_of_another_width_or_unknown_format() -> None:
    assert compare_values(torch.ones(2, dtype=torch.float16), torch.ones(2)).kinds == {"dtype": 1}
    assert compare_values(torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.bfloat16)).kinds == {"dtype": 1}
    assert compare_values(torch.ones(2), torch.ones(1)).kinds == {"shape": 1}
    with pytest.raises(ArgumentError, match="format"):
        compare_values(codes(1).astype(np.uint16), codes(1).astype(np.uint16))


def test_decoded_value_shows_its_code_and_scale() -> None:
    values, right = np.ones((2, 32), np.float32), np.ones((2, 32), np.float32)
    values[1, 7] = 2
    made_of = np.full((2, 32), 2, np.uint8)
    found = compare_values(values, right, codes=made_of, scales=np.full((2, 1), 127, np.uint8), scheme=MXFP4)
    (sample,) = found.samples
    assert (sample.x_bits, sample.x, sample.input, sample.scale_expected) == (2, 1.0, "e2m1", 127)
    assert (sample.block, sample.lane) == (0, 7)


def test_bytes_padding_and_named_kinds() -> None:
    right = np.zeros((2, 4), np.uint8)
    wrong = right.copy()
    wrong[0, 1], wrong[1, 3] = 5, 9
    padding = np.zeros((2, 4), bool)
    padding[1] = True
    wrong[0, 2] = 6
    for w, r, p in zip(on_both(wrong), on_both(right), on_both(padding), strict=True):
        assert compare_bytes(w, r, tensor="scales", padding=p).kinds == {"byte": 2, "padding": 1}
        assert compare_bytes(w, r, tensor="guard", kind="guard").kinds == {"guard": 3}
    with pytest.raises(ArgumentError, match="kind"):
        compare_bytes(wrong, right, tensor="x", kind="no such kind")
    with pytest.raises(ArgumentError, match="padding"):
        compare_bytes(wrong, right, tensor="x", padding=padding[0])


def test_bytes_of_a_changed_input_count_singly() -> None:
    """NaN is compared bit for bit here: nothing may be written to an input."""
    before, after = floats(1, np.nan), np.array([0x3F800000, 0x7FC00001], np.uint32).view(np.float32)
    found = compare_bytes(after, before, tensor="x", kind="changed_input")
    assert (found.compared, found.kinds) == (8, {"changed_input": 1})
    assert found.samples[0].coordinates == (1, 0)  # element 1, its first byte in memory


def test_nothing_to_compare_is_ok_but_counted_as_nothing() -> None:
    x = np.zeros((0, 32), np.float32)
    empty = bits.quantize(x, MXFP4)
    found = compare_encoded(x, empty, empty, MXFP4)
    assert (found.ok, found.compared) == (True, 0)
    assert compare_bytes(codes(), codes(), tensor="packed").compared == 0


def test_strided_arrays_are_compared_by_their_elements() -> None:
    big = torch.arange(64, dtype=torch.uint8).reshape(4, 16)
    part, right = big[:, 2:6], big[:, 2:6].contiguous()
    assert compare_bytes(part, right, tensor="packed").ok
    right[3, 3] += 1
    assert compare_bytes(part, right, tensor="packed").samples[0].coordinates == (3, 3)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 16])
def test_a_lone_mismatch_is_found_wherever_it_is(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first, the last and any other place of what is compared at a time, and where that is one value."""
    monkeypatch.setattr(arrays, "CHUNK", 8)
    right = floats(*range(size))
    for place in range(size):
        wrong = right.copy()
        wrong[place] = -1.0
        for actual, expected in zip(on_both(wrong), on_both(right), strict=True):
            found = compare_values(actual, expected)
            assert (found.mismatched, found.samples[0].coordinates) == (1, (place,))
