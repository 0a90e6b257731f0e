"""Multiplies operands that end where memory ends: whoever reads one byte more dies of it.

python guard_pages.py        a process of its own, since it may not survive; on the CPU, in Triton's interpreter
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
from pathlib import Path

os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from tests.matmul_checks import MXFP4, NVFP4, Stored, assert_same, bits, expected, launched, stored, summable

from lowbit_kernels import _matmul_launch
from lowbit_kernels._matmul_launch import Few

MEMORY: list[mmap.mmap] = []
"""Kept, since tensors lie in it."""

LAUNCHES = (  # rows of a and b, steps, and how a launch deals them out; odd and even numbers of steps
    (1, 1, 1, Few(8, 32, 2)),
    (9, 127, 3, Few(16, 32, 1, split_k=2)),
    (5, 300, 2, Few(8, 64, 2)),
)


def at_the_end(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, the page behind which nobody may touch; nor that in front."""
    size = tensor.numel() * tensor.element_size()
    pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE)
    MEMORY.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page in (0, pages + 1):
        assert protect(ctypes.c_void_p(start + page * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    offset = (pages + 1) * mmap.PAGESIZE - size
    copy = torch.from_numpy(np.frombuffer(memory, np.uint8, size, offset)).view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


def main() -> None:
    for scheme, (m, n, steps, chosen) in itertools.product((NVFP4, MXFP4), LAUNCHES):
        whole = 128 // scheme.block * steps * chosen.warps * chosen.split_k
        for blocks in (whole - 1, whole):
            operands = summable(scheme, m, n, blocks, seed=steps)
            given = Stored(*map(at_the_end, stored(operands, scheme, 0xFF)))
            out = at_the_end(torch.zeros(m, n))
            _matmul_launch.multiply(launched(scheme, given), out, chosen)
            assert_same(bits(out), expected(operands, scheme))
    print("nothing outside was touched")


if __name__ == "__main__":
    main()
