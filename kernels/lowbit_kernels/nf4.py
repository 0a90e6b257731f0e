"""NF4 and FP4 weights of bitsandbytes: 4-bit codes of a codebook, one absmax for each block of the flattened tensor.

    byte j     | 7..4, the HIGH nibble: element 2j | 3..0: element 2j + 1 |      n odd: the last low nibble is free
    4 bytes    | 6 | 7 | 4 | 5 | 2 | 3 | 0 | 1 |      as a word, bits 31..28 first: element e of 8 from bit 4 * (e ^ 1)

    packed  (ceil(n / 2),) uint8      absmax  (ceil(n / B),) float32      n = the product of shape, row-major

    w[i] = RN(RN32(codebook[q[i]] * absmax[i / B]))      blocks are flat: they cross rows; the last one may be short
    nested: absmax = RN32(RN32(code2[absmax code] * absmax2[block / B2]) + offset)      two roundings, never an fma

The codebooks are exact binary32 patterns, constants of the kernel: sixteen lanes of a register hold one each, and each
element takes its own by a shuffle within the warp. FP4's code 8 is -0.

When not to use this: to multiply by the weight at once. Fused matmuls (bitsandbytes' 4-bit GEMV for one row, Marlin and
ExLlama for int4, torch's int4 GEMM) decode in registers and never write the decoded weight, four times the packed one,
to memory. This is for what needs the weight itself: a baseline, merging adapters, swapping experts, looking at a layer.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.weights import FP4_CODEBOOK, NF4_CODEBOOK
from lowbit_kernels import _arguments, _launch, _plans
from lowbit_kernels import _weight_arguments as checks
from lowbit_kernels._weight_codec import narrow
from lowbit_kernels._weight_tiles import TILES, Tile, shift_or_size, tile_for

NF4, FP4 = 0, 1
_CODEBOOKS = (NF4_CODEBOOK, FP4_CODEBOOK)

Nested = tuple[torch.Tensor, torch.Tensor, Any, int]
"""(code2, absmax2, offset, block_size2); the offset a tensor or a number."""


@triton.constexpr_function
def _pattern(CODEBOOK: int, CODE: int) -> int:
    """An entry's bits as a signed integer."""
    bits = _CODEBOOKS[CODEBOOK][CODE]
    return bits - (bits >> 31 << 32)


@triton.jit
def _decode(codes, CODEBOOK: tl.constexpr):
    """codes: one dimension, int32 0..15. -> float32."""
    code = tl.arange(0, 16)
    table = tl.zeros((16,), tl.int32)
    for entry in tl.static_range(16):
        table = tl.where(code == entry, _pattern(CODEBOOK, entry), table)
    return tl.gather(table, codes, 0).to(tl.float32, bitcast=True)


@triton.jit
def owner(place, shift, SIZE: tl.constexpr):
    """place: any shape, int, 0 or more. -> the block of it, of 2**shift places where SIZE is 0, else of SIZE."""
    if SIZE == 0:
        return place >> shift
    else:
        return place // SIZE


@triton.jit
def _load_absmax(
    absmax_ptr, code2_ptr, absmax2_ptr, offset_ptr, block, shift2, exists, NESTED: tl.constexpr, BLOCK2: tl.constexpr
):
    """block: any shape, int. -> float32 of that shape."""
    if NESTED:
        code = tl.load(absmax_ptr + block, mask=exists, other=0).to(tl.int32)
        value = tl.load(code2_ptr + code, mask=exists, other=0.0)
        product = value * tl.load(absmax2_ptr + owner(block, shift2, BLOCK2), mask=exists, other=0.0)
        return product + tl.load(offset_ptr)
    else:
        return tl.load(absmax_ptr + block, mask=exists, other=0.0)


