"""The MX4 and MXFP4 kernels, bit for bit: on the GPU where there is one, else in Triton's interpreter.

References decide what is right; a few values stand here by hand so that kernel and reference cannot be wrong together.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import lowbit_kernels
from lowbit import packing, schemes
from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError, Unsupported
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, E2M1, E3M0, E4M3
from lowbit.references import bits, exact
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Encoded, Scheme
from lowbit_kernels import _launch, adapter, dequantize_mx4, dequantize_mxfp4, quantize_mx4, quantize_mxfp4

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = {torch.float32: BINARY32, torch.bfloat16: BFLOAT16, torch.float16: BINARY16}
RNG = np.random.default_rng(20240607)

MX4 = schemes.select(["mx4_*"])
MXFP4 = tuple(s for s in schemes.select(["mxfp4_*"]) if s.nan is NanCode.POSITIVE_MAX)
FAMILY = pytest.mark.parametrize("scheme", [*MX4, *MXFP4], ids=lambda s: s.name)
ONE_OF_EACH = pytest.mark.parametrize(
    "scheme",
    [schemes.get(name) for name in ("mx4_ceil_e2m1_g32", "mx4_stochastic_e3m0_g8", "mx4_ceil_e3m0_g32+stochastic")]
    + [schemes.get(name) for name in ("mxfp4_floor", "mxfp4_floor+stochastic", "mxfp4_rceil")],
    ids=lambda s: s.name,
)


def on(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(DEVICE)


def host(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor of a 1-byte dtype, or its values."""
    if tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)
    return tensor.cpu().numpy()


def pattern(tensor: torch.Tensor) -> np.ndarray:
    """The bits of a float tensor."""
    integers = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
    return tensor.view(integers).cpu().numpy().view(f"u{tensor.element_size()}")


