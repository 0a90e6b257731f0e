"""The three references of weight schemes, written apart from each other, give the same bits.

Any stored bits under every scheme, special scales, and what quantisers of real numbers store.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowbit import weights
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import weights_quantize, weights_tensors
from lowbit.weights import WeightScheme

from .weight_builders import integer_scheme
from .weight_checks import OUTPUTS, a_shape, agree, any_tensors, dequantize, floats, patterns, to_torch

SCHEMES = weights.select()
SPECIAL = {
    "float16": [0, 1, 2, 0x3FF, 0x400, 0x401, 0x3BFF, 0x3C00, 0x3C01, 0x5555, 0x7BFF, 0x7C00, 0x7C01, 0x7E00],
    "bfloat16": [0, 1, 2, 0x7F, 0x80, 0x81, 0x3F7F, 0x3F80, 0x3F81, 0x3355, 0x3301, 0x477F, 0x7F7F, 0x7F80, 0x7FC0],
}
"""Patterns of every class, and of both ends of each: of either sign a scale that the exact reference is asked about."""


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_any_bits(scheme: WeightScheme) -> None:
    rng = np.random.default_rng(2)
    for choice in range(len(scheme.scale_formats)):
        tensors = any_tensors(scheme, a_shape(scheme), rng, choice=choice)
        for fmt in OUTPUTS:
            expected = agree(tensors, scheme, fmt)
            small = dequantize("tensors", tensors, scheme, fmt, chunk=100)
            assert np.array_equal(small, expected)
            if fmt is (BINARY16, BFLOAT16, BINARY32)[choice]:
                assert np.array_equal(dequantize("exact", tensors, scheme, fmt), expected)


@pytest.mark.parametrize("dtype", SPECIAL)
@pytest.mark.parametrize("fmt", OUTPUTS, ids=lambda f: f.name)
def test_special_scales_by_the_definition(fmt: FloatFormat, dtype: str) -> None:
    """Every q and z under special and some random scales, by the scalar reference too."""
    rng = np.random.default_rng(3)
    magnitudes = np.array(SPECIAL[dtype], np.uint16)
    scales = np.concatenate([magnitudes, magnitudes | 0x8000, rng.integers(0, 65536, 11, dtype=np.uint16)])
    scales = np.pad(scales, (0, -scales.size % 8))
    stored = scales.view(np.float16) if dtype == "float16" else scales
    q, z = np.divmod(np.arange(31), 16)  # every difference from -15 to 15
    for name in ("awq_g1", "awq_g1+through_scale_dtype"):
        case = integer_scheme(
            name,
            np.repeat(np.where(q, z, 0)[:, None], scales.size, 1),
            np.repeat(np.where(q, 0, z)[:, None], scales.size, 1),
            np.repeat(stored[None], 31, 0),
        )
        assert np.array_equal(dequantize("exact", *case, fmt), agree(*case, fmt))


def rounds_trip(scheme: WeightScheme, scale_format: FloatFormat) -> tuple[Any, np.ndarray, np.ndarray]:
    """A weight's stored tensors, the weight, and how far from it they dequantise."""
    weight = np.random.default_rng(4).standard_normal(a_shape(scheme)).astype(np.float32)
    tensors = weights_quantize.quantize(weight, scheme, scale_format=scale_format, block_size2=2)
    found = floats(agree(tensors, scheme, BINARY32), BINARY32)
    return tensors, weight, np.abs(found.astype(np.float64) - weight)


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.family in ("awq", "gptq")], ids=lambda s: s.name)
def test_a_weight_moves_by_half_a_scale(scheme: WeightScheme) -> None:
    for fmt in scheme.scale_formats:
        tensors, weight, error = rounds_trip(scheme, fmt)
        rows = np.arange(len(weight))
        group = tensors.get("g_idx", rows // scheme.group_size(rows.size))
        scale = floats(tensors["scales"].view(np.uint16), fmt)[group]
        # Through the dtype of the scales a product of at most 15 scales is rounded once more.
        more = 15 * 2.0**-fmt.mantissa_bits if "through_scale_dtype" in scheme.flags else 0
        assert (error <= scale * (0.5 + 2.0**-20 + more)).all()
        assert error.max() > 0.45 * scale.min()


@pytest.mark.parametrize("name", ["int8_channel", "int8_scb", "int8_torch"])
def test_an_int8_weight_moves_by_half_a_step(name: str) -> None:
    _, weight, error = rounds_trip(weights.get(name), BINARY32)
    assert (error <= np.abs(weight).max(1, keepdims=True) / 127 * (0.5 + 2.0**-14)).all()


@pytest.mark.parametrize("name", ["nf4_b64", "nf4_b32", "nf4_b4096", "fp4_b64", "nf4_four_digit", "nf4_b64+nested"])
def test_a_weight_moves_by_half_a_gap_of_the_codebook(name: str) -> None:
    """And, where absmax is quantised too, by the 1/128 of the largest absmax that this may move it."""
    scheme = weights.get(name)
    _, weight, error = rounds_trip(scheme, BINARY32)
    gap = np.diff(np.unique(np.array(scheme.codebook, np.uint32).view(np.float32))).max()
    blocks = np.split(weight.ravel(), range(scheme.group, weight.size, scheme.group))
    absmax = np.array([np.abs(block).max() for block in blocks])
    bound = np.repeat(absmax, scheme.group)[: weight.size].reshape(weight.shape) * (gap / 2 + 2.0**-20)
    assert (error <= bound + (absmax.max() / 128 if scheme.nested else 0)).all()


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.family == "squeezellm"], ids=lambda s: s.name)
def test_a_weight_goes_to_the_nearest_entry_or_is_stored_beside(scheme: WeightScheme) -> None:
    for fmt in scheme.scale_formats:
        tensors, weight, error = rounds_trip(scheme, fmt)
        nearest = np.abs(tensors["lookup_table"].astype(np.float64)[None] - weight[..., None]).min(-1)
        stored = np.zeros(weight.shape, bool)
        if scheme.sparse:
            starts, rows, _ = tensors["sparse"]
            stored[rows, np.repeat(np.arange(weight.shape[1]), np.diff(starts))] = True
            assert stored.sum() == np.ceil(0.005 * weight.size)
        if scheme.full_rows:
            stored[:, tensors["full_rows"][0]] = True
        assert np.abs(error - np.where(stored, 0, nearest)).max() < 1e-6


