"""These kernels as an implementation under judgement."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import lowbit_kernels
from lowbit.errors import Unsupported
from lowbit.formats import E2M1, E3M0, FloatFormat
from lowbit.implementation import Implementation, Quantized
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Scheme
from lowbit_kernels import _codec, _launch, mx4, mxfp4, nvfp4
from lowbit_kernels import matmul as matmul_kernels
from lowbit_kernels._codec import encode_e2m1, encode_e3m0
from lowbit_kernels._weight_adapter import dequantize_weight

NAN = {"mx4": NanCode.SIGNED_MAX, "mxfp4": NanCode.POSITIVE_MAX, "nvfp4": NanCode.POSITIVE_MAX}
"""The one NaN rule that a family's kernel has."""


@triton.jit
def encode_kernel(
    x_ptr,
    codes_ptr,
    random_ptr,
    count,
    ROUNDING: tl.constexpr,
    NAN: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One code a byte, at scale 1, through the same device functions: lets every one of 2**32 inputs be tried."""
    start = tl.program_id(0).to(tl.int64) * BLOCK_N
    offsets = tl.arange(0, BLOCK_N)
    mask = offsets < count - start
    x = tl.load(x_ptr + start + offsets, mask=mask, other=0.0)  # (BLOCK_N,)
    random = tl.load(random_ptr + start + offsets, mask=mask, other=0).to(tl.int32)
    codes = encode_e2m1(x, random, ROUNDING, NAN) if EXPONENT_BITS == 2 else encode_e3m0(x, random, ROUNDING, NAN)
    tl.store(codes_ptr + start + offsets, codes.to(tl.uint8), mask=mask)


def encode(
    x: torch.Tensor,
    element: FloatFormat,
    rounding: Rounding,
    *,
    random_bits: torch.Tensor | None = None,
    nan: NanCode | None = None,
) -> torch.Tensor:
    """The element stage alone.

    Args:
      x: (N,) float32.
      element: E2M1 or E3M0.
      rounding: any rule.
      random_bits: (N,) uint8, for stochastic rounding.
      nan: the code of NaN; None takes what the kernels of that element use, POSITIVE_MAX for E2M1 (MXFP4, NVFP4) and
        SIGNED_MAX for E3M0 (MX4).
    Returns:
      (N,) uint8. One code a byte.
    Raises:
      Unsupported: another element format.
    """
    if element not in (E2M1, E3M0):
        raise Unsupported(f"no kernel encodes {element.name}")
    _launch.require_input("x", x)
    stochastic = rounding is Rounding.STOCHASTIC
    bits = _launch.require_random(
        "random_bits", random_bits, x.shape, torch.uint8, x.device, "rounding" if stochastic else ""
    )
    _launch.require_key(None, "random_bits" if stochastic and bits is None else "")
    if nan is None:
        nan = NanCode.POSITIVE_MAX if element is E2M1 else NanCode.SIGNED_MAX
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    _, block = _launch.tile(1, x.numel(), 1)
    _launch.launch(
        encode_kernel,
        (-(-x.numel() // block),),
        x,
        x.contiguous(),
        codes,
        codes if bits is None else bits,
        x.numel(),
        ROUNDING=_codec.ROUNDINGS[rounding.value],
        NAN=_codec.NAN_CODES[nan.value],
        EXPONENT_BITS=element.exponent_bits,
        BLOCK_N=block,
    )
    return codes


def quantize(x: torch.Tensor, scheme: Scheme, *, out: Quantized | None = None, **options: Any) -> Quantized:
    """Quantises by the kernel of the scheme's family.

    Args:
      x: (..., K) float32, bfloat16 or float16.
      scheme: of the families mx4, mxfp4 and nvfp4.
      out: buffers to write into.
      options: tensor_scale, random_bits, scale_random_bits, seed, swizzle, hardware, as in `Implementation`.
    Raises:
      Unsupported: a scheme or a layout that has no kernel here.
    """
    _require_kernel(scheme)
    if not scheme.stochastic:
        options = {name: value for name, value in options.items() if "random" not in name and name != "seed"}
    if scheme.family == "mx4":
        if options.pop("swizzle", False):
            raise Unsupported("an interleaved stream has no scale layout")
        stream = mx4.quantize_mx4(
            x,
            group_size=scheme.block,
            element=scheme.element.name,
            scale_rounding=scheme.scale_rule.value,
            stochastic_casting=scheme.rounding is Rounding.STOCHASTIC,
            out=None if out is None else out.packed,
            **options,
        )
        return Quantized(stream)
    if scheme.family == "mxfp4":
        target = None if out is None else (out.packed, out.scales)
        rule, rounding = scheme.scale_rule.value, scheme.rounding.value
        return Quantized(*mxfp4.quantize_mxfp4(x, scale_rule=rule, rounding=rounding, out=target, **options))
    rounding = scheme.rounding.value
    return Quantized(*nvfp4.quantize_nvfp4(x, scheme=scheme.base, rounding=rounding, out=out, **options))


def dequantize(quantized: Quantized, scheme: Scheme, dtype: torch.dtype) -> torch.Tensor:
    """Decodes by the kernel of the scheme's family.

    Args:
      quantized: as `quantize` returns it, scales not swizzled.
      scheme: of the families mx4, mxfp4 and nvfp4.
      dtype: float32, bfloat16 or float16.
    Returns:
      (..., P) of dtype, P the padded width.
    Raises:
      Unsupported: a scheme that has no kernel here.
    """
    if scheme.family == "mx4":
        return mx4.dequantize_mx4(quantized.packed, group_size=scheme.block, element=scheme.element.name, dtype=dtype)
    if scheme.family == "mxfp4":
        return mxfp4.dequantize_mxfp4(quantized.packed, quantized.scales, dtype=dtype)
    if scheme.family == "nvfp4":
        return nvfp4.dequantize_nvfp4(quantized.packed, quantized.scales, quantized.tensor_scale, dtype=dtype)
    raise Unsupported(f"no kernel of the family {scheme.family}")


def matmul(a: Quantized, b: Quantized, scheme: Scheme, out_dtype: torch.dtype) -> torch.Tensor:
    """Multiplies a by the transpose of b by the kernel of the scheme's family.

    Args:
      a, b: as `quantize` with ``swizzle=True`` returns them: (..., K / 2) and (N, K / 2) packed, tensor scales g.
      scheme: of the families mxfp4 and nvfp4.
      out_dtype: float32, bfloat16 or float16.
    Returns:
      (..., N) of out_dtype.
    Raises:
      Unsupported: a scheme whose operands no kernel multiplies.
    """
    if scheme.family == "mxfp4":
        return matmul_kernels.mxfp4_mm(a.packed, a.scales, b.packed, b.scales, out_dtype)
    if scheme.family == "nvfp4":
        device = a.packed.device
        a_rglob, b_rglob = (
            None if g is None else nvfp4.recip_scale(g, device) for g in (a.tensor_scale, b.tensor_scale)
        )
        packed = (a.packed, a.scales, b.packed, b.scales)
        return matmul_kernels.nvfp4_mm(*packed, a_rglob, b_rglob, out_dtype)
    raise Unsupported(f"no kernel multiplies operands of the family {scheme.family}")


def _require_kernel(scheme: Scheme) -> None:
    """Raises Unsupported for a scheme that none of the kernels computes."""
    if scheme.family not in NAN:
        raise Unsupported(f"no kernel of the family {scheme.family}")
    if scheme.nan is not NAN[scheme.family]:
        raise Unsupported(f"the kernels of {scheme.family} have one NaN rule, {NAN[scheme.family].value}")
    rules = {"mx4": mx4.SCALE_RULES, "mxfp4": mxfp4.SCALE_RULES, "nvfp4": ("amax_over_six",)}[scheme.family]
    if scheme.scale_rule.value not in rules:
        raise Unsupported(f"no kernel of {scheme.family} has the scale rule {scheme.scale_rule.value}")


IMPLEMENTATION = Implementation(
    name="lowbit_kernels",
    version=lowbit_kernels.__version__,
    encode=encode,
    quantize=quantize,
    dequantize=dequantize,
    swizzle=lowbit_kernels.swizzle_scales,
    unswizzle=lowbit_kernels.unswizzle_scales,
    matmul=matmul,
    dequantize_weight=dequantize_weight,
    out=True,
    hardware=True,
)
