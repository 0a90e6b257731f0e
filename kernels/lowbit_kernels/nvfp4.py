"""NVFP4: blocks of 16 E2M1 elements with an E4M3 scale each, under one binary32 factor g of the tensor.

    x        | 0  1 | 2  3 | … | 14 15 |  one block of the last dimension
    packed   | byte 0: element 0 in bits 0..3, element 1 in bits 4..7 | byte 1 | … | byte 7 |
    scales   | one E4M3 byte s |, (..., K / 16) or swizzled (see `swizzle.py`)

    g = 2688 / amax(tensor)        y = RN32(x * g)        s = E4M3(amax_block(y) / 6)        code = E2M1(RN32(y / s))
    decoded = RN(dtype)(RN32(RN32(value * s) / g))

The schemes differ in what is clamped, in ties and in NaN and Inf; SPEC.md 3.3 has every rule. g *multiplies* x here
("encode" factor); torch's scaled matmul wants the decode factor 1 / g, which `recip_scale` makes.

When not to use this: for activations in front of a matmul, where the quantiser belongs into the epilogue of the kernel
before; for weights multiplied at once, where `nvfp4_mm` decodes in registers. A computed g reads x twice: give
`tensor_scale` where a calibrated one is known, and always for shards of one tensor.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch

from lowbit.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from lowbit.rules import Rounding
from lowbit_kernels import _arguments, _e2m1_hardware, _launch, _nvfp4_launch
from lowbit_kernels._nvfp4_launch import BLOCK, CANONICAL, ONE_LEVEL, SCHEMES, TWO_LEVEL, require_blocks, shapes

FLT_MAX = float.fromhex("0x1.fffffep127")
LARGEST_ZERO = 2.0**-150
"""Positive numbers from here downwards are 0 as float32."""

DEFAULT_ROUNDING = {
    CANONICAL: Rounding.TIES_TO_EVEN.value,
    TWO_LEVEL: Rounding.TIES_TOWARD_ZERO.value,
    ONE_LEVEL: Rounding.TIES_TOWARD_ZERO.value,
}
_STOCHASTIC = Rounding.STOCHASTIC.value
_BYTES = BLOCK // 2


def quantize_nvfp4(
    x: torch.Tensor,
    *,
    scheme: str = "nvfp4",
    rounding: str | None = None,
    tensor_scale: torch.Tensor | float | None = None,
    swizzle: bool = False,
    seed: int | None = None,
    random_bits: torch.Tensor | None = None,
    hardware: bool = False,
    validate: bool = True,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantises the last dimension in blocks of 16 to E2M1 codes and E4M3 scales.

    Args:
      x: (..., K) float32, bfloat16 or float16. Any values and strides; K a multiple of 16, 0 included.
      scheme: ``nvfp4``, ``nvfp4_two_level`` (weights) or ``nvfp4_one_level`` (activations, g = 1).
      rounding: any rule of `lowbit.rules.Rounding`; None is the scheme's: ties to even, else ties toward zero.
      tensor_scale: g, finite and above 0: one float32 element on x's device, or a number, which is rounded to float32.
        None computes it from x. `nvfp4_one_level` takes none.
      swizzle: True stores the scales in the SWIZZLE_32_4_4 layout that block-scaled matmuls read, padding zeroed.
      seed: 64-bit integer for ``stochastic``; the same bits on any device and grid. Without effect otherwise.
      random_bits: x's shape, uint8. Replaces the seed: element i rounds away from zero iff
        random_bits[i] >= 256 - floor(256 * p), p its distance from the lower neighbour in steps.
      hardware: True converts by the GPU's own instruction, `nvfp4` with ties to even alone; the same bits. Off by
        default: no device that has it has run it yet.
      validate: True reads a given tensor_scale to check its value, which waits for its device; not while a CUDA graph
        is captured or a function compiled. Unchecked, a value out of range makes every scale NaN.
      out: the three results, to write into: contiguous, without grad, of the result's dtypes, or uint8 for the first
        two; apart from each other and from what is read, but the third may be `tensor_scale` itself.
    Returns:
      packed: (..., K / 2) float4_e2m1fn_x2. Element 0 in the low nibble.
      scales: (..., K / 16) float8_e4m3fn; with `swizzle` 1-D, ceil(M / 128) * 128 * ceil(K / 64) * 4 bytes, M the
        product of the leading dimensions.
      tensor_scale: (1,) float32. g; 1 for `nvfp4_one_level`.
    Raises:
      ShapeError: K is no multiple of 16 (`pad_last_dimension` appends zeros); a buffer of another shape.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run, or not by `hardware`.
      ArgumentError: an unknown scheme or rule; tensor_scale out of range, or given to `nvfp4_one_level`; stochastic
        rounding with neither seed nor random_bits; `hardware` with another scheme or rule; `out` where it cannot be
        written.
    Exactness: bit-exact with `lowbit.references.exact.quantize` of scheme ``<scheme>+<rounding>``.
    Spec: SPEC.md 3.3.
    """
    number = _launch.choose("scheme", scheme, SCHEMES)
    rule = DEFAULT_ROUNDING[number] if rounding is None else rounding
    rounding_number = _e2m1_hardware.number(hardware, rule, "" if number == CANONICAL else scheme)
    _arguments.require_bool("swizzle", swizzle)
    _arguments.require_bool("validate", validate)
    _launch.require_input("x", x)
    require_blocks(x.shape[-1])
    if number == ONE_LEVEL and tensor_scale is not None:
        raise ArgumentError("tensor_scale: got a value, want None: nvfp4_one_level has g = 1")
    g = None if tensor_scale is None else _given_scale(tensor_scale, x.device, validate)
    stochastic = rule == _STOCHASTIC
    bits = None
    if random_bits is not None:
        wanted_by = "rounding" if stochastic else ""
        bits = _launch.require_random("random_bits", random_bits, x.shape, torch.uint8, x.device, wanted_by)
    low, high = _launch.require_key(seed, "random_bits" if stochastic and bits is None else "")
    random = (bits, low, high)
    if out is None:
        return _nvfp4_launch.QUANTIZE(x, number, rounding_number, swizzle, g, *random)
    packed, scales, scale = _arguments.require_results(out, 3)
    packed_shape, scales_shape = shapes(x, swizzle)
    _arguments.require_output("out[0]", packed, packed_shape, (torch.float4_e2m1fn_x2, torch.uint8), x.device)
    _arguments.require_output("out[1]", scales, scales_shape, (torch.float8_e4m3fn, torch.uint8), x.device)
    _arguments.require_output("out[2]", scale, (1,), (torch.float32,), x.device)
    results = [("out[0]", packed), ("out[1]", scales), ("out[2]", scale)]
    kept = g is not None and _arguments.address(g) == _arguments.address(scale)  # g is written as it was read
    _arguments.require_disjoint(results, x=x, random_bits=bits, tensor_scale=None if kept else g)
    g = None if g is None else g.reshape(1)  # a tensor of its own where it is written too
    options = (number, rounding_number, swizzle, g, *random)
    _nvfp4_launch.QUANTIZE_OUT(x, *options, packed.view(torch.uint8), scales.view(torch.uint8), scale)
    return packed, scales, scale


