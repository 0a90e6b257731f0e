"""What the matmul functions refuse, each time naming the argument, what it got and what it wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError
from lowbit_kernels import mxfp4_mm, nvfp4_mm

from .matmul_checks import DEVICE

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def tensor(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


A, B = tensor(3, 32), tensor(24, 32)  # K = 64: 4 blocks of NVFP4, 2 of MXFP4
S = tensor(512)
ONE = torch.ones(1, device=DEVICE)
SQUARE, SQUARE_SCALES = tensor(64, 64), tensor(1024)


def nv(a: Any = A, a_scales: Any = S, b: Any = B, b_scales: Any = S, *rest: Any, **named: Any) -> torch.Tensor:
    return nvfp4_mm(a, a_scales, b, b_scales, *rest, **named)


def mx(a: Any = A, a_scales: Any = S, b: Any = B, b_scales: Any = S, *rest: Any, **named: Any) -> torch.Tensor:
    return mxfp4_mm(a, a_scales, b, b_scales, *rest, **named)


def square(b_t: Any) -> torch.Tensor:
    return nvfp4_mm(SQUARE, SQUARE_SCALES, SQUARE, SQUARE_SCALES, b_t=b_t)


REFUSALS: list[tuple[Callable[[], Any], type[LowbitError], str]] = [
    # K
    (lambda: nv(b=B[:, :24]), ShapeError, r"b: got shape \(24, 24\), want \(N, 32\): a has K = 64, b has K = 48"),
    (lambda: mx(b=tensor(24, 48)), ShapeError, r"b: got shape \(24, 48\), want \(N, 32\): .* b has K = 96"),
    (
        lambda: nv(a=tensor(3, 28)),
        ShapeError,
        r"a: got shape \(3, 28\), want \(\.\.\., K / 2\) with K a multiple of 16",
    ),
    (lambda: mx(a=tensor(3, 24)), ShapeError, r"a: got shape \(3, 24\), .* K a multiple of 32"),
    (lambda: nv(b=tensor(24, 28)), ShapeError, r"b: got shape \(24, 28\), want \(N, K / 2\) with K a multiple of 16"),
    # dimensions
    (lambda: nv(a=tensor()), ShapeError, r"a: got shape \(\), want \(\.\.\., K / 2\)"),
    (lambda: nv(b=tensor(2, 24, 32)), ShapeError, r"b: got shape \(2, 24, 32\), want \(N, K / 2\)"),
    (lambda: mx(b=tensor(32)), ShapeError, r"b: got shape \(32,\), want \(N, K / 2\)"),
    # scales
    (
        lambda: nv(a_scales=tensor(3, 4)),
        ShapeError,
        r"a_scales: got shape \(3, 4\), want \(512,\), .* 3 rows and 4 blocks; swizzle_scales",
    ),
    (lambda: nv(b_scales=S[:-1]), ShapeError, r"b_scales: got shape \(511,\), want \(512,\), .* 24 rows and 4 blocks"),
    (lambda: mx(a_scales=tensor(128, 4)), ShapeError, r"a_scales: got shape \(128, 4\), want \(512,\)"),
    (
        lambda: mx(b=tensor(129, 32)),
        ShapeError,
        r"b_scales: got shape \(512,\), want \(1024,\), .* 129 rows and 2 blocks",
    ),
    (lambda: nv(a=tensor(2, 65, 32)), ShapeError, r"a_scales: got shape \(512,\), want \(1024,\), .* 130 rows and 4"),
    # dtypes
    (lambda: nv(a=A.int()), DtypeError, r"a: got torch\.int32, want torch\.uint8 or torch\.float4_e2m1fn_x2"),
    (lambda: mx(b=B.view(E4M3)), DtypeError, r"b: got torch\.float8_e4m3fn, want .*float4_e2m1fn_x2"),
    (lambda: nv(a_scales=S.view(E8M0)), DtypeError, r"a_scales: got torch\.float8_e8m0fnu, want .*float8_e4m3fn"),
    (lambda: mx(b_scales=S.view(E4M3)), DtypeError, r"b_scales: got torch\.float8_e4m3fn, want .*float8_e8m0fnu"),
    (lambda: nv(a=[[1]]), DtypeError, r"a: got list, want a torch\.Tensor"),
    (lambda: mx(b_scales=None), DtypeError, r"b_scales: got NoneType, want a torch\.Tensor"),
    (lambda: nv(out_dtype=torch.float64), DtypeError, r"out_dtype: got torch\.float64, want torch\.float32, .*float16"),
    (lambda: mx(out_dtype=torch.uint8), DtypeError, r"out_dtype: got torch\.uint8"),
    (lambda: mx(out_dtype="bfloat16"), DtypeError, r"out_dtype: got bfloat16"),
    # devices
    (lambda: nv(a=A.to("meta")), DeviceError, r"a: got a tensor on meta"),
    (lambda: nv(b=B.to("meta")), DeviceError, r"b: got a tensor on meta, want .*where the other arguments are"),
    (lambda: mx(a_scales=S.to("meta")), DeviceError, r"a_scales: got a tensor on meta"),
    (lambda: mx(b_scales=S.to("meta")), DeviceError, r"b_scales: got a tensor on meta"),
    (lambda: nv(a_rglob=ONE.to("meta")), DeviceError, r"a_rglob: got a tensor on meta"),
    (lambda: nv(out=tensor(3, 24, dtype=torch.bfloat16).to("meta")), DeviceError, r"out: got a tensor on meta"),
    (lambda: nv(a=A.to_sparse()), ArgumentError, r"a: got .*sparse"),
    # factors
    (lambda: nv(a_rglob=ONE.double()), DtypeError, r"a_rglob: got torch\.float64, want torch\.float32"),
    (lambda: nv(b_rglob=ONE.bfloat16()), DtypeError, r"b_rglob: got torch\.bfloat16, want torch\.float32"),
    (lambda: nv(a_rglob=1.0), DtypeError, r"a_rglob: got float, want a torch\.Tensor"),
    (lambda: nv(a_rglob=ONE.expand(3)), ShapeError, r"a_rglob: got shape \(3,\), want one element"),
    (lambda: nv(b_rglob=ONE[:0]), ShapeError, r"b_rglob: got shape \(0,\), want one element"),
    # b_t
    (lambda: square(SQUARE), ArgumentError, r"b_t: got strides \(64, 1\), want \(1, 64\), those of b\.t\(\)"),
    (lambda: square(SQUARE.t().contiguous()), ArgumentError, r"b_t: got strides \(64, 1\)"),
    (lambda: square(SQUARE.clone().t()), ArgumentError, r"b_t: got memory that is not b's, want b\.t\(\)"),
    (lambda: nv(b_t=B), ShapeError, r"b_t: got shape \(24, 32\), want \(32, 24\), that of b\.t\(\)"),
    (lambda: nv(b_t=B.t()[:, :16]), ShapeError, r"b_t: got shape \(32, 16\), want \(32, 24\)"),
    (lambda: nv(b_t=B.int().t()), DtypeError, r"b_t: got torch\.int32"),
    (lambda: nv(b_t=B.to("meta").t()), DeviceError, r"b_t: got a tensor on meta"),
    # out
    (lambda: nv(out=tensor(3, 24, dtype=torch.float32)), DtypeError, r"out: got torch\.float32, want torch\.bfloat16"),
    (
        lambda: mx(out_dtype=torch.float16, out=tensor(3, 24, dtype=torch.bfloat16)),
        DtypeError,
        r"out: got torch\.bfloat16, want torch\.float16",
    ),
    (lambda: nv(out=tensor(24, 3, dtype=torch.bfloat16)), ShapeError, r"out: got shape \(24, 3\), want \(3, 24\)"),
    (
        lambda: mx(a=A[0], out=tensor(1, 24, dtype=torch.bfloat16)),
        ShapeError,
        r"out: got shape \(1, 24\), want \(24,\)",
    ),
    (
        lambda: nv(out=tensor(24, 3, dtype=torch.bfloat16).t()),
        ArgumentError,
        r"out: got strides \(1, 3\), want a contiguous tensor",
    ),
    (
        lambda: nv(out=tensor(3, 24, dtype=torch.bfloat16).requires_grad_()),
        ArgumentError,
        r"out: got a tensor that requires grad",
    ),
    (lambda: nv(out=[1]), DtypeError, r"out: got list, want a torch\.Tensor"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[message for _, _, message in REFUSALS])
def test_refusals_name_the_argument(call: Callable[[], Any], error: type[LowbitError], message: str) -> None:
    with pytest.raises(error, match=f"^{message}") as raised:
        call()
    assert isinstance(raised.value, ValueError | TypeError)


def test_the_refused_calls_differ_from_good_ones() -> None:
    """What the refusals above change is all that was wrong."""
    for result in (nv(), mx(), square(SQUARE.t())):
        assert not result.any()


@pytest.mark.parametrize("name", ["a", "a_scales", "b", "b_scales", "a_rglob"])
def test_out_may_not_lie_where_something_is_read(name: str) -> None:
    memory = torch.zeros(4096, dtype=torch.uint8, device=DEVICE)
    inside = memory[1024 : 1024 + 2 * 3 * 24].view(torch.bfloat16).view(3, 24)
    views = {
        "a": memory[1100:1196].view(3, 32),
        "a_scales": memory[700:1212],
        "b": memory[1167:1935].view(24, 32),
        "b_scales": memory[513:1025],
        "a_rglob": memory[1164:1168].view(torch.float32),
    }
    with pytest.raises(ArgumentError, match=f"out: got memory that overlaps {name}, want memory of its own"):
        nv(**{name: views[name]}, out=inside)
    if name != "a_rglob":
        with pytest.raises(ArgumentError, match=f"out: got memory that overlaps {name}"):
            mx(**{name: views[name]}, out=inside)
    beside = memory[1024 - 512 : 1024]
    assert nv(a_scales=beside, out=inside) is inside, "next to it is not in it"
