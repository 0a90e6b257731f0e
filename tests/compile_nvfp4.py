"""Compiles variants of the NVFP4 and swizzle kernels ahead of time; `test_aot_nvfp4.py` runs it in its own process.

Prints by target and variant the kernels that were launched, each with what its assembly contains.
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
from compile_weights import stack_bytes
from triton.compiler import ASTSource

from lowbit.rules import Rounding
from lowbit_kernels import _launch, _nvfp4_launch, dequantize_nvfp4, quantize_nvfp4, swizzle_scales, unswizzle_scales

THOROUGH = ("sm_90", "gfx942")
"""Targets for which every variant is compiled; the others get the first ones."""

EVERYWHERE = 15
"""How many those are."""

PATTERNS = {
    "approximate": r"div\.full|div\.approx|rcp\.approx|ex2\.|lg2\.|v_exp_f32|v_log_f32",
    "flushing": r"\.ftz",
    "division": r"div\.rn\.f32|v_div_fixup_f32",
    "double": r"\.f64|_f64",
    "permutation": r"\bprmt\.b32",
    "upward": r"mul\.rp\.f32",
    "loads of 16 bytes": r"ld\.global[\w.:]*\.(?:v4\.b32|v2\.b64)|(?:global|buffer)_load_dwordx4",
    "stores of 16 bytes": r"st\.global\.v4\.b32",
    "narrower stores": r"st\.global\.(b|u|s|f|v2)",
    "shared": r"ld\.shared|st\.shared",
    "constants": r"^\s*\.(const|global) |ld\.const",
    "local": r"\.local\b|scratch_load|scratch_store|\.(?:vgpr_spill_count|private_segment_fixed_size):\s*[1-9]",
}


def without_table(packed: torch.Tensor, scales: torch.Tensor, g: torch.Tensor, dtype: torch.dtype) -> None:
    """What other makers' GPUs and misaligned buffers get."""
    chosen, _nvfp4_launch._by_table = _nvfp4_launch._by_table, lambda packed, out: False
    try:
        dequantize_nvfp4(packed, scales, g, dtype=dtype)
    finally:
        _nvfp4_launch._by_table = chosen


def variants() -> dict[str, Callable[[], Any]]:
    """Calls by name; the first EVERYWHERE of them for every target."""
    x = torch.ones(256, 1024, dtype=torch.bfloat16)
    odd = torch.ones(256 * 1024 + 1, dtype=torch.bfloat16)[1:].view(256, 1024)
    apart = torch.ones(250, 1032, dtype=torch.bfloat16)[:, :1008]
    packed, scales = torch.zeros(256, 512, dtype=torch.uint8), torch.zeros(256, 64, dtype=torch.uint8)
    g, out = torch.ones(1), torch.empty(256 * 1024 + 1)[1:].view(256, 1024)
    calls: dict[str, Callable[[], Any]] = {
        "bfloat16": lambda: quantize_nvfp4(x),
        "bfloat16, rows apart": lambda: quantize_nvfp4(apart),
        "bfloat16, two levels, swizzled": lambda: quantize_nvfp4(x, scheme="nvfp4_two_level", swizzle=True),
        "float32, two levels, swizzled": lambda: quantize_nvfp4(x.float(), scheme="nvfp4_two_level", swizzle=True),
        "to bfloat16": lambda: dequantize_nvfp4(packed, scales, g, dtype=torch.bfloat16),
        "to bfloat16, no factor": lambda: dequantize_nvfp4(packed, scales, dtype=torch.bfloat16),
        "to float16": lambda: dequantize_nvfp4(packed, scales, g, dtype=torch.float16),
        "to float16, no factor": lambda: dequantize_nvfp4(packed, scales, dtype=torch.float16),
        "to bfloat16, without a table": lambda: without_table(packed, scales, g, torch.bfloat16),
        "to float16, without a table": lambda: without_table(packed, scales, g, torch.float16),
        "to float32": lambda: dequantize_nvfp4(packed, scales, g),
        "swizzle": lambda: swizzle_scales(scales),
        "unswizzle": lambda: unswizzle_scales(scales.view(-1), 256, 64),
        "stochastic": lambda: quantize_nvfp4(x, rounding="stochastic", tensor_scale=2.0, seed=3),
        "stochastic, float32, swizzled": lambda: quantize_nvfp4(
            x.float(), rounding="stochastic", tensor_scale=2.0, seed=3, swizzle=True
        ),
        "float16, one level": lambda: quantize_nvfp4(x.half(), scheme="nvfp4_one_level"),
        "not aligned": lambda: quantize_nvfp4(odd, tensor_scale=g, validate=False),
        "transposed": lambda: quantize_nvfp4(x.t()),
        "to float32, not aligned": lambda: dequantize_nvfp4(packed, scales, g, out=out),
    }
    for rule in Rounding:
        calls[rule.value] = lambda rule=rule: quantize_nvfp4(x, rounding=rule.value, tensor_scale=2.0, seed=3)
    random = torch.zeros(256, 1024, dtype=torch.uint8)
    calls["given bytes"] = lambda: quantize_nvfp4(x, rounding="stochastic", tensor_scale=2.0, random_bits=random)
    return calls


def variants_of_shapes() -> dict[str, int]:
    """How many kernels that read x the calls with tensors of many shapes, and of many strides, would compile."""
    sizes = [
        (rows, columns) for rows in (1, 2, 3, 16, 17, 129, 512) for columns in (16, 48, 256, 272, 2048, 2064, 6160)
    ]
    gapless = [torch.empty(size, dtype=torch.bfloat16) for size in sizes]
    strides = (6160, 6161, 6162, 6164, 6168, 6176)
    apart = [torch.empty(3 * stride, dtype=torch.bfloat16).view(3, stride)[:, :6160] for stride in strides]
    calls = {
        "gapless": [lambda x=x: quantize_nvfp4(x) for x in gapless],
        "gapless, swizzled": [lambda x=x: quantize_nvfp4(x, swizzle=True) for x in gapless],
        "rows apart": [lambda x=x: quantize_nvfp4(x) for x in apart],
    }
    names = ("quantize_kernel", "amax_kernel")
    return {
        f"{name}, {kind}": sum(kernel.__name__ == name for kernel, _ in launches(some))
        for kind, some in calls.items()
        for name in names
    }


def compiled(call: Callable[[], Any], target: Any) -> dict[str, list[str]]:
    """The kernels of a call: names of the patterns found in each one's assembly."""
    found = {}
    for kernel, (types, constants, attributes, options) in launches([call]):
        constants = constants_for(target, kernel, constants)
        source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
        binary = triton.compile(source, target=target, options={**_launch.COMPILE_OPTIONS, **options})
        text = binary.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        names = [name for name, pattern in PATTERNS.items() if re.search(pattern, text, re.MULTILINE)]
        if target.backend == "cuda" and stack_bytes(binary.asm["cubin"]) and "local" not in names:
            names.append("local")
        found[kernel.__name__] = names
    return found


if __name__ == "__main__":
    calls = variants()
    json.dump(
        {"variants": variants_of_shapes()}
        | {
            name: {
                variant: compiled(calls[variant], target)
                for variant in (calls if name in THOROUGH else list(calls)[:EVERYWHERE])
            }
            for name, target in TARGETS.items()
        },
        sys.stdout,
    )