@pytest.mark.parametrize(
    ("weight", "options", "error", "message"),
    [
        (np.zeros((8, 8), np.float16), {}, DtypeError, "weight: got float16"),
        (np.full((8, 8), np.nan), {}, ArgumentError, "weight: got NaN or Inf"),
        (np.zeros((8, 9)), {}, ShapeError, "N: got 9"),
        (
            np.zeros((8, 8)),
            {"scale_format": BINARY32},
            ArgumentError,
            "scale_format: got binary32, want one of binary16",
        ),
    ],
)
def test_what_is_not_quantised(weight: np.ndarray, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        weights_quantize.quantize(weight, weights.get("awq_gk"), **options)


def test_act_order_gathers_large_rows() -> None:
    weight = np.ones((64, 8), np.float32)
    weight[::2] = 100
    tensors = weights_quantize.quantize(weight, weights.get("gptq4_v1_g32+act_order"))
    assert tensors["g_idx"].tolist() == [0, 1] * 32
    assert np.array_equal(weights_tensors.dequantize(to_torch(tensors), weights.get("gptq4_v1_g32")).round(), weight)


def test_strided_tensors_on_the_device() -> None:
    scheme = weights.get("gptq3_v1_g128")
    tensors = any_tensors(scheme, (160, 32), np.random.default_rng(5))
    expected = weights_tensors.dequantize(to_torch(tensors), scheme, torch.bfloat16)
    strided = {name: torch.stack([t, t], -1)[..., 0] for name, t in to_torch(tensors).items()}
    assert not strided["qweight"].is_contiguous()
    actual = weights_tensors.dequantize(strided, scheme, torch.bfloat16)
    assert np.array_equal(patterns(actual), patterns(expected))
