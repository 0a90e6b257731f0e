"""The launch of Hopper's kernel (`_matmul_hopper_kernels.py`).

    takes(operands, out) -> bool                whether it is the kernel for a product
    available(device=None) -> bool              whether a device can run it
    multiply(operands, out, chosen=None)        launches into a contiguous (m, n) buffer

Nothing here imports Gluon, which not every Triton has, before it is asked for.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from lowbit_kernels import _launch
from lowbit_kernels._launch import INTERPRETED
from lowbit_kernels._matmul_launch import Operands, scale_words, words

_LONGEST_STRIDE = 1 << 22
"""Words between rows, so that an offset inside a tile of 256 rows fits 32 bits."""


class Tiles(NamedTuple):
    """The shape of a launch.

    Args:
      block_m, block_n, block_k: rows of a, rows of b and elements of k in one step: 128 or 256, 128 or 256, 64 or 128.
      group_m: tiles of rows of a that are worked on together.
      warps, stages: of a program; block_m at least 16 * warps.
    """

    block_m: int = 128
    block_n: int = 256
    block_k: int = 128
    group_m: int = 16
    warps: int = 8
    stages: int = 2


_FEWEST_PROGRAMS = 96
"""With fewer tiles than this too many of the chip's 132 multiprocessors stand idle."""


def takes(operands: Operands, out: torch.Tensor) -> bool:
    """Whether the device has this kernel and the result enough tiles, at least half filled with rows, for it."""
    if not out.is_cuda or not available(out.device.index):
        return False
    (m, n), tiles = out.shape, Tiles()
    return m > tiles.block_m // 2 and -(-m // tiles.block_m) * -(-n // tiles.block_n) >= _FEWEST_PROGRAMS


@functools.cache
def available(device: int | None = None) -> bool:
    """Whether a device, else the current one, is of compute capability 9.x and Triton has Gluon."""
    if INTERPRETED or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    if torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        from lowbit_kernels import _matmul_hopper_kernels  # noqa: F401 - not every Triton has Gluon
    except (ImportError, AttributeError):
        return False
    return True


def multiply(operands: Operands, out: torch.Tensor, chosen: Tiles | None = None) -> None:
    """Launches the kernel.

    Args:
      operands: not checked here; a and b of the same K.
      out: (m, n) float32, bfloat16 or float16, contiguous.
      chosen: other tiles than the usual.
    """
    from lowbit_kernels._matmul_hopper_kernels import matmul_kernel  # not every Triton has Gluon

    m, n = out.shape
    k = operands.a.shape[1] * 2
    if m == 0 or n == 0:
        return
    if k == 0:
        out.zero_()
        return
    tiles = chosen or Tiles()
    (a, a_stride), (b, b_stride) = words(operands.a, _LONGEST_STRIDE), words(operands.b, _LONGEST_STRIDE)
    a_scales, b_scales = scale_words(operands.a_scales), scale_words(operands.b_scales)
    aligned = a_stride % 4 == 0 and b_stride % 4 == 0 and k % 32 == 0
    blocks = k // (32 if operands.mx else 16)
    steps = -(-k // tiles.block_k)
    _launch.launch(
        matmul_kernel,
        (-(-m // tiles.block_m) * -(-n // tiles.block_n),),
        out,
        a,
        a_scales,
        b,
        b_scales,
        out if operands.a_rglob is None else operands.a_rglob,
        out if operands.b_rglob is None else operands.b_rglob,
        out,
        m,
        n,
        k // 32 if aligned else k // 8,
        blocks,
        -(-blocks // 4),
        a_stride // 4 if aligned else a_stride,
        b_stride // 4 if aligned else b_stride,
        steps,
        tiles.group_m,
        MX=operands.mx,
        HAS_A=operands.a_rglob is not None,
        HAS_B=operands.b_rglob is not None,
        MASKED=steps * tiles.block_k != k,
        ALIGNED=aligned,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        STAGES=tiles.stages,
        WARPS=tiles.warps,
        num_warps=tiles.warps,
    )
