"""Device functions that the weight kernels share: integers as exact float32, scales, results, zero points.

number(fields) -> float32 2**23 + field                differences of two are exact integers
widen_scale(x) -> float32                              of a float16, bfloat16 or float32; exact
narrow(x, dtype) -> dtype                              of a float32, to nearest, ties to even, once
tile_of(tiles_across) -> (int, int)                    which tile a program decodes
"""

from __future__ import annotations

import triton
import triton.language as tl

from lowbit_kernels._codec import round_bfloat16
from lowbit_kernels._launch import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)
_TWO_TO_23 = tl.constexpr(0x4B000000)


@triton.jit
def number(fields):
    """fields: any shape, int32 0..2**23 - 1. -> float32 2**23 + field, exact: the field is the low mantissa bits."""
    return (fields | _TWO_TO_23).to(tl.float32, bitcast=True)


@triton.jit
def widen_scale(x):
    """x: any shape, float16, bfloat16 or float32. -> float32, exact; NaN stays NaN."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """x: any shape, float32. -> dtype: float32, bfloat16 or float16, rounded to nearest even, gradual underflow."""
    if dtype == tl.bfloat16 and _INTERPRETED:
        return round_bfloat16(x)
    return x.to(dtype)


@triton.jit
def tile_of(tiles_across):
    """This program's tile: numbers of the row of tiles and of the column of tiles, of the type of `tiles_across`."""
    program = tl.program_id(0)
    return program // tiles_across, program % tiles_across
