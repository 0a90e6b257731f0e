"""What the kernels' functions refuse to read or to write, and what autograd and torch's tracers are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError
from lowbit_kernels import (
    dequantize_mx4,
    dequantize_mxfp4,
    dequantize_nvfp4,
    pad_last_dimension,
    quantize_mx4,
    quantize_mxfp4,
    quantize_nvfp4,
    recip_scale,
    swizzle_scales,
    unswizzle_scales,
)

from .nvfp4_checks import DEVICE, raw

BYTES = torch.uint8
OPS = torch.ops.lowbit_kernels


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def memory(size: int) -> torch.Tensor:
    return zeros(size, dtype=BYTES)


X = zeros(2, 64)
PACKED, SCALES32, SCALES16, ONE = memory(64).view(2, 32), memory(4).view(2, 2), memory(8).view(2, 4), zeros(1)


# Memory that is read and written


def shared_input(start: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, 64) float32 in the bytes 64..576 of a block, and `size` bytes of it from `start`."""
    block = memory(1024)
    return block[64:576].view(torch.float32).view(2, 64), block[start : start + size]


def into_mxfp4(start: int) -> Any:
    x, packed = shared_input(start, 64)
    return quantize_mxfp4(x, out=(packed.view(2, 32), SCALES32))


def into_mxfp4_scales(start: int) -> Any:
    x, scales = shared_input(start, 4)
    return quantize_mxfp4(x, out=(PACKED, scales.view(2, 2)))


def into_nvfp4(start: int) -> Any:
    x, packed = shared_input(start, 64)
    return quantize_nvfp4(x, out=(packed.view(2, 32), SCALES16, ONE))


def into_nvfp4_scale(start: int) -> Any:
    x, scale = shared_input(start, 4)
    return quantize_nvfp4(x, out=(PACKED, SCALES16, scale.view(torch.float32)))


def into_mx4(start: int) -> Any:
    x, stream = shared_input(start, 68)
    return quantize_mx4(x, out=stream.view(2, 34))


@pytest.mark.parametrize("size_and_call", [(64, into_mxfp4), (64, into_nvfp4), (68, into_mx4)], ids=["mx", "nv", "mx4"])
def test_results_that_overlap_x_are_refused(size_and_call: tuple[int, Any]) -> None:
    size, call = size_and_call
    call(576)  # right behind x
    if size == 64:
        call(0)  # right before it
    for start in (1, 64, 300, 575):
        with pytest.raises(ArgumentError, match=r"out.*overlaps x"):
            call(start)


def test_every_result_is_compared_with_x() -> None:
    into_mxfp4_scales(60)
    into_nvfp4_scale(60)
    for call in (into_mxfp4_scales, into_nvfp4_scale):
        for start in (64, 572):
            with pytest.raises(ArgumentError, match=r"out\[\d\].*overlaps x"):
                call(start)


def test_the_extent_of_x_follows_its_strides() -> None:
    block = zeros(2, 256)
    x = block[:, :64]  # its second row is the floats 256..319
    stream = block.view(BYTES).flatten()[1024 + 192 : 1024 + 192 + 68]
    with pytest.raises(ArgumentError, match="overlaps x"):
        quantize_mx4(x, out=stream.view(2, 34))
    quantize_mx4(x, out=block.view(BYTES).flatten()[1024 + 256 : 1024 + 256 + 68].view(2, 34))


def test_results_that_overlap_each_other_are_refused() -> None:
    block = memory(512)
    with pytest.raises(ArgumentError, match=r"out\[1\].*overlaps out\[0\]"):
        quantize_mxfp4(X, out=(block[:64].view(2, 32), block[60:64].view(2, 2)))
    with pytest.raises(ArgumentError, match=r"out\[2\].*overlaps out\[1\]"):
        quantize_nvfp4(X, out=(block[:64].view(2, 32), block[64:72].view(2, 4), block[68:72].view(torch.float32)))
    quantize_mxfp4(X, out=(block[:64].view(2, 32), block[64:68].view(2, 2)))


