"""``python -m lowbit_kernels.bench_matmul``: the FP4 matmuls beside torch's bf16 matmul of the decoded operands.

    --shape M,N,K    again for more; default the shapes of `SHAPES`, which have targets
    --out RUN.csv    operation, m, n, k, microseconds, torch_microseconds, speedup, target, workspace_bytes

Both are replayed from CUDA graphs in turn, on quantised normal data, with operands rotated past the L2 cache. The
workspace is what a call allocates beside its result; a decoded operand would show there.
Exit code: 0 · 1: something could not be measured, or a decoded operand was kept · 2: a wrong argument, or no GPU.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from lowbit.errors import LowbitError
from lowbit_kernels import _bench_timing as timing
from lowbit_kernels import matmul, mxfp4, nvfp4
from lowbit_kernels._bench_case import Case, allocating

COLUMNS = ("operation", "m", "n", "k", "microseconds", "torch_microseconds", "speedup", "target", "workspace_bytes")


class Shape(NamedTuple):
    """A (M, K) by (N, K) product; `target` is how many times as fast as torch's nvfp4_mm should be."""

    m: int
    n: int
    k: int
    target: float | None = None


SHAPES = (
    Shape(1, 8192, 8192),
    Shape(16, 8192, 8192, 2.0),
    Shape(128, 8192, 8192),
    Shape(4096, 4096, 4096),
    Shape(8192, 8192, 8192, 0.55),
)


class Row(NamedTuple):
    """What was measured; the names are those of `COLUMNS`."""

    operation: str
    m: int
    n: int
    k: int
    microseconds: float
    torch_microseconds: float
    speedup: float
    target: float | None
    workspace_bytes: int

    @property
    def decoded_bytes(self) -> int:
        """Of the smaller operand in 16 bits."""
        return 2 * self.k * min(self.m, self.n)


class Pair(NamedTuple):
    """One product, by the kernel and by torch, with operands of its own."""

    kernel: Case
    torch: Case


def nvfp4_pair(shape: Shape, device: torch.device, seed: int) -> Pair:
    a, b = _normal(shape, device, seed)
    left, right = (nvfp4.quantize_nvfp4(x, swizzle=True) for x in (a, b))
    factors = tuple(nvfp4.recip_scale(part[2], device) for part in (left, right))
    call = partial(matmul.nvfp4_mm, left[0], left[1], right[0], right[1], factors[0], factors[1])
    decoded = [nvfp4.dequantize_nvfp4(*nvfp4.quantize_nvfp4(x), dtype=torch.bfloat16) for x in (a, b)]
    return Pair(allocating(call, *left[:2], *right[:2], *factors), _torch(*decoded))


def mxfp4_pair(shape: Shape, device: torch.device, seed: int) -> Pair:
    a, b = _normal(shape, device, seed)
    left, right = (mxfp4.quantize_mxfp4(x, swizzle=True) for x in (a, b))
    call = partial(matmul.mxfp4_mm, *left, *right)
    decoded = [mxfp4.dequantize_mxfp4(*mxfp4.quantize_mxfp4(x), dtype=torch.bfloat16) for x in (a, b)]
    return Pair(allocating(call, *left, *right), _torch(*decoded))


PAIRS = {"nvfp4_mm": nvfp4_pair, "mxfp4_mm": mxfp4_pair}


def _normal(shape: Shape, device: torch.device, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    a, b = (torch.randn(rows, shape.k, device=device, generator=generator) for rows in (shape.m, shape.n))
    return a.bfloat16(), b.bfloat16()


def _torch(a: torch.Tensor, b: torch.Tensor) -> Case:
    def multiply(out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.mm(a, b.t(), out=out) if out is not None else torch.mm(a, b.t())

    return allocating(multiply, a, b)


def measure(name: str, shape: Shape, device: torch.device) -> Row:
    """One row: the median of both, and the kernel's workspace."""
    first = PAIRS[name](shape, device, 0)
    count = timing.case_count(first.kernel, timing.l2_bytes(device))
    pairs = [first, *(PAIRS[name](shape, device, seed) for seed in range(1, count))]
    launches = count * max(1, 24 // count)
    kernel, reference = (timing.record([pair[i] for pair in pairs], launches) for i in (0, 1))
    found, beside = timing.interleave(kernel, reference)
    speedup = beside.median / found.median
    target = shape.target if name == "nvfp4_mm" else None
    return Row(name, *shape[:3], found.median, beside.median, speedup, target, workspace(first.kernel, device))


def workspace(case: Case, device: torch.device) -> int:
    """Bytes that a call allocates while it writes into a buffer that exists."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    case()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the bench.

    Returns:
      0 · 1: a row failed · 2: a wrong argument, or no GPU; with a message on stderr.
    """
    arguments = _parser().parse_args(argv)
    try:
        device = timing.require_gpu()
        return _run(arguments.shape or SHAPES, device, arguments.out)
    except (LowbitError, OSError) as error:
        print(f"bench_matmul: {error}", file=sys.stderr)
        return 2


def _run(shapes: Sequence[Shape], device: torch.device, out: Path | None) -> int:
    rows, failed = [], 0
    print(f"{'operation':10}{'M':>6}{'N':>7}{'K':>7}{'us':>10}{'torch us':>10}{'speedup':>9}{'target':>8}{'MB':>7}")
    for name in PAIRS:
        for shape in shapes:
            try:
                row = measure(name, shape, device)
            except Exception as error:  # a kernel can fail in any way; the others are still worth measuring
                print(f"{name} {shape[:3]} FAILED: {type(error).__name__}: {error}", flush=True)
                failed += 1
                continue
            rows.append(row)
            failed += row.workspace_bytes >= row.decoded_bytes > 1 << 22
            print(_line(row), flush=True)
    if out is not None:
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows([*r[:4], *(f"{t:.3f}" for t in r[4:7]), r.target or "", r.workspace_bytes] for r in rows)
    return 1 if failed or not rows else 0


def _line(row: Row) -> str:
    verdict = "" if row.target is None else f"{row.target:8.2f}"
    times = f"{row.microseconds:10.2f}{row.torch_microseconds:10.2f}{row.speedup:9.3f}"
    return f"{row.operation:10}{row.m:6}{row.n:7}{row.k:7}{times}{verdict:>8}{row.workspace_bytes / 1e6:7.2f}"


def _shape(text: str) -> Shape:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"got {text}, want M,N,K")
    return Shape(*map(int, parts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lowbit_kernels.bench_matmul", description="The FP4 matmuls beside torch's bf16 matmul."
    )
    parser.add_argument("--shape", metavar="M,N,K", type=_shape, action="append", help="again for more")
    parser.add_argument("--out", metavar="RUN.csv", type=Path, help="where to write the rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
