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
from lowbit_kernels import _arguments, _codec, _e2m1_hardware, _launch, _pairs
from lowbit_kernels import _mxfp4_kernels as kernels
from lowbit_kernels._philox import RANDOM_GIVEN, RANDOM_NONE, RANDOM_TILE
from lowbit_kernels.swizzle import swizzled_size

BLOCK = 32
_DECODED_SHARE = 1 if _launch.INTERPRETED else 2
"""A program that decodes has this part of the usual elements; measured on an H200, with 4 warps."""
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
    stochastic = rounding == Rounding.STOCHASTIC.value
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
    rows, groups = x2d.shape[0], x2d.shape[1] // BLOCK
    if swizzle:
        padded_rows, padded_groups = -(-rows // 128) * 128, -(-groups // 4) * 4
        block_rows, block_groups = _launch.tile(padded_rows, padded_groups, BLOCK, row_multiple=128, group_multiple=4)
    else:
        if row_stride == x2d.shape[1] * column_stride:
            rows, groups = 1, rows * groups
        padded_rows, padded_groups = rows, groups
        block_rows, block_groups = _launch.tile(rows, groups, BLOCK)
    random, pairs, source = RANDOM_NONE, _pairs.NONE, x2d
    if rounding == _codec.STOCHASTIC.value:
        random = RANDOM_TILE if random_bits is None else RANDOM_GIVEN
    else:
        source, pairs, row_stride = _pairs.view_pairs(x2d, row_stride, column_stride)
    span = block_rows * max(row_stride, groups * BLOCK) + block_groups * BLOCK * column_stride
    _launch.launch(
        kernels.quantize,
        (-(-padded_rows // block_rows) * -(-padded_groups // block_groups),),
        x,
        source,
        packed,
        scales,
        packed if random_bits is None else random_bits,
        rows,
        groups,
        padded_rows,
        padded_groups,
        row_stride,
        column_stride,
        key_low,
        key_high,
        RULE=rule,
        RANDOM=random,
        SWIZZLE=swizzle,
        PAIRS=pairs,
        WIDE=span > _launch.INT32_MAX,
        BLOCK_ROWS=block_rows,
        BLOCK_GROUPS=block_groups,
        num_warps=_launch.warps(block_rows * block_groups * BLOCK, pairs),
        **choice,
    )


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
    groups = scales.numel()
    _, block_groups = _launch.tile(1, groups, BLOCK, share=_DECODED_SHARE)
    target, pairs = _pairs.output_pairs(out, BLOCK)
    _launch.launch(
        kernels.dequantize,
        (-(-groups // block_groups),),
        out,
        packed.contiguous(),
        scales.contiguous(),
        target,
        groups,
        PAIRS=pairs,
        BLOCK_M=block_groups,
        num_warps=4,
    )


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
