"""Which tiles a matmul is cut into, and its launch.

    Configuration, Few                                      the constexprs and options of one launch: tiles, few rows
    configuration(m, n, k, mx) -> Configuration or Few      what was measured to be fast, by the shape alone
    fitting(chosen, shared) -> Configuration                the same in fewer stages, where shared memory is small
    multiply(operands, out, chosen=None)                    launches into a contiguous (m, n) buffer
    words(packed), scale_words(scales)                      what kernels read: int32 words

`configuration` is a pure function; the bits of a result depend on it only where a sum is rounded.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton

from lowbit_kernels import _launch
from lowbit_kernels import _matmul_kernels as kernels
from lowbit_kernels._launch import INTERPRETED
from lowbit_kernels._matmul_small import small_kernel

_LAST = tuple(map(int, triton.__version__.split(".")[:2])) > (3, 6)
"""How compilers of this version deal tensors out to lanes: see `_matmul_small.py`."""

_REDUCE_BLOCK = 1 << 18 if INTERPRETED else 1024


FEW_STRIDE = _launch.INT32_MAX // 128
"""Words between rows, and of a row, up to which the kernel of few rows reaches the rows of a program."""


class Configuration(NamedTuple):
    """The shape of a launch.

    Args:
      block_m, block_n, block_k: rows of a, rows of b and elements of k in one step: powers of two, block_k at least
        128 for MXFP4 and 64 for NVFP4, whose scale words cover so many.
      split_k: parts of k that are summed apart.
      group_m: tiles of rows of a that are worked on together.
      swap: whether b is on the wide side of the tensor core.
      warps, stages: of a program.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    group_m: int = 8
    swap: bool = False
    warps: int = 4
    stages: int = 3


class Few(NamedTuple):
    """The shape of a launch for a few rows of a, all of which each program takes.

    Args:
      block_m: at least m: 8, 16, 32 or 64.
      block_n: rows of b: 32, 64 or 128.
      warps: of a program, each with a part of k.
      split_k: parts of k that are summed apart, of `warps` parts each.
    """

    block_m: int
    block_n: int
    warps: int
    split_k: int = 1


class Operands(NamedTuple):
    """What is multiplied.

    Args:
      a, b: (m, K / 2) and (n, K / 2) uint8.
      a_scales, b_scales: swizzled uint8 buffers.
      a_rglob, b_rglob: (1,) float32 or None.
      mx: MXFP4, else NVFP4.
    """

    a: torch.Tensor
    a_scales: torch.Tensor
    b: torch.Tensor
    b_scales: torch.Tensor
    a_rglob: torch.Tensor | None
    b_rglob: torch.Tensor | None
    mx: bool


