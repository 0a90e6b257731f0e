"""Compiles the weight kernels ahead of time; `test_aot_weights.py` runs it in a process of its own.

Prints by target, call and kernel what stands in the assembly, and how much memory of its own a thread needs; and of how
many variants each kernel is for weights that differ in their lengths alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
import weight_calls
from compile_matrix import TARGETS, launches
from triton.compiler import ASTSource

from lowbit_kernels import _launch

THOROUGH = ("sm_90",)
"""Targets for which every call is compiled; the others get the usual ones."""

LENGTHS = ((32, 32), (64, 96), (96, 128), (160, 224), (512, 256))
"""Rows and columns, whose packs, words and units are one, multiples of 16 and neither."""

PATTERNS = {
    "approximate": r"div\.full|div\.approx|rcp\.approx\.f|ex2\.|lg2\.|v_exp_f32|v_log_f32|v_div_fixup_f32|div\.rn\.f",
    "flushing": r"\.ftz|denorm_mode_32 0",
    "double": r"\.f64|_f64",
    "fused": r"\bfma\.rn|v_fma_f32|v_fmac_f32|v_mad_f32",
    "local": r"\.local\b|ld\.local|st\.local|scratch_load|scratch_store",
    "constants": r"^\s*\.(const|global) |ld\.const|s_getpc",
    "shared": r"ld\.shared|st\.shared|ds_read|ds_load",
    "stores of 16 bytes": r"st\.global\.v4\.b32|global_store_b128|global_store_dwordx4",
    "loads of 16 bytes": r"ld\.global\.v4\.b32|global_load_b128|global_load_dwordx4",
    "narrow loads": r"ld\.global\.(b8|b16|u8|u16)|global_load_(u8|ubyte|ushort|short|u16)",
    "narrow stores": r"st\.global\.(b8|b16)|global_store_(b8|byte|short|b16)",
}


def stack_bytes(cubin: bytes) -> int | None:
    """Bytes of stack that a thread needs, spilled registers included; None without the tool that tells."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=False)
    found = re.search(r"STACK:(\d+)", told.stdout + told.stderr)
    return int(found[1]) if found else None


def compiled(call: Callable[[], Any], target: Any) -> dict[str, dict[str, Any]]:
    """The kernels of a call: the patterns found in each one's assembly, and its memory."""
    found = {}
    for kernel, (types, constants, attributes, options) in launches([call]):
        source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
        binary = triton.compile(source, target=target, options={**_launch.COMPILE_OPTIONS, **options})
        text = binary.asm["ptx" if target.backend == "cuda" else "amdgcn"]
        if target.backend == "cuda":
            memory = stack_bytes(binary.asm["cubin"])
        else:
            spilled = re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size):\s*(\d+)", text)
            memory = sum(map(int, spilled)) if spilled else None
        patterns = [name for name, pattern in PATTERNS.items() if re.search(pattern, text, re.MULTILINE)]
        found[kernel.__name__] = {"patterns": patterns, "memory": memory}
    return found


def variants() -> dict[str, int]:
    """By kernel how many would be compiled for weights of LENGTHS."""
    calls = []
    for rows, columns in LENGTHS:
        weight_calls.ROWS = rows
        half = weight_calls.HALF
        calls += [
            weight_calls.awq(half, group=32, columns=columns),
            weight_calls.gptq(4, half, group=32, columns=columns),
            weight_calls.nf4(half, n=rows * columns, block=columns if columns in (32, 128, 256) else 64),
            weight_calls.int8(half, columns=columns),
            weight_calls.squeezellm(4, half, sums=True, columns=columns),
        ]
    return dict(Counter(kernel.__name__ for kernel, _ in launches(calls)))


if __name__ == "__main__":
    usual, others = weight_calls.usual(), weight_calls.others()
    json.dump(
        {
            name: {
                call: compiled(function, target)
                for call, function in (usual | others if name in THOROUGH else usual).items()
            }
            for name, target in TARGETS.items()
        }
        | {"variants": variants()},
        sys.stdout,
    )
