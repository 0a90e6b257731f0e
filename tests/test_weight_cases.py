"""Inputs for weights: what is meant to be whole is whole, and what is drawn can be stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowbit import packing_weights, weights
from lowbit.cases import weight_domains
from lowbit.cases import weights as weight_cases
from lowbit.cases.known_weight_bugs import KNOWN_WEIGHTS
from lowbit.cases.weight_parts import numbered, special_patterns
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import weights_bits
from lowbit.references.bits_rounding import narrow
from lowbit.references.weights_arguments import output_shape
from lowbit.rules import Grouping
from lowbit.weights import WeightScheme

SCHEMES = weights.select()


def codes_of(arrays: Any, scheme: WeightScheme) -> Any:
    name = next(name for name in ("qweight", "packed", "weight") if name in arrays)
    return packing_weights.unpack_codes(arrays[name], scheme, shape=arrays.get("shape"))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_every_code_and_zero_point_in_every_lane(scheme: WeightScheme) -> None:
    arrays = weight_cases.lanes(scheme)
    codes = codes_of(arrays, scheme)
    lanes = scheme.packing.period_codes
    axis = 0 if codes.ndim == 1 else scheme.packing.axis
    every = set(range(scheme.code_range[0], scheme.code_range[1] + 1))
    for lane in range(lanes):
        assert set(np.unique(np.take(codes, np.arange(lane, codes.shape[axis], lanes), axis)).tolist()) == every
    if scheme.zero_packing is not None:
        zeros, lanes = packing_weights.unpack_zeros(arrays["qzeros"], scheme), scheme.zero_packing.period_codes
        for lane in range(lanes):
            assert set(np.unique(zeros[:, lane::lanes]).tolist()) == every
    if scheme.grouping is Grouping.ACT_ORDER:
        assert (np.diff(arrays["g_idx"]) < 0).any()
    assert weights_bits.dequantize(arrays, scheme, BINARY32).size <= 1 << 18


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_scales_of_every_kind_meet_every_code(scheme: WeightScheme) -> None:
    for source in scheme.scale_formats:
        arrays = weight_cases.special(scheme, source, binade_step=64)
        codes = codes_of(arrays, scheme)
        assert len(np.unique(codes)) == 1 << scheme.bits
        if scheme.zero_packing is not None:
            zeros = packing_weights.unpack_zeros(arrays["qzeros"], scheme)
            assert {0, scheme.code_range[1]} <= set(np.unique(zeros).tolist())
        found = weights_bits.dequantize(arrays, scheme, BINARY32).view(np.float32)
        assert np.isnan(found).any()
        assert np.isinf(found).any()
        assert scheme.full_rows or (np.signbit(found) & (found == 0)).any()  # a sum is seldom -0


@pytest.mark.parametrize("fmt", [BINARY16, BFLOAT16, BINARY32], ids=lambda fmt: fmt.name)
def test_special_patterns(fmt: FloatFormat) -> None:
    found = set(special_patterns(fmt).tolist())
    infinity = fmt.max_magnitude + 1
    wanted = {0, 1, (1 << fmt.mantissa_bits) - 1, 1 << fmt.mantissa_bits, fmt.max_magnitude, infinity, infinity + 1}
    assert wanted <= found
    assert {pattern | fmt.sign_mask for pattern in wanted} <= found
    assert {pattern >> fmt.mantissa_bits for pattern in found} == set(range(1 << fmt.bits - fmt.mantissa_bits))


def test_numbered_scales_tell_their_place() -> None:
    for fmt in (BINARY16, BFLOAT16, BINARY32):
        found = numbered((30, 34), fmt)
        assert len(np.unique(found)) == 30 * 34
        assert found.min() == fmt.bias << fmt.mantissa_bits
        assert found.max() < fmt.max_magnitude


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_shapes_can_be_stored(scheme: WeightScheme) -> None:
    found = weight_cases.output_shapes(scheme)
    for shape in (*found, *weight_cases.empty_shapes(scheme)):
        assert output_shape(weight_cases.random(scheme, shape, 1), scheme) == shape
    assert set(found) <= {*weight_cases.output_shapes(scheme, every=True)}
    if scheme.family in ("awq", "gptq"):
        rows, columns = ({shape[axis] for shape in found} for axis in (0, 1))
        group = 64 if scheme.group == -1 else scheme.group
        assert group in rows or scheme.group == -1
        assert len(columns) >= {2: 5, 3: 4}.get(scheme.bits, 6)
        if scheme.grouping is not Grouping.WHOLE and scheme.group != -1:
            assert group + 32 in rows
            assert any(k % group for k in rows)


def test_a_weight_with_one_scale_shows_its_codes() -> None:
    for seed in range(20):
        arrays = weight_cases.random(weights.get("nf4_b64"), (5, 3), seed)
        assert 2.0**-11 < abs(arrays["absmax"][0]) < 2.0**4


@pytest.mark.parametrize("fmt", [BINARY16, BFLOAT16], ids=lambda fmt: fmt.name)
def test_turning_points_are_where_a_cast_changes(fmt: FloatFormat) -> None:
    """Between two neighbours of the list the cast is constant, or they are neighbours in binary32."""
    points = weight_domains.turning_points(fmt)
    positive = np.sort(points[points < 0x7F800000]).astype(np.int64)
    cast = narrow(positive.astype(np.uint32).view(np.float32).astype(np.float64), fmt)
    changed = np.flatnonzero(np.diff(cast))
    assert (np.diff(positive)[changed] == 1).all()
    assert len(np.unique(cast)) == fmt.max_magnitude + 2
    assert {0x7F800000, 0x7FC00000, 0xFF800000} <= set(points.tolist())


def test_sixteen_bit_values() -> None:
    found = weight_domains.sixteen_bit_values()
    assert found.shape == (1 << 17,)
    halves = np.unique(found[: 1 << 16].view(np.float32)[np.isfinite(found[: 1 << 16].view(np.float32))])
    assert len(halves) == 2 * 31744 - 1
    assert found[1 << 16 :].tolist() == [pattern << 16 for pattern in range(1 << 16)]


def test_tables_hold_every_pattern() -> None:
    scheme = weights.get("squeezellm3")
    patterns = np.arange(1 << 16)
    seen = []
    for arrays in weight_domains.cast_tables(scheme, patterns, BINARY16):
        codes = codes_of(arrays, scheme)
        table = arrays["lookup_table"].view(np.uint16)
        seen.append(table[np.arange(len(table)), codes].reshape(-1))
    assert len(seen) == 1
    assert np.array_equal(np.unique(np.concatenate(seen)), patterns)


@pytest.mark.parametrize("case", KNOWN_WEIGHTS, ids=lambda case: f"{case.scheme}: {case.name}")
def test_known_bugs_are_decided_by_their_scheme(case: Any) -> None:
    scheme = weights.get(case.scheme)
    assert scheme in SCHEMES  # or no run would try it
    assert case.seen
    assert case.source
    if case.patterns is None:
        return
    found = weights_bits.dequantize(case.tensors(), scheme, case.fmt)
    assert np.array_equal(found, np.broadcast_to(case.patterns(), found.shape))