def random_options(scheme: Scheme, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The random bits that a scheme asks for."""
    options = {}
    if scheme.rounding is Rounding.STOCHASTIC:
        options["random_bits"] = RNG.integers(0, 256, shape).astype(np.uint8)
    if scheme.scale_rule.value == "stochastic":
        groups = -(-shape[-1] // scheme.block)
        options["scale_random_bits"] = RNG.integers(0, 2**31, (*shape[:-1], groups)).astype(np.int32)
    return options


def quantize(x: torch.Tensor, scheme: Scheme, **options: Any) -> tuple[torch.Tensor, ...]:
    """The kernel's bytes: (stream,) or (packed, scales)."""
    given = {name: on(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    result = adapter.quantize(x, scheme, **given)
    return tuple(part for part in result if part is not None)


def expected(x: torch.Tensor, scheme: Scheme, swizzle: bool = False, **options: Any) -> tuple[np.ndarray, ...]:
    """The bytes that the integer reference gives for the widened x."""
    wide = np.ascontiguousarray(x.float().cpu().numpy())
    stored = packing.pack(bits.quantize(wide, scheme, **options), scheme, swizzle=swizzle)
    return tuple(part for part in stored if part is not None)


def same(actual: tuple[torch.Tensor, ...], wanted: tuple[np.ndarray, ...]) -> None:
    assert len(actual) == len(wanted)
    for got, right in zip(actual, wanted, strict=True):
        assert tuple(got.shape) == right.shape
        np.testing.assert_array_equal(host(got), right)


def check(x: torch.Tensor, scheme: Scheme, **options: Any) -> None:
    """One call against the reference, with random bits where the scheme needs them."""
    if "seed" not in options:
        options |= random_options(scheme, tuple(x.shape))
    same(quantize(x, scheme, **options), expected(x, scheme, **options))


def bfloat16_values() -> np.ndarray:
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def hard_values(rows: int, columns: int) -> np.ndarray:
    """Blocks of every kind: one binade, many binades, any pattern, specials, zeros, subnormals."""
    count = rows * columns
    kinds = [
        RNG.standard_normal(count),
        RNG.standard_normal(count) * 2.0 ** RNG.integers(-140, 120, count),
        RNG.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32),
        RNG.choice([0.0, -0.0, 0.25, -0.75, 1.25, 2.5, -5.0, 6.0, 7.0], count),
        RNG.choice([0.0, -0.0, 2.0**-126, -(2.0**-149), 2.0**-130, 0.75 * 2.0**-126], count),
    ]
    values = np.stack([kind.astype(np.float32).reshape(rows, columns) for kind in kinds], axis=1)
    return values.reshape(rows * len(kinds), columns)


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


@ONE_OF_EACH
@pytest.mark.parametrize(
    "shape", [(0,), (3, 0), (0, 64), (2, 0, 64), (64,), (1, 64), (2, 3, 64), (1, 1, 1, 192), (131, 64)]
)
def test_any_leading_shape(scheme: Scheme, shape: tuple[int, ...]) -> None:
    x = on(RNG.standard_normal(shape).astype(np.float32))
    check(x, scheme)
    if scheme.family == "mx4" and x.numel() == 0:
        groups = -(-shape[-1] // scheme.block)
        assert quantize(x, scheme, seed=0)[0].shape == (*shape[:-1], groups * (scheme.block // 2 + 1))


@pytest.mark.parametrize("scheme", MX4[:8:3], ids=lambda s: s.name)
@pytest.mark.parametrize("columns", [1, 7, 31, 33, 65, 100])
def test_mx4_pads_a_short_group_with_zeros(scheme: Scheme, columns: int) -> None:
    x = on(RNG.standard_normal((3, 5, columns)).astype(np.float32))
    check(x, scheme)
    check(x.bfloat16(), scheme)


def views(dtype: torch.dtype, columns: int = 96) -> dict[str, torch.Tensor]:
    """Tensors that are not contiguous, or not aligned."""
    big = on(RNG.standard_normal((3, 130, 200)).astype(np.float32)).to(dtype)
    return {
        "column slice": big[0, :, :columns],
        "column slice, odd offset": big[0, :, 7 : 7 + columns],
        "storage offset": big.reshape(-1)[3 : 3 + 5 * columns].reshape(5, columns),
        "transposed": big[0, :columns, :40].t(),
        "every second column": big[0, :, 0 : 2 * columns : 2],
        "every third row": big[0, ::3, :columns],
        "leading dimensions without a common stride": big[:, ::2, :columns],
        "leading dimensions swapped": big[:, :40, :columns].transpose(0, 1),
        "expanded rows": big[0, 0, :columns].expand(4, columns),
        "expanded columns": big[0, :, :1].expand(130, columns),
        "expanded scalar": big[0, 0, 0].expand(6, columns),
    }


@ONE_OF_EACH
@pytest.mark.parametrize("name", views(torch.float32))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strides_are_never_misread(scheme: Scheme, name: str, dtype: torch.dtype) -> None:
    x = views(dtype)[name]
    assert not (x.is_contiguous() and x.storage_offset() == 0)
    before = pattern(x.contiguous())
    check(x, scheme)
    np.testing.assert_array_equal(pattern(x.contiguous()), before)


def test_random_bits_may_have_strides() -> None:
    scheme = schemes.get("mxfp4_floor+stochastic")
    x = on(RNG.standard_normal((40, 64)).astype(np.float32))
    random_bits = on(RNG.integers(0, 256, (64, 40)).astype(np.uint8)).t()
    same(
        quantize_mxfp4(x, rounding="stochastic", random_bits=random_bits),
        expected(x, scheme, random_bits=np.ascontiguousarray(random_bits.cpu().numpy())),
    )


@pytest.mark.parametrize(
    "shape", [(1, 32), (2, 96), (127, 128), (128, 160), (129, 32), (300, 544), (3, 100, 64), (0, 64)]
)
def test_swizzled_scales(shape: tuple[int, ...]) -> None:
    """In the layout of the reference, every padding byte 0, whatever memory held before."""
    x = on(RNG.standard_normal(shape).astype(np.float32) * 100)
    scheme = schemes.get("mxfp4_floor")
    actual = quantize_mxfp4(x, swizzle=True)
    wanted = expected(x, scheme, swizzle=True)
    same(actual, wanted)
    for fill in (0xFF, 0x5A):
        buffers = tuple(torch.full(part.shape, fill, dtype=torch.uint8, device=DEVICE) for part in wanted)
        same(quantize_mxfp4(x, swizzle=True, out=buffers), wanted)


# Random bits


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**63 + 11, -1])
@pytest.mark.parametrize("shape", [(3, 5, 64), (7, 33)])
def test_seeds(seed: int, shape: tuple[int, ...]) -> None:
    """The bits belong to the element's index in the unpadded tensor and to the seed's 64 bits, nothing else."""
    x = on(RNG.standard_normal(shape).astype(np.float32))
    for scheme in (s for s in (*MX4, *MXFP4) if s.stochastic):
        if scheme.family == "mx4" or shape[-1] % 32 == 0:
            check(x, scheme, seed=seed)


def test_a_negative_seed_is_its_twos_complement() -> None:
    x = on(RNG.standard_normal((4, 64)).astype(np.float32))
    same(
        quantize_mxfp4(x, rounding="stochastic", seed=-3),
        tuple(host(part) for part in quantize_mxfp4(x, rounding="stochastic", seed=2**64 - 3)),
    )


def test_the_mean_over_all_random_bytes_is_the_value() -> None:
    """0.1, 0.75 and 1.1 at scale 1: no bias toward any neighbour, but for what 8 bits cannot hold."""
    x = torch.tensor([6.0, 0.1, 0.75, -1.1], device=DEVICE).repeat(256, 8)
    random_bits = torch.arange(256, dtype=torch.uint8, device=DEVICE)[:, None].expand(x.shape)
    decoded = dequantize_mxfp4(*quantize_mxfp4(x, rounding="stochastic", random_bits=random_bits))
    means = decoded.double().mean(dim=0)[:4].tolist()
    assert means == [6.0, np.floor(0.1 * 512) / 512, 0.75, -(1 + np.floor((1.1 - 1) * 512) / 512)]


# Independence from how the work is divided


@ONE_OF_EACH
@pytest.mark.parametrize(("elements", "wide"), [(128, False), (512, True)])
def test_tiles_and_64_bit_offsets_change_nothing(
    scheme: Scheme, elements: int, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small programs, with offsets inside a tile in 64 bits, give the bytes of one."""
    monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", elements)
    if wide:
        monkeypatch.setattr(_launch, "INT32_MAX", 0)
    big = on(RNG.standard_normal((2, 2, 130)).astype(np.float32))
    for x in (big[..., :96], big[..., :128].contiguous()):
        check(x, scheme)
        if scheme.stochastic:
            check(x, scheme, seed=5)
    if scheme.family == "mx4":
        check(big[0], scheme)
        stream = quantize(big, scheme, seed=9)[0]
        decode = {"group_size": scheme.block, "element": scheme.element.name}
        full = dequantize_mx4(stream, **decode)
        np.testing.assert_array_equal(pattern(dequantize_mx4(stream, columns=130, **decode)), pattern(full[..., :130]))
    elif not scheme.stochastic:
        x = big[..., :96]
        same(quantize(x, scheme, swizzle=True), expected(x, scheme, swizzle=True))


@pytest.mark.parametrize("scheme", [schemes.get("mxfp4_floor"), schemes.get("mx4_ceil_e2m1_g32")], ids=lambda s: s.name)
@pytest.mark.parametrize("stride", [2**30 + 3, 2**30 + 2])
def test_offsets_of_more_than_31_bits(scheme: Scheme, stride: int) -> None:
    """Rows so far apart that an offset within a tile passes 2**31 - 1; only the pages of the rows are touched."""
    rows = 5 if stride % 2 == 0 else 3
    small = on(RNG.standard_normal((rows, 64)).astype(np.float32)).bfloat16()
    x = torch.empty((rows - 1) * stride + 64, dtype=torch.bfloat16, device=DEVICE).as_strided((rows, 64), (stride, 1))
    x.copy_(small)
    same(quantize(x, scheme), expected(small, scheme))


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


# Outputs


@ONE_OF_EACH
def test_every_byte_is_written_and_none_outside(scheme: Scheme) -> None:
    x = on(RNG.standard_normal((5, 64)).astype(np.float32))
    options = random_options(scheme, (5, 64))
    wanted = expected(x, scheme, **options)
    for fill in (0xFF, 0xA5):
        arenas = [torch.full((part.size + 2 * 999,), fill, dtype=torch.uint8, device=DEVICE) for part in wanted]
        buffers = [a[999:-999].view(part.shape) for a, part in zip(arenas, wanted, strict=True)]
        out = schemes.Quantized(buffers[0], buffers[1] if len(buffers) > 1 else None)
        same(quantize(x, scheme, out=out, **options), wanted)
        for arena in arenas:
            assert bool((arena[:999] == fill).all())
            assert bool((arena[-999:] == fill).all())


def test_deterministic_fill_changes_nothing() -> None:
    """torch fills what ops leave uninitialised under deterministic algorithms: nothing is left."""
    x = on(RNG.standard_normal((130, 160)).astype(np.float32))
    plain = [*quantize_mxfp4(x, swizzle=True), quantize_mx4(x)]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        filled = [*quantize_mxfp4(x, swizzle=True), quantize_mx4(x)]
    finally:
        torch.use_deterministic_algorithms(False)
    for actual, wanted in zip(filled, plain, strict=True):
        np.testing.assert_array_equal(host(actual), host(wanted))


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_into_a_buffer(dtype: torch.dtype) -> None:
    x = on(RNG.standard_normal((5, 40)).astype(np.float32))
    stream = quantize_mx4(x, group_size=16)
    arena = torch.full((5 * 40 + 2 * 77,), 3.0, dtype=dtype, device=DEVICE)
    out = arena[77:-77].view(5, 40)
    assert dequantize_mx4(stream, group_size=16, columns=40, dtype=dtype, out=out) is out
    np.testing.assert_array_equal(pattern(out), pattern(dequantize_mx4(stream, group_size=16, columns=40, dtype=dtype)))
    assert bool((arena[:77] == 3).all())
    assert bool((arena[-77:] == 3).all())


def test_out_takes_the_stored_dtypes_and_returns_the_buffers() -> None:
    x = on(RNG.standard_normal((3, 64)).astype(np.float32))
    wanted = quantize_mxfp4(x)
    out = tuple(torch.empty_like(part) for part in wanted)
    result = quantize_mxfp4(x, out=out)
    assert all(a is b for a, b in zip(result, out, strict=True))
    same(result, tuple(host(part) for part in wanted))
    decoded = torch.empty(3, 64, dtype=torch.float16, device=DEVICE)
    assert dequantize_mxfp4(*wanted, dtype=torch.float16, out=decoded) is decoded


# Refusals


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


BYTES = torch.uint8
REFUSALS = [
    (lambda: quantize_mxfp4(tensor(2, 33)), ShapeError, r"x: .*33.*32.*pad_last_dimension"),
    (lambda: quantize_mxfp4(tensor()), ShapeError, r"x: .*without dimensions"),
    (
        lambda: quantize_mxfp4(tensor(32, dtype=torch.float64)),
        DtypeError,
        r"x: got torch\.float64, want torch\.float32",
    ),
    (lambda: quantize_mxfp4(tensor(32, dtype=torch.int32)), DtypeError, r"x: got torch\.int32"),
    (lambda: quantize_mxfp4([1.0]), DtypeError, r"x: got list, want a torch\.Tensor"),
    (lambda: quantize_mxfp4(torch.zeros(32, device="meta")), DeviceError, r"x: got a tensor on meta"),
    (lambda: quantize_mxfp4(tensor(32), scale_rule="nearest"), ArgumentError, r"scale_rule: got 'nearest', want floor"),
    (lambda: quantize_mxfp4(tensor(32), rounding="even"), ArgumentError, r"rounding: got 'even', want ties_to_even"),
    (lambda: quantize_mxfp4(tensor(32), rounding=[]), ArgumentError, r"rounding: got \[\]"),
    (lambda: quantize_mxfp4(tensor(32), rounding="stochastic"), ArgumentError, r"seed: got None.*random_bits"),
    (lambda: quantize_mxfp4(tensor(32), random_bits=tensor(32, dtype=BYTES)), ArgumentError, r"random_bits: .*None"),
    (
        lambda: quantize_mxfp4(tensor(32), rounding="stochastic", random_bits=tensor(31, dtype=BYTES)),
        ShapeError,
        r"random_bits: got shape \(31,\), want \(32,\)",
    ),
    (
        lambda: quantize_mxfp4(tensor(32), rounding="stochastic", random_bits=tensor(32)),
        DtypeError,
        r"random_bits: got torch\.float32, want torch\.uint8",
    ),
    (lambda: quantize_mxfp4(tensor(32), rounding="stochastic", seed=2**64), ArgumentError, r"seed: .*64-bit"),
    (lambda: quantize_mxfp4(tensor(32), rounding="stochastic", seed=1.5), DtypeError, r"seed: got float"),
    (
        lambda: quantize_mxfp4(tensor(2, 32), out=(tensor(2, 16, dtype=BYTES), tensor(2, 2, dtype=BYTES))),
        ShapeError,
        r"out\[1\]: got shape \(2, 2\), want \(2, 1\)",
    ),
    (
        lambda: quantize_mxfp4(tensor(2, 32), out=(tensor(2, 16), tensor(2, 1, dtype=BYTES))),
        DtypeError,
        r"out\[0\]: got torch\.float32",
    ),
    (
        lambda: quantize_mxfp4(tensor(2, 32), out=(tensor(16, 2, dtype=BYTES).t(), tensor(2, 1, dtype=BYTES))),
        ArgumentError,
        r"out\[0\]: got strides",
    ),
    (lambda: dequantize_mxfp4(tensor(2, 15, dtype=BYTES), tensor(2, 1, dtype=BYTES)), ShapeError, r"packed: got shape"),
    (
        lambda: dequantize_mxfp4(tensor(2, 16, dtype=BYTES), tensor(512, dtype=BYTES)),
        ShapeError,
        r"scales: got shape \(512,\), want \(2, 1\).*unswizzle_scales",
    ),
    (lambda: dequantize_mxfp4(tensor(2, 16), tensor(2, 1, dtype=BYTES)), DtypeError, r"packed: got torch\.float32"),
    (
        lambda: dequantize_mxfp4(tensor(2, 16, dtype=BYTES), tensor(2, 1, dtype=torch.float8_e4m3fn)),
        DtypeError,
        r"scales: got torch\.float8_e4m3fn, want torch\.uint8 or torch\.float8_e8m0fnu",
    ),
    (
        lambda: dequantize_mxfp4(tensor(2, 16, dtype=BYTES), tensor(2, 1, dtype=BYTES), dtype=torch.float64),
        DtypeError,
        r"dtype: got torch\.float64",
    ),
    (lambda: quantize_mx4(tensor(32), group_size=24), ArgumentError, r"group_size: got 24, want 8, 16, 32 or 64"),
    (lambda: quantize_mx4(tensor(32), element="e4m3"), ArgumentError, r"element: got 'e4m3', want e2m1 or e3m0"),
    (lambda: quantize_mx4(tensor(32), scale_rounding="even"), ArgumentError, r"scale_rounding: .*even_exclusive"),
    (lambda: quantize_mx4(tensor(32), stochastic_casting=True), ArgumentError, r"seed: got None.*random_bits"),
    (lambda: quantize_mx4(tensor(32), scale_rounding="stochastic"), ArgumentError, r"seed: .*scale_random_bits"),
    (
        lambda: quantize_mx4(tensor(33), scale_rounding="stochastic", scale_random_bits=tensor(1, dtype=torch.int32)),
        ShapeError,
        r"scale_random_bits: got shape \(1,\), want \(2,\)",
    ),
    (
        lambda: quantize_mx4(tensor(33), out=tensor(17, dtype=BYTES)),
        ShapeError,
        r"out: got shape \(17,\), want \(34,\)",
    ),
    (lambda: dequantize_mx4(tensor(2, 16, dtype=BYTES)), ShapeError, r"packed: got shape \(2, 16\).*17"),
    (lambda: dequantize_mx4(tensor(2, 34, dtype=BYTES), columns=32), ShapeError, r"columns: got 32, want 33\.\.64"),
    (lambda: dequantize_mx4(tensor(2, 34, dtype=BYTES), columns=65), ShapeError, r"columns: got 65, want 33\.\.64"),
    (
        lambda: dequantize_mx4(tensor(2, 34, dtype=torch.int8)),
        DtypeError,
        r"packed: got torch\.int8, want torch\.uint8",
    ),
    (lambda: lowbit_kernels.pad_last_dimension(tensor(), 32), ShapeError, r"x: .*without dimensions"),
    (lambda: lowbit_kernels.pad_last_dimension(tensor(3), 0), ArgumentError, r"multiple: got 0"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_refusals_name_the_argument(call: Any, error: type[LowbitError], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, ValueError | TypeError)


def test_pad_last_dimension() -> None:
    x = on(RNG.standard_normal((2, 33)).astype(np.float32))
    padded = lowbit_kernels.pad_last_dimension(x, 32)
    assert padded.shape == (2, 64)
    assert torch.equal(padded[:, :33], x)
    assert not padded[:, 33:].any()
    assert lowbit_kernels.pad_last_dimension(padded, 32) is padded


# torch


def test_ops_pass_opcheck() -> None:
    x = on(RNG.standard_normal((3, 64)).astype(np.float32))
    ops = torch.ops.lowbit_kernels
    packed, scales = (part.view(torch.uint8) for part in quantize_mxfp4(x))
    stream = quantize_mx4(x)
    random_bits = torch.zeros(3, 64, dtype=torch.uint8, device=DEVICE)
    calls = [
        (ops.quantize_mxfp4.default, (x, 0, 0, False, None, 0, 0)),
        (ops.quantize_mxfp4.default, (x, 0, 8, True, random_bits, 0, 0)),
        (ops.quantize_mxfp4_out.default, (x, 0, 0, False, None, 0, 0, packed.clone(), scales.clone())),
        (ops.dequantize_mxfp4.default, (packed, scales, torch.bfloat16)),
        (ops.dequantize_mxfp4_out.default, (packed, scales, torch.empty_like(x))),
        (ops.quantize_mx4.default, (x, 32, 2, 1, 2, None, None, 0, 0)),
        (ops.quantize_mx4_out.default, (x, 32, 2, 1, 2, None, None, 0, 0, stream.clone())),
        (ops.dequantize_mx4.default, (stream, 32, 2, 64, torch.float32)),
        (ops.dequantize_mx4_out.default, (stream, 32, 2, torch.empty_like(x))),
    ]
    for op, args in calls:
        torch.library.opcheck(op, args)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_graph_of_torch_compile_is_whole(dynamic: bool) -> None:
    def round_trip(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed, scales = quantize_mxfp4(x * 2, scale_rule="even", swizzle=False)
        stream = quantize_mx4(x * 2, stochastic_casting=True, seed=7)
        return dequantize_mxfp4(packed, scales, dtype=torch.bfloat16) + 1, dequantize_mx4(stream, columns=x.shape[-1])

    compiled = torch.compile(round_trip, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (3, 5):
        x = on(RNG.standard_normal((rows, 64)).astype(np.float32))
        for actual, wanted in zip(compiled(x), round_trip(x), strict=True):
            np.testing.assert_array_equal(pattern(actual), pattern(wanted))


def test_compiled_calls_write_into_out() -> None:
    def into(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        quantize_mxfp4(x, out=(packed, scales))
        return dequantize_mxfp4(packed, scales)

    x = on(RNG.standard_normal((3, 64)).astype(np.float32))
    wanted = quantize_mxfp4(x)
    buffers = [torch.empty_like(part.view(torch.uint8)) for part in wanted]
    decoded = torch.compile(into, backend="aot_eager", fullgraph=True)(x, *buffers)
    same(tuple(buffers), tuple(host(part) for part in wanted))
    np.testing.assert_array_equal(pattern(decoded), pattern(dequantize_mxfp4(*wanted)))


def test_no_gradient_is_pretended() -> None:
    x = on(RNG.standard_normal((3, 64)).astype(np.float32)).requires_grad_()
    assert not any(part.requires_grad for part in quantize_mxfp4(x))


# The adapter


@pytest.mark.parametrize("rounding", Rounding, ids=lambda r: r.value)
@pytest.mark.parametrize("element", [E2M1, E3M0], ids=lambda e: e.name)
@pytest.mark.parametrize("nan", NanCode, ids=lambda n: n.value)
def test_the_element_stage_alone(element: Any, rounding: Rounding, nan: NanCode) -> None:
    """Every first pattern of a code and its neighbours, every binade, and every bfloat16 value."""
    x = np.concatenate([boundaries(element, rounding), bfloat16_values()])
    random_bits = RNG.integers(0, 256, x.shape).astype(np.uint8) if rounding is Rounding.STOCHASTIC else None
    actual = adapter.encode(
        on(x), element, rounding, random_bits=None if random_bits is None else on(random_bits), nan=nan
    )
    right = bits.encode(x, element, rounding, nan, random_bits=random_bits)
    np.testing.assert_array_equal(host(actual), right)


def boundaries(element: Any, rounding: Rounding) -> np.ndarray:
    """binary32 values around all that decides: codes, midpoints, 1/256 steps between codes, powers of two."""
    points = [float(value) for value in element.magnitudes]
    step = 1 if rounding is Rounding.STOCHASTIC else 64
    for low, high in itertools.pairwise(element.magnitudes):
        points += [float(low + (high - low) * k / 256) for k in range(0, 256, step)]
    points += [2.0**e for e in range(-149, 128)]
    around = np.array(points, dtype=np.float32).view(np.int32)[:, None] + np.arange(-17, 18)
    kept = np.unique(around[(around >= 0) & (around <= 0x7F800000)]).astype(np.uint32)
    return np.concatenate([kept, kept | 0x80000000]).view(np.float32)


def test_the_adapter_declines_what_has_no_kernel() -> None:
    x = tensor(32)
    for name in ("mxfp4_floor+nan_zero", "rtn_mxfp4", "nvfp4_two_level_cuda"):
        with pytest.raises(Unsupported):
            adapter.quantize(x, schemes.get(name))
    with pytest.raises(Unsupported):
        adapter.quantize(x, MX4[0], swizzle=True)
    with pytest.raises(Unsupported):
        adapter.encode(x, E4M3, Rounding.TIES_TO_EVEN)
