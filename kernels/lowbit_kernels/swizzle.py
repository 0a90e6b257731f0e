"""SWIZZLE_32_4_4: the layout in which block-scaled matmuls read scales.

    scale (r, c) of an (M, C) matrix goes to byte

        ((r / 128) * ceil(C / 4) + c / 4) * 512  +  (r % 32) * 16  +  ((r % 128) / 32) * 4  +  c % 4
        └ tile of 128 rows by 4 columns ───────┘    └ 32 lines of 16 bytes: 4 rows, 32 apart, by 4 columns ┘

    A tile seen as [4 rows 32 apart, 32 rows, 4 columns] is stored as [32 rows, 4 rows 32 apart, 4 columns].
    The buffer is ceil(M / 128) * 128 x ceil(C / 4) * 4 bytes; those of rows and columns that do not exist are 0.

When not to use this: behind our own quantisers, which store swizzled scales at no extra cost (``swizzle=True``).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit_kernels import _arguments, _launch, _plans
from lowbit_kernels._codec import tile_count

SCALE_DTYPES = (torch.uint8, torch.float8_e8m0fnu, torch.float8_e4m3fn)
_BLOCK_COLUMNS = 1024 if _launch.INTERPRETED else 64


@triton.jit
def swizzled_offset(row, column, columns_padded):
    """The byte at which the scale (row, column) is stored.

    Args:
      row, column: integers, tensors or scalars that broadcast; not negative. int64 where the buffer can pass 2**31.
      columns_padded: the number of columns rounded up to a multiple of 4: 128 rows take 128 * columns_padded bytes.
    """
    tile = (row >> 7) * (columns_padded * 128) + (column >> 2) * 512
    return tile + (row & 31) * 16 + ((row >> 5) & 3) * 4 + (column & 3)


@triton.jit
def _origin(columns, BLOCK_COLUMNS: tl.constexpr):
    """This program's first row and column, int64: 128 rows by BLOCK_COLUMNS."""
    across = tile_count(columns, BLOCK_COLUMNS)
    program = tl.program_id(0)
    return (program // across).to(tl.int64) * 128, (program % across).to(tl.int64) * BLOCK_COLUMNS


@triton.jit
def _swizzle_kernel(
    scales_ptr, buffer_ptr, rows, columns, columns_padded, row_stride, column_stride, BLOCK_COLUMNS: tl.constexpr
):
    TILES: tl.constexpr = BLOCK_COLUMNS // 4
    first_row, first_column = _origin(columns_padded, BLOCK_COLUMNS)
    row = first_row + tl.arange(0, 128)[:, None]
    column = first_column + tl.arange(0, BLOCK_COLUMNS)[None, :]
    exists = (row < rows) & (column < columns)
    # (128, BLOCK_COLUMNS), 0 where there is none
    scales = tl.load(scales_ptr + row * row_stride + column * column_stride, mask=exists, other=0)
    tiles = tl.permute(tl.reshape(scales, (4, 32, TILES, 4)), (2, 1, 0, 3))
    offset = tl.arange(0, TILES * 512)
    start = first_row * columns_padded + first_column * 128
    tl.store(
        buffer_ptr + start + offset,
        tl.reshape(tiles, (TILES * 512,)),
        mask=offset < (columns_padded - first_column) * 128,
    )


@triton.jit
def _unswizzle_kernel(buffer_ptr, scales_ptr, rows, columns, columns_padded, BLOCK_COLUMNS: tl.constexpr):
    TILES: tl.constexpr = BLOCK_COLUMNS // 4
    first_row, first_column = _origin(columns_padded, BLOCK_COLUMNS)
    offset = tl.arange(0, TILES * 512)
    start = first_row * columns_padded + first_column * 128
    tiles = tl.load(buffer_ptr + start + offset, mask=offset < (columns_padded - first_column) * 128, other=0)
    # (128, BLOCK_COLUMNS)
    scales = tl.reshape(tl.permute(tl.reshape(tiles, (TILES, 32, 4, 4)), (2, 1, 0, 3)), (128, BLOCK_COLUMNS))
    row = first_row + tl.arange(0, 128)[:, None]
    column = first_column + tl.arange(0, BLOCK_COLUMNS)[None, :]
    tl.store(scales_ptr + row * columns + column, scales, mask=(row < rows) & (column < columns))


def swizzled_size(rows: int, columns: int) -> int:
    """The bytes of a swizzled buffer: ceil(rows / 128) * 128 * ceil(columns / 4) * 4."""
    return -(-rows // 128) * 128 * -(-columns // 4) * 4


def swizzle_scales(scales: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Lays scales out for a block-scaled matmul.

    Args:
      scales: (..., M, C) or (C,) uint8, float8_e8m0fnu or float8_e4m3fn, any strides. Leading dimensions are flattened
        into M.
      out: the result, to write into: contiguous, of its size and dtype, apart from scales.
    Returns:
      (ceil(M / 128) * 128 * ceil(C / 4) * 4,) of the dtype of scales. Every byte of padding is 0.
    Raises:
      ShapeError: no dimension; `out` of another shape.
      ArgumentError: `out` where it cannot be written.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: a permutation of bytes.
    Spec: SPEC.md 4.
    """
    _require_scales("scales", scales)
    if scales.dim() == 0:
        raise ShapeError("scales: got a tensor without dimensions, want (..., C)")
    if out is None:
        return _SWIZZLE(scales)
    size = swizzled_size(scales.shape[:-1].numel(), scales.shape[-1])
    _arguments.require_output("out", out, (size,), (scales.dtype,), scales.device)
    _arguments.require_disjoint([("out", out)], scales=scales)
    _SWIZZLE_OUT(scales, out)
    return out


def unswizzle_scales(buffer: torch.Tensor, rows: int, columns: int, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Undoes `swizzle_scales`; what the padding holds does not matter.

    Args:
      buffer: (ceil(rows / 128) * 128 * ceil(columns / 4) * 4,) uint8, float8_e8m0fnu or float8_e4m3fn.
      rows, columns: of the matrix.
      out: the result, to write into: contiguous, of its shape and dtype, apart from buffer.
    Returns:
      (rows, columns) of buffer's dtype.
    Raises:
      ArgumentError: a negative size; `out` where it cannot be written.
      ShapeError: a buffer of another size; says which one belongs to rows and columns.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: a permutation of bytes.
    Spec: SPEC.md 4.
    """
    _require_scales("buffer", buffer)
    rows, columns = _arguments.require_integer("rows", rows), _arguments.require_integer("columns", columns)
    for name, value in (("rows", rows), ("columns", columns)):
        if value < 0:
            raise ArgumentError(f"{name}: got {value}, want 0 or more")
    wanted = (swizzled_size(rows, columns),)
    if tuple(buffer.shape) != wanted:
        raise ShapeError(
            f"buffer: got shape {tuple(buffer.shape)}, want {wanted} for {rows} rows and {columns} columns"
        )
    if out is None:
        return _UNSWIZZLE(buffer, rows, columns)
    _arguments.require_output("out", out, (rows, columns), (buffer.dtype,), buffer.device)
    _arguments.require_disjoint([("out", out)], buffer=buffer)
    _UNSWIZZLE_OUT(buffer, out)
    return out


def _require_scales(name: str, tensor: torch.Tensor) -> None:
    _launch.require_device(name, tensor)
    if tensor.dtype not in SCALE_DTYPES:
        raise DtypeError(f"{name}: got {tensor.dtype}, want {_launch.listed(SCALE_DTYPES)}")


def _grid(rows: int, columns: int) -> tuple[int, int]:
    """The columns of one program, and the number of programs."""
    block = min(_launch.power_of_two(max(columns, 4)), _BLOCK_COLUMNS)
    return block, -(-rows // 128) * -(-columns // block)


def _write(scales: torch.Tensor, buffer: torch.Tensor) -> None:
    source, row_stride, column_stride = _launch.rows_of(_launch.bytes_of(scales))
    plan = _swizzle_plan(*source.shape, row_stride, column_stride)
    _plans.launch(plan, buffer, source, _launch.bytes_of(buffer))


@_plans.kept
def _swizzle_plan(rows: int, columns: int, row_stride: int, column_stride: int) -> _plans.Plan:
    padded = -(-columns // 4) * 4
    block, programs = _grid(rows, padded)
    integers = (rows, columns, padded, row_stride, column_stride)
    return _plans.Plan(_swizzle_kernel, (programs,), integers, {"BLOCK_COLUMNS": block})


def _read(buffer: torch.Tensor, scales: torch.Tensor) -> None:
    plan = _unswizzle_plan(*scales.shape)
    _plans.launch(plan, buffer, _launch.bytes_of(buffer.contiguous()), _launch.bytes_of(scales))


@_plans.kept
def _unswizzle_plan(rows: int, columns: int) -> _plans.Plan:
    padded = -(-columns // 4) * 4
    block, programs = _grid(rows, padded)
    return _plans.Plan(_unswizzle_kernel, (programs,), (rows, columns, padded), {"BLOCK_COLUMNS": block})


def _swizzle(scales: torch.Tensor) -> torch.Tensor:
    buffer = _swizzle_fake(scales)
    _write(scales, buffer)
    return buffer


def _swizzle_fake(scales: torch.Tensor) -> torch.Tensor:
    size = swizzled_size(scales.shape[:-1].numel(), scales.shape[-1])
    return torch.empty(size, dtype=scales.dtype, device=scales.device)


def _unswizzle(buffer: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    scales = _unswizzle_fake(buffer, rows, columns)
    _read(buffer, scales)
    return scales


def _unswizzle_fake(buffer: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return torch.empty((rows, columns), dtype=buffer.dtype, device=buffer.device)


def _nothing(*_: torch.Tensor) -> None:
    """The fake of an op that only writes into its arguments."""


_SWIZZLE = _launch.register("swizzle_scales(Tensor scales) -> Tensor", _swizzle, _swizzle_fake)
_SWIZZLE_OUT = _launch.register("swizzle_scales_out(Tensor scales, Tensor(a!) out) -> ()", _write, _nothing)
_UNSWIZZLE = _launch.register(
    "unswizzle_scales(Tensor buffer, int rows, int columns) -> Tensor", _unswizzle, _unswizzle_fake
)
_UNSWIZZLE_OUT = _launch.register("unswizzle_scales_out(Tensor buffer, Tensor(a!) out) -> ()", _read, _nothing)
