"""How the NVFP4 kernels are called: shapes, strides, layouts, buffers, refusals, ops, and decoding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lowbit import packing
from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError
from lowbit_kernels import (
    _launch,
    _nvfp4_launch,
    dequantize_nvfp4,
    pad_last_dimension,
    quantize_nvfp4,
    recip_scale,
    swizzle_scales,
    unswizzle_scales,
)

from .nvfp4_checks import DEVICE, DTYPES, SCHEMES, check, check_decoded, on, raw

RNG = np.random.default_rng(20240612)
EVERY_SCHEME = pytest.mark.parametrize("scheme", SCHEMES)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SHAPES = [(16,), (1, 16), (5, 48), (2, 3, 32), (7, 1, 2, 80), (129, 64), (3, 5, 208), (1, 4112)]


def normal(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return on(RNG.normal(size=shape), dtype)


def assert_same(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert a.shape == e.shape
        assert np.array_equal(raw(a), raw(e))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@EVERY_DTYPE
def test_any_leading_shape(shape, dtype):
    packed, scales, g = check(normal(shape, dtype), "nvfp4")
    assert (packed.dtype, tuple(packed.shape)) == (torch.float4_e2m1fn_x2, (*shape[:-1], shape[-1] // 2))
    assert (scales.dtype, tuple(scales.shape)) == (torch.float8_e4m3fn, (*shape[:-1], shape[-1] // 16))
    assert (g.dtype, tuple(g.shape)) == (torch.float32, (1,))
    check_decoded(packed, scales, g, dtype)


@pytest.mark.parametrize("shape", [(0, 16), (3, 0), (0, 0), (2, 0, 32), (0,)], ids=str)
@EVERY_SCHEME
@pytest.mark.parametrize("swizzle", [False, True])
def test_empty_tensors(shape, scheme, swizzle):
    """TransformerEngine#2779: empty results, g as for a tensor of zeros."""
    x = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
    packed, scales, g = quantize_nvfp4(x, scheme=scheme, swizzle=swizzle)
    zeros = quantize_nvfp4(torch.zeros(16, device=DEVICE), scheme=scheme)
    assert packed.shape == (*shape[:-1], shape[-1] // 2)
    assert scales.shape == ((0,) if swizzle else (*shape[:-1], shape[-1] // 16))
    assert np.array_equal(raw(g), raw(zeros[2]))
    if scheme != "nvfp4_one_level":
        assert quantize_nvfp4(x, scheme=scheme, tensor_scale=7.5, swizzle=swizzle)[2].item() == 7.5
    if not swizzle:
        assert dequantize_nvfp4(packed, scales, g, dtype=torch.float16).shape == shape


@EVERY_DTYPE
def test_any_strides(dtype):
    """vllm#49092: each view is quantised as its contiguous copy is."""
    big = normal((64, 112), dtype)
    flat = normal((2 + 8 * 50,), dtype)
    views = {
        "column slice": big[:, :48],
        "column slice from an odd column": big[:, 33:97],
        "every second column": big[:, ::2][:, :48],
        "every third row": big[::3],
        "transposed": big.t()[:, :64],
        "odd offset": flat[1 : 1 + 8 * 48].view(8, 48),
        "offset of a pair": flat[2 : 2 + 8 * 48].view(8, 48),
        "rows a pair apart": flat[: 8 * 50].view(8, 50)[:, :48],
        "rows three pairs apart, offset of a pair": flat[2 : 2 + 7 * 54].view(7, 54)[:, :48],
        "odd row stride": flat[: 7 * 49].view(7, 49)[:, :48],
        "permuted": normal((6, 5, 32), dtype).permute(1, 0, 2),
        "permuted columns": normal((6, 32, 5), dtype).permute(2, 0, 1),
        "expanded": normal((1, 48), dtype).expand(5, 48),
        "one row, far apart": big[:1, :16],
    }
    for name, view in views.items():
        for options in ({}, {"swizzle": True, "rounding": "stochastic", "seed": 7}):
            before = view.clone()
            actual, expected = quantize_nvfp4(view, **options), quantize_nvfp4(view.contiguous(), **options)
            assert all(np.array_equal(raw(a), raw(e)) for a, e in zip(actual, expected, strict=True)), (name, options)
            assert np.array_equal(raw(view.contiguous()), raw(before.contiguous())), name


def test_offsets_past_31_bits(monkeypatch):
    """Rows 2**30 elements apart: their distance within a tile does not fit an int32. Only the pages used are real."""
    storage = torch.empty(3 * 2**30 + 64, dtype=torch.bfloat16, device=DEVICE)
    x = storage.as_strided((4, 32), (2**30, 1))
    x.copy_(normal((4, 32)))
    monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", 4096)  # several rows a program on any device
    assert_same(quantize_nvfp4(x), quantize_nvfp4(x.contiguous()))
    assert_same(quantize_nvfp4(x[:, 1:17]), quantize_nvfp4(x[:, 1:17].contiguous()))


@pytest.mark.parametrize("shape", [(2, 80), (130, 16), (128, 64), (1, 16), (3, 43, 208), (257, 1040)], ids=str)
@EVERY_SCHEME
def test_swizzled_scales(shape, scheme):
    """MSLK#339, vllm#45741: the same bytes as quantised and then swizzled, every byte of padding 0."""
    x = normal(shape)
    actual = check(x, scheme, swizzle=True)
    plain = quantize_nvfp4(x, scheme=scheme)
    assert_same(actual, (plain[0], swizzle_scales(plain[1]), plain[2]))
    rows, columns = plain[1].shape[:-1].numel(), plain[1].shape[-1]
    assert actual[1].shape == (packing.swizzled_size(rows, columns),)
    assert np.array_equal(raw(unswizzle_scales(actual[1], rows, columns)), raw(plain[1]).reshape(rows, columns))


@pytest.mark.parametrize("tile", [256, 4096, 2**14])
def test_the_tile_does_not_count(tile, monkeypatch):
    """The least is a part of a row: 16 of 17 blocks."""
    x = normal((5, 272))
    expected = [quantize_nvfp4(x, **options) for options in ({}, {"swizzle": True})]
    decoded = dequantize_nvfp4(*expected[0])
    monkeypatch.setattr(_launch, "_ELEMENTS_PER_PROGRAM", tile)
    monkeypatch.setattr(_nvfp4_launch, "_PARTIALS", 4)  # programs of the maximum then take several tiles
    assert_same(quantize_nvfp4(x), expected[0])
    assert_same(quantize_nvfp4(x, swizzle=True), expected[1])
    assert_same((dequantize_nvfp4(*expected[0]),), (decoded,))


@pytest.mark.parametrize("swizzle", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 2, 4])
@pytest.mark.parametrize("rounding", [{}, {"rounding": "stochastic", "seed": 9}], ids=["nearest", "seed"])
@EVERY_SCHEME
def test_given_buffers(swizzle, shift, rounding, scheme):
    """Every byte of a buffer is written, whatever it held, and none beside it, at any alignment."""
    x = normal((50 * 5 + 2,))[2:].view(5, 50)[:, :48]
    expected = quantize_nvfp4(x.contiguous(), scheme=scheme, swizzle=swizzle, **rounding)
    for fill in (0x00, 0xA5):
        store = [torch.full((64 + t.numel() * t.element_size() + 64,), fill, dtype=torch.uint8) for t in expected]
        store = [t.to(DEVICE) for t in store]
        out = [s[64 + shift : -64 + shift].view(e.shape) for s, e in zip(store[:2], expected[:2], strict=True)]
        out.append(store[2][64:68].view(torch.float32))
        result = quantize_nvfp4(x, scheme=scheme, swizzle=swizzle, out=tuple(out), **rounding)
        assert all(r is o for r, o in zip(result, out, strict=True))
        assert all(np.array_equal(raw(r), raw(e)) for r, e in zip(result, expected, strict=True))
        for index, s in enumerate(store):
            start = 64 + (shift if index < 2 else 0)
            assert (s[:start] == fill).all()
            assert (s[start + expected[index].numel() * expected[index].element_size() :] == fill).all()


X = torch.zeros(4, 32, dtype=torch.bfloat16, device=DEVICE)
PACKED, SCALES = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 2, dtype=torch.uint8)
PACKED, SCALES = PACKED.to(DEVICE), SCALES.to(DEVICE)
ONE = torch.ones(1, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: quantize_nvfp4(X[:, :24]), ShapeError, ["x", "24", "16", "pad_last_dimension"]),
        (lambda: quantize_nvfp4(X[0, 0]), ShapeError, ["x", "without dimensions"]),
        (lambda: quantize_nvfp4(X.double()), DtypeError, ["x", "float64", "bfloat16"]),
        (lambda: quantize_nvfp4(X.to("meta")), DeviceError, ["x", "meta"]),
        (lambda: quantize_nvfp4(X, scheme="nvfp5"), ArgumentError, ["scheme", "nvfp5", "nvfp4_two_level"]),
        (lambda: quantize_nvfp4(X, rounding="even"), ArgumentError, ["rounding", "even", "ties_to_even"]),
        (lambda: quantize_nvfp4(X, rounding="stochastic"), ArgumentError, ["seed", "random_bits"]),
        (lambda: quantize_nvfp4(X, random_bits=X.byte()), ArgumentError, ["random_bits", "None"]),
        (
            lambda: quantize_nvfp4(X, rounding="stochastic", random_bits=X.int()),
            DtypeError,
            ["random_bits", "int32", "uint8"],
        ),
        (
            lambda: quantize_nvfp4(X, rounding="stochastic", random_bits=X[:2].byte()),
            ShapeError,
            ["random_bits", "(2, 32)", "(4, 32)"],
        ),
        (lambda: quantize_nvfp4(X, rounding="stochastic", seed=2**64), ArgumentError, ["seed", "64-bit"]),
        (lambda: quantize_nvfp4(X, tensor_scale=ONE.bfloat16()), DtypeError, ["tensor_scale", "bfloat16", "float32"]),
        (lambda: quantize_nvfp4(X, tensor_scale="1"), DtypeError, ["tensor_scale", "str"]),
        (lambda: quantize_nvfp4(X, tensor_scale=torch.ones(2)), ShapeError, ["tensor_scale", "(2,)", "one element"]),
        (lambda: quantize_nvfp4(X, tensor_scale=ONE.to("meta")), DeviceError, ["tensor_scale", "meta"]),
        (
            lambda: quantize_nvfp4(X, tensor_scale=1.0, scheme="nvfp4_one_level"),
            ArgumentError,
            ["tensor_scale", "nvfp4_one_level"],
        ),
        (lambda: quantize_nvfp4(X, out=(PACKED, SCALES[:2], ONE)), ShapeError, ["out[1]", "(2, 2)", "(4, 2)"]),
        (lambda: quantize_nvfp4(X, out=(PACKED.int(), SCALES, ONE)), DtypeError, ["out[0]", "int32"]),
        (lambda: quantize_nvfp4(X, out=(PACKED, SCALES, ONE.half())), DtypeError, ["out[2]", "float16"]),
        (
            lambda: quantize_nvfp4(X, out=(PACKED, SCALES.t().contiguous().t(), ONE)),
            ArgumentError,
            ["out[1]", "contig"],
        ),
        (lambda: dequantize_nvfp4(PACKED, SCALES[:, :1]), ShapeError, ["scales", "(4, 1)", "(4, 2)"]),
        (lambda: dequantize_nvfp4(PACKED, swizzle_scales(SCALES)), ShapeError, ["scales", "unswizzle_scales"]),
        (lambda: dequantize_nvfp4(PACKED[:, :12], SCALES), ShapeError, ["packed", "(4, 12)", "16"]),
        (lambda: dequantize_nvfp4(PACKED.int(), SCALES), DtypeError, ["packed", "int32"]),
        (lambda: dequantize_nvfp4(PACKED, SCALES.view(torch.float8_e8m0fnu)), DtypeError, ["scales", "e8m0", "e4m3"]),
        (lambda: dequantize_nvfp4(PACKED, SCALES, ONE.half()), DtypeError, ["tensor_scale", "float16"]),
        (lambda: dequantize_nvfp4(PACKED, SCALES, dtype=torch.float64), DtypeError, ["dtype", "float64"]),
        (lambda: dequantize_nvfp4(PACKED, SCALES, out=X), DtypeError, ["out", "bfloat16", "float32"]),
        (lambda: recip_scale(ONE.double(), DEVICE), DtypeError, ["tensor_scale", "float64"]),
        (lambda: recip_scale(torch.ones(3), DEVICE), ShapeError, ["tensor_scale", "(3,)"]),
    ],
)
def test_refusals_name_the_argument(call, error, words):
    """flashinfer#3398 is among them: a bfloat16 tensor scale read as float32 gave zeros."""
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, LowbitError)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, -0.0, 1e-46, 1e39])
@pytest.mark.parametrize("scheme", ["nvfp4", "nvfp4_two_level"])
def test_a_tensor_scale_out_of_range(value, scheme):
    """Refused; where it may not be read, every scale is NaN."""
    tensor = on(np.array([value]), torch.float32)
    for given in (value, tensor):
        with pytest.raises(ArgumentError, match="tensor_scale: got"):
            quantize_nvfp4(X, scheme=scheme, tensor_scale=given)
    for swizzle in (False, True):
        _, scales, g = quantize_nvfp4(X, scheme=scheme, tensor_scale=tensor, validate=False, swizzle=swizzle)
        plain = unswizzle_scales(scales, 4, 2) if swizzle else scales
        assert (raw(plain) == 0x7F).all()
        assert not swizzle or (raw(scales) == 0x7F).sum() == 8, "padding is 0 all the same"
        assert np.array_equal(raw(g), raw(tensor))