def test_results_that_overlap_random_bits_are_refused() -> None:
    block = memory(512)
    bits = block[:128].view(2, 64)
    with pytest.raises(ArgumentError, match=r"out\[0\].*overlaps random_bits"):
        quantize_mxfp4(X, rounding="stochastic", random_bits=bits, out=(block[:64].view(2, 32), SCALES32))
    with pytest.raises(ArgumentError, match=r"out\[0\].*overlaps random_bits"):
        quantize_nvfp4(X, rounding="stochastic", random_bits=bits, out=(block[:64].view(2, 32), SCALES16, ONE))
    with pytest.raises(ArgumentError, match=r"out.*overlaps random_bits"):
        quantize_mx4(X, stochastic_casting=True, random_bits=bits, out=block[:68].view(2, 34))
    words = block[:16].view(torch.int32).view(2, 2)
    with pytest.raises(ArgumentError, match=r"out.*overlaps scale_random_bits"):
        quantize_mx4(X, scale_rounding="stochastic", scale_random_bits=words, out=block[:68].view(2, 34))


def test_a_given_tensor_scale_may_be_the_result_but_not_lie_in_another() -> None:
    block = memory(512)
    g = block[:4].view(torch.float32).fill_(2)
    with pytest.raises(ArgumentError, match=r"out\[0\].*overlaps tensor_scale"):
        quantize_nvfp4(X, tensor_scale=g, out=(block[:64].view(2, 32), SCALES16, ONE))
    assert quantize_nvfp4(X, tensor_scale=g, out=(PACKED, SCALES16, g))[2].item() == 2  # writes what it has read


def test_decoded_values_that_overlap_their_codes_are_refused() -> None:
    block = memory(1024)
    out = block[:512].view(torch.float32).view(2, 64)
    codes, behind = block[448:512].view(2, 32), block[512:576].view(2, 32)
    with pytest.raises(ArgumentError, match="overlaps packed"):
        dequantize_mxfp4(codes, SCALES32, out=out)
    with pytest.raises(ArgumentError, match="overlaps packed"):
        dequantize_nvfp4(codes, SCALES16, out=out)
    with pytest.raises(ArgumentError, match="overlaps packed"):
        dequantize_mx4(block[444:512].view(2, 34), out=out)
    with pytest.raises(ArgumentError, match="overlaps scales"):
        dequantize_mxfp4(behind, block[508:512].view(2, 2), out=out)
    with pytest.raises(ArgumentError, match="overlaps scales"):
        dequantize_nvfp4(behind, block[504:512].view(2, 4), out=out)
    with pytest.raises(ArgumentError, match="overlaps tensor_scale"):
        dequantize_nvfp4(behind, SCALES16, block[:4].view(torch.float32), out=out)
    dequantize_mxfp4(behind, SCALES32, out=out)


def test_scales_are_not_permuted_in_place() -> None:
    block = memory(1024)
    with pytest.raises(ArgumentError, match="overlaps scales"):
        swizzle_scales(block[:512].view(128, 4), out=block[:512])
    with pytest.raises(ArgumentError, match="overlaps buffer"):
        unswizzle_scales(block[:512], 128, 4, out=block[511:1023].view(128, 4))
    swizzle_scales(block[:512].view(128, 4), out=block[512:])


# Autograd and tracers


