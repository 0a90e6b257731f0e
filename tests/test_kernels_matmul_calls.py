"""How the matmul functions are called: buffers, views, dtypes, torch's machinery."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lowbit.schemes import Scheme
from lowbit_kernels import _matmul_launch, mxfp4_mm, nvfp4_mm
from lowbit_kernels._matmul_launch import Configuration

from .matmul_checks import (
    DEVICE,
    DTYPES,
    EVERY_DTYPE,
    FAMILIES,
    MXFP4,
    NVFP4,
    Stored,
    assert_same,
    bits,
    expected,
    factor,
    launched,
    multiply,
    stored,
    summable,
)

FP4, E4M3, E8M0 = torch.float4_e2m1fn_x2, torch.float8_e4m3fn, torch.float8_e8m0fnu
SCALE_DTYPE = {"nvfp4": E4M3, "mxfp4": E8M0}


A, B = (torch.zeros(rows, 32, dtype=torch.uint8, device=DEVICE) for rows in (3, 24))
SCALES = torch.zeros(512, dtype=torch.uint8, device=DEVICE)
ONE = torch.ones(1, device=DEVICE)


@EVERY_DTYPE
@pytest.mark.parametrize("shift", [0, 1, 3])
@FAMILIES
def test_given_buffers(scheme: Scheme, shift: int, dtype: torch.dtype) -> None:
    """Every element of a buffer is written, whatever it held, and none beside it, at any alignment."""
    operands = summable(scheme, 5, 19, 3)
    given, right = stored(operands, scheme), expected(operands, scheme, dtype)
    for fill in (0x00, 0xA5):
        store = torch.full((4 * (64 + 5 * 19 + 64),), fill, dtype=torch.uint8, device=DEVICE).view(dtype)
        start, end = 64 + shift, 64 + shift + 5 * 19
        out = store[start:end].view(5, 19)
        version = out._version
        assert multiply(scheme, given, dtype, out=out) is out
        assert out._version > version, "autograd would not see the write"
        assert_same(bits(out), right, DTYPES[dtype])
        assert (store[:start].view(torch.uint8) == fill).all()
        assert (store[end:].view(torch.uint8) == fill).all()


@FAMILIES
def test_buffers_of_other_shapes(scheme: Scheme) -> None:
    """Leading dimensions, one row, nothing at all, sums of nothing."""
    operands = summable(scheme, 6, 19, 3)
    given, right = stored(operands, scheme), expected(operands, scheme)
    out = torch.full((3, 2, 19), 7.0, device=DEVICE)
    assert multiply(scheme, given._replace(a=given.a.view(3, 2, -1)), out=out) is out
    assert_same(bits(out).reshape(6, 19), right)
    nothing = given._replace(a=given.a[:0], a_scales=given.a_scales[:0])
    assert multiply(scheme, nothing, out=out[:0, 0]).shape == (0, 19)
    empty = Stored(given.a[:, :0], given.a_scales[:0], given.b[:, :0], given.b_scales[:0])
    assert not bits(multiply(scheme, empty, out=out.view(6, 19))).any()


def strided(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same (rows, columns) bytes in other places of other storages."""
    rows, columns = x.shape

    def filled(*shape: int) -> torch.Tensor:
        return torch.full(shape, 0x5A, dtype=torch.uint8, device=DEVICE)

    views = {
        "columns of a wider one": filled(rows, columns + 13)[:, :columns],
        "columns from the fourth": filled(rows, columns + 8)[:, 4 : 4 + columns],
        "columns from an odd one": filled(rows, columns + 8)[:, 5 : 5 + columns],
        "every second row": filled(2 * rows, columns)[::2],
        "every second column": filled(rows, 2 * columns)[:, ::2],
        "transposed": filled(columns, rows).t(),
        "odd offset": filled(1 + x.numel())[1:].view(rows, columns),
        "offset of two": filled(2 + x.numel())[2:].view(rows, columns),
        "offset of a word": filled(4 + x.numel())[4:].view(rows, columns),
    }
    for view in views.values():
        view.copy_(x)
    return views


@FAMILIES
def test_any_strides_of_the_operands(scheme: Scheme) -> None:
    """Each view gives what its contiguous copy gives, and is read only."""
    operands = summable(scheme, 6, 10, 3)
    given, right = stored(operands, scheme), expected(operands, scheme)
    a_views, b_views = strided(given.a), strided(given.b)
    for name in a_views:
        for call in (given._replace(a=a_views[name]), given._replace(b=b_views[name])):
            before = [tensor.clone() for tensor in call]
            assert_same(bits(multiply(scheme, call)), right)
            assert all(torch.equal(after, copy) for after, copy in zip(call, before, strict=True)), name


