"""Compiles every kernel ahead of time for GPUs that need not be there; `test_aot.py` runs it in a process of its own.

What is compiled is what a call would launch: the public functions run on CPU tensors with the launch itself replaced,
so that arguments, constexprs and specialisation are the real ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
import weight_calls
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import lowbit_kernels
from lowbit import schemes
from lowbit.errors import DeviceError
from lowbit.rules import Rounding
from lowbit_kernels import _launch, _matmul_launch, adapter

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
EVERY_VARIANT = ("sm_90",)
"""Targets for which every variant is compiled; the others get the first of each kernel."""

FORBIDDEN = ("ftz", "div.full", "div.approx", "rcp.approx", "ex2", "lg2", "denorm_mode_32 0", "v_exp", "v_log")
"""Parts of instructions' names that flush subnormals or are inexact: no kernel needs any of them."""

TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float4_e2m1fn_x2: "u8",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e8m0fnu: "u8",
}


def signature(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[dict, dict, dict, dict]:
    """The types, constants, attributes and compile options of one launch, specialised as the runtime does."""
    types, constants, attributes = {}, {}, {}
    values = dict(zip(kernel.arg_names, args, strict=False))
    values |= {name: options.pop(name) for name in list(options) if name in kernel.arg_names}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and type(value) is int and value == 1):
            types[parameter.name] = "constexpr"
            constants[(index,)] = value
        elif isinstance(value, torch.Tensor):
            types[parameter.name] = "*" + TYPES[value.dtype]
            if not parameter.do_not_specialize_on_alignment:
                attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if special and value % 16 == 0:
                attributes[(index,)] = [["tt.divisibility", 16]]
    return types, constants, attributes, options


def constants_for(target: GPUTarget, kernel: Any, constants: dict) -> dict:
    """A launch's constants as they would be on a target: inline PTX on NVIDIA's alone, conversions of E4M3 from 8.9."""
    cuda = target.backend == "cuda"
    known = {"PTX": cuda, "CVT": cuda and int(target.arch) >= 89}
    return constants | {
        (kernel.arg_names.index(name),): value for name, value in known.items() if name in kernel.arg_names
    }


def launches(calls: list[Callable[[], Any]]) -> list[tuple[Any, tuple[dict, dict, dict, dict]]]:
    """Every distinct (kernel, signature) that the calls launch."""
    found = []

    def record(kernel: Any, grid: Any, tensor: Any, *args: Any, **options: Any) -> None:
        entry = (kernel, signature(kernel, args, dict(options)))
        if entry not in found:
            found.append(entry)

    launch, interpreted = _launch.launch, _launch.INTERPRETED
    _launch.launch, _launch.INTERPRETED = record, True  # lets CPU tensors pass
    try:
        for call in calls:
            call()
    finally:
        _launch.launch, _launch.INTERPRETED = launch, interpreted
    return found