def calls_into(out: Any) -> list[Any]:
    """Calls that write every result into what `out` makes of a tensor, and their results."""
    mx = (out(memory(64).view(2, 32)), out(memory(4).view(2, 2)))
    nv = (out(memory(64).view(2, 32)), out(memory(8).view(2, 4)), out(zeros(1)))
    return [
        (lambda: quantize_mxfp4(X, out=mx), mx),
        (lambda: quantize_nvfp4(X, out=nv), nv),
        (lambda: quantize_mx4(X, out=stream), (stream := out(memory(68).view(2, 34)),)),
        (lambda: dequantize_mxfp4(PACKED, SCALES32, out=a), (a := out(zeros(2, 64)),)),
        (lambda: dequantize_nvfp4(PACKED, SCALES16, out=b), (b := out(zeros(2, 64)),)),
        (lambda: dequantize_mx4(memory(68).view(2, 34), out=c), (c := out(zeros(2, 64)),)),
        (lambda: swizzle_scales(SCALES32, out=d), (d := out(memory(512)),)),
        (lambda: unswizzle_scales(memory(512), 2, 2, out=e), (e := out(memory(4).view(2, 2)),)),
    ]


def test_autograd_learns_of_what_is_written() -> None:
    for call, outs in calls_into(lambda tensor: tensor):
        before = [tensor._version for tensor in outs]
        call()
        assert all(tensor._version > old for tensor, old in zip(outs, before, strict=True))
    with torch.inference_mode():
        for call, _ in calls_into(lambda tensor: tensor):
            call()


