"""SqueezeLLM weights: 3- or 4-bit codes into a table of 8 or 16 values for each output channel, and sparse terms.

    4 bits   | 31..28 | 27..24 | … | 7..4   | 3..0 |  word r of column n of qweight
    row      | 8r + 7 | 8r + 6 | … | 8r + 1 | 8r   |  3 bits: 32 rows in three words, the stream drawn in `gptq.py`

    qweight  (K * b / 32, N) int32      lookup_table  (N, 2**b) float32 or float16      result  (K, N)
    sparse   CSR of (N, K): crow_indices (N + 1,), col_indices (entries,), values (entries,) float32
    full_rows   indices (R,) of output channels, values (K, R) float32: column r belongs to channel indices[r]

    w[k, n] = RN(lookup_table[n, q[k, n]])
    w[k, n] = RN(RN32(RN32(lookup_table[n, q[k, n]] + sparse[n, k]) + full[n, k]))      a term only where it is stored

When not to use this: to multiply by the weight at once. SqueezeLLM's own GEMV kernels, and fused matmuls for uniform
int4 (Marlin, AWQ's GEMM, ExLlama, torch's int4 GEMM), decode in registers and never write the decoded weight to memory;
the sparse terms are there a separate sparse product. This is for what needs the weight itself: a baseline, merging
adapters, swapping experts, looking at a layer.
"""

from __future__ import annotations

from typing import Any

import torch

from lowbit_kernels import _arguments, _launch, _plans, _weight_tiles
from lowbit_kernels import _weight_arguments as checks
from lowbit_kernels import _weight_squeezellm as kernels
from lowbit_kernels import _weight_sums as sums
from lowbit_kernels.gptq import rows_of_words

BITS = (3, 4)
_NAMES = {bits: f"squeezellm{bits}" for bits in BITS}
TABLES = (torch.float32, torch.float16)
_CONSTANT_FROM = 1 << 20
"""Values from which on a number of columns gets a kernel of its own; decoding fewer takes about as long as a launch."""