def dequantize_nvfp4(
    packed: torch.Tensor,
    scales: torch.Tensor,
    tensor_scale: torch.Tensor | float | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decodes E2M1 codes and E4M3 scales.

    Args:
      packed: (..., K / 2) float4_e2m1fn_x2 or uint8. Element 0 in the low nibble.
      scales: (..., K / 16) float8_e4m3fn or uint8, not swizzled (`unswizzle_scales` undoes that). Bytes from 0x80 are
        negative, 0x7F and 0xFF NaN.
      tensor_scale: g, as `quantize_nvfp4` returns it: one float32 element on the same device, or a number, which is
        rounded to float32. Any value. None divides by nothing.
      dtype: float32, bfloat16 or float16.
      out: the result, to write into: contiguous, without grad, apart from what is read.
    Returns:
      (..., K) of dtype: RN(dtype)(RN32(RN32(value * s) / g)), gradual underflow, ±Inf beyond the dtype.
    Raises:
      ShapeError: shapes that do not belong together.
      ArgumentError: `out` where it cannot be written.
      DtypeError, DeviceError: a tensor of the wrong dtype, or where no kernel can run.
    Exactness: bit-exact with `lowbit.references.exact.dequantize`.
    Spec: SPEC.md 3.
    """
    packed = _launch.require_bytes("packed", packed, torch.float4_e2m1fn_x2)
    scales = _launch.require_bytes("scales", scales, torch.float8_e4m3fn, packed.device)
    _launch.require_float("dtype", dtype)
    device, shape = packed.device, packed.shape
    if packed.dim() == 0 or shape[-1] % _BYTES:
        raise ShapeError(f"packed: got shape {tuple(packed.shape)}, want (..., K / 2) with K a multiple of {BLOCK}")
    *leading, stored = shape
    wanted = (*leading, stored // _BYTES)
    if tuple(scales.shape) != wanted:
        raise ShapeError(
            f"scales: got shape {tuple(scales.shape)}, want {wanted}, one for {_BYTES} bytes of packed; "
            "unswizzle_scales turns a swizzled buffer back"
        )
    g = None if tensor_scale is None else _one_scale(tensor_scale, device)
    if out is None:
        return _nvfp4_launch.DEQUANTIZE(packed, scales, g, dtype)
    _arguments.require_output("out", out, (*leading, stored * 2), (dtype,), device)
    _arguments.require_disjoint([("out", out)], packed=packed, scales=scales, tensor_scale=g)
    _nvfp4_launch.DEQUANTIZE_OUT(packed, scales, g, out)
    return out


def recip_scale(tensor_scale: torch.Tensor | float, device: torch.device | str) -> torch.Tensor:
    """The decode factor 1 / g that scaled matmuls multiply by; build it once, where weights are loaded.

    Args:
      tensor_scale: g: one float32 element on any device, or a number, which is rounded to float32.
      device: of the result: the CPU or a GPU.
    Returns:
      (1,) float32. RN32(1 / g).
    Raises:
      DtypeError: not float32; no device.
      DeviceError: a device that does not exist, or is neither.
      ShapeError: not one element.
    Exactness: one correctly rounded division.
    Spec: SPEC.md 7.
    """
    target = _existing_device(device)
    if not isinstance(tensor_scale, torch.Tensor):
        return torch.reciprocal(_one_scale(tensor_scale, torch.device("cpu"))).to(target)
    if tensor_scale.is_meta:
        raise DeviceError("tensor_scale: got a tensor on meta, want one that has a value")
    return torch.reciprocal(_one_scale(tensor_scale, tensor_scale.device)).to(target)


def _existing_device(device: torch.device | str) -> torch.device:
    """A device that can hold a result."""
    if not isinstance(device, (torch.device, str)):
        raise DtypeError(f"device: got {type(device).__name__}, want a torch.device or its name")
    wanted = "want cpu or a GPU of this machine, as cuda or cuda:0"
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device: got {device!r}, {wanted}") from error
    if target.type not in ("cpu", "cuda"):
        raise DeviceError(f"device: got {str(device)!r}, {wanted}")
    # counting devices breaks a traced graph in two; a traced call on a missing device fails when it runs
    if target.type == "cuda" and not torch.compiler.is_compiling() and (target.index or 0) >= torch.cuda.device_count():
        raise DeviceError(f"device: got {str(device)!r}, {wanted}")
    return target


def _one_scale(tensor_scale: torch.Tensor | float, device: torch.device) -> torch.Tensor:
    """A tensor scale as a (1,) float32 tensor on a device."""
    if not isinstance(tensor_scale, torch.Tensor):
        return torch.full((1,), _number(tensor_scale), dtype=torch.float32, device=device)
    _arguments.require_strided("tensor_scale", tensor_scale)
    if tensor_scale.dtype != torch.float32:
        raise DtypeError(f"tensor_scale: got {tensor_scale.dtype}, want torch.float32")
    if tensor_scale.numel() != 1:
        raise ShapeError(f"tensor_scale: got shape {tuple(tensor_scale.shape)}, want one element")
    if tensor_scale.device != device:
        _launch.require_device("tensor_scale", tensor_scale, device)
    return tensor_scale if tensor_scale.dim() == 1 else tensor_scale.reshape(1)


def _number(value: Any) -> float:
    """A number that float32 is to hold; ±Inf beyond its range."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise DtypeError(f"tensor_scale: got {type(value).__name__}, want a float32 tensor or a number")
    number = float(value)
    return math.copysign(math.inf, number) if abs(number) > FLT_MAX else number


def _given_scale(tensor_scale: torch.Tensor | float, device: torch.device, validate: bool) -> torch.Tensor:
    """A tensor scale to quantise by; its value is checked where it can be read."""
    g = _one_scale(tensor_scale, device)
    if isinstance(tensor_scale, torch.Tensor):
        if not validate or torch.compiler.is_compiling() or not _arguments.is_real(g):
            return g
        if g.is_cuda and torch.cuda.is_current_stream_capturing():
            return g
        value = g.item()
    else:
        value = _number(tensor_scale)
    if not (math.isfinite(value) and value > LARGEST_ZERO):
        raise ArgumentError(f"tensor_scale: got {tensor_scale}, want a finite float32 above 0")
    return g
