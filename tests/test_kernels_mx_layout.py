"""Shapes, strides, layouts, random bits and outputs of the MX kernels: how the work is divided must not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_calls import (
    DEVICE,
    DTYPES,
    MX4,
    MXFP4,
    ONE_OF_EACH,
    RNG,
    check,
    expected,
    hard_values,
    host,
    on,
    pattern,
    quantize,
    random_options,
    same,
)

from lowbit import schemes
from lowbit.references import philox
from lowbit.schemes import Scheme
from lowbit_kernels import _launch, dequantize_mx4, dequantize_mxfp4, quantize_mx4, quantize_mxfp4
from lowbit_kernels._philox import pair_bytes, pair_words, philox_bytes, philox_tile, philox_word

# Shapes and strides


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
        "storage offset of a pair": big.reshape(-1)[2 : 2 + 5 * columns].reshape(5, columns),
        "rows a pair apart": big.reshape(-1)[2 : 2 + 5 * (columns + 2)].reshape(5, columns + 2)[:, :columns],
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


@pytest.mark.parametrize("elements", [1 << 12, 1 << 16])
def test_swizzled_scales_in_tiles_of_any_height(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 rows, which are together in the layout, by several programs, and several such by one."""
    monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", elements)
    for dtype in (torch.float32, torch.bfloat16):
        x = on(RNG.standard_normal((259, 160)).astype(np.float32)).to(dtype)
        wanted = expected(x, schemes.get("mxfp4_floor"), swizzle=True)
        buffers = tuple(torch.full(part.shape, 0x5A, dtype=torch.uint8, device=DEVICE) for part in wanted)
        same(quantize_mxfp4(x, swizzle=True, out=buffers), wanted)


