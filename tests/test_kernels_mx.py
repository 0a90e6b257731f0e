"""The MX4 and MXFP4 kernels, bit for bit: on the GPU where there is one, else in Triton's interpreter.

References decide what is right; a few values stand here by hand so that kernel and reference cannot be wrong together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kernel_calls import (
    DEVICE,
    DTYPES,
    FAMILY,
    MX4,
    MXFP4,
    ONE_OF_EACH,
    RNG,
    bfloat16_values,
    boundaries,
    check,
    hard_values,
    host,
    on,
    pattern,
    quantize,
    random_options,
    same,
)

from lowbit import packing, schemes
from lowbit.formats import E2M1, E3M0
from lowbit.references import bits, exact
from lowbit.schemes import Encoded, Scheme
from lowbit_kernels import dequantize_mx4, dequantize_mxfp4, quantize_mx4, quantize_mxfp4

# What is right, by hand


def mxfp4_block(*values: float, **options: Any) -> tuple[list[int], int]:
    """The leading codes and the scale byte of a block that is +0 beyond the values."""
    x = torch.zeros(32, device=DEVICE)
    x[: len(values)] = torch.tensor(values)
    packed, scales = quantize_mxfp4(x, **options)
    codes = packing.unpack_nibbles(host(packed))
    return codes[: len(values)].tolist(), int(host(scales)[0])


@pytest.mark.parametrize(
    ("values", "options", "codes", "byte"),
    [
        pytest.param((6.0, 1.0, 2.0), {}, [7, 2, 4], 127, id="1.0 is code 2, 2.0 code 4"),
        pytest.param((6.0, 0.25, 1.25, 2.5, 5.0), {}, [7, 0, 2, 4, 6], 127, id="ties go to even"),
        pytest.param((6.0, -0.25, -0.0, -1e-40), {}, [7, 8, 8, 8], 127, id="the sign of zero is kept"),
        pytest.param((5.0,), {}, [6], 127, id="floor: amax 5 keeps scale 1"),
        pytest.param((2.0**-126,), {}, [4], 0, id="byte 0: 2**-126 / 2**-127 = 2"),
        pytest.param((2.0**-125,), {}, [6], 0, id="byte 0: 2**-125 / 2**-127 = 4"),
        pytest.param((1.75 * 2.0**127,), {"scale_rule": "even"}, [6], 253, id="even never marks a finite block"),
        pytest.param((7.0,), {"scale_rule": "even"}, [6], 128, id="even: 1.75 goes up; 3.5 ties to 4"),
        pytest.param((6.1, 6.0), {"scale_rule": "rceil"}, [5, 5], 128, id="rceil: codes use the stored scale"),
        pytest.param((6.0,), {"scale_rule": "rceil"}, [7], 127, id="rceil: 6 fits"),
        pytest.param((float("inf"), float("nan"), -1.0), {}, [7, 7, 10], 255, id="a marked block counts as scale 1"),
        pytest.param((-float("inf"), -float("nan")), {}, [15, 7], 255, id="NaN has no sign"),
        pytest.param((0.0, -0.0), {}, [0, 8], 0, id="a zero block has byte 0"),
        pytest.param((6.0, 2.0**-149), {"rounding": "toward_positive"}, [7, 1], 127, id="directed: above 0"),
        pytest.param((2.0**127, -(2.0**-149)), {"rounding": "toward_negative"}, [6, 9], 252, id="directed: underflow"),
    ],
)
def test_mxfp4_by_hand(values: tuple[float, ...], options: dict[str, str], codes: list[int], byte: int) -> None:
    assert mxfp4_block(*values, **options) == (codes, byte)


def test_element_0_is_in_the_low_nibble() -> None:
    """[1, 2] is 0x42, and the MX4 stream ends with the exponent byte."""
    x = torch.zeros(32, device=DEVICE)
    x[:3] = torch.tensor([1.0, 2.0, 4.0])
    assert host(quantize_mxfp4(x)[0])[0] == 0x42
    stream = host(quantize_mx4(x, scale_rounding="floor"))
    assert stream[:2].tolist() == [0x42, 0x06]
    assert stream[16] == 127


@pytest.mark.parametrize(
    ("values", "options", "codes", "byte"),
    [
        pytest.param((6.0, 0.25, 1.25), {"scale_rounding": "floor"}, [7, 1, 3], 127, id="ties go away from zero"),
        pytest.param((6.0,), {}, [5], 128, id="ceil: log2 6 goes up"),
        pytest.param((4.0,), {}, [6], 127, id="ceil: log2 4 stays"),
        pytest.param((7.0,), {"scale_rounding": "even_exclusive"}, [7], 127, id="even_exclusive: 1.75 stays"),
        pytest.param((1048575.9375,), {"scale_rounding": "floor"}, [7], 144, id="floor just below 2**20"),
        pytest.param((2.0**20 * (1 + 2.0**-23),), {}, [4], 146, id="ceil just above 2**20"),
        pytest.param((float("nan"), -float("nan")), {}, [7, 15], 0, id="NaN keeps its sign and has no amax"),
        pytest.param((float("inf"), 1.0), {}, [7, 0], 252, id="Inf saturates the exponent"),
        pytest.param((16.0, 0.125, 0.12), {"element": "e3m0", "scale_rounding": "floor"}, [6, 0, 0], 128, id="e3m0"),
    ],
)
def test_mx4_by_hand(values: tuple[float, ...], options: dict[str, str], codes: list[int], byte: int) -> None:
    x = torch.zeros(32, device=DEVICE)
    x[: len(values)] = torch.tensor(values)
    stream = host(quantize_mx4(x, **options))
    assert packing.unpack_nibbles(stream[:16])[: len(values)].tolist() == codes
    assert stream[16] == byte


# Against the references


@FAMILY
def test_quantize_every_bfloat16_value_and_hard_blocks(scheme: Scheme) -> None:
    values = bfloat16_values()
    neighbours = np.concatenate([values, RNG.permutation(values)]).reshape(-1, 256)
    check(on(np.concatenate([neighbours, hard_values(24, 256)])), scheme)


@FAMILY
def test_scales_around_every_threshold(scheme: Scheme) -> None:
    """Every exponent of amax, subnormal ones too, with the significands next to which some rule changes its mind."""
    thresholds = np.array([0, 1 << 20, 0x3504F4, 1 << 22, 3 << 21, 7 << 20])[:, None] + np.arange(-2, 3)
    mantissas = np.unique(thresholds[(thresholds >= 0) & (thresholds < 1 << 23)]).astype(np.uint32)
    amax = ((np.arange(255, dtype=np.uint32)[:, None] << 23) | mantissas).view(np.float32)
    x = np.zeros((*amax.shape, scheme.block), dtype=np.float32)
    x[..., 0] = -amax / 2
    x[..., scheme.block // 2] = amax
    check(on(x.reshape(255, -1)), scheme)


@pytest.mark.parametrize("scheme", [s for s in (*MX4, *MXFP4) if s.block == 32], ids=lambda s: s.name)
def test_quantize_around_every_boundary(scheme: Scheme) -> None:
    """Codes, ties, 1/256 steps and their neighbours in float32, under scales at both ends of the range and between.

    Elements 0 pin the scale, at the largest magnitude with which scale rules cannot differ; every other one is tried.
    """
    points = boundaries(scheme.element, scheme.rounding)
    largest = 2.0 ** (2 if scheme.element is E2M1 else 3)
    points = points[np.abs(points) <= largest]
    points = np.concatenate([points, RNG.permutation(points)[: -len(points) % 31]]).reshape(-1, 31)
    blocks = np.concatenate([np.full((len(points), 1), largest, np.float32), points], axis=1)
    for exponent in (-130, -127, -60, 0, 61, 124):
        with np.errstate(over="ignore"):
            check(on(np.ldexp(blocks, exponent)), scheme)


@ONE_OF_EACH
def test_the_slow_exact_reference_agrees(scheme: Scheme) -> None:
    """A few blocks against fractions, so that the fast reference is not the only judge."""
    x = hard_values(2, 2 * scheme.block)
    options = random_options(scheme, x.shape)
    stored = packing.pack(exact.quantize(x, scheme, **options), scheme)
    same(quantize(on(x), scheme, **options), tuple(part for part in stored if part is not None))


@ONE_OF_EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_widen_exactly(scheme: Scheme, dtype: torch.dtype) -> None:
    """All 2**16 patterns of either dtype, in order and shuffled."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    x = on(np.concatenate([patterns, RNG.permutation(patterns)]).view(np.int16)).view(dtype)
    check(x.reshape(-1, 128), scheme)


