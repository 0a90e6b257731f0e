"""torchao's MXFP4 and NVFP4, as its tensor subclasses make and decode them, and its swizzled layout.

It stands for the four `mxfp4_…` schemes by its `ScaleCalculationMode`, for `nvfp4` by NVFP4 with the scale that its
`per_tensor_amax_to_scale` gives, and for `nvfp4_one_level` by NVFP4 without one. Its tensor scale is the decode factor:
1 / g. Elements round to nearest, ties to even.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lowbit.adapters._released import adapt, decline_options
from lowbit.implementation import Quantized, Unsupported
from lowbit.schemes import Scheme

MODES = {"mxfp4_floor": "FLOOR", "mxfp4_ceil": "CEIL", "mxfp4_even": "EVEN", "mxfp4_rceil": "RCEIL"}
"""Scheme → the name of its `ScaleCalculationMode`."""

NVFP4 = ("nvfp4", "nvfp4_one_level")


def quantize(x: Any, scheme: Scheme, *, tensor_scale: Any = None, swizzle: bool = False, **options: Any) -> Quantized:
    """Quantises by `to_mx` or `NVFP4Tensor.to_nvfp4`.

    Raises:
      Unsupported: a scheme that it does not stand for, or random bits.
    """
    decline_options("torchao", options)
    if scheme.name in MODES:
        return _mxfp4(x, scheme, swizzle)
    if scheme.name in NVFP4:
        return _nvfp4(x, scheme, tensor_scale, swizzle)
    raise Unsupported(f"torchao has no {scheme.name}")


def _mxfp4(x: Any, scheme: Scheme, swizzle: bool) -> Quantized:
    import torch
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    mode = ScaleCalculationMode[MODES[scheme.name]]
    scales, packed = to_mx(x, torch.float4_e2m1fn_x2, scheme.block, mode, is_swizzled_scales=swizzle)
    return Quantized(packed, scales.flatten() if swizzle else scales)


def _nvfp4(x: Any, scheme: Scheme, tensor_scale: Any, swizzle: bool) -> Quantized:
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    factor = None
    if scheme.name == "nvfp4":
        factor = per_tensor_amax_to_scale(x.abs().amax()) if tensor_scale is None else 1 / tensor_scale.reshape(())
    made = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=factor, is_swizzled_scales=swizzle)
    g = tensor_scale
    if g is None:
        g = torch.ones(1, device=x.device) if factor is None else (1 / factor).reshape(1)
    return Quantized(made.qdata, made.scale.flatten() if swizzle else made.scale, g)


def dequantize(quantized: Quantized, scheme: Scheme, dtype: Any) -> Any:
    """Decodes by `MXTensor` or `NVFP4Tensor`.

    Raises:
      Unsupported: another family than mxfp4 and nvfp4.
    """
    import torch

    if scheme.family == "mxfp4":
        from torchao.prototype.mx_formats.mx_tensor import to_dtype

        scales = quantized.scales.view(torch.float8_e8m0fnu)
        return to_dtype(quantized.packed, scales, torch.float4_e2m1fn_x2, scheme.block, dtype)
    if scheme.family == "nvfp4":
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

        g = quantized.tensor_scale
        factor = None if g is None else (1 / g).reshape(())
        scales = quantized.scales.view(torch.float8_e4m3fn)
        return NVFP4Tensor(quantized.packed, scales, scheme.block, dtype, factor).dequantize(dtype)
    raise Unsupported(f"torchao has no {scheme.name}")


def swizzle(scales: Any) -> Any:
    """`to_blocked`, which takes a matrix."""
    from torchao.prototype.mx_formats.utils import to_blocked

    return to_blocked(scales)


def unswizzle(buffer: Any, rows: int, columns: int) -> Any:
    """`from_blocked`."""
    from torchao.prototype.mx_formats.utils import from_blocked

    return from_blocked(buffer, rows, columns)


def swizzle_by_kernel(scales: Any) -> Any:
    """`to_blocked` by its Triton kernel.

    Raises:
      Unsupported: scales of the CPU.
    """
    if not scales.is_cuda:
        raise Unsupported("torchao's kernel for to_blocked wants a GPU")
    from torchao.prototype.mx_formats.utils import to_blocked

    return to_blocked(scales, use_triton_kernel=True)


IMPLEMENTATION = adapt(
    "torchao", "torchao", "torchao", quantize=quantize, dequantize=dequantize, swizzle=swizzle, unswizzle=unswizzle
)

KERNEL = replace(adapt("torchao", "torchao", "torchao", swizzle=swizzle_by_kernel), name="torchao_kernel")
"""The swizzled layout by the kernel that runs on a GPU only."""