# MX4's stream by words


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mx4_ceil_e2m1_g32", "mx4_stochastic_e2m1_g32", "mx4_nearest_e2m1_g32+stochastic"])
def test_a_stream_of_words(name: str, dtype: torch.dtype, launched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one program, and in several of which the last is not full."""
    x = torch.cat([on(hard_values(1, 128)).reshape(-1), on(RNG.standard_normal(33 * 128).astype(np.float32))])
    with np.errstate(over="ignore"):
        check(x.to(dtype).view(19, 256), schemes.get(name), seed=11)
    monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", 2048)
    check(x.to(dtype).view(19, 256), schemes.get(name), seed=11)
    usual = "quantize_words_stochastic" if dtype == torch.bfloat16 else "quantize"
    assert launched == [usual if "+" in name else "quantize_words"] * 2


@pytest.mark.parametrize("drawn", [False, True])
def test_where_words_cannot_be_stored(drawn: bool, launched: list[str]) -> None:
    """Other groups, gaps, a rest of groups, given bits, or a stream that begins within a word: bytes, the same ones."""
    suffix, words = ("+stochastic", "quantize_words_stochastic") if drawn else ("", "quantize_words")
    scheme = schemes.get(f"mx4_ceil_e2m1_g32{suffix}")
    big = on(RNG.standard_normal((9, 256)).astype(np.float32)).bfloat16()
    check(big[:4, :96], scheme, seed=7)
    check(big[:2, :96].contiguous(), scheme, seed=7)
    check(big[:4, :100].contiguous(), scheme, seed=7)
    check(big.reshape(-1)[1:257], scheme, seed=7)
    check(big, schemes.get(f"mx4_ceil_e2m1_g16{suffix}"), seed=7)
    check(big, schemes.get(f"mx4_ceil_e3m0_g32{suffix}"), seed=7)
    check(big, schemes.get(f"mx4_stochastic_e2m1_g32{suffix}"))
    assert launched == ["quantize"] * 7
    wanted = expected(big, scheme, seed=7)
    for offset in range(9):
        arena = torch.full((wanted[0].size + 16,), 0x5A, dtype=torch.uint8, device=DEVICE)
        out = arena[offset : offset + wanted[0].size].view(wanted[0].shape)
        same((quantize_mx4(big, stochastic_casting=drawn, seed=7, out=out),), wanted)
        assert bool((arena[:offset] == 0x5A).all())
        assert bool((arena[offset + wanted[0].size :] == 0x5A).all())
        assert launched[-1] == (words if offset % 4 == 0 else "quantize")


# Random bits


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 5, 2**63 + 11, -1])
@pytest.mark.parametrize("shape", [(3, 5, 64), (7, 33)])
def test_seeds(seed: int, shape: tuple[int, ...]) -> None:
    """The bits belong to the element's index in the unpadded tensor and to the seed's 64 bits, nothing else."""
    x = on(RNG.standard_normal(shape).astype(np.float32))
    for scheme in (s for s in (*MX4, *MXFP4) if s.stochastic):
        if scheme.family == "mx4" or shape[-1] % 32 == 0:
            check(x, scheme, seed=seed)
            check(x.bfloat16(), scheme, seed=seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["mxfp4_floor+stochastic", "mx4_floor_e2m1_g32+stochastic"])
def test_seeded_bits_in_any_layout(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros of both signs, NaN, infinities and subnormals; rows apart, columns apart, words not aligned, swizzled; by
    one program and by several, with offsets in 64 bits."""
    scheme, swizzle = schemes.get(name), {"swizzle": True} if name.startswith("mxfp4") else {}
    hard = hard_values(3, 128)
    hard[0, ::40], hard[1, 3::41], hard[2, 64:] = np.nan, -np.inf, -np.nan
    with np.errstate(over="ignore"):
        x = on(hard).to(dtype)
    strided = views(dtype, 64)
    tensors = [x, x[:, :96], *(strided[view] for view in ("storage offset", "transposed", "every third row"))]
    for several in (False, True):
        if several:
            monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", 1024)
            monkeypatch.setattr(_launch, "INT32_MAX", 0)
        for tensor in tensors:
            check(tensor, scheme, seed=2**40 + 9)
        check(x, scheme, seed=2**40 + 9, **swizzle)


@triton.jit
def _draw(bytes_ptr, tile_ptr, pairs_ptr, words_ptr, first, key_low, key_high, COUNT: tl.constexpr):
    index = first + tl.arange(0, COUNT).to(tl.int64)
    tl.store(bytes_ptr + tl.arange(0, COUNT), philox_bytes(index, key_low, key_high))
    tl.store(words_ptr + tl.arange(0, COUNT), (philox_word(index, key_low, key_high, 1) >> 1).to(tl.int32))
    counter = (first >> 4) + tl.reshape(tl.arange(0, COUNT // 16).to(tl.int64), (COUNT // 32, 2))
    offsets = tl.reshape(tl.arange(0, COUNT), (COUNT // 32, 32))
    tl.store(tile_ptr + offsets, philox_tile(counter, key_low, key_high, COUNT // 32, 2))
    row = tl.arange(0, COUNT // 32)
    low, high = pair_bytes(pair_words((first >> 4) + row.to(tl.int64) * 2, key_low, key_high, 2))
    pairs_ptr += row[:, None] * 32 + tl.arange(0, 16)[None, :] * 2
    tl.store(pairs_ptr, low)
    tl.store(pairs_ptr + 1, high)


@pytest.mark.parametrize("first", [0, 1 << 20, 2**34 + 16, 2**36 - 128, 2**40])
def test_random_bits_of_elements_far_out(first: int) -> None:
    """Indices whose counters pass 2**31 and 2**32, which no tensor here reaches."""
    count, seed = 256, 0x9A3C_5511_0207_77F3
    results = [torch.zeros(count, dtype=torch.int32, device=DEVICE) for _ in range(4)]
    with np.errstate(over="ignore"):
        _draw[(1,)](*results, first, *_launch.require_key(seed, ""), COUNT=count)
    drawn, tile, pairs, words = (result.cpu().numpy() for result in results)
    np.testing.assert_array_equal(drawn, philox.element_bytes(seed, count, first))
    np.testing.assert_array_equal(tile, philox.element_bytes(seed, count, first))
    np.testing.assert_array_equal(pairs, philox.element_bytes(seed, count, first))
    np.testing.assert_array_equal(words, philox.scale_words(seed, count, first))


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


# Outputs


@ONE_OF_EACH
@pytest.mark.parametrize("begin", [992, 993, 994, 996])
def test_every_byte_is_written_and_none_outside(scheme: Scheme, begin: int) -> None:
    """At any alignment, of an input whose rows are a pair apart; where bits are given and where they are drawn."""
    x = on(RNG.standard_normal(2 + 5 * 66).astype(np.float32)).bfloat16()[2:].view(5, 66)[:, :64]
    for options in [random_options(scheme, (5, 64)), *([{"seed": 9}] if scheme.stochastic else [])]:
        wanted = expected(x, scheme, **options)
        for fill in (0xFF, 0xA5):
            arenas = [torch.full((part.size + 2 * 999,), fill, dtype=torch.uint8, device=DEVICE) for part in wanted]
            buffers = [a[begin:][: part.size].view(part.shape) for a, part in zip(arenas, wanted, strict=True)]
            out = schemes.Quantized(buffers[0], buffers[1] if len(buffers) > 1 else None)
            same(quantize(x, scheme, out=out, **options), wanted)
            for arena, part in zip(arenas, wanted, strict=True):
                assert bool((arena[:begin] == fill).all())
                assert bool((arena[begin + part.size :] == fill).all())


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