# Decoding


@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4_decodes_every_byte_and_code(dtype: torch.dtype) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    scales = np.arange(256, dtype=np.uint8)[:, None]
    encoded = Encoded(codes, scales)
    scheme = schemes.get("mxfp4_floor")
    actual = dequantize_mxfp4(on(packing.pack_nibbles(codes)), on(scales), dtype=dtype)
    assert actual.dtype == dtype
    right = bits.dequantize(encoded, scheme, DTYPES[dtype])
    nan = np.isnan(actual.float().cpu().numpy())
    assert nan[255].all(), "byte 255 is NaN for every code, 0 too"
    assert not nan[:255].any()
    np.testing.assert_array_equal(np.where(nan, 0, pattern(actual)), np.where(nan, 0, right))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("element", [E2M1, E3M0], ids=lambda e: e.name)
@pytest.mark.parametrize("group_size", [8, 16, 32, 64])
def test_mx4_decodes_every_byte_and_code(dtype: torch.dtype, element: Any, group_size: int) -> None:
    codes = np.resize(np.arange(16, dtype=np.uint8), (256, 2, group_size))
    codes[:, 1] = codes[:, 0, ::-1]
    codes = codes.reshape(256, 2 * group_size)
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 2, axis=1)
    scheme = schemes.get(f"mx4_ceil_{element.name}_g{group_size}")
    stream = packing.interleave(packing.pack_nibbles(codes), scales, group_size)
    actual = dequantize_mx4(on(stream), group_size=group_size, element=element.name, dtype=dtype)
    right = bits.dequantize(Encoded(codes, scales), scheme, DTYPES[dtype])
    nan = np.isnan(actual.float().cpu().numpy())
    np.testing.assert_array_equal(nan, (scales.repeat(group_size, 1) == 255) & (codes & 7 == 0))
    np.testing.assert_array_equal(np.where(nan, 0, pattern(actual)), np.where(nan, 0, right))


