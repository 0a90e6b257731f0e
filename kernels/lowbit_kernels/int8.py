"""int8 weights with one scale an output channel.

    weight  (N, K) int8, two's complement, -128 included      scale  (N,) float32      result  (N, K)

    4 bytes of a row   | k + 3 | k + 2 | k + 1 | k |  one word, loaded as part of 8 bytes a thread
    w[n, k] = RN(RN32(q[n, k] * scale[n]))            q is exact in float32: 8 bits

This is not what bitsandbytes computes from its row statistics, RN32(RN32(q * SCB) * RN32(1 / 127)), nor what PyTorch's
``weight.to(scale.dtype) * scale`` gives where scales have 16 bits: both are other schemes, with other bits.

When not to use this: to multiply by the weight at once. Fused matmuls (Marlin and torch's mixed-dtype GEMMs for 8-bit
weights, an int8 tensor-core GEMM with the scale in its epilogue) apply a channel's scale to the result and never write
the decoded weight, twice the stored one, to memory. This is for what needs the weight itself: a baseline, merging
adapters, swapping experts, looking at a layer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lowbit_kernels import _arguments, _launch, _plans, _weight_tiles
from lowbit_kernels import _weight_arguments as checks
from lowbit_kernels._codec import remaining, tile_count
from lowbit_kernels._weight_codec import narrow, tile_of


@triton.jit(do_not_specialize=["rows", "units", "row_stride_units"], do_not_specialize_on_alignment=["scale_ptr"])
def dequantize_int8_kernel(
    weight_ptr,
    scale_ptr,
    out_ptr,
    rows,
    units,
    row_stride_units,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_U: tl.constexpr,
):
    """BLOCK_N channels by BLOCK_U units of ALIGN columns; a unit is one load and one store of a thread."""
    columns = units * ALIGN
    row_stride = (row_stride_units.to(tl.int64) if WIDE else row_stride_units) * ALIGN
    row_tile, unit_tile = tile_of(tile_count(units, BLOCK_U))
    first_row, first_unit = row_tile.to(tl.int64) * BLOCK_N, unit_tile.to(tl.int64) * BLOCK_U
    row = tl.arange(0, BLOCK_N)
    unit = tl.arange(0, BLOCK_U)
    row_exists = row < remaining(rows, first_row, BLOCK_N)
    exists = row_exists[:, None, None] & (unit < remaining(units, first_unit, BLOCK_U))[None, :, None]
    exists = tl.broadcast_to(exists, (BLOCK_N, BLOCK_U, ALIGN))
    scale = tl.load(scale_ptr + first_row + row, mask=row_exists, other=0.0)[:, None, None]
    row = (row.to(tl.int64) if WIDE else row)[:, None, None]
    column = unit[None, :, None] * ALIGN + tl.arange(0, ALIGN)[None, None, :]

    start = weight_ptr + first_row * row_stride + first_unit * ALIGN
    codes = tl.load(start + row * row_stride + column, mask=exists, other=0)  # (BLOCK_N, BLOCK_U, ALIGN)
    result = narrow(codes.to(tl.float32) * scale, out_ptr.dtype.element_ty)
    tl.store(out_ptr + first_row * columns + first_unit * ALIGN + row * columns + column, result, mask=exists)


def dequantize_int8(
    weight: torch.Tensor, scale: torch.Tensor, *, dtype: torch.dtype = torch.float16, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Decodes an int8 weight with one scale an output channel.

    Args:
      weight: (N, K) int8. Any strides; -128 counts as -128.
      scale: (N,) float32. Any values.
      dtype: float16, bfloat16 or float32.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (N, K) of dtype: q * scale, rounded to float32 and then to dtype; ±Inf beyond the dtype.
    Raises:
      ShapeError: shapes that do not belong together; N or K of 2**31 or more.
      DtypeError: a tensor of the wrong dtype.
      ArgumentError, DeviceError: `out` where it cannot be written; a tensor where no kernel can run.
    Exactness: bit-exact with the references of scheme ``int8_channel``.
    Spec: SPEC.md 5.4.
    """
    shape = checks.require_matrix("weight", weight, (torch.int8,), shape="(N, K)")
    checks.require_lengths("weight", *shape)
    checks.require_tensor("scale", scale, (torch.float32,), weight.device)
    checks.require_shape("scale", scale, (shape[0],), "one for each row of weight")
    _launch.require_float("dtype", dtype)
    if out is None:
        return _DEQUANTIZE(weight, scale, dtype)
    _arguments.require_output("out", out, shape, (dtype,), weight.device)
    _arguments.require_disjoint([("out", out)], weight=weight, scale=scale)
    _DEQUANTIZE_OUT(weight, scale, out)
    return out


def _write(weight: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """Launches the decoder into a contiguous buffer."""
    if out.numel() == 0:
        return
    weight, _ = checks.rows_stride(weight, _weight_tiles.alignment(weight.shape[1]))
    plan = _plan(_weight_tiles.TILES["int8"], *weight.shape, weight.stride(0))
    _plans.launch(plan, out, weight, scale.contiguous(), out)


@_plans.kept
def _plan(_: _weight_tiles.Tile, rows: int, columns: int, row_stride: int) -> _plans.Plan:
    """The launch for a tile that is in the table now."""
    align = _weight_tiles.alignment(columns)
    tile = _weight_tiles.tile_for("int8", rows, columns)
    units, block_units = columns // align, max(tile.columns // align, 1)
    options = {
        "ALIGN": align,
        "WIDE": tile.rows * max(columns, row_stride) + tile.columns > _launch.INT32_MAX,
        "BLOCK_N": tile.rows,
        "BLOCK_U": block_units,
        "num_warps": _weight_tiles.warps_for(tile, tile.rows * tile.columns),
    }
    grid = (-(-rows // tile.rows) * -(-units // block_units),)
    return _plans.Plan(dequantize_int8_kernel, grid, (rows, units, row_stride // align), options)


def _dequantize(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = _dequantize_fake(weight, scale, dtype)
    _write(weight, scale, out)
    return out


def _dequantize_fake(weight: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(weight.shape, dtype=dtype, device=weight.device)


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_STORED = "Tensor weight, Tensor scale"
_DEQUANTIZE = _launch.register(f"dequantize_int8({_STORED}, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake)
_DEQUANTIZE_OUT = _launch.register(f"dequantize_int8_out({_STORED}, Tensor(a!) out) -> ()", _write, _nothing)
