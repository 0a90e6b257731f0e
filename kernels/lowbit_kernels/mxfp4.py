"""MXFP4 (OCP Microscaling 1.0): blocks of 32 E2M1 elements that share a power of two.

    x        | 0  1 | 2  3 | … | 30 31 |  one block of the last dimension
    packed   | byte 0: element 0 in bits 0..3, element 1 in bits 4..7 | byte 1 | … | byte 15 |
    scales   | one E8M0 byte b, the factor 2**(b - 127) |, (..., K / 32) or swizzled (see `swizzle.py`)

    b = clamp(f(largest magnitude) - 2, -127, 127) + 127      f: floor, ceil, even or rceil of log2, on the bits
    code = round(x * 2**(127 - b)) to E2M1                    exact but for the one rounding, saturating
    NaN or Inf in a block: b = 255, codes as if the scale were 1
    decoded = value * 2**(b - 127), rounded once; b = 255 decodes to NaN

When not to use this: for a matmul on hardware with block-scaled tensor cores, where the activation's quantiser belongs
into the epilogue of the kernel before, and for weights that are multiplied at once, where `mxfp4_mm` decodes in
registers instead of writing the decoded weight to memory. As a format, NVFP4 is closer for most data: its scales have
a mantissa and its blocks are half as long.
"""

from __future__ import annotations

from typing import Any

import torch

from lowbit.errors import ShapeError
from lowbit.rules import Rounding, ScaleRule
from lowbit_kernels import _arguments, _codec, _e2m1_hardware, _launch, _pairs, _plans
from lowbit_kernels import _mxfp4_kernels as kernels
from lowbit_kernels._philox import RANDOM_GIVEN, RANDOM_NONE, RANDOM_TILE
from lowbit_kernels.swizzle import swizzled_size

BLOCK = 32
_STOCHASTIC = Rounding.STOCHASTIC.value
_TILES = {
    _pairs.NONE: _launch.Tile(share=1, warps=8),
    _pairs.BFLOAT16: _launch.Tile(share=2, warps=4, rows=8),
    _pairs.FLOAT16: _launch.Tile(share=1, warps=4),
    _pairs.FLOAT32: _launch.Tile(share=2, warps=4),
}
"""By what is loaded; `rows` where scales are swizzled. Measured on an H200, but float16, which has as many elements a
thread as all had before bfloat16 was calculated in pairs."""
_DECODED, _DECODED_WIDE = _launch.Tile(share=8, warps=2), _launch.Tile(share=8, warps=4)
"""To 16 bits, and to float32; measured on an H200."""
SCALE_RULES = {
    rule.value: _codec.SCALE_RULES[rule.value]
    for rule in (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL)
}


