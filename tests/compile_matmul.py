"""Compiles variants of the matmul kernels ahead of time; `test_aot_matmul.py` runs it in its own process.

Prints by target and variant, for every kernel launched, what its assembly contains and the shared memory it takes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from compile_matrix import TARGETS, constants_for, launches
from triton.compiler import ASTSource

from lowbit_kernels import _matmul_hopper, _matmul_launch
from lowbit_kernels.swizzle import swizzled_size

PATTERNS = {
    "approximate": r"div\.full|div\.approx|rcp\.approx|ex2\.|lg2\.|v_exp_f32|v_log_f32",
    "flushing": r"\.ftz|denorm_mode_32 0",
    "double": r"\.f64|_f64",
    "halves of binary16": r"mul\.rn\.f16x2",
    "halves of bfloat16": r"fma\.rn\.bf16x2",
    "conversions": r"cvt\.rn\.f16x2\.e4m3x2",
    "mma.sync": r"\bmma\.sync",
    "wgmma": r"wgmma\.mma_async",
    "tcgen05": r"tcgen05\.mma",
    "mfma": r"v_mfma_f32",
    "of binary16": r"\.f32\.f16\.f16|kind::f16|v_mfma_f32_\d+x\d+x\d+_?f16",
    "of bfloat16": r"\.f32\.bf16\.bf16|kind::f16|v_mfma_f32_\d+x\d+x\d+_?bf16",
}

VARIANTS: dict[str, tuple[int, bool, torch.dtype]] = {
    "few rows, NVFP4": (16, False, torch.float16),
    "few rows, MXFP4": (12, True, torch.bfloat16),
    "some rows, MXFP4": (48, True, torch.float32),
    "many rows, MXFP4": (256, True, torch.bfloat16),
    "Hopper, NVFP4": (4096, False, torch.float16),
    "Hopper, MXFP4": (4096, True, torch.bfloat16),
}
"""Rows, format and output by name; 8192 columns, K = 8192. Hopper's are those of its own kernel."""

SHARED_KIB = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "sm_120": 99, "gfx942": 64, "gfx950": 160}
"""Shared memory that one program can have (CUDA programming guide, compute capabilities; CDNA ISA, LDS)."""

COMPILED = {
    name: [variant for variant in VARIANTS if name == "sm_90" or variant in ("few rows, NVFP4", "some rows, MXFP4")]
    for name in TARGETS
}
"""What is compiled for each target; `compile_matrix.py` does many rows of NVFP4 for all of them."""


def call(variant: str, shared: int) -> Callable[[], Any]:
    """A launch in the configuration that a GPU with so much shared memory gets."""
    rows, mx, dtype = VARIANTS[variant]
    block, columns, k = 32 if mx else 16, 8192, 8192

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8)

    a_scales, b_scales = (empty(swizzled_size(count, k // block)) for count in (rows, columns))
    g, out = None if mx else torch.ones(1), torch.empty(rows, columns, dtype=dtype)
    operands = _matmul_launch.Operands(empty(rows, k // 2), a_scales, empty(columns, k // 2), b_scales, g, g, mx)
    if variant.startswith("Hopper"):
        return lambda: _matmul_hopper.multiply(operands, out)
    chosen = _matmul_launch.fitting(_matmul_launch.configuration(rows, columns, k, mx), shared)
    return lambda: _matmul_launch.multiply(operands, out, chosen)


def source_of(kernel: Any, **parts: Any) -> ASTSource:
    """What Triton compiles, of a kernel in its own language or in Gluon."""
    if type(kernel) is triton.runtime.JITFunction:
        return ASTSource(kernel, **parts)
    from triton.experimental.gluon._runtime import GluonASTSource

    return GluonASTSource(kernel, **parts)


def compiled(variant: str, name: str) -> dict[str, dict[str, Any]]:
    """The kernels of a variant: names of the patterns in each one's assembly; bytes of shared memory, and there are."""
    found: dict[str, dict[str, Any]] = {}
    target, shared = TARGETS[name], SHARED_KIB[name] << 10
    for kernel, (types, constants, attributes, options) in launches([call(variant, shared)]):
        constants = constants_for(target, kernel, constants)
        source = source_of(kernel, signature=types, constexprs=constants, attrs=attributes)
        binary = triton.compile(source, target=target, options={"enable_fp_fusion": False, **options})
        text = binary.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        seen = [part for part, pattern in PATTERNS.items() if re.search(pattern, text)]
        found[kernel.__name__] = {"found": seen, "shared": binary.metadata.shared, "there is": shared}
    return found


if __name__ == "__main__":
    json.dump(
        {name: {variant: compiled(variant, name) for variant in COMPILED[name]} for name in TARGETS},
        sys.stdout,
    )