def dequantize_squeezellm(
    qweight: torch.Tensor,
    lookup_table: torch.Tensor,
    *,
    bits: int = 4,
    sparse: sums.Sparse | None = None,
    full_rows: sums.FullRows | None = None,
    dtype: torch.dtype = torch.float16,
    validate: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes a SqueezeLLM weight.

    Args:
      qweight: (K * bits / 32, N) int32. Codes, a dense stream down each column; any strides.
      lookup_table: (N, 2**bits) float32 or float16. The values of each output channel, any.
      bits: of a code: 3 or 4.
      sparse: (crow_indices, col_indices, values), a CSR matrix (N, K) that is added: (N + 1,) and (entries,) int32 or
        int64, (entries,) float32. Each place at most once, in any order.
      full_rows: (indices, values), what is added to whole output channels: (R,) int32 or int64, each channel at most
        once, and (K, R) float32.
      dtype: float16, bfloat16 or float32.
      validate: True reads whether the indices are sound, which waits for the device; not while a CUDA graph is captured
        or a function compiled. Unchecked, indices that are not make every value NaN.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (K, N) of dtype: the table's value, each sum rounded to float32, then rounded to dtype.
    Raises:
      ShapeError: shapes that do not belong together; K whose codes do not fill whole words; K, N or R of
        2**31 or more.
      DtypeError: a tensor of the wrong dtype.
      ArgumentError: bits other than 3 and 4; indices out of range, out of order or twice; `out` where it cannot be
        written.
      DeviceError: a tensor where no kernel can run, or not where the others are.
    Exactness: bit-exact with the references of scheme ``squeezellm<bits>``, ``+sparse``, ``+full_rows``.
    Spec: SPEC.md 5.5.
    """
    bits = checks.require_choice("bits", bits, BITS)
    _arguments.require_bool("validate", validate)
    _launch.require_float("dtype", dtype)
    words, columns = checks.require_matrix("qweight", qweight, checks.WORDS, shape="(K * bits / 32, N)")
    rows = rows_of_words(words, bits)
    checks.require_lengths("qweight", rows, columns)
    checks.require_tensor("lookup_table", lookup_table, TABLES, qweight.device)
    because = "for {columns} columns of {bits} bits"
    checks.require_shape("lookup_table", lookup_table, (columns, 1 << bits), because, columns=columns, bits=bits)
    crow, col, values = sums.require_sparse(sparse, rows, columns, qweight.device)
    indices, full = sums.require_full_rows(full_rows, rows, columns, qweight.device)
    flags = owner = None
    if crow is not None or indices is not None:
        flags, owner = sums.CHECK(qweight, crow, col, indices, rows)
        if checks.may_read(flags, validate):
            sums.require_sound(flags, crow, col, indices, rows, columns)
    options = (bits, crow, col, values, indices, full, flags, owner)
    if out is None:
        return _DEQUANTIZE(qweight, lookup_table, *options, dtype)
    _arguments.require_output("out", out, (rows, columns), (dtype,), qweight.device)
    named = {"crow_indices": crow, "col_indices": col, "values": values, "indices": indices, "full_rows": full}
    _arguments.require_disjoint([("out", out)], qweight=qweight, lookup_table=lookup_table, **named)
    _DEQUANTIZE_OUT(qweight, lookup_table, *options, out)
    return out


def _write(
    qweight: torch.Tensor,
    lookup_table: torch.Tensor,
    bits: int,
    crow: torch.Tensor | None,
    col: torch.Tensor | None,
    values: torch.Tensor | None,
    indices: torch.Tensor | None,
    full: torch.Tensor | None,
    flags: torch.Tensor | None,
    owner: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Launches the decoder into a contiguous buffer, and what overwrites single places."""
    if out.numel() == 0:
        return
    rows, columns = out.shape
    lookup_table = lookup_table.contiguous()
    _write_entries(qweight, lookup_table, bits, flags, out)
    if indices is not None and full is not None and indices.shape[0]:
        count = indices.shape[0]
        block_rows, block_count = _weight_tiles.FULL_ROWS
        _launch.launch(
            kernels.add_full_rows_kernel,
            (-(-rows // block_rows) * -(-count // block_count),),
            out,
            qweight,
            lookup_table,
            indices.contiguous(),
            full.contiguous(),
            flags,
            out,
            rows,
            columns,
            count,
            *qweight.stride(),
            BITS=bits,
            BLOCK_K=block_rows,
            BLOCK_R=block_count,
        )
    if crow is not None and col is not None and values is not None and col.shape[0]:
        block_rows, block_entries = _weight_tiles.SPARSE
        _launch.launch(
            kernels.add_sparse_kernel,
            (-(-columns // block_rows),),
            out,
            qweight,
            lookup_table,
            crow.contiguous(),
            col.contiguous(),
            values.contiguous(),
            flags if indices is None else owner,
            flags if full is None else full.contiguous(),
            flags,
            out,
            columns,
            0 if indices is None else indices.shape[0],
            *qweight.stride(),
            BITS=bits,
            FULL=indices is not None,
            BLOCK_R=block_rows,
            BLOCK_E=block_entries,
        )


def _write_entries(
    qweight: torch.Tensor, lookup_table: torch.Tensor, bits: int, flags: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Launches the decoder without the sums."""
    columns = out.shape[1]
    qweight, row_stride = checks.rows_stride(qweight, 1)
    lanes = 1
    if out.dtype.itemsize == 2 and columns % 2 == row_stride % 2 == qweight.data_ptr() % 8 == out.data_ptr() % 4 == 0:
        lanes = 2
    name = _NAMES[bits]
    plan = _plan(name, _weight_tiles.TILES[name], bits, lanes, flags is not None, *out.shape, row_stride)
    _plans.launch(plan, out, qweight, lookup_table, lookup_table if flags is None else flags, out)


@_plans.kept
def _plan(
    name: str, _: _weight_tiles.Tile, bits: int, lanes: int, flagged: bool, rows: int, columns: int, row_stride: int
) -> _plans.Plan:
    """The launch of the decoder for a tile that is in the table now."""
    pack = 32 if bits == 3 else 8
    packs = rows // pack
    tile = _weight_tiles.tile_for(name, packs, columns, pack)
    block_lanes = max(tile.columns // lanes, 4)
    count, constant = columns // lanes, rows * columns >= _CONSTANT_FROM
    down, across = -(-packs // (tile.rows * tile.steps)), -(-count // block_lanes)
    options = {
        "LANE_COUNT": count if constant else 0,
        "ROW_STRIDE": row_stride // lanes if constant else 0,
        "BITS": bits,
        "LANES": lanes,
        "FLAGGED": flagged,
        "WIDE": tile.rows * max(pack * columns, row_stride * 3) > _launch.INT32_MAX,
        "STEPS": tile.steps,
        "BLOCK_P": tile.rows,
        "BLOCK_C": block_lanes,
        # one warp would gather from its own registers, which takes a shuffle for every 32 places of the tables
        "num_warps": max(_weight_tiles.warps_for(tile, tile.rows * pack * block_lanes), 2),
    }
    integers = (packs, count, row_stride // lanes, 0)
    return _plans.Plan(kernels.dequantize_squeezellm_kernel, (down * across,), integers, options)


def _dequantize(
    qweight: torch.Tensor,
    lookup_table: torch.Tensor,
    bits: int,
    crow: torch.Tensor | None,
    col: torch.Tensor | None,
    values: torch.Tensor | None,
    indices: torch.Tensor | None,
    full: torch.Tensor | None,
    flags: torch.Tensor | None,
    owner: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    out = _dequantize_fake(qweight, lookup_table, bits, dtype)
    _write(qweight, lookup_table, bits, crow, col, values, indices, full, flags, owner, out)
    return out


def _dequantize_fake(qweight: torch.Tensor, lookup_table: torch.Tensor, bits: int, *rest: Any) -> torch.Tensor:
    shape = rows_of_words(qweight.shape[0], bits), qweight.shape[1]
    return torch.empty(shape, dtype=rest[-1], device=qweight.device)


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_STORED = (
    "Tensor qweight, Tensor lookup_table, int bits, Tensor? crow, Tensor? col, Tensor? values, Tensor? indices, "
    "Tensor? full, Tensor? flags, Tensor? owner"
)
_DEQUANTIZE = _launch.register(
    f"dequantize_squeezellm({_STORED}, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake
)
_DEQUANTIZE_OUT = _launch.register(f"dequantize_squeezellm_out({_STORED}, Tensor(a!) out) -> ()", _write, _nothing)
