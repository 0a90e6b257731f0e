"""GPTQ weights: codes of 2, 3, 4 or 8 bits down each column, a scale and a zero point for each group of rows.

    4 bits   | 31..28 | 27..24 | … | 7..4   | 3..0 |  word r of column n of qweight
    row      | 8r + 7 | 8r + 6 | … | 8r + 1 | 8r   |  2 bits: 16 rows a word; 8 bits: 4

    3 bits   word 3r      | row 10, bits 1..0 | row 9  | … | row 1  | row 0            |  32 rows from 32r in 3 words;
             word 3r + 1  | row 21, bit 0     | row 20 | … | row 11 | row 10, bit 2    |  rows 0..7 repeating:
             word 3r + 2  | row 31            | row 30 | … | row 22 | row 21, bits 2..1 |  88fac688 c688fac6 fac688fa

    qweight  (K * b / 32, N) int32     qzeros  (groups, N * b / 32) int32, the same stream along a row
    scales   (groups, N)               g_idx   (K,) int32                              result  (K, N)

    w[k, n] = scales[g, n] * (q[k, n] - z[g, n])      g = g_idx[k], or k / G; the integers subtracted as integers
    z = stored + 1 modulo 2**b under zeros="v1" (all ones is 0, and nothing is carried), stored under "v2"

The difference is exact in float32, and so is its product with a float16 or bfloat16 scale (at most 8 + 11 significant
bits), so that the result is rounded once, when it is stored. NaN and Inf scales propagate.

When not to use this: to multiply by the weight at once. Fused matmuls (Marlin, ExLlama, AWQ's GEMM, torch's int4 GEMM)
decode in registers and never write the decoded weight to memory; where rows were reordered by activation (act-order),
they also permute rows once, at load time, instead of gathering scales for each. This is for what needs the weight
itself: a baseline, merging adapters, swapping experts, looking at a layer.
"""

from __future__ import annotations

import torch

from lowbit.errors import ArgumentError, ShapeError
from lowbit_kernels import _arguments, _launch, _plans, _weight_tiles
from lowbit_kernels import _weight_arguments as checks
from lowbit_kernels import _weight_gptq as kernels

BITS = (2, 3, 4, 8)
_NAMES = {bits: f"gptq{bits}" for bits in BITS}
_ONES = {2: 0x55555555, 3: 1, 4: 0x11111111, 8: 0x01010101}
"""1 in each field of a word, or 1 where fields cross words."""

ZEROS = {"v1": 1, "v2": 0}