def test_padding_makes_a_whole_block():
    x = normal((3, 40))
    packed, scales, _ = quantize_nvfp4(pad_last_dimension(x, 16), tensor_scale=3.0)
    assert (packed.shape, scales.shape) == ((3, 24), (3, 3))
    assert (raw(packed)[:, 20:] == 0).all()


def test_the_ops_keep_their_contract():
    x, bits = normal((4, 32), torch.float32), on(RNG.integers(0, 256, (4, 32)).astype(np.uint8))
    given = torch.full((1,), 2.0, device=DEVICE)
    packed, scales, g = (t.clone() for t in quantize_nvfp4(x))
    stored = (packed.view(torch.uint8), scales.view(torch.uint8))
    torch.library.opcheck(_nvfp4_launch.QUANTIZE, (x, 1, 1, True, given, None, 0, 0))
    torch.library.opcheck(_nvfp4_launch.QUANTIZE, (x, 2, 8, False, None, bits, 0, 0))
    torch.library.opcheck(_nvfp4_launch.QUANTIZE_OUT, (x, 0, 0, False, None, None, 0, 0, *stored, g))
    torch.library.opcheck(_nvfp4_launch.DEQUANTIZE, (*stored, g, torch.bfloat16))
    torch.library.opcheck(_nvfp4_launch.DEQUANTIZE_OUT, (*stored, None, torch.empty_like(x)))