def calls() -> list[Callable[[], Any]]:
    """Calls that launch every kernel; the first of a kernel is its most common use."""
    bfloat16 = torch.ones(256, 1024, dtype=torch.bfloat16)
    float32, float16 = bfloat16.float(), bfloat16.half()
    packed, scales = torch.zeros(256, 512, dtype=torch.uint8), torch.zeros(256, 64, dtype=torch.uint8)
    stream = torch.zeros(256, 32 * 17, dtype=torch.uint8)
    g = torch.ones(1)
    flat, flat_mx, out = scales.view(-1), scales[:, :32].reshape(-1), torch.empty(256, 256)
    operands = _matmul_launch.Operands(packed, flat, packed, flat, g, None, False)
    split = _matmul_launch.Configuration(16, 64, 256, 4, swap=True)
    kernels = lowbit_kernels
    return [
        lambda: kernels.quantize_mxfp4(bfloat16),
        lambda: kernels.quantize_mxfp4(float32[:, :992], rounding="stochastic", seed=3, swizzle=True),
        lambda: kernels.quantize_mxfp4(bfloat16, rounding="stochastic", seed=3),
        lambda: kernels.quantize_mxfp4(float16.t(), scale_rule="even", rounding="toward_negative"),
        lambda: kernels.dequantize_mxfp4(packed, scales[:, :32], dtype=torch.bfloat16),
        lambda: kernels.dequantize_mxfp4(packed, scales[:, :32], dtype=torch.float16),
        lambda: kernels.quantize_mx4(bfloat16),
        lambda: kernels.quantize_mx4(bfloat16, stochastic_casting=True, seed=3),
        lambda: kernels.quantize_mx4(bfloat16, group_size=16),
        lambda: kernels.quantize_mx4(float32[:, :1001], element="e3m0", stochastic_casting=True, seed=3),
        lambda: kernels.quantize_mx4(float32, group_size=8, scale_rounding="stochastic", seed=3),
        lambda: kernels.dequantize_mx4(stream, dtype=torch.bfloat16),
        lambda: kernels.dequantize_mx4(stream, element="e3m0", columns=1001),
        lambda: kernels.quantize_nvfp4(bfloat16),
        lambda: kernels.quantize_nvfp4(float32[:, :992], scheme="nvfp4_two_level", swizzle=True),
        lambda: kernels.quantize_nvfp4(float16, scheme="nvfp4_one_level", rounding="stochastic", seed=3),
        lambda: kernels.quantize_nvfp4(bfloat16, tensor_scale=2.0, rounding="stochastic", seed=3),
        lambda: kernels.dequantize_nvfp4(packed, scales, g, dtype=torch.bfloat16),
        lambda: kernels.dequantize_nvfp4(packed, scales, dtype=torch.float32),
        lambda: kernels.swizzle_scales(scales),
        lambda: kernels.swizzle_scales(scales.t()),
        lambda: kernels.unswizzle_scales(torch.zeros(256 * 64, dtype=torch.uint8), 256, 64),
        lambda: kernels.nvfp4_mm(packed, flat, packed, flat, g, g),
        lambda: kernels.mxfp4_mm(packed, flat_mx, packed, flat_mx, torch.float16),
        lambda: kernels.nvfp4_mm(packed[:4], flat[: 128 * 64], packed, flat, g),
        lambda: _matmul_launch.multiply(operands, out, split),
        lambda: adapter.encode(float32.flatten(), schemes.E2M1, Rounding.TIES_TO_EVEN),
        lambda: adapter.encode(float32.flatten(), schemes.E3M0, Rounding.TOWARD_POSITIVE),
        *weight_calls.one_of_each(),
    ]


def kernels() -> dict[str, Any]:
    """Every kernel of the package: the jit functions with pointers that no other one calls."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "lowbit_kernels"}
    functions = {}
    for module in modules.values():
        functions |= {id(f): f for f in vars(module).values() if isinstance(f, triton.runtime.JITFunction)}
    text = {key: f.src.partition("):\n")[2] for key, f in functions.items()}
    called = {k for k, f in functions.items() if any(f"{f.__name__}(" in t for other, t in text.items() if other != k)}
    pointers = {k for k, f in functions.items() if any(name.endswith("_ptr") for name in f.arg_names)}
    return {f"{f.__module__}.{f.__name__}": f for k, f in functions.items() if k in pointers - called}


def compile_all() -> dict[str, dict[str, list[str]]]:
    """By target and kernel one entry a variant: empty, or what went wrong."""
    found = launches(calls())
    results: dict[str, dict[str, list[str]]] = {}
    for name, target in TARGETS.items():
        results[name] = {}
        for kernel, (types, constants, attributes, options) in found:
            outcome = results[name].setdefault(f"{kernel.__module__}.{kernel.__name__}", [])
            if outcome and name not in EVERY_VARIANT:
                continue
            constants = constants_for(target, kernel, constants)
            source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
            try:
                binary = triton.compile(source, target=target, options={**_launch.COMPILE_OPTIONS, **options})
                assembly = binary.asm["ptx" if target.backend == "cuda" else "amdgcn"]
                outcome.append(" ".join(f"uses {name}" for name in FORBIDDEN if name in assembly))
            except Exception as error:  # every failure belongs in the table, whatever its type
                outcome.append(f"{type(error).__name__}: {error}"[:500])
    return results


def refusal() -> str:
    """What a CPU tensor gets in a process without the interpreter."""
    try:
        lowbit_kernels.quantize_mxfp4(torch.zeros(32))
    except DeviceError as error:
        return str(error)
    return "accepted"


if __name__ == "__main__":
    json.dump({"refusal": refusal(), "kernels": sorted(kernels()), "compiled": compile_all()}, sys.stdout)