@FAMILIES
def test_repeated_and_single_rows(scheme: Scheme) -> None:
    operands = summable(scheme, 1, 1, 3)
    one = stored(operands, scheme)
    row = int(expected(operands, scheme)[0, 0])
    half = one.a.shape[1]
    tall = one.a_scales.view(-1, 512).clone()
    tall[:, :] = tall[:, :4].repeat(1, 128)  # every row of a tile has the scales of the first
    many = Stored(one.a.expand(5, half), tall.view(-1), one.b, one.b_scales)
    assert (bits(multiply(scheme, many)) == row).all()
    far = torch.zeros(3, half + 2, dtype=torch.uint8, device=DEVICE)
    far[1, :half] = one.a[0]
    assert (bits(multiply(scheme, one._replace(a=far[1:2, :half]))) == row).all()
    assert (bits(multiply(scheme, one._replace(b=one.b.t().contiguous().t()))) == row).all()


@FAMILIES
def test_leading_dimensions_with_any_strides(scheme: Scheme) -> None:
    operands = summable(scheme, 12, 9, 3)
    given, right = stored(operands, scheme), expected(operands, scheme)
    permuted = given.a.view(3, 4, -1).transpose(0, 1).contiguous().transpose(0, 1)
    sliced = torch.cat([given.a.view(3, 4, -1)] * 2, dim=1)[:, :4]
    for a in (permuted, sliced):
        assert a.shape == (3, 4, given.a.shape[1])
        assert not a.is_contiguous()
        assert_same(bits(multiply(scheme, given._replace(a=a))).reshape(12, 9), right)


@FAMILIES
def test_any_strides_of_the_scales(scheme: Scheme) -> None:
    operands = summable(scheme, 6, 10, 3)
    given, right = stored(operands, scheme), expected(operands, scheme)
    for name in ("a_scales", "b_scales"):
        scales = getattr(given, name)
        flat = torch.full((scales.numel() + 8,), 0x7F, dtype=torch.uint8, device=DEVICE)
        for offset in (1, 2, 4):
            view = flat[offset : offset + scales.numel()]
            view.copy_(scales)
            assert_same(bits(multiply(scheme, given._replace(**{name: view}))), right)
        spread = torch.stack([scales, 255 - scales], dim=1)[:, 0]
        assert spread.stride() == (2,)
        assert_same(bits(multiply(scheme, given._replace(**{name: spread}))), right)


@FAMILIES
def test_typed_bytes(scheme: Scheme) -> None:
    """torch's own dtypes, uint8, or some of each: the same bytes."""
    operands = summable(scheme, 6, 10, 3)
    given, right = stored(operands, scheme), expected(operands, scheme)
    scale_dtype = SCALE_DTYPE[scheme.family]
    typed = Stored(
        given.a.view(FP4), given.a_scales.view(scale_dtype), given.b.view(FP4), given.b_scales.view(scale_dtype)
    )
    for call in (typed, typed._replace(a=given.a), given._replace(b_scales=typed.b_scales), given._replace(b=typed.b)):
        assert_same(bits(multiply(scheme, call)), right)


def test_the_transposed_view_may_be_given() -> None:
    operands = summable(NVFP4, 6, 10, 3)
    given, right = stored(operands, NVFP4), expected(operands, NVFP4)
    typed = given.b.view(FP4)
    wide = torch.zeros(10, 64, dtype=torch.uint8, device=DEVICE)[:, : given.b.shape[1]]
    wide.copy_(given.b)
    for b, b_t in ((given.b, given.b.t()), (typed, typed.t()), (given.b, typed.t()), (wide, wide.t())):
        assert_same(bits(multiply(NVFP4, given._replace(b=b), b_t=b_t)), right)


def test_the_default_dtype_is_bfloat16() -> None:
    for function in (nvfp4_mm, mxfp4_mm):
        assert function(A, SCALES, B, SCALES).dtype == torch.bfloat16


def test_factors_of_any_shape_and_place() -> None:
    """One element is enough, whatever its dimensions, strides and offset; it may require grad, the result does not."""
    operands = summable(NVFP4, 6, 10, 3)
    given, right = stored(operands, NVFP4), expected(operands, NVFP4, factors=(0.7, 1.3))
    b_rglob = torch.tensor([[9.0, 1.3]], device=DEVICE)[:, 1:]
    for a_rglob in (torch.tensor(0.7, device=DEVICE), torch.full((1, 1, 1), 0.7, device=DEVICE).requires_grad_()):
        result = nvfp4_mm(*given, a_rglob, b_rglob, torch.float32)
        assert not result.requires_grad
        assert_same(bits(result), right)
        assert a_rglob.item() == pytest.approx(0.7)


