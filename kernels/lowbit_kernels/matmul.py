"""Matrix products of block-scaled FP4: both operands stay packed in memory and are decoded on the way.

    a         (M, K) by b (N, K), transposed        out (M, N) = RN(out)(RN32(acc * RN32(ra * rb)))
    packed    two E2M1 codes a byte, element 0 in the low nibble, (rows, K / 2)
    scales    one byte a block of 16 (NVFP4, E4M3) or 32 (MXFP4, E8M0), swizzled (see `swizzle.py`)
    ra, rb    NVFP4's decode factors 1 / g, as `recip_scale` makes them

acc is the binary32 sum of the exact products of decoded elements, in an order that the shape decides. Where the
hardware multiplies such operands (compute capability 10.0 and later) torch's scaled matmul is called, if it takes the
shape; elsewhere a kernel decodes in registers and feeds the tensor cores, with no decoded copy of an operand.

When not to use this: for weights that many products read and that fit as bfloat16; a plain matmul of those is faster
for large M. For an activation that is quantised only to be multiplied, the quantiser costs more than the product saves.
"""

from __future__ import annotations

from typing import Any

import torch

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit_kernels import _arguments, _launch, _matmul_hopper, _matmul_launch, _matmul_scaled
from lowbit_kernels._matmul_launch import Operands
from lowbit_kernels.swizzle import swizzled_size


