"""Compiles the quantisers with and without the E2M1 instruction; `test_aot_e2m1.py` runs it in a process of its own.

Prints by target and variant what is in the code; where the compiler refuses, its words.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from compile_matrix import FORBIDDEN, TARGETS, constants_for, launches
from triton.compiler import ASTSource

from lowbit_kernels import _e2m1_hardware, _launch, quantize_mxfp4, quantize_nvfp4

PTX_INSTRUCTION = re.compile(r"cvt\.rn\.satfinite\.e2m1x2\.f32")
SASS_INSTRUCTION = re.compile(r"F2FP\.SATFINITE\.E2M1\.F32")
HAVE_IT = ("sm_100", "sm_120")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def variants() -> dict[str, Callable[[bool], Any]]:
    """Calls by name, of `hardware`: every type, either layout of scales, and elements that are not loaded in pairs."""
    bfloat16 = torch.ones(256, 1024, dtype=torch.bfloat16)
    odd = torch.ones(256 * 1024 + 1, dtype=torch.bfloat16)[1:].view(256, 1024)
    given: dict[str, Any] = {"tensor_scale": torch.ones(1), "validate": False}
    return {
        "mxfp4, bfloat16": lambda hardware: quantize_mxfp4(bfloat16, hardware=hardware),
        "mxfp4, float32, swizzled": lambda hardware: quantize_mxfp4(bfloat16.float(), swizzle=True, hardware=hardware),
        "nvfp4, bfloat16": lambda hardware: quantize_nvfp4(bfloat16, hardware=hardware, **given),
        "nvfp4, float16, swizzled": lambda hardware: quantize_nvfp4(
            bfloat16.half(), swizzle=True, hardware=hardware, **given
        ),
        "mxfp4, not aligned": lambda hardware: quantize_mxfp4(odd, hardware=hardware),
    }


def compiled(call: Callable[[], Any], name: str) -> dict[str, Any]:
    """The one kernel of a call: what is found in it."""
    ((kernel, (types, constants, attributes, options)),) = launches([call])
    target = TARGETS[name]
    constants = constants_for(target, kernel, constants)
    tile = {kernel.arg_names[index]: value for (index,), value in constants.items()}
    elements = tile["BLOCK_ROWS"] * tile["BLOCK_GROUPS"] * (32 if "mxfp4" in kernel.__module__ else 16)
    source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
    try:
        binary = triton.compile(source, target=target, options={**_launch.COMPILE_OPTIONS, **options})
    except Exception as error:  # every failure belongs in the table, whatever its type
        return {"refused": f"{type(error).__name__}: {error}"}
    if target.backend != "cuda":
        return {"instruction": binary.asm["amdgcn"].count("e2m1")}
    text = binary.asm["ptx"]
    return {
        "pairs": elements // (options.get("num_warps", 4) * 32) // 2,
        "instruction": len(PTX_INSTRUCTION.findall(text)),
        "forbidden": [word for word in FORBIDDEN if word in text],
        **disassembled(binary.asm["cubin"]),
    }


def disassembled(cubin: bytes) -> dict[str, int]:
    """Conversions, accesses of local memory (a spill is one) and instructions of a kernel's machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True, timeout=120
        ).stdout
    lines = [line for line in text.splitlines() if re.search(r"/\*[0-9a-f]{4,}\*/", line) and ";" in line]
    return {
        "converts": sum(bool(SASS_INSTRUCTION.search(line)) for line in lines),
        "local": sum(bool(re.search(r"\b(LDL|STL)\b", line)) for line in lines),
        "instructions": sum("NOP" not in line for line in lines),
    }


def table() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """By target and variant, "off" and "on": all variants where the instruction exists, elsewhere the first."""
    calls = variants()
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for name in TARGETS:
        found[name] = {}
        for variant in calls if name in HAVE_IT else list(calls)[:1]:
            switches = {"off": False, "on": True} if name.startswith("sm_") else {"off": False}
            found[name][variant] = {
                word: compiled(partial(calls[variant], switch), name) for word, switch in switches.items()
            }
    return found


if __name__ == "__main__":
    _e2m1_hardware.require_device = lambda x: None  # the tensors here are on no device that compiles
    with contextlib.redirect_stdout(sys.stderr):  # where Triton prints what its assembler refuses
        result = table()
    json.dump(result, sys.stdout)