@pytest.mark.parametrize("chosen", [None, Configuration(16, 16, 128)], ids=["as usual", "tiles"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_offsets_past_31_bits(name: str, chosen: Configuration | None, tmp_path: Path) -> None:
    """Five rows 2**29 words apart. Only the pages used are real."""
    operands = summable(NVFP4, 5, 5, 3)
    given, out = stored(operands, NVFP4), torch.zeros(5, 5, device=DEVICE)
    size = 4 * 2**31 + 64
    if DEVICE.type == "cpu":
        storage = torch.from_numpy(np.memmap(tmp_path / "sparse", np.uint8, "w+", shape=(size,)))
    else:
        storage = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    view = storage.as_strided((5, 24), (2**31, 1))
    view.copy_(getattr(given, name))
    _matmul_launch.multiply(launched(NVFP4, given._replace(**{name: view})), out, chosen)
    assert_same(bits(out), expected(operands, NVFP4))


def test_the_ops_keep_their_contract() -> None:
    ops = torch.ops.lowbit_kernels
    for scheme in (NVFP4, MXFP4):
        given = stored(summable(scheme, 5, 8, 3), scheme)
        out = torch.zeros(5, 8, device=DEVICE)
        if scheme is MXFP4:
            torch.library.opcheck(ops.mxfp4_mm.default, (*given, torch.float16))
            torch.library.opcheck(ops.mxfp4_mm_out.default, (*given, out))
        else:
            torch.library.opcheck(ops.nvfp4_mm.default, (*given, factor(0.7), None, torch.bfloat16))
            torch.library.opcheck(ops.nvfp4_mm_out.default, (*given, factor(0.7), factor(1.3), out))


@pytest.mark.parametrize("dynamic", [False, True])
@FAMILIES
def test_under_torch_compile(scheme: Scheme, dynamic: bool) -> None:
    """The whole call in one graph, its checks too, for several M; views of torch's dtypes go through."""

    def layer(a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor) -> torch.Tensor:
        if scheme is MXFP4:
            return mxfp4_mm(a.view(FP4), a_scales.view(E8M0), b, b_scales) * 2
        return nvfp4_mm(a.view(FP4), a_scales.view(E4M3), b, b_scales, ONE, b_t=b.t()) * 2

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (3, 5):
        given = stored(summable(scheme, rows, 8, 3), scheme)
        assert np.array_equal(bits(compiled(*given)), bits(layer(*given)))


@FAMILIES
def test_compiled_calls_write_into_out(scheme: Scheme) -> None:
    def into(*given: torch.Tensor) -> torch.Tensor:
        *tensors, out = given
        multiply(scheme, Stored(*tensors), out=out)
        return out + 1

    given = stored(summable(scheme, 5, 8, 3), scheme)
    right = multiply(scheme, given)
    out = torch.full((5, 8), 7.0, device=DEVICE)
    result = torch.compile(into, backend="aot_eager", fullgraph=True)(*given, out)
    assert np.array_equal(bits(out), bits(right))
    assert torch.equal(result, right + 1)


@FAMILIES
def test_refusals_are_the_same_under_torch_compile(scheme: Scheme) -> None:
    given = stored(summable(scheme, 5, 8, 3), scheme)
    compiled = torch.compile(lambda *tensors: multiply(scheme, Stored(*tensors)), backend="eager")
    with pytest.raises(Exception, match=r"b_scales: got shape \(511,\), want \(512,\)"):
        compiled(*given._replace(b_scales=given.b_scales[:-1]))


def test_the_operands_are_read_in_place() -> None:
    """No copy is made of whole words, and no input changes."""
    given = stored(summable(NVFP4, 20, 24, 21), NVFP4, 0xFF)
    before = [tensor.clone() for tensor in given]
    multiply(NVFP4, given, factors=(0.7, 1.3))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(given, before, strict=True))
    for operand in (given.a, given.a[3:], given.a[:, :80]):
        words, stride = _matmul_launch.words(operand)
        assert (words.data_ptr(), stride) == (operand.data_ptr(), operand.stride(0) // 4)
    assert _matmul_launch.scale_words(given.a_scales).data_ptr() == given.a_scales.data_ptr()