def configuration(m: int, n: int, k: int, mx: bool) -> Configuration | Few:
    """The launch for (m, k) by (n, k)."""
    power = triton.next_power_of_2
    if m <= 16 and k // 8 <= FEW_STRIDE:
        block_m = 8 if m <= 8 else 16
        if INTERPRETED:  # the cost there is by the program
            return Few(block_m, 128, min(power(-(-k // 128)), 8))
        return Few(block_m, 64 if mx or block_m == 16 else 32, 8)
    if INTERPRETED:
        return Configuration(min(power(m), 256), min(power(max(n, 16)), 256), min(power(max(k, 128)), 1024))
    if m <= 64:
        return Configuration(power(m), 128, 128, _parts(-(-n // 128), k, 128, 2), swap=True, warps=4, stages=3)
    tiles = -(-m // 128) * -(-n // 128)
    least_k = 128 if mx else 64
    return Configuration(128, 128, least_k, _parts(tiles, k, least_k, 2), warps=8, stages=3 if mx else 4)


def fitting(chosen: Configuration | Few, shared: int) -> Configuration | Few:
    """The same with fewer stages, or rows of b, if the shared memory that a program can have would not hold so many.

    Decoded tiles take two bytes an element; words and scales of each stage beyond the first, five eighths of a byte. Of
    few rows a step's part of b, 128 elements a row and warp, lies there on AMD's GPUs.

    Args:
      chosen: what would be launched.
      shared: bytes.
    """
    if isinstance(chosen, Few):
        while chosen.block_n > 32 and chosen.block_n * chosen.warps * 128 * 2 > shared:
            chosen = chosen._replace(block_n=chosen.block_n // 2)
        return chosen
    elements = (chosen.block_m + chosen.block_n) * chosen.block_k
    stages = 1 + (shared - 2 * elements) * 8 // (5 * elements)
    return chosen._replace(stages=max(min(chosen.stages, stages), 1))


@functools.cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program on a GPU can have."""
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


def _parts(tiles: int, k: int, block_k: int, each: int) -> int:
    """Parts of k, so that a GPU of some 132 multiprocessors gets about `each` programs on each of them."""
    parts = max(128 * each // tiles, 1)
    return min(parts, max(k // (2 * block_k), 1), 16)


def multiply(operands: Operands, out: torch.Tensor, chosen: Configuration | Few | None = None) -> None:
    """Launches the kernels.

    Args:
      operands: not checked here; a and b of the same K.
      out: (m, n) float32, bfloat16 or float16, contiguous.
      chosen: another configuration than `configuration`'s.
    """
    m, n = out.shape
    k = operands.a.shape[1] * 2
    if m == 0 or n == 0:
        return
    if k == 0:
        out.zero_()
        return
    chosen = chosen or configuration(m, n, k, operands.mx)
    if out.is_cuda:
        chosen = fitting(chosen, _shared_memory(out.device))
    longest = FEW_STRIDE if isinstance(chosen, Few) else _launch.INT32_MAX
    (a, a_stride), (b, b_stride) = words(operands.a, longest), words(operands.b, longest)
    a_scales, b_scales = scale_words(operands.a_scales), scale_words(operands.b_scales)
    blocks = k // (32 if operands.mx else 16)
    split_k = chosen.split_k
    a_factor = out if operands.a_rglob is None else operands.a_rglob
    b_factor = out if operands.b_rglob is None else operands.b_rglob
    target = out if split_k == 1 else torch.empty((split_k, m, n), dtype=torch.float32, device=out.device)
    tensors = (a, a_scales, b, b_scales, a_factor, b_factor, target)
    sizes = (m, n, k // 8, blocks, -(-blocks // 4), a_stride, b_stride)
    which = {"MX": operands.mx, "HAS_A": operands.a_rglob is not None, "HAS_B": operands.b_rglob is not None}
    ptx = _launch.takes_ptx(out)
    if isinstance(chosen, Few):
        each = 128 * chosen.warps * split_k
        kernel: Any = small_kernel
        grid: tuple[int, ...] = (-(-n // 128) * (128 // chosen.block_n), split_k)
        options: dict[str, Any] = {
            "CVT": ptx and torch.cuda.get_device_capability(out.device) >= (8, 9),
            "BLOCK_M": chosen.block_m,
            "BLOCK_N": chosen.block_n,
            "WARPS": chosen.warps,
            "SPAN": 4 if not _LAST or (chosen.block_m == 8 and not operands.mx) else 2,
            "LAST": _LAST,
            "num_warps": chosen.warps,
        }
    else:
        each = chosen.block_k * split_k
        kernel, grid = kernels.matmul_kernel, (-(-m // chosen.block_m) * -(-n // chosen.block_n), split_k)
        options = {
            "SWAP": chosen.swap,
            "BLOCK_M": chosen.block_m,
            "BLOCK_N": chosen.block_n,
            "BLOCK_K": chosen.block_k,
            "GROUP_M": chosen.group_m,
            "num_warps": chosen.warps,
            "num_stages": chosen.stages,
        }
    steps = -(-k // each)
    options |= {"STEPS": steps if INTERPRETED else 0, "MASKED": steps * each != k, "PTX": ptx, "SPLIT_K": split_k}
    _launch.launch(kernel, grid, out, *tensors, *sizes, steps, **which, **options)
    if split_k > 1:
        size = m * n
        grid = (-(-size // _REDUCE_BLOCK),)
        arguments = (target, a_factor, b_factor, out, size)
        _launch.launch(
            kernels.reduce_kernel, grid, out, *arguments, **which, SPLIT_K=split_k, BLOCK=_REDUCE_BLOCK, num_warps=4
        )


def words(packed: torch.Tensor, longest: int = _launch.INT32_MAX) -> tuple[torch.Tensor, int]:
    """A (rows, K / 2) tensor as int32 words of eight codes, and the words from row to row.

    It is copied if words are cut, or if rows are further apart than `longest` words; rows of a copy follow each other.
    """
    row_stride = packed.stride(0) if packed.shape[0] > 1 else packed.shape[1]
    whole = packed.data_ptr() % 4 == 0 and row_stride % 4 == 0 and packed.storage_offset() % 4 == 0
    if not whole or packed.stride(1) != 1 or not 0 <= row_stride < longest * 4:
        packed = packed.clone(memory_format=torch.contiguous_format)
        row_stride = packed.shape[1]
    return packed.as_strided(packed.shape, (row_stride, 1)).view(torch.int32), row_stride // 4


def scale_words(scales: torch.Tensor) -> torch.Tensor:
    """A swizzled buffer as int32 words of four scales; copied if they are cut."""
    if not scales.is_contiguous() or scales.data_ptr() % 4 or scales.storage_offset() % 4:
        scales = scales.clone(memory_format=torch.contiguous_format)
    return scales.view(torch.int32)
