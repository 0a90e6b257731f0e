"""Compiles variants of the MX kernels ahead of time; `test_aot_mx.py` runs it in a process of its own.

Prints by target and variant what the assembly contains, and how many kernels tensors of many shapes need.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from compile_matrix import FORBIDDEN, TARGETS, constants_for, launches
from compile_weights import stack_bytes
from triton.compiler import ASTSource

from lowbit_kernels import _launch, dequantize_mx4, dequantize_mxfp4, quantize_mx4, quantize_mxfp4

THOROUGH = ("sm_90", "gfx942")
"""Targets for which every variant is compiled; the others get the first ones."""

EVERYWHERE = 9
"""How many those are."""

PACKED = r"(?:fma\.rn|min|max)(?:\.NaN)?\.b?f16x2"
ACCESSES = r"\b(ld|st)\.global(?:\.v(\d))?\.[a-z](\d+)"


def variants() -> dict[str, Callable[[], Any]]:
    """Calls by name; the first EVERYWHERE of them for every target."""
    x = torch.ones(256, 1024, dtype=torch.bfloat16)
    wide, odd = torch.ones(256, 1040, dtype=torch.bfloat16), torch.ones(256 * 1024 + 1, dtype=torch.bfloat16)[1:]
    packed, scales = torch.zeros(256, 512, dtype=torch.uint8), torch.zeros(256, 32, dtype=torch.uint8)
    stream = torch.zeros(256, 32 * 17, dtype=torch.uint8)
    drawn: dict[str, Any] = {"scale_rounding": "stochastic", "seed": 3}
    return {
        "mxfp4, bfloat16": lambda: quantize_mxfp4(x),
        "mxfp4, float32, swizzled": lambda: quantize_mxfp4(x.float(), swizzle=True),
        "mx4, bfloat16": lambda: quantize_mx4(x),
        "mx4, float32, drawn": lambda: quantize_mx4(x.float(), **drawn),
        "mx4, bfloat16, a partial group": lambda: quantize_mx4(wide),
        "mxfp4, bfloat16, stochastic": lambda: quantize_mxfp4(x, rounding="stochastic", seed=3),
        "mxfp4, float32, stochastic": lambda: quantize_mxfp4(x.float(), rounding="stochastic", seed=3),
        "mx4, bfloat16, stochastic": lambda: quantize_mx4(x, stochastic_casting=True, seed=3),
        "mxfp4, float16, swizzled": lambda: quantize_mxfp4(x.half(), swizzle=True),
        "mxfp4, bfloat16, swizzled": lambda: quantize_mxfp4(x, swizzle=True),
        "mxfp4, float32": lambda: quantize_mxfp4(x.float()),
        "mxfp4, bfloat16, gaps": lambda: quantize_mxfp4(wide[:, :1024]),
        "mxfp4, float16, stochastic, swizzled": lambda: quantize_mxfp4(
            x.half(), rounding="stochastic", seed=3, swizzle=True
        ),
        "mxfp4, not aligned": lambda: quantize_mxfp4(odd.view(256, 1024)),
        "mx4, bfloat16, drawn": lambda: quantize_mx4(x, **drawn),
        "mx4, float16": lambda: quantize_mx4(x.half()),
        "mx4, float32": lambda: quantize_mx4(x.float()),
        "mx4, float32, gaps": lambda: quantize_mx4(wide.float()[:, :1024]),
        "mx4, bfloat16, groups of 16": lambda: quantize_mx4(x, group_size=16),
        "mx4, not aligned": lambda: quantize_mx4(odd.view(256, 1024)),
        "mxfp4, decoded": lambda: dequantize_mxfp4(packed, scales, dtype=torch.bfloat16),
        "mx4, decoded": lambda: dequantize_mx4(stream, dtype=torch.bfloat16),
        "mx4, decoded to a partial group": lambda: dequantize_mx4(stream, columns=1008),
    }


def compiled(call: Callable[[], Any], target: Any) -> dict[str, Any]:
    """The one kernel of a call: widths in bits of its accesses of global memory, and what else is looked for."""
    ((kernel, (types, constants, attributes, options)),) = launches([call])
    constants = constants_for(target, kernel, constants)
    source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
    binary = triton.compile(source, target=target, options={**_launch.COMPILE_OPTIONS, **options})
    text = binary.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    found: dict[str, Any] = {
        "kernel": kernel.__name__,
        "forbidden": [word for word in FORBIDDEN if word in text],
        "packed": bool(re.search(PACKED, text)),
    }
    if target.backend == "cuda":
        accesses = [(way, int(bits) * int(lanes or 1)) for way, lanes, bits in re.findall(ACCESSES, text)]
        found |= {way: sorted({bits for kind, bits in accesses if kind == way}) for way in ("ld", "st")}
        return found | {"memory": stack_bytes(binary.asm["cubin"]) or 0}
    spilled = re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size):\s*(\d+)", text)
    return found | {"memory": sum(map(int, spilled))}


def counted() -> dict[str, int]:
    """How many kernels many shapes take, of tensors that begin at a multiple of 16 bytes."""
    shapes = [(rows, groups * 32) for rows in (1, 2, 3, 16, 17, 100) for groups in (1, 2, 3, 4, 5, 8, 15, 16, 128, 257)]
    tensors = [torch.ones(shape, dtype=torch.bfloat16) for shape in shapes]
    odd = [torch.ones(rows, columns, dtype=torch.bfloat16) for rows in (1, 3, 16) for columns in range(97, 161)]
    calls: dict[str, list[Callable[[], Any]]] = {
        "mxfp4": [lambda x=x: quantize_mxfp4(x) for x in tensors],
        "mxfp4, swizzled": [lambda x=x: quantize_mxfp4(x, swizzle=True) for x in tensors],
        "mxfp4, gaps": [lambda x=x: quantize_mxfp4(x[:, :-32]) for x in tensors if x.shape[1] > 32],
        "mx4": [lambda x=x: quantize_mx4(x) for x in tensors],
        "mx4, columns 97 to 160": [lambda x=x: quantize_mx4(x) for x in odd],
        "mx4, decoded": [
            lambda x=x: dequantize_mx4(torch.zeros(x.shape[0], x.shape[1] // 32 * 17, dtype=torch.uint8))
            for x in tensors
        ],
    }
    return {name: len(launches(many)) for name, many in calls.items()}


if __name__ == "__main__":
    calls = variants()
    table = {
        name: {
            variant: compiled(calls[variant], target)
            for variant in (calls if name in THOROUGH else list(calls)[:EVERYWHERE])
        }
        for name, target in TARGETS.items()
    }
    json.dump({"compiled": table, "counted": counted()}, sys.stdout)