def dequantize_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    bits: int = 4,
    group_size: int = 128,
    zeros: str = "v1",
    dtype: torch.dtype = torch.float16,
    validate: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes a GPTQ weight.

    Args:
      qweight: (K * bits / 32, N) int32. Codes, a dense stream down each column; any strides.
      qzeros: (ceil(K / G), N * bits / 32) int32. Zero points, a dense stream along each row.
      scales: (ceil(K / G), N) float16 or bfloat16. Any values.
      g_idx: (K,) int32, or None. The group of each row, 0 .. groups - 1; None: row k belongs to group k // G.
      bits: of a code: 2, 3, 4 or 8.
      group_size: G, rows that share a scale, the last group being short if K is no multiple of it. -1: all of K.
      zeros: ``v1``: qzeros holds z - 1 modulo 2**bits; ``v2``: it holds z.
      dtype: float16, bfloat16 or float32.
      validate: True reads g_idx to check its values, which waits for its device; not while a CUDA graph is captured or
        a function compiled. Unchecked, a row whose group does not exist becomes NaN.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (K, N) of dtype: scale * (q - z), rounded once, gradual underflow, ±Inf beyond the dtype; a zero has the sign of
      the product.
    Raises:
      ShapeError: shapes that do not belong together; K or N whose codes do not fill whole words, or of 2**31 or more.
      DtypeError: float32 scales, whose product would be rounded twice; another wrong dtype.
      ArgumentError: bits, zeros or a group size that does not exist; an index in g_idx that is out of range, also a
        negative one; `out` where it cannot be written.
      DeviceError: a tensor where no kernel can run, or not where the others are.
    Exactness: bit-exact with the references of scheme ``gptq<bits>_<zeros>_g<group_size>``.
    Spec: SPEC.md 5.2.
    """
    bits = checks.require_choice("bits", bits, BITS)
    stored_minus_one = _launch.choose("zeros", zeros, ZEROS)
    _arguments.require_bool("validate", validate)
    _launch.require_float("dtype", dtype)
    words, columns = checks.require_matrix("qweight", qweight, checks.WORDS, shape="(K * bits / 32, N)")
    device = qweight.device
    zeros_in = "(ceil(K / group_size), N * bits / 32)"
    zeros_shape = checks.require_matrix("qzeros", qzeros, checks.WORDS, device, zeros_in)
    scales_shape = checks.require_matrix("scales", scales, checks.SCALES, device, "(ceil(K / group_size), N)")
    rows = rows_of_words(words, bits)
    if rows > checks.MOST or columns > checks.MOST:
        checks.require_lengths("qweight", rows, columns)
    multiple = 32 if bits == 3 else 32 // bits
    if columns % multiple:
        raise ShapeError(
            f"qweight: got {columns} columns, want a multiple of {multiple}, which fill whole words of zeros"
        )
    group = checks.require_group(group_size, rows)
    groups = -(-rows // group)
    zeros_wanted, scales_wanted = (groups, columns * bits // 32), (groups, columns)
    if g_idx is not None:
        checks.require_tensor("g_idx", g_idx, checks.WORDS, device)
    misfit = g_idx is not None and tuple(g_idx.shape) != (rows,)
    if misfit or zeros_shape != zeros_wanted or scales_shape != scales_wanted:
        because = "for {rows} rows of {columns} columns, {bits} bits and group_size {group}"
        numbers = {"rows": rows, "columns": columns, "bits": bits, "group": group_size}
        checks.require_shape("qzeros", qzeros, zeros_wanted, because, **numbers)
        checks.require_shape("scales", scales, scales_wanted, because, **numbers)
        if g_idx is not None:
            checks.require_shape("g_idx", g_idx, (rows,), "one group a row, " + because, **numbers)
    if g_idx is not None and checks.may_read(g_idx, validate):
        _require_groups(g_idx, groups)
    if out is None:
        return _DEQUANTIZE(qweight, qzeros, scales, g_idx, bits, group, stored_minus_one, dtype)
    _arguments.require_output("out", out, (rows, columns), (dtype,), device)
    _arguments.require_disjoint([("out", out)], qweight=qweight, qzeros=qzeros, scales=scales, g_idx=g_idx)
    _DEQUANTIZE_OUT(qweight, qzeros, scales, g_idx, bits, group, stored_minus_one, out)
    return out


def rows_of_words(words: int, bits: int) -> int:
    """How many rows the words of a column hold.

    Raises:
      ShapeError: 3 bits, and no multiple of 3 words.
    """
    if bits == 3 and words % 3:
        raise ShapeError(f"qweight: got {words} rows of words, want a multiple of 3: 32 codes of 3 bits fill 3 words")
    return words * 32 // bits


def _require_groups(g_idx: torch.Tensor, groups: int) -> None:
    """Checks the values of g_idx."""
    if g_idx.numel() == 0:
        return
    least, greatest = torch.stack(torch.aminmax(g_idx)).tolist()
    if least < 0 or greatest >= groups:
        row = int(((g_idx < 0) | (g_idx >= groups)).nonzero()[0].item())
        raise ArgumentError(f"g_idx: got {g_idx[row].item()} at row {row}, want 0..{groups - 1}: {groups} groups")


def _write(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None,
    bits: int,
    group: int,
    stored_minus_one: int,
    out: torch.Tensor,
) -> None:
    """Launches the decoder into a contiguous buffer."""
    rows, columns = out.shape
    if rows == 0 or columns == 0:
        return
    row_stride, column_stride = qweight.stride()
    if column_stride != 1 or (row_stride != columns and row_stride % _weight_tiles.alignment(columns)):
        qweight, row_stride = qweight.contiguous(), columns
    name = _NAMES[bits] if g_idx is None else "gptq_g_idx"
    shapes = (rows, columns, row_stride, scales.shape[0], group)
    plan = _plan(name, _weight_tiles.TILES[name], bits, stored_minus_one, *shapes, _launch.takes_ptx(out))
    index = qzeros if g_idx is None else g_idx.contiguous()
    _plans.launch(plan, out, qweight, qzeros.contiguous(), scales.contiguous(), index, out)


@_plans.kept
def _plan(
    name: str,
    _: _weight_tiles.Tile,
    bits: int,
    stored_minus_one: int,
    rows: int,
    columns: int,
    row_stride: int,
    groups: int,
    group: int,
    ptx: bool,
) -> _plans.Plan:
    """The launch for a tile that is in the table now."""
    pack = 32 if bits == 3 else 32 // bits
    packs = rows // pack
    align = _weight_tiles.alignment(columns)
    tile = _weight_tiles.tile_for(name, packs, columns, pack)
    block_packs, grouping = tile.rows, kernels.BY_INDEX
    if name != "gptq_g_idx":
        block_rows, uniform = _weight_tiles.group_rows(tile.rows * pack, group, rows)
        uniform = uniform and block_rows >= pack
        block_packs, grouping = (block_rows // pack, kernels.BY_TILE) if uniform else (tile.rows, kernels.BY_ROW)
    span = max(block_packs * max(pack * columns, row_stride * 3), groups * columns)
    down, across = -(-packs // (block_packs * tile.steps)), -(-columns // tile.columns)
    ones = _ONES[bits] if stored_minus_one else 0
    options = {
        "BITS": bits,
        "GROUPS": grouping,
        "ALIGN": align,
        "WIDE": span > _launch.INT32_MAX,
        "STEPS": tile.steps,
        "ROUND": pack if grouping == kernels.BY_TILE else _weight_tiles.ROUNDS[bits],
        "BLOCK_P": block_packs,
        "BLOCK_N": tile.columns,
        "PTX": ptx,
        "num_warps": _weight_tiles.warps_for(tile, block_packs * tile.columns),
    }
    integers = (packs, columns // align, groups, group, row_stride // align, ones, 0)
    return _plans.Plan(kernels.dequantize_gptq_kernel, (down * across,), integers, options)


def _dequantize(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None,
    bits: int,
    group: int,
    stored_minus_one: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    out = _dequantize_fake(qweight, qzeros, scales, g_idx, bits, group, stored_minus_one, dtype)
    _write(qweight, qzeros, scales, g_idx, bits, group, stored_minus_one, out)
    return out


def _dequantize_fake(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None,
    bits: int,
    group: int,
    stored_minus_one: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    words, columns = qweight.shape
    return torch.empty((rows_of_words(words, bits), columns), dtype=dtype, device=qweight.device)


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_STORED = "Tensor qweight, Tensor qzeros, Tensor scales, Tensor? g_idx, int bits, int group, int stored_minus_one"
_DEQUANTIZE = _launch.register(f"dequantize_gptq({_STORED}, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake)
_DEQUANTIZE_OUT = _launch.register(f"dequantize_gptq_out({_STORED}, Tensor(a!) out) -> ()", _write, _nothing)