def test_a_gradient_of_overwritten_values_is_an_error() -> None:
    saved = zeros(2, 64)
    loss = (torch.ones_like(saved).requires_grad_() * saved).sum()
    dequantize_mxfp4(PACKED, SCALES32, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_transforms_of_functions_that_write_into_out() -> None:
    """torch.func wraps tensors; a wrapper has no address to compare."""

    def weighted(y: torch.Tensor) -> torch.Tensor:
        out = zeros(2, 64)
        dequantize_mxfp4(memory(64).view(2, 32) + 0x22, memory(4).view(2, 2) + 127, out=out)  # ones
        return (y * out).sum()

    assert torch.equal(torch.func.grad(weighted)(X), torch.ones_like(X))


def test_results_that_require_a_gradient_are_refused() -> None:
    leaf = zeros(2, 64).requires_grad_()
    for call in (
        lambda: dequantize_mxfp4(PACKED, SCALES32, out=leaf),
        lambda: dequantize_nvfp4(PACKED, SCALES16, out=leaf),
        lambda: dequantize_mx4(memory(68).view(2, 34), out=leaf),
        lambda: quantize_nvfp4(X, out=(PACKED, SCALES16, zeros(1).requires_grad_())),
    ):
        with pytest.raises(ArgumentError, match=r"out.*requires grad"):
            call()


def test_negative_views_are_read_and_not_written() -> None:
    """Their bytes have the other sign; the imaginary part of a conjugate is one."""
    with pytest.raises(ArgumentError, match=r"out.*negative"):
        dequantize_mxfp4(PACKED, SCALES32, out=torch._neg_view(zeros(2, 64)))
    x = torch.linspace(-3, 3, 128, device=DEVICE).view(2, 64)
    assert np.array_equal(raw(quantize_mxfp4(torch._neg_view(x))[0]), raw(quantize_mxfp4(-x)[0]))


def test_fake_tensors() -> None:
    with FakeTensorMode():
        x, g = torch.empty(2, 64, device=DEVICE), torch.empty(1, device=DEVICE)
        assert quantize_nvfp4(x, tensor_scale=g)[0].shape == (2, 32)
        assert quantize_nvfp4(x, tensor_scale=2.0)[1].shape == (2, 4)
        out = (torch.empty(2, 32, dtype=BYTES, device=DEVICE), torch.empty(2, 2, dtype=BYTES, device=DEVICE))
        assert quantize_mxfp4(x, out=out)[0].shape == (2, 32)


def test_compiled_functions_take_every_option() -> None:
    def both(x: torch.Tensor, g: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed, scales, scale = quantize_nvfp4(x, tensor_scale=g, swizzle=False)
        dequantize_nvfp4(packed, scales, scale, out=out)
        return out * 2, recip_scale(g, x.device), pad_last_dimension(x, 48)

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5):
        x = torch.linspace(-3, 3, rows * 64, device=DEVICE).view(rows, 64)
        arguments = (x, zeros(1) + 2)
        actual = compiled(*arguments, torch.empty_like(x))
        expected = both(*arguments, torch.empty_like(x))
        assert all(np.array_equal(raw(a), raw(e)) for a, e in zip(actual, expected, strict=True))


def test_raw_ops_cut_nothing() -> None:
    """40 elements are neither 1 nor 2 blocks of 32, nor 2 or 3 of 16."""
    x, packed, scales = zeros(2, 40), memory(40).view(2, 20), memory(4).view(2, 2)
    for call in (
        lambda: OPS.quantize_mxfp4(x, 0, 0, False, None, 0, 0),
        lambda: OPS.quantize_mxfp4_out(x, 0, 0, False, None, 0, 0, packed, scales),
        lambda: OPS.quantize_nvfp4(x, 0, 0, False, None, None, 0, 0),
        lambda: OPS.quantize_nvfp4_out(x, 0, 0, False, None, None, 0, 0, packed, scales, zeros(1)),
        lambda: OPS.quantize_mxfp4(x.to("meta"), 0, 0, False, None, 0, 0),
        lambda: OPS.quantize_nvfp4(x.to("meta"), 0, 0, False, None, None, 0, 0),
    ):
        with pytest.raises(ShapeError, match=r"x: got a last dimension of 40"):
            call()


# Types

BOOL = "want True or False"
REFUSALS = [
    (lambda: quantize_mxfp4(X, swizzle=1), DtypeError, rf"swizzle: got int, {BOOL}"),
    (lambda: quantize_mxfp4(X, swizzle=None), DtypeError, rf"swizzle: got NoneType, {BOOL}"),
    (lambda: quantize_nvfp4(X, swizzle="no"), DtypeError, rf"swizzle: got str, {BOOL}"),
    (lambda: quantize_nvfp4(X, validate=0), DtypeError, rf"validate: got int, {BOOL}"),
    (lambda: quantize_mx4(X, stochastic_casting=1, seed=0), DtypeError, rf"stochastic_casting: got int, {BOOL}"),
    (lambda: quantize_mx4(X, group_size=True), DtypeError, r"group_size: got bool, want an integer"),
    (lambda: quantize_mx4(X, group_size=32.0), DtypeError, r"group_size: got float, want an integer"),
    (lambda: quantize_mx4(X, group_size=torch.tensor(32)), DtypeError, r"group_size: got Tensor, want an integer"),
    (lambda: quantize_mx4(X, element=[]), ArgumentError, r"element: got \[\], want e2m1 or e3m0"),
    (lambda: quantize_mx4(X, seed=torch.tensor(3)), DtypeError, r"seed: got Tensor, want an integer"),
    (lambda: quantize_mx4(X, seed=True), DtypeError, r"seed: got bool, want an integer"),
    (lambda: quantize_mx4(X, seed="1"), DtypeError, r"seed: got str, want an integer"),
    (lambda: dequantize_mx4(memory(34), columns=64.0), DtypeError, r"columns: got float, want an integer"),
    (lambda: dequantize_mx4(memory(17), columns=True), DtypeError, r"columns: got bool, want an integer"),
    (lambda: unswizzle_scales(memory(512), True, 4), DtypeError, r"rows: got bool, want an integer"),
    (lambda: unswizzle_scales(memory(512), 1, torch.tensor(4)), DtypeError, r"columns: got Tensor, want an integer"),
    (lambda: quantize_mxfp4(X.to_sparse()), ArgumentError, r"x: got layout torch\.sparse_coo, want torch\.strided"),
    (lambda: quantize_mx4(X.to_sparse_csr()), ArgumentError, r"x: got layout torch\.sparse_csr, want torch\.strided"),
    (lambda: quantize_nvfp4(torch.nested.nested_tensor([X, X])), ArgumentError, r"x: got a nested tensor"),
    (
        lambda: quantize_nvfp4(torch.nested.nested_tensor([X, X], layout=torch.jagged)),
        ArgumentError,
        r"x: got layout torch\.jagged, want torch\.strided",
    ),
    (lambda: quantize_nvfp4(X, tensor_scale=zeros(1).to_sparse()), ArgumentError, r"tensor_scale: got layout"),
    (lambda: swizzle_scales(SCALES32.to_sparse()), ArgumentError, r"scales: got layout torch\.sparse_coo"),
    (lambda: pad_last_dimension(X.to_sparse(), 48), ArgumentError, r"x: got layout torch\.sparse_coo"),
    (lambda: quantize_mxfp4(X, out=PACKED), DtypeError, r"out: got Tensor, want a tuple of 2 tensors"),
    (lambda: quantize_mxfp4(X, out=(PACKED,)), ArgumentError, r"out: got 1 tensor.*, want a tuple of 2 tensors"),
    (lambda: quantize_nvfp4(X, out=(PACKED, SCALES16)), ArgumentError, r"out: got 2 .*, want a tuple of 3 tensors"),
    (lambda: quantize_nvfp4(X, out=3), DtypeError, r"out: got int, want a tuple of 3 tensors"),
    (lambda: quantize_mxfp4(X, out=(PACKED, None)), DtypeError, r"out\[1\]: got NoneType, want a torch\.Tensor"),
    (lambda: quantize_mx4(X, out=(PACKED,)), DtypeError, r"out: got tuple, want a torch\.Tensor"),
    (lambda: recip_scale(2.0, None), DtypeError, r"device: got NoneType, want"),
    (lambda: recip_scale(2.0, "gpu0"), DeviceError, r"device: got 'gpu0', want"),
    (lambda: recip_scale(2.0, "meta"), DeviceError, r"device: got 'meta', want"),
    (lambda: recip_scale(2.0, "cuda:99"), DeviceError, r"device: got 'cuda:99', want"),
    (lambda: recip_scale(zeros(1).to("meta"), "cpu"), DeviceError, r"tensor_scale: got a tensor on meta"),
    (lambda: pad_last_dimension([1], 4), DtypeError, r"x: got list, want a torch\.Tensor"),
    (lambda: pad_last_dimension(X, True), DtypeError, r"multiple: got bool, want an integer"),
    (lambda: pad_last_dimension(X, 4.0), DtypeError, r"multiple: got float, want an integer"),
    (
        lambda: pad_last_dimension(memory(3).view(torch.float8_e8m0fnu), 4),
        DtypeError,
        r"x: got torch\.float8_e8m0fnu, want a dtype that has a zero",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_refusals_name_the_argument(call: Any, error: type[LowbitError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_integers_of_numpy_are_integers() -> None:
    x = torch.linspace(-3, 3, 128, device=DEVICE).view(2, 64)
    stream = quantize_mx4(x, group_size=np.int64(16), stochastic_casting=True, seed=np.uint64(2**64 - 1))
    assert torch.equal(stream, quantize_mx4(x, group_size=16, stochastic_casting=True, seed=-1))
    assert dequantize_mx4(stream, group_size=np.int32(16), columns=np.int16(64)).shape == (2, 64)
    assert unswizzle_scales(memory(512), np.int64(3), np.uint8(4)).shape == (3, 4)
    assert pad_last_dimension(x, np.int64(48)).shape == (2, 96)


@pytest.mark.parametrize(
    "dtype", [BYTES, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2], ids=str
)
def test_one_byte_dtypes_are_padded_with_zero_bytes(dtype: torch.dtype) -> None:
    ones = (memory(6).view(2, 3) + 1).view(dtype)
    padded = pad_last_dimension(ones, 4)
    assert padded.dtype == dtype
    assert padded.view(BYTES).tolist() == [[1, 1, 1, 0]] * 2
    assert pad_last_dimension(padded, 4) is padded