def quantize_mxfp4(
    x: torch.Tensor,
    *,
    scale_rule: str = "floor",
    rounding: str = "ties_to_even",
    swizzle: bool = False,
    seed: int | None = None,
    random_bits: torch.Tensor | None = None,
    hardware: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises the last dimension in blocks of 32 to E2M1 codes and E8M0 scales.

    Args:
      x: (..., K) float32, bfloat16 or float16. Any values and strides; K a multiple of 32, 0 included.
      scale_rule: ``floor`` (OCP), ``ceil``, ``even`` (up from significand 1.75) or ``rceil`` (nothing saturates).
      rounding: any rule of `lowbit.rules.Rounding`.
      swizzle: True stores the scales in the SWIZZLE_32_4_4 layout that block-scaled matmuls read, padding zeroed.
      seed: 64-bit integer for ``stochastic``; the same bits on any device and grid. Without effect otherwise.
      random_bits: x's shape, uint8. Replaces the seed: element i rounds away from zero iff
        random_bits[i] >= 256 - floor(256 * p), p its distance from the lower neighbour in steps.
      hardware: True converts by the GPU's own instruction, with ties to even alone; the same bits. Off by default:
        no device that has it has run it yet.
      out: the two results, to write into: contiguous, of the result's dtypes or uint8, apart from each other and from
        what is read.
    Returns:
      packed: (..., K / 2) float4_e2m1fn_x2. Element 0 in the low nibble.
      scales: (..., K / 32) float8_e8m0fnu; with `swizzle` 1-D, ceil(M / 128) * 128 * ceil(K / 128) * 4 bytes, M the
        product of the leading dimensions.
    Raises:
      ShapeError: K is no multiple of 32 (`pad_last_dimension` appends zeros); a buffer of another shape.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run, or not by `hardware`.
      ArgumentError: an unknown rule; stochastic rounding with neither seed nor random_bits; `hardware` with another
        rule; `out` where it cannot be written.
    Exactness: bit-exact with `lowbit.references.exact.quantize` of scheme ``mxfp4_<scale_rule>+<rounding>``.
    Spec: SPEC.md 3.2; OCP Microscaling Formats 1.0, 5.3.3 and 6.3.
    """
    rule = _launch.choose("scale_rule", scale_rule, SCALE_RULES)
    rounding_number = _e2m1_hardware.number(hardware, rounding)
    _arguments.require_bool("swizzle", swizzle)
    _launch.require_input("x", x)
    _require_blocks(x.shape[-1])
    stochastic = rounding == _STOCHASTIC
    bits = _launch.require_random(
        "random_bits", random_bits, x.shape, torch.uint8, x.device, "rounding" if stochastic else ""
    )
    low, high = _launch.require_key(seed, "random_bits" if stochastic and bits is None else "")
    options = (rule, rounding_number, swizzle, bits, low, high)
    if out is None:
        return _QUANTIZE(x, *options)
    packed, scales = _arguments.require_results(out, 2)
    packed_shape, scales_shape = _shapes(x, swizzle)
    _arguments.require_output("out[0]", packed, packed_shape, (torch.float4_e2m1fn_x2, torch.uint8), x.device)
    _arguments.require_output("out[1]", scales, scales_shape, (torch.float8_e8m0fnu, torch.uint8), x.device)
    _arguments.require_disjoint([("out[0]", packed), ("out[1]", scales)], x=x, random_bits=bits)
    _QUANTIZE_OUT(x, *options, packed.view(torch.uint8), scales.view(torch.uint8))
    return packed, scales


def dequantize_mxfp4(
    packed: torch.Tensor, scales: torch.Tensor, *, dtype: torch.dtype = torch.float32, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Decodes E2M1 codes and E8M0 scales.

    Args:
      packed: (..., K / 2) float4_e2m1fn_x2 or uint8. Element 0 in the low nibble.
      scales: (..., K / 32) float8_e8m0fnu or uint8, not swizzled (`unswizzle_scales` undoes that).
      dtype: float32, bfloat16 or float16.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (..., K) of dtype: value * 2**(scale - 127), rounded once, gradual underflow, ±Inf beyond the dtype; NaN where the
      scale byte is 255.
    Raises:
      ShapeError: shapes that do not belong together.
      ArgumentError: `out` where it cannot be written.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: bit-exact with `lowbit.references.exact.dequantize`.
    Spec: SPEC.md 3.
    """
    packed = _launch.require_bytes("packed", packed, torch.float4_e2m1fn_x2)
    scales = _launch.require_bytes("scales", scales, torch.float8_e8m0fnu, packed.device)
    _launch.require_float("dtype", dtype)
    if packed.dim() == 0 or packed.shape[-1] % (BLOCK // 2):
        raise ShapeError(f"packed: got shape {tuple(packed.shape)}, want (..., K / 2) with K a multiple of {BLOCK}")
    wanted = (*packed.shape[:-1], packed.shape[-1] // (BLOCK // 2))
    if tuple(scales.shape) != wanted:
        raise ShapeError(
            f"scales: got shape {tuple(scales.shape)}, want {wanted}, one for {BLOCK // 2} bytes of packed; "
            "unswizzle_scales turns a swizzled buffer back"
        )
    if out is None:
        return _DEQUANTIZE(packed, scales, dtype)
    _arguments.require_output("out", out, (*packed.shape[:-1], packed.shape[-1] * 2), (dtype,), packed.device)
    _arguments.require_disjoint([("out", out)], packed=packed, scales=scales)
    _DEQUANTIZE_OUT(packed, scales, out)
    return out


def _require_blocks(columns: int) -> None:
    if columns % BLOCK:
        raise ShapeError(
            f"x: got a last dimension of {columns}, want a multiple of {BLOCK}; "
            f"pad_last_dimension(x, {BLOCK}) appends zeros"
        )


def _shapes(x: torch.Tensor, swizzle: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of packed and scales; ShapeError where blocks would be cut, which callers of the op rely on."""
    leading, columns = x.shape[:-1], x.shape[-1]
    _require_blocks(columns)
    groups = columns // BLOCK
    packed = (*leading, columns // 2)
    if not swizzle:
        return packed, (*leading, groups)
    return packed, (swizzled_size(leading.numel(), groups),)


def _write(
    x: torch.Tensor,
    rule: int,
    rounding: int,
    swizzle: bool,
    random_bits: torch.Tensor | None,
    key_low: int,
    key_high: int,
    packed: torch.Tensor,
    scales: torch.Tensor,
) -> None:
    """Launches the quantiser into two uint8 buffers."""
    _require_blocks(x.shape[-1])
    choice = _e2m1_hardware.kernel_options(x, rounding)
    if x.numel() == 0:
        return
    x2d, row_stride, column_stride = _launch.rows_of(x)
    gapless = row_stride == x2d.shape[1] * column_stride
    random, pairs, source = RANDOM_NONE, _pairs.NONE, x2d
    if rounding == _codec.STOCHASTIC.value:
        random = RANDOM_TILE if random_bits is None else RANDOM_GIVEN
    if random_bits is None:
        source, pairs, row_stride = _pairs.view_pairs(x2d, row_stride, column_stride)
    layout = (*x2d.shape, row_stride, column_stride, gapless, pairs, source.element_size())
    plan = _plan(*layout, rule, random, swizzle, choice["ROUNDING"], choice["HARDWARE"], _launch.takes_ptx(x))
    bits = packed if random_bits is None else random_bits
    _plans.launch(plan, x, source, packed, scales, bits, last=(key_low, key_high))


@_plans.kept
def _plan(
    rows: int,
    columns: int,
    row_stride: int,
    column_stride: int,
    gapless: bool,
    pairs: int,
    size: int,
    rule: int,
    random: int,
    swizzle: bool,
    rounding: int,
    hardware: bool,
    ptx: bool,
) -> _plans.Plan:
    """The launch of the quantiser.

    Args:
      row_stride, size: of what is loaded, in its own elements, and the bytes of one.
    """
    groups = columns // BLOCK
    tile = _TILES[pairs]
    if swizzle:
        padded_rows, padded_groups = -(-rows // 128) * 128, -(-groups // 4) * 4
        multiples = {"row_multiple": tile.rows, "group_multiple": 4}
    else:
        if gapless:
            rows, groups, row_stride = 1, rows * groups, 0
        padded_rows, padded_groups, multiples = rows, groups, {}
    block_rows, block_groups = _launch.tile(padded_rows, padded_groups, BLOCK, share=tile.share, **multiples)
    unit = _launch.unit(size, row_stride)
    span = (block_rows - 1) * max(row_stride, groups * BLOCK) + block_groups * BLOCK * column_stride
    options = {
        "RULE": rule,
        "RANDOM": random,
        "SWIZZLE": swizzle,
        "PAIRS": pairs,
        "STRIDED": column_stride != 1,
        "UNIT": unit,
        "WIDE": span > _launch.INT32_MAX,
        "PTX": ptx,
        "BLOCK_ROWS": block_rows,
        "BLOCK_GROUPS": block_groups,
        "num_warps": tile.warps,
        "ROUNDING": rounding,
        "HARDWARE": hardware,
    }
    integers = (rows, groups, padded_rows, padded_groups, row_stride // unit, column_stride)
    grid = (-(-padded_rows // block_rows) * -(-padded_groups // block_groups),)
    return _plans.Plan(kernels.quantize, grid, integers, options)


def _quantize(
    x: torch.Tensor,
    rule: int,
    rounding: int,
    swizzle: bool,
    random_bits: torch.Tensor | None,
    key_low: int,
    key_high: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    packed_shape, scales_shape = _shapes(x, swizzle)
    packed = torch.empty(packed_shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty(scales_shape, dtype=torch.uint8, device=x.device)
    _write(x, rule, rounding, swizzle, random_bits, key_low, key_high, packed, scales)
    return packed.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu)


def _quantize_fake(
    x: torch.Tensor, rule: int, rounding: int, swizzle: bool, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    packed_shape, scales_shape = _shapes(x, swizzle)
    packed = torch.empty(packed_shape, dtype=torch.float4_e2m1fn_x2, device=x.device)
    return packed, torch.empty(scales_shape, dtype=torch.float8_e8m0fnu, device=x.device)


def _read(packed: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Launches the decoder into a contiguous buffer."""
    if out.numel() == 0:
        return
    packed, scales = packed.contiguous(), scales.contiguous()
    target, pairs = _pairs.output_pairs(out, BLOCK)
    plan = _decoder_plan(scales.numel(), out.dtype == torch.float32, pairs)
    _plans.launch(plan, out, packed, scales, target)


@_plans.kept
def _decoder_plan(groups: int, wide: bool, pairs: int) -> _plans.Plan:
    """The launch of the decoder, to float32 if `wide`."""
    tile = _DECODED_WIDE if wide else _DECODED
    _, block_groups = _launch.tile(1, groups, BLOCK, share=tile.share)
    options = {"PAIRS": pairs, "BLOCK_M": block_groups, "num_warps": tile.warps}
    return _plans.Plan(kernels.dequantize, (-(-groups // block_groups),), (groups,), options)


def _dequantize(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = _dequantize_fake(packed, scales, dtype)
    _read(packed, scales, out)
    return out


def _dequantize_fake(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=dtype, device=packed.device)


def _nothing(*_: Any) -> None:
    """The fake of an op that only writes into its arguments."""


_OPTIONS = "Tensor x, int rule, int rounding, bool swizzle, Tensor? random_bits, int key_low, int key_high"
_QUANTIZE = _launch.register(f"quantize_mxfp4({_OPTIONS}) -> (Tensor, Tensor)", _quantize, _quantize_fake)
_QUANTIZE_OUT = _launch.register(
    f"quantize_mxfp4_out({_OPTIONS}, Tensor(a!) packed, Tensor(b!) scales) -> ()", _write, _nothing
)
_DEQUANTIZE = _launch.register(
    "dequantize_mxfp4(Tensor packed, Tensor scales, ScalarType dtype) -> Tensor", _dequantize, _dequantize_fake
)
_DEQUANTIZE_OUT = _launch.register(
    "dequantize_mxfp4_out(Tensor packed, Tensor scales, Tensor(a!) out) -> ()", _read, _nothing
)
