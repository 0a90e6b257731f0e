"""AWQ weights in the GEMM layout: 4-bit codes, eight columns a word; G rows of a column share a scale and a zero point.

    bits     | 31..28 | 27..24 | 23..20 | 19..16 | 15..12 | 11..8  | 7..4   | 3..0   |  word c of qweight and qzeros
    column   | 8c + 7 | 8c + 5 | 8c + 3 | 8c + 1 | 8c + 6 | 8c + 4 | 8c + 2 | 8c     |  columns 0..7 = 0..7: 0x75316420

    qweight  (K, N / 8) int32      qzeros  (K / G, N / 8) int32      scales  (K / G, N)      result  (K, N)

    w[k, n] = scales[k / G, n] * (q[k, n] - z[k / G, n])      the integers subtracted as integers, z as it is stored

The difference is exact in float32, and so is its product with a float16 or bfloat16 scale (4 + 11 significant bits), so
that the result is rounded once, when it is stored. NaN and Inf scales propagate.

When not to use this: to multiply by the weight at once. Fused matmuls (Marlin, AWQ's own GEMM, ExLlama, torch's int4
GEMM) decode in registers and never write the decoded weight, four times the packed one, to memory. This is for what
needs the weight itself: a baseline, merging adapters, swapping experts, looking at a layer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lowbit.errors import ShapeError
from lowbit_kernels import _arguments, _launch, _plans
from lowbit_kernels import _weight_arguments as checks
from lowbit_kernels._codec import remaining, tile_count
from lowbit_kernels._weight_codec import narrow, number, tile_of, widen_scale
from lowbit_kernels._weight_tiles import TILES, Tile, group_rows, tile_for, warps_for

PACK = 8
_PACK = tl.constexpr(PACK)


@triton.jit
def _unpack(words, COLUMNS: tl.constexpr):
    """words: (ROWS, COLUMNS / 8) int32. -> (ROWS, COLUMNS) int32 0..15, in the order of the columns."""
    lane = tl.arange(0, _PACK)
    shift = (lane & 1) * 16 + (lane >> 1) * 4
    return tl.reshape((words[:, :, None] >> shift[None, None, :]) & 15, (words.shape[0], COLUMNS))


@triton.jit(
    do_not_specialize=["rows", "words", "group_size", "row_stride", "hidden"],
    do_not_specialize_on_alignment=["qweight_ptr", "qzeros_ptr"],
)
def dequantize_awq_kernel(
    qweight_ptr,
    qzeros_ptr,
    scales_ptr,
    out_ptr,
    rows,
    words,
    group_size,
    row_stride,
    hidden,
    UNIFORM: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """BLOCK_K rows by BLOCK_W words.

    hidden: 0, which the compiler must not know: it then takes words for unaligned and gives a thread one at a time,
    whose eight columns are what one store takes.
    UNIFORM: all rows of a tile share a group.
    """
    BLOCK_N: tl.constexpr = BLOCK_W * _PACK
    row_tile, word_tile = tile_of(tile_count(words, BLOCK_W))
    first_row, first_word = row_tile.to(tl.int64) * BLOCK_K, word_tile.to(tl.int64) * BLOCK_W
    columns = words * _PACK
    row = tl.arange(0, BLOCK_K)
    word = tl.arange(0, BLOCK_W)
    column = tl.arange(0, BLOCK_N)
    row_exists = (row < remaining(rows, first_row, BLOCK_K))[:, None]
    word_exists = (word < remaining(words, first_word, BLOCK_W))[None, :]
    column_exists = (column < remaining(words, first_word, BLOCK_W) * _PACK)[None, :]
    row = (row.to(tl.int64) if WIDE else row)[:, None]
    word = word[None, :]

    zeros_at = qzeros_ptr + first_word + hidden + word
    scales_at = scales_ptr + first_word * _PACK + column[None, :]
    if UNIFORM:
        group = (row_tile * BLOCK_K // group_size).to(tl.int64)
        zeros = tl.load(zeros_at + group * words, mask=word_exists, other=0)  # (1, BLOCK_W)
        scales = tl.load(scales_at + group * columns, mask=column_exists, other=0.0)  # (1, BLOCK_N)
    else:
        group = ((row_tile * BLOCK_K + tl.arange(0, BLOCK_K)) // group_size)[:, None]
        if WIDE:
            group = group.to(tl.int64)
        zeros = tl.load(zeros_at + group * words, mask=row_exists & word_exists, other=0)
        scales = tl.load(scales_at + group * columns, mask=row_exists & column_exists, other=0.0)
    start = qweight_ptr + first_row * row_stride + first_word + hidden
    packed = tl.load(start + row * row_stride + word, mask=row_exists & word_exists, other=0)

    difference = number(_unpack(packed, BLOCK_N)) - number(_unpack(zeros, BLOCK_N))  # (BLOCK_K, BLOCK_N), exact
    result = narrow(difference * widen_scale(scales), out_ptr.dtype.element_ty)
    at = out_ptr + first_row * columns + first_word * _PACK + row * columns + column[None, :]
    tl.store(at, result, mask=row_exists & column_exists)


def dequantize_awq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    *,
    group_size: int = 128,
    dtype: torch.dtype = torch.float16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes an AWQ weight.

    Args:
      qweight: (K, N / 8) int32. Eight columns a word, in AWQ's order; any strides.
      qzeros: (K / G, N / 8) int32. Zero points in the same order; z itself is stored.
      scales: (K / G, N) float16 or bfloat16. Any values.
      group_size: G, rows that share a scale; K a multiple of it. -1: all of K.
      dtype: float16, bfloat16 or float32.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (K, N) of dtype: scale * (q - z), rounded once, gradual underflow, ±Inf beyond the dtype; a zero has the sign of
      the product.
    Raises:
      ShapeError: shapes that do not belong together; K no multiple of group_size; K or N of 2**31 or more.
      DtypeError: float32 scales, whose product would be rounded twice; another wrong dtype.
      ArgumentError, DeviceError: a group size below 1; `out` where it cannot be written; a tensor where no kernel runs.
    Exactness: bit-exact with the references of scheme ``awq_g<group_size>``.
    Spec: SPEC.md 5.1.
    """
    rows, words = checks.require_matrix("qweight", qweight, checks.WORDS, shape="(K, N / 8)")
    checks.require_lengths("qweight", rows, words * PACK)
    checks.require_matrix("qzeros", qzeros, checks.WORDS, qweight.device, "(K / group_size, N / 8)")
    checks.require_matrix("scales", scales, checks.SCALES, qweight.device, "(K / group_size, N)")
    group = checks.require_group(group_size, rows)
    _launch.require_float("dtype", dtype)
    if rows % group:
        raise ShapeError(f"qweight: got {rows} rows, want a multiple of group_size, {group}")
    because = "for {rows} rows of {columns} columns and group_size {group}"
    numbers = {"rows": rows, "columns": words * PACK, "group": group_size}
    checks.require_shape("qzeros", qzeros, (rows // group, words), because, **numbers)
    checks.require_shape("scales", scales, (rows // group, words * PACK), because, **numbers)
    if out is None:
        return _DEQUANTIZE(qweight, qzeros, scales, group, dtype)
    _arguments.require_output("out", out, (rows, words * PACK), (dtype,), qweight.device)
    _arguments.require_disjoint([("out", out)], qweight=qweight, qzeros=qzeros, scales=scales)
    _DEQUANTIZE_OUT(qweight, qzeros, scales, group, out)
    return out


def _write(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, group: int, out: torch.Tensor) -> None:
    """Launches the decoder into a contiguous buffer."""
    if out.numel() == 0:
        return
    qweight, row_stride = checks.rows_stride(qweight, 1)
    plan = _plan(TILES["awq"], *qweight.shape, row_stride, scales.shape[0], group)
    _plans.launch(plan, out, qweight, qzeros.contiguous(), scales.contiguous(), out)


@_plans.kept
def _plan(_: Tile, rows: int, words: int, row_stride: int, groups: int, group: int) -> _plans.Plan:
    """The launch for a tile that is in the table now."""
    tile = tile_for("awq", rows, words * PACK)
    block_rows, uniform = group_rows(tile.rows, group, rows)
    block_words = tile.columns // PACK
    span = max(block_rows, groups) * max(row_stride, words * PACK)
    options = {
        "UNIFORM": uniform,
        "WIDE": span > _launch.INT32_MAX,
        "BLOCK_K": block_rows,
        "BLOCK_W": block_words,
        "num_warps": warps_for(tile, block_rows * tile.columns),
    }
    grid = (-(-rows // block_rows) * -(-words // block_words),)
    return _plans.Plan(dequantize_awq_kernel, grid, (rows, words, group, row_stride, 0), options)


def _dequantize(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, group: int, dtype: torch.dtype
) -> torch.Tensor:
    out = _dequantize_fake(qweight, qzeros, scales, group, dtype)
    _write(qweight, qzeros, scales, group, out)
    return out


def _dequantize_fake(
    qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor, group: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty((qweight.shape[0], qweight.shape[1] * PACK), dtype=dtype, device=qweight.device)


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_STORED = "Tensor qweight, Tensor qzeros, Tensor scales, int group"
_DEQUANTIZE = _launch.register(f"dequantize_awq({_STORED}, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake)
_DEQUANTIZE_OUT = _launch.register(f"dequantize_awq_out({_STORED}, Tensor(a!) out) -> ()", _write, _nothing)
