"""The PyTorch and the NumPy reference, written apart from each other, give the same bits.

One compares with ladders of exact thresholds and divides in PyTorch, the other works on integer fields. They are
compared on every bfloat16 and binary16 value, on specials, subnormals and random bit patterns, and on every code under
every scale byte.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.formats import E4M3, LOW_BIT
from lowbit.references import bits, tensors
from lowbit.rules import NanCode, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Encoded, Scheme

from .tensor_checks import FORMATS, SPECIALS, agree, agree_decoded

GIVEN = (1.0, 3.0, 448.0, 2.0**100, 2.0**-120, 2.0**-149, float(np.finfo(np.float32).max))


def all_bfloat16() -> np.ndarray:
    return (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)


def all_binary16() -> np.ndarray:
    return np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)


def mixtures(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """65,536 values each."""
    patterns = rng.integers(0, 2**32, 65536, dtype=np.uint32)
    patterns[rng.integers(0, 65536, 400)] = rng.choice(SPECIALS, 400)
    near = rng.standard_normal(65536) * np.exp2(np.repeat(rng.integers(-150, 126, 1024), 64))
    return {
        "bfloat16 in order": all_bfloat16(),
        "bfloat16 mixed": rng.permutation(all_bfloat16()),
        "binary16 mixed": rng.permutation(all_binary16()),
        "finite bfloat16": np.nan_to_num(rng.permutation(all_bfloat16()), nan=1.0, posinf=2.0, neginf=-3.0),
        "subnormal": rng.integers(0, 0x00800000, 65536, dtype=np.uint32).view(np.float32),
        "any pattern": patterns.view(np.float32),
        "one magnitude a block": near.astype(np.float32),
    }


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("element", LOW_BIT, ids=lambda e: e.name)
def test_elements(element, rounding):
    rng = np.random.default_rng(1)
    for x in (all_bfloat16(), all_binary16(), mixtures(rng)["any pattern"]):
        options = (
            {"random_bits": rng.integers(0, 256, x.shape, dtype=np.uint8)} if rounding is Rounding.STOCHASTIC else {}
        )
        for nan in NanCode if element.nan_magnitude is None else (None,):
            actual = tensors.encode(torch.from_numpy(x), element, rounding, nan, **options)
            assert np.array_equal(actual.numpy(), bits.encode(x, element, rounding, nan, **options)), nan


def random_options(scheme: Scheme, shape: tuple[int, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    options = {}
    if scheme.rounding is Rounding.STOCHASTIC:
        options["random_bits"] = rng.integers(0, 256, shape, dtype=np.uint8)
    if scheme.scale_rule is ScaleRule.STOCHASTIC:
        options["scale_random_bits"] = rng.integers(0, 2**31, (shape[0], shape[1] // scheme.block), dtype=np.int32)
    return options


@pytest.mark.parametrize("name", schemes.names())
def test_quantize(name):
    scheme = schemes.get(name)
    rng = np.random.default_rng(2)
    for label, values in mixtures(rng).items():
        x = values.reshape(-1, 4 * scheme.block)
        options = random_options(scheme, x.shape, rng)
        expected = bits.quantize(x, scheme, **options)
        try:
            agree(tensors.quantize(torch.from_numpy(x), scheme, **options), expected)
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}") from error


@pytest.mark.parametrize("name", [n for n in schemes.names() if schemes.get(n).family != "rtn_xxfp4"])
def test_scale_codes(name):
    scheme = schemes.get(name)
    patterns = np.concatenate([np.arange(0, 0x7F800000, 4099, dtype=np.uint32), np.array([0x7F800000, 0x7FC00000])])
    amax = patterns.astype(np.uint32).view(np.float32)
    options = {}
    if scheme.scale_rule is ScaleRule.STOCHASTIC:
        options["random_bits"] = np.random.default_rng(5).integers(0, 2**31, amax.shape, dtype=np.int32)
    actual = tensors.scale_codes(torch.from_numpy(amax), scheme, **options)
    assert np.array_equal(actual.numpy(), bits.scale_codes(amax, scheme, **options))


@pytest.mark.parametrize("g", GIVEN)
@pytest.mark.parametrize(
    "name", [n for n in schemes.names() if schemes.get(n).tensor_scale.name in ("ONE_ROUNDING", "TWO_ROUNDINGS")]
)
def test_quantize_with_a_given_tensor_scale(name, g):
    scheme = schemes.get(name)
    rng = np.random.default_rng(3)
    for label, values in mixtures(rng).items():
        x = values.reshape(-1, 4 * scheme.block)[:256]
        options = {**random_options(scheme, x.shape, rng), "tensor_scale": np.float32(g)}
        expected = bits.quantize(x, scheme, **options)
        try:
            agree(tensors.quantize(torch.from_numpy(x), scheme, **options), expected)
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}") from error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mx4_ceil_e2m1_g32", "mxfp4_floor", "nvfp4", "nvfp4_one_level", "rtn_mxfp4"])
def test_two_byte_inputs_widen_exactly(name, dtype):
    scheme = schemes.get(name)
    order = np.random.default_rng(4).permutation(65536).astype(np.uint16)
    x = torch.from_numpy(order.view(np.int16)).view(dtype).reshape(-1, 64)
    wide = (order.astype(np.uint32) << 16).view(np.float32) if dtype == torch.bfloat16 else order.view(np.float16)
    agree(tensors.quantize(x, scheme), bits.quantize(wide.astype(np.float32).reshape(-1, 64), scheme))


def distinct_decodings() -> list[Scheme]:
    """One scheme for each way to decode."""
    rules = {}
    for name in schemes.names():
        scheme = schemes.get(name)
        key = (scheme.family, scheme.element, scheme.scale, scheme.global_scale, scheme.high, scheme.nonfinite)
        rules.setdefault(key, scheme)
    return list(rules.values())


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("scheme", distinct_decodings(), ids=lambda s: s.name)
def test_every_code_under_every_scale_byte(scheme, dtype):
    codes = np.resize(np.arange(16, dtype=np.uint8), (256, scheme.block if scheme.block >= 16 else 2 * scheme.block))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // scheme.block, axis=1)
    fmt = FORMATS[dtype]
    given = (None, 0.0, np.inf, np.nan, *GIVEN) if scheme.scale is E4M3 and scheme.family == "nvfp4" else (None,)
    if scheme.tensor_scale is TensorScaleRule.GLOBAL_SCALE:
        given = (np.float32(float(scheme.global_scale)),)
    for g in given:
        g32 = None if g is None else np.float32(g)
        expected = bits.dequantize(Encoded(codes, scales, g32), scheme, fmt)
        parts = torch.from_numpy(codes), torch.from_numpy(scales), None if g is None else torch.tensor([g32])
        actual = tensors.dequantize(Encoded(*parts), scheme, dtype)
        assert actual.dtype == dtype
        agree_decoded(actual, expected)