@triton.jit
def _decode_tail(
    packed_ptr,
    absmax_ptr,
    code2_ptr,
    absmax2_ptr,
    offset_ptr,
    out_ptr,
    start,
    rest,
    shift,
    shift2,
    CODEBOOK: tl.constexpr,
    NESTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK2: tl.constexpr,
):
    """The last program decodes elements start .. start + rest - 1, fewer than 8, start being a multiple of 8."""
    if tl.program_id(0) == tl.num_programs(0) - 1:
        lane = tl.arange(0, 8)
        exists = lane < rest
        byte = tl.load(packed_ptr + start // 2 + (lane >> 1), mask=exists, other=0).to(tl.int32)
        block = owner(start + lane, shift, BLOCK)
        absmax = _load_absmax(absmax_ptr, code2_ptr, absmax2_ptr, offset_ptr, block, shift2, exists, NESTED, BLOCK2)
        codes = (byte >> ((lane & 1) ^ 1) * 4) & 15
        result = narrow(_decode(codes, CODEBOOK) * absmax, out_ptr.dtype.element_ty)
        tl.store(out_ptr + start + lane, result, mask=exists)


@triton.jit(
    do_not_specialize=["units", "rest", "shift", "shift2", "hidden"],
    do_not_specialize_on_alignment=["packed_ptr", "absmax_ptr", "code2_ptr", "absmax2_ptr", "offset_ptr"],
)
def dequantize_4bit_kernel(
    packed_ptr,
    absmax_ptr,
    code2_ptr,
    absmax2_ptr,
    offset_ptr,
    out_ptr,
    units,
    rest,
    shift,
    shift2,
    hidden,
    CODEBOOK: tl.constexpr,
    NESTED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK2: tl.constexpr,
    TAIL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_U: tl.constexpr,
):
    """BLOCK_U units of 8 elements, each a word; with TAIL the last program also decodes the `rest` < 8 elements.

    shift, BLOCK: what `owner` takes for the elements that share an absmax; shift2, BLOCK2: for the blocks that share an
    absmax2.
    hidden: 0, which the compiler must not know: it then takes words for unaligned and gives a thread one at a time,
    whose eight elements are what one store takes.
    """
    UNIT: tl.constexpr = 8
    words_ptr = packed_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
    program = tl.program_id(0)
    first = program.to(tl.int64) * BLOCK_U
    unit = tl.arange(0, BLOCK_U)
    exists = unit < tl.minimum(units - first, BLOCK_U).to(tl.int32)
    element = tl.arange(0, UNIT)[None, :]
    words = tl.load(words_ptr + first + hidden + unit, mask=exists, other=0)  # (BLOCK_U,)
    exists = exists[:, None]
    place = (first if WIDE else first.to(tl.int32)) + unit[:, None]
    if BLOCK % UNIT == 0:
        block = owner(place, shift - 3, BLOCK // UNIT)  # (BLOCK_U, 1)
        owned = exists
    else:
        block = owner(place.to(tl.int64) * UNIT + element, shift, BLOCK)  # (BLOCK_U, 8)
        owned = tl.broadcast_to(exists, (BLOCK_U, UNIT))
    absmax = _load_absmax(absmax_ptr, code2_ptr, absmax2_ptr, offset_ptr, block, shift2, owned, NESTED, BLOCK2)
    codes = (words[:, None] >> ((element ^ 1) * 4)) & 15
    values = tl.reshape(_decode(tl.reshape(codes, (BLOCK_U * UNIT,)), CODEBOOK), (BLOCK_U, UNIT))
    at = out_ptr + first * UNIT + unit[:, None] * UNIT + element
    result = narrow(values * absmax, out_ptr.dtype.element_ty)
    tl.store(at, result, mask=tl.broadcast_to(exists, (BLOCK_U, UNIT)))

    if TAIL:
        _decode_tail(
            packed_ptr,
            absmax_ptr,
            code2_ptr,
            absmax2_ptr,
            offset_ptr,
            out_ptr,
            units.to(tl.int64) * UNIT,
            rest,
            shift,
            shift2,
            CODEBOOK,
            NESTED,
            BLOCK,
            BLOCK2,
        )


def dequantize_nf4(
    packed: torch.Tensor,
    absmax: torch.Tensor,
    *,
    shape: Sequence[int],
    block_size: int = 64,
    nested: Nested | None = None,
    dtype: torch.dtype = torch.float16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes an NF4 weight.

    Args:
      packed: (ceil(n / 2),) or (ceil(n / 2), 1) uint8. The even element in the high nibble.
      absmax: (ceil(n / block_size),) float32, any values; uint8 where it is nested.
      shape: of the result; n is its product.
      block_size: elements that share an absmax, in row-major order, across rows. The last block may be short.
      nested: (code2, absmax2, offset, block_size2) where absmax is quantised itself: code2 (256,) float32, absmax2
        (ceil(blocks / block_size2),) float32, offset one float32 element or a number, block_size2 an integer.
      dtype: float16, bfloat16 or float32.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      `shape` of dtype: codebook value times absmax, rounded to float32 and then to dtype.
    Raises:
      ShapeError: shapes that do not belong together.
      DtypeError: packed that is no uint8; a wrong dtype of another tensor.
      ArgumentError, DeviceError: a block size below 1; `out` where it cannot be written; a tensor where no kernel runs.
    Exactness: bit-exact with the references of scheme ``nf4_b<block_size>``.
    Spec: SPEC.md 5.3.
    """
    return _dequantize_table(packed, absmax, shape, block_size, nested, dtype, out, NF4)


def dequantize_fp4(
    packed: torch.Tensor,
    absmax: torch.Tensor,
    *,
    shape: Sequence[int],
    block_size: int = 64,
    nested: Nested | None = None,
    dtype: torch.dtype = torch.float16,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes an FP4 weight of bitsandbytes, whose codebook is not E2M1: 0, 1/192, 2/3, 1, 1/3, 1/2, 1/6, 1/4.

    Arguments, results, exceptions as `dequantize_nf4`.

    Exactness: bit-exact with the references of scheme ``fp4_b<block_size>``.
    Spec: SPEC.md 5.3.
    """
    return _dequantize_table(packed, absmax, shape, block_size, nested, dtype, out, FP4)


def _dequantize_table(
    packed: torch.Tensor,
    absmax: torch.Tensor,
    shape: Sequence[int],
    block_size: int,
    nested: Nested | None,
    dtype: torch.dtype,
    out: torch.Tensor | None,
    codebook: int,
) -> torch.Tensor:
    checks.require_tensor("packed", packed, (torch.uint8,))
    _launch.require_float("dtype", dtype)
    shape = _require_lengths(shape)
    block_size = _require_positive("block_size", block_size)
    n = math.prod(shape)
    size, blocks = -(-n // 2), -(-n // block_size)
    if tuple(packed.shape) not in ((size,), (size, 1)):
        raise ShapeError(f"packed: got shape {tuple(packed.shape)}, want ({size},), two of {n} elements a byte")
    checks.require_tensor("absmax", absmax, (torch.float32 if nested is None else torch.uint8,), packed.device)
    checks.require_shape("absmax", absmax, (blocks,), "one for {block} of {n} elements", block=block_size, n=n)
    quantised = (None, None, None, 1) if nested is None else _require_nested(nested, blocks, packed.device)
    options = (absmax, *quantised, block_size, codebook)
    if out is None:
        return _DEQUANTIZE(packed, *options, shape, dtype)
    _arguments.require_output("out", out, shape, (dtype,), packed.device)
    code2, absmax2, offset, _ = quantised
    _arguments.require_disjoint(
        [("out", out)], packed=packed, absmax=absmax, code2=code2, absmax2=absmax2, offset=offset
    )
    _DEQUANTIZE_OUT(packed, *options, out)
    return out


def _require_lengths(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a result."""
    if not isinstance(shape, (tuple, list)) and (not isinstance(shape, Sequence) or isinstance(shape, str)):
        raise DtypeError(f"shape: got {type(shape).__name__}, want a tuple of integers")
    lengths = tuple([_arguments.require_integer("shape", length) for length in shape])
    if lengths and min(lengths) < 0:
        raise ArgumentError(f"shape: got {lengths}, want lengths of 0 or more")
    return lengths


def _require_positive(name: str, value: int) -> int:
    value = _arguments.require_integer(name, value)
    if value < 1:
        raise ArgumentError(f"{name}: got {value}, want at least 1")
    return min(value, 1 << 62)  # an op takes 64 bits, and no tensor has more elements


def _require_nested(
    nested: Nested, blocks: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Checks what absmax is made of; the offset as a tensor of one element."""
    if not isinstance(nested, (tuple, list)):
        raise DtypeError(f"nested: got {type(nested).__name__}, want (code2, absmax2, offset, block_size2)")
    if len(nested) != 4:
        raise ArgumentError(f"nested: got {len(nested)} entries, want (code2, absmax2, offset, block_size2)")
    code2, absmax2, offset, block_size2 = nested
    block_size2 = _require_positive("block_size2", block_size2)
    checks.require_tensor("code2", code2, (torch.float32,), device)
    checks.require_shape("code2", code2, (256,), "one value a code of absmax")
    checks.require_tensor("absmax2", absmax2, (torch.float32,), device)
    checks.require_shape(
        "absmax2",
        absmax2,
        (-(-blocks // block_size2),),
        "one for {each} of {blocks} blocks",
        each=block_size2,
        blocks=blocks,
    )
    if isinstance(offset, numbers.Real) and not isinstance(offset, bool):
        return code2, absmax2, torch.full((1,), float(offset), dtype=torch.float32, device=device), block_size2
    checks.require_tensor("offset", offset, (torch.float32,), device)
    if offset.numel() != 1:
        raise ShapeError(f"offset: got shape {tuple(offset.shape)}, want one element")
    return code2, absmax2, offset, block_size2


def _write(
    packed: torch.Tensor,
    absmax: torch.Tensor,
    code2: torch.Tensor | None,
    absmax2: torch.Tensor | None,
    offset: torch.Tensor | None,
    block_size2: int,
    block_size: int,
    codebook: int,
    out: torch.Tensor,
) -> None:
    """Launches the decoder into a contiguous buffer."""
    n = out.numel()
    if n == 0:
        return
    if not packed.is_contiguous() or packed.data_ptr() % 4:
        packed = packed.clone(memory_format=torch.contiguous_format)
    nested = code2 is not None
    code2, absmax2, offset = (absmax if part is None else part.contiguous() for part in (code2, absmax2, offset))
    name = "nf4_nested" if nested else "nf4"
    plan = _plan(name, TILES[name], codebook, n, block_size, block_size2)
    _plans.launch(plan, out, packed, absmax.contiguous(), code2, absmax2, offset, out)


@_plans.kept
def _plan(name: str, _: Tile, codebook: int, n: int, block_size: int, block_size2: int) -> _plans.Plan:
    """The launch for n elements and a tile that is in the table now."""
    units, rest = divmod(n, 8)
    shift, block = shift_or_size(block_size, 8, n)
    shift2, block2 = shift_or_size(block_size2, 1, -(-n // block_size))
    tile = tile_for(name, max(units, 1), 8, 1)
    options = {
        "CODEBOOK": codebook,
        "NESTED": name == "nf4_nested",
        "BLOCK": block,
        "BLOCK2": block2,
        "TAIL": rest > 0,
        "WIDE": units > _launch.INT32_MAX,
        "BLOCK_U": tile.rows,
        "num_warps": tile.warps,
    }
    grid = (max(-(-units // tile.rows), 1),)
    return _plans.Plan(dequantize_4bit_kernel, grid, (units, rest, shift, shift2, 0), options)


def _dequantize(
    packed: torch.Tensor,
    absmax: torch.Tensor,
    code2: torch.Tensor | None,
    absmax2: torch.Tensor | None,
    offset: torch.Tensor | None,
    block_size2: int,
    block_size: int,
    codebook: int,
    shape: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    out = torch.empty(shape, dtype=dtype, device=packed.device)
    _write(packed, absmax, code2, absmax2, offset, block_size2, block_size, codebook, out)
    return out


def _dequantize_fake(packed: torch.Tensor, *rest: Any) -> torch.Tensor:
    shape, dtype = rest[-2:]
    return torch.empty(shape, dtype=dtype, device=packed.device)


def _nothing(*_: object) -> None:
    """The fake of an op that only writes into its arguments."""


_STORED = (
    "Tensor packed, Tensor absmax, Tensor? code2, Tensor? absmax2, Tensor? offset, int block_size2, int block_size, "
    "int codebook"
)
_DEQUANTIZE = _launch.register(
    f"dequantize_4bit({_STORED}, SymInt[] shape, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake
)
_DEQUANTIZE_OUT = _launch.register(f"dequantize_4bit_out({_STORED}, Tensor(a!) out) -> ()", _write, _nothing)