def nvfp4_mm(
    a: torch.Tensor,
    a_scales: torch.Tensor,
    b: torch.Tensor,
    b_scales: torch.Tensor,
    a_rglob: torch.Tensor | None = None,
    b_rglob: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    b_t: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiplies a by the transpose of b, both NVFP4.

    Args:
      a: (..., K / 2) float4_e2m1fn_x2 or uint8, K a multiple of 16. Leading dimensions are flattened into M.
      a_scales: (ceil(M / 128) * 128 * ceil(K / 64) * 4,) float8_e4m3fn or uint8, swizzled. Padding may hold anything.
      b: (N, K / 2) float4_e2m1fn_x2 or uint8.
      b_scales: the same for N rows.
      a_rglob, b_rglob: 1 / g, one float32 element each, on the same device; None is 1.
      out_dtype: bfloat16, float16 or float32.
      b_t: b.t(), if the caller has it already; nothing else is accepted.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (..., N) of out_dtype. A NaN scale (0x7F, 0xFF) makes the outputs of its row NaN; scales from 0x80 are negative,
      but where torch multiplies, whose hardware has no such scales. A sum of 0, of no products too, is +0 before it is
      multiplied by the factors.
    Raises:
      ShapeError: shapes that do not belong together; scales that are not swizzled.
      ArgumentError: `b_t` that is no transpose of b; `out` where it cannot be written.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: the one right value where every partial sum fits binary32; else within the bound of its accumulation.
    Spec: SPEC.md 7.
    """
    packed = _operands(a, a_scales, b, b_scales, 16, torch.float8_e4m3fn)
    factors = [_factor(name, f, a.device) for name, f in (("a_rglob", a_rglob), ("b_rglob", b_rglob))]
    _launch.require_float("out_dtype", out_dtype)
    if b_t is not None:
        _require_transpose(b_t, b)
    if out is None:
        return _NVFP4(*packed, *factors, out_dtype)
    named = {"a": a, "a_scales": a_scales, "b": b, "b_scales": b_scales, "a_rglob": a_rglob, "b_rglob": b_rglob}
    _require_out(out, out_dtype, named)
    _NVFP4_OUT(*packed, *factors, out)
    return out


def mxfp4_mm(
    a: torch.Tensor,
    a_scales: torch.Tensor,
    b: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiplies a by the transpose of b, both MXFP4.

    Args:
      a: (..., K / 2) float4_e2m1fn_x2 or uint8, K a multiple of 32. Leading dimensions are flattened into M.
      a_scales: (ceil(M / 128) * 128 * ceil(K / 128) * 4,) float8_e8m0fnu or uint8, swizzled. Padding may hold anything.
      b: (N, K / 2) float4_e2m1fn_x2 or uint8.
      b_scales: the same for N rows.
      out_dtype: bfloat16, float16 or float32.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (..., N) of out_dtype. A NaN scale (0xFF) makes the outputs of its row NaN. A sum of 0 is +0. Elements are decoded
      to bfloat16, which those of bytes 253 and 254 can leave, to ±Inf.
    Raises:
      ShapeError: shapes that do not belong together; scales that are not swizzled.
      ArgumentError: `out` where it cannot be written.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: the one right value where every partial sum fits binary32; else within the bound of its accumulation.
    Spec: SPEC.md 7.
    """
    packed = _operands(a, a_scales, b, b_scales, 32, torch.float8_e8m0fnu)
    _launch.require_float("out_dtype", out_dtype)
    if out is None:
        return _MXFP4(*packed, out_dtype)
    _require_out(out, out_dtype, {"a": a, "a_scales": a_scales, "b": b, "b_scales": b_scales})
    _MXFP4_OUT(*packed, out)
    return out


def _operands(
    a: torch.Tensor,
    a_scales: torch.Tensor,
    b: torch.Tensor,
    b_scales: torch.Tensor,
    block: int,
    scale_dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """The four tensors as bytes, if they belong together."""
    device = a.device if isinstance(a, torch.Tensor) else None
    packed = []
    for name, operand, scales in (("a", a, a_scales), ("b", b, b_scales)):
        codes = _launch.require_bytes(name, operand, torch.float4_e2m1fn_x2, device)
        wanted = "(..., K / 2)" if name == "a" else "(N, K / 2)"
        if codes.dim() == 0 or (name == "b" and codes.dim() != 2) or codes.shape[-1] % (block // 2):
            raise ShapeError(f"{name}: got shape {tuple(codes.shape)}, want {wanted} with K a multiple of {block}")
        if name == "b" and codes.shape[1] != a.shape[-1]:
            raise ShapeError(
                f"b: got shape {tuple(codes.shape)}, want (N, {a.shape[-1]}): a has K = {a.shape[-1] * 2}, "
                f"b has K = {codes.shape[1] * 2}"
            )
        bytes_ = _launch.require_bytes(f"{name}_scales", scales, scale_dtype, device)
        rows, columns = codes.shape[:-1].numel(), codes.shape[-1] * 2 // block
        size = swizzled_size(rows, columns)
        if tuple(bytes_.shape) != (size,):
            raise ShapeError(
                f"{name}_scales: got shape {tuple(bytes_.shape)}, want ({size},), the swizzled scales of {rows} rows "
                f"and {columns} blocks; swizzle_scales, or swizzle=True of the quantiser, makes them"
            )
        packed += [codes, bytes_]
    return tuple(packed)


def _factor(name: str, factor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    """A decode factor as a (1,) tensor."""
    if factor is None:
        return None
    _launch.require_device(name, factor, device)
    if factor.dtype != torch.float32:
        raise DtypeError(f"{name}: got {factor.dtype}, want torch.float32")
    if factor.numel() != 1:
        raise ShapeError(f"{name}: got shape {tuple(factor.shape)}, want one element")
    return factor.reshape(1)


def _require_transpose(b_t: torch.Tensor, b: torch.Tensor) -> None:
    """Checks that b_t is what b.t() is: the same memory, seen the other way."""
    _launch.require_bytes("b_t", b_t, torch.float4_e2m1fn_x2, b.device)
    if tuple(b_t.shape) != tuple(b.shape)[::-1]:
        raise ShapeError(f"b_t: got shape {tuple(b_t.shape)}, want {tuple(b.shape)[::-1]}, that of b.t()")
    if b_t.stride() != b.stride()[::-1]:
        raise ArgumentError(f"b_t: got strides {b_t.stride()}, want {b.stride()[::-1]}, those of b.t()")
    if _arguments.address(b_t) != _arguments.address(b):
        raise ArgumentError("b_t: got memory that is not b's, want b.t()")


def _require_out(out: torch.Tensor, dtype: torch.dtype, read: dict[str, torch.Tensor | None]) -> None:
    a, b = read["a"], read["b"]
    assert a is not None  # checked, as b is
    assert b is not None
    _arguments.require_output("out", out, (*a.shape[:-1], b.shape[0]), (dtype,), a.device)
    _arguments.require_disjoint([("out", out)], **read)


def _rows(packed: torch.Tensor) -> torch.Tensor:
    return packed.reshape(packed.shape[:-1].numel(), packed.shape[-1])


def _write(operands: Operands, out: torch.Tensor) -> None:
    """Multiplies into a contiguous buffer of any leading shape."""
    flat = operands._replace(a=_rows(operands.a))
    result = out.view(flat.a.shape[0], out.shape[-1])
    if flat.a.shape[1] == 0:
        _write_empty_sums(flat, result)
    elif _matmul_scaled.multiply(flat, result):
        return
    elif _matmul_hopper.takes(flat, result):
        _matmul_hopper.multiply(flat, result)
    else:
        _matmul_launch.multiply(flat, result)


def _write_empty_sums(operands: Operands, out: torch.Tensor) -> None:
    """Writes +0 times the decode factors: no 0 where their product is negative, infinite or NaN."""
    product = torch.ones(1, dtype=torch.float32, device=out.device)
    for factor in (operands.a_rglob, operands.b_rglob):
        if factor is not None:
            product = product * factor
    out.copy_(product * 0.0)


def _nvfp4(
    a: torch.Tensor,
    a_scales: torch.Tensor,
    b: torch.Tensor,
    b_scales: torch.Tensor,
    a_rglob: torch.Tensor | None,
    b_rglob: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    out = _nvfp4_fake(a, a_scales, b, b_scales, a_rglob, b_rglob, out_dtype)
    _nvfp4_write(a, a_scales, b, b_scales, a_rglob, b_rglob, out)
    return out


def _nvfp4_write(
    a: torch.Tensor,
    a_scales: torch.Tensor,
    b: torch.Tensor,
    b_scales: torch.Tensor,
    a_rglob: torch.Tensor | None,
    b_rglob: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    _write(Operands(a, a_scales, b, b_scales, a_rglob, b_rglob, False), out)


def _mxfp4(
    a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    out = _mxfp4_fake(a, a_scales, b, b_scales, out_dtype)
    _mxfp4_write(a, a_scales, b, b_scales, out)
    return out


def _mxfp4_write(
    a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor, out: torch.Tensor
) -> None:
    _write(Operands(a, a_scales, b, b_scales, None, None, True), out)


def _nvfp4_fake(
    a: torch.Tensor,
    a_scales: torch.Tensor,
    b: torch.Tensor,
    b_scales: torch.Tensor,
    a_rglob: torch.Tensor | None,
    b_rglob: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    return torch.empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype, device=a.device)


def _mxfp4_fake(
    a: torch.Tensor, a_scales: torch.Tensor, b: torch.Tensor, b_scales: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype, device=a.device)


def _nothing(*_: Any) -> None:
    """The fake of an op that only writes into its arguments."""


_TENSORS = "Tensor a, Tensor a_scales, Tensor b, Tensor b_scales"
_FACTORS = f"{_TENSORS}, Tensor? a_rglob, Tensor? b_rglob"
_NVFP4 = _launch.register(f"nvfp4_mm({_FACTORS}, ScalarType out_dtype) -> Tensor", _nvfp4, _nvfp4_fake)
_NVFP4_OUT = _launch.register(f"nvfp4_mm_out({_FACTORS}, Tensor(a!) out) -> ()", _nvfp4_write, _nothing)
_MXFP4 = _launch.register(f"mxfp4_mm({_TENSORS}, ScalarType out_dtype) -> Tensor", _mxfp4, _mxfp4_fake)
_MXFP4_OUT = _launch.register(f"mxfp4_mm_out({_TENSORS}, Tensor(a!) out) -> ()", _mxfp4_write, _nothing)