def test_under_torch_compile():
    def function(x, g):
        packed, scales, scale = quantize_nvfp4(x, tensor_scale=g)
        return dequantize_nvfp4(packed, scales, scale, dtype=torch.bfloat16)

    x, g = normal((4, 32)), torch.full((1,), 500.0, device=DEVICE)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert np.array_equal(raw(compiled(x, g)), raw(function(x, g)))


def test_twice_the_same():
    x = normal((64, 256))
    for options in ({}, {"scheme": "nvfp4_two_level"}, {"rounding": "stochastic", "seed": 1}):
        assert_same(quantize_nvfp4(x, **options), quantize_nvfp4(x, **options))


@pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU")
def test_in_a_cuda_graph():
    """No call waits for the device, whichever way g comes; replaying reads the new contents."""
    x, g = normal((64, 256)), torch.full((1,), 500.0, device=DEVICE)
    options = ({}, {"scheme": "nvfp4_two_level"}, {"tensor_scale": g}, {"tensor_scale": 3.0}, {"swizzle": True})
    for chosen in options:
        quantize_nvfp4(x, **chosen)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = quantize_nvfp4(x, **chosen)
        x.copy_(normal((64, 256)))
        graph.replay()
        assert_same(result, quantize_nvfp4(x, **chosen))