def test_overflow_decodes_to_infinity() -> None:
    """The block of FLT_MAX under ceil: 4 at byte 253 is 2**128."""
    x = torch.full((32,), torch.finfo(torch.float32).max, device=DEVICE)
    packed, scales = quantize_mxfp4(x, scale_rule="ceil")
    assert host(scales).tolist() == [253]
    assert torch.isposinf(dequantize_mxfp4(packed, scales)).all()


@pytest.mark.parametrize("columns", [97, 100, 128])
def test_mx4_columns_drop_the_padding(columns: int) -> None:
    x = on(RNG.standard_normal((3, 2, columns)).astype(np.float32))
    stream = quantize_mx4(x)
    assert dequantize_mx4(stream).shape == (3, 2, 128)
    trimmed = dequantize_mx4(stream, columns=columns, dtype=torch.bfloat16)
    assert trimmed.shape == (3, 2, columns)
    np.testing.assert_array_equal(
        pattern(trimmed), pattern(dequantize_mx4(stream, dtype=torch.bfloat16)[..., :columns])
    )


def test_stored_dtypes_and_their_bytes_are_both_taken() -> None:
    x = on(RNG.standard_normal((4, 64)).astype(np.float32))
    packed, scales = quantize_mxfp4(x)
    assert (packed.dtype, scales.dtype) == (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)
    plain = dequantize_mxfp4(packed.view(torch.uint8), scales.view(torch.uint8))
    np.testing.assert_array_equal(pattern(dequantize_mxfp4(packed, scales)), pattern(plain))
    assert quantize_mxfp4(x, swizzle=True)[1].dtype == torch.float8_e8m0fnu


def test_decoding_reads_strides() -> None:
    packed = on(RNG.integers(0, 256, (48, 20)).astype(np.uint8))
    scales = on(RNG.integers(100, 150, (3, 20)).astype(np.uint8))
    contiguous = dequantize_mxfp4(packed.t().contiguous(), scales.t().contiguous())
    np.testing.assert_array_equal(pattern(dequantize_mxfp4(packed.t(), scales.t())), pattern(contiguous))
    stream = on(RNG.integers(0, 253, (34, 20)).astype(np.uint8)).t()
    np.testing.assert_array_equal(pattern(dequantize_mx4(stream)), pattern(dequantize_mx4(stream.contiguous())))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 32)])
def test_empty_results(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device=DEVICE)
    assert dequantize_mxfp4(*quantize_mxfp4(x)).shape == shape
    assert dequantize_mx4(quantize_mx4(x), columns=shape[-1]).shape == shape
