"""The SWIZZLE_32_4_4 kernels: a permutation and zeros, judged with scales that say where they come from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from lowbit import packing
from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError
from lowbit_kernels import swizzle, swizzle_scales, unswizzle_scales

from .nvfp4_checks import DEVICE, on, raw

RNG = np.random.default_rng(20240613)
DTYPES = (torch.uint8, torch.float8_e8m0fnu, torch.float8_e4m3fn)
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SHAPES = [(1, 1), (2, 5), (31, 3), (33, 4), (127, 7), (128, 4), (129, 8), (130, 65), (256, 64), (300, 131), (1, 1500)]
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)


def indexed(rows: int, columns: int, shift: int) -> torch.Tensor:
    """(rows, columns) uint8: one byte of each scale's own index, plus 1 where that would be 0 as the padding is."""
    index = torch.arange(1, rows * columns + 1, dtype=torch.int64)
    return on(((index >> shift) & 0xFF).to(torch.uint8).view(rows, columns))


@triton.jit
def offset_kernel(row_ptr, out_ptr, columns_padded, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    tl.store(out_ptr + column, swizzle.swizzled_offset(tl.load(row_ptr), column, columns_padded))


@EVERY_SHAPE
@pytest.mark.parametrize("shift", [0, 8])
def test_every_scale_is_where_the_formula_says(shape, shift):
    scales = indexed(*shape, shift)
    buffer = raw(swizzle_scales(scales))
    rows, columns = shape
    expected = np.zeros((-(-rows // 128) * 128) * (-(-columns // 4) * 4), dtype=np.uint8)
    r, c = np.indices(shape)
    tile = (r // 128) * -(-columns // 4) + c // 4
    expected[tile * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4] = raw(scales)
    assert np.array_equal(buffer, expected)
    assert np.array_equal(buffer, raw(packing.swizzle(scales)))


def test_four_places_by_hand():
    scales = torch.zeros(256, 8, dtype=torch.uint8, device=DEVICE)
    for number, (r, c) in enumerate([(0, 1), (1, 0), (32, 0), (128, 4)], start=1):
        scales[r, c] = number
    buffer = raw(swizzle_scales(scales))
    assert [int(np.flatnonzero(buffer == number)[0]) for number in (1, 2, 3, 4)] == [1, 16, 4, 3 * 512]


@pytest.mark.parametrize("columns", [4, 64, 132])
def test_the_device_function_says_the_same(columns):
    for row in (0, 1, 31, 32, 127, 128, 1000, 2**31 + 77):
        out = torch.empty(128, dtype=torch.int64, device=DEVICE)
        offset_kernel[(1,)](on(np.array([row])), out, columns, BLOCK=128)
        expected = [packing.swizzle_offset(row, c, columns) for c in range(columns)][:128]
        assert out[: len(expected)].tolist() == expected


@EVERY_SHAPE
@EVERY_DTYPE
def test_there_and_back(shape, dtype):
    """Every byte survives, NaN patterns included, and the dtype too; what the padding holds does not matter."""
    scales = on(RNG.integers(0, 256, shape).astype(np.uint8)).view(dtype)
    buffer = swizzle_scales(scales)
    assert (buffer.dtype, tuple(buffer.shape)) == (dtype, (packing.swizzled_size(*shape),))
    padding = on(packing.swizzle_padding(*shape))
    assert (buffer.view(torch.uint8)[padding] == 0).all()
    dirty = buffer.view(torch.uint8).clone()
    dirty[padding] = 0xEE
    for stored in (buffer, dirty.view(dtype)):
        back = unswizzle_scales(stored, *shape)
        assert (back.dtype, tuple(back.shape)) == (dtype, shape)
        assert np.array_equal(raw(back), raw(scales))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (2, 0, 5)], ids=str)
def test_empty_scales(shape):
    scales = torch.zeros(shape, dtype=torch.uint8, device=DEVICE)
    buffer = swizzle_scales(scales)
    assert buffer.shape == (0,)
    rows, columns = scales.shape[:-1].numel(), shape[-1]
    assert unswizzle_scales(buffer, rows, columns).shape == (rows, columns)


def test_leading_dimensions_are_rows():
    scales = on(RNG.integers(0, 256, (3, 5, 70)).astype(np.uint8))
    assert np.array_equal(raw(swizzle_scales(scales)), raw(swizzle_scales(scales.reshape(15, 70))))
    assert np.array_equal(raw(swizzle_scales(scales[0, 0])), raw(swizzle_scales(scales[0, :1])))


def test_any_strides():
    big = on(RNG.integers(0, 256, (140, 90)).astype(np.uint8))
    flat = big.view(-1)
    views = [big[:, :33], big[:, 7:], big[::3], big[:, ::2], big.t(), big[:1].expand(131, 90), flat[1:541].view(9, 60)]
    views += [big.view(4, 35, 90).transpose(0, 1)]
    for view in views:
        for dtype in (torch.uint8, torch.float8_e4m3fn):
            actual = swizzle_scales(view.view(dtype))
            assert np.array_equal(raw(actual), raw(swizzle_scales(view.contiguous())))
    buffer = swizzle_scales(big)
    spread = torch.stack([buffer, buffer], dim=1)[:, 0]
    assert np.array_equal(raw(unswizzle_scales(spread, 140, 90)), raw(big))


def test_rows_past_31_bits():
    """Rows 2**30 bytes apart. Only the pages used are real."""
    storage = torch.empty(3 * 2**30 + 64, dtype=torch.uint8, device=DEVICE)
    scales = storage.as_strided((4, 8), (2**30, 1))
    scales.copy_(indexed(4, 8, 0))
    assert np.array_equal(raw(swizzle_scales(scales)), raw(swizzle_scales(scales.contiguous())))


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 16])
@pytest.mark.parametrize("fill", [0x00, 0xA5])
def test_given_buffers(shift, fill):
    """Every byte of a buffer is written, whatever it held, and none beside it, at any alignment."""
    scales = indexed(130, 65, 0)
    size = packing.swizzled_size(130, 65)
    store = torch.full((64 + size + 64,), fill, dtype=torch.uint8, device=DEVICE)
    out = store[64 + shift : 64 + shift + size]
    assert swizzle_scales(scales, out=out) is out
    assert np.array_equal(raw(out), raw(swizzle_scales(scales)))
    assert (store[: 64 + shift] == fill).all()
    assert (store[64 + shift + size :] == fill).all()

    store = torch.full((64 + 130 * 65 + 64,), fill, dtype=torch.uint8, device=DEVICE)
    back = store[64 + shift : 64 + shift + 130 * 65].view(130, 65)
    assert unswizzle_scales(out, 130, 65, out=back) is back
    assert torch.equal(back, scales)
    assert (store[: 64 + shift] == fill).all()
    assert (store[64 + shift + 130 * 65 :] == fill).all()


S = torch.zeros(3, 5, dtype=torch.uint8, device=DEVICE)
B = torch.zeros(1024, dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: swizzle_scales(S.int()), DtypeError, ["scales", "int32", "float8_e4m3fn"]),
        (lambda: swizzle_scales(S.view(torch.float8_e5m2)), DtypeError, ["scales", "float8_e5m2"]),
        (lambda: swizzle_scales([[1]]), DtypeError, ["scales", "list"]),
        (lambda: swizzle_scales(S[0, 0]), ShapeError, ["scales", "without dimensions"]),
        (lambda: swizzle_scales(S.to("meta")), DeviceError, ["scales", "meta"]),
        (lambda: swizzle_scales(S, out=B[:-1]), ShapeError, ["out", "(1023,)", "(1024,)"]),
        (lambda: swizzle_scales(S, out=B.view(torch.float8_e4m3fn)), DtypeError, ["out", "float8_e4m3fn", "uint8"]),
        (lambda: unswizzle_scales(B, 129, 5), ShapeError, ["buffer", "(1024,)", "(2048,)", "129", "5"]),
        (lambda: unswizzle_scales(B.view(2, 512), 3, 5), ShapeError, ["buffer", "(2, 512)", "(1024,)"]),
        (lambda: unswizzle_scales(B, -1, 5), ArgumentError, ["rows", "-1"]),
        (lambda: unswizzle_scales(B, 3, 5.0), DtypeError, ["columns", "float", "integer"]),
        (lambda: unswizzle_scales(B.int(), 3, 5), DtypeError, ["buffer", "int32"]),
        (lambda: unswizzle_scales(B, 3, 5, out=S.t()), ShapeError, ["out", "(5, 3)", "(3, 5)"]),
    ],
)
def test_refusals_name_the_argument(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, LowbitError)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_ops_keep_their_contract():
    scales = indexed(3, 5, 0)
    torch.library.opcheck(swizzle._SWIZZLE, (scales,))  # opcheck itself cannot copy float8_e8m0fnu
    torch.library.opcheck(swizzle._SWIZZLE_OUT, (scales, B.clone()))
    torch.library.opcheck(swizzle._UNSWIZZLE, (B, 3, 5))
    torch.library.opcheck(swizzle._UNSWIZZLE_OUT, (B, S.clone()))
    compiled = torch.compile(lambda s: unswizzle_scales(swizzle_scales(s), 3, 5), fullgraph=True, backend="aot_eager")
    assert np.array_equal(raw(compiled(scales.view(torch.float8_e8m0fnu))), raw(scales))
