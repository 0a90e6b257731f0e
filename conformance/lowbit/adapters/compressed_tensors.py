"""compressed-tensors' packers: MXFP4 and NVFP4 both ways, and packed integers back, by its compressors.

It stands for `mxfp4_even` (its scales round as torchao's EVEN) and for `nvfp4`, whose g is its global scale. A packed
integer weight, [N, K] packed along K with scales [N, K / G], is a GPTQ weight with stored zeros, transposed. Its FP4
decoders return bfloat16, its integer decoder the dtype of the scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.adapters._released import adapt, decline_options
from lowbit.implementation import Quantized, Unsupported
from lowbit.rules import OutputRounding, ZeroPoint
from lowbit.schemes import Scheme
from lowbit.weights import WeightScheme

SCHEMES = ("mxfp4_even", "nvfp4")


def quantize(x: Any, scheme: Scheme, *, tensor_scale: Any = None, **options: Any) -> Quantized:
    """Scales by `compute_dynamic_scales_and_zp`, codes by the compressor of the format.

    Raises:
      Unsupported: a scheme that it does not stand for, random bits, or swizzled scales.
    """
    decline_options("compressed_tensors", options)
    if scheme.name not in SCHEMES:
        raise Unsupported(f"compressed_tensors has no {scheme.name}")
    import torch
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp, generate_gparam

    compressor, of = _format(scheme)
    g = tensor_scale
    if scheme.name == "nvfp4" and g is None:
        g = generate_gparam(*torch.aminmax(x))
    scale, _ = compute_dynamic_scales_and_zp(x, of.weights, torch.nn.Module(), global_scale=g)
    state = {"weight": x, "weight_scale": scale, **({} if g is None else {"weight_global_scale": g})}
    stored = compressor.compress(state, of)
    return Quantized(stored["weight_packed"], stored["weight_scale"], g)


def dequantize(quantized: Quantized, scheme: Scheme, dtype: Any) -> Any:
    """Decodes by the compressor of the format.

    Raises:
      Unsupported: another family, or another dtype than bfloat16.
    """
    import torch

    if scheme.family not in ("mxfp4", "nvfp4") or scheme.name == "nvfp4_one_level":
        raise Unsupported(f"compressed_tensors has no {scheme.name}")
    if dtype is not torch.bfloat16:
        raise Unsupported(f"compressed_tensors decodes FP4 to bfloat16 only, not to {dtype}")
    compressor, of = _format(scheme)
    scales = quantized.scales if scheme.family == "mxfp4" else quantized.scales.view(torch.float8_e4m3fn)
    state = {"weight_packed": quantized.packed, "weight_scale": scales}
    if quantized.tensor_scale is not None:
        state["weight_global_scale"] = quantized.tensor_scale
    return compressor.decompress(state, of)["weight"]


def _format(scheme: Scheme) -> tuple[Any, Any]:
    """The compressor and the arguments of a family."""
    import torch
    from compressed_tensors.compressors import MXFP4PackedCompressor, NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    mx = scheme.family == "mxfp4"
    arguments = QuantizationArgs(
        num_bits=4,
        type="float",
        symmetric=True,
        strategy="group" if mx else "tensor_group",
        group_size=scheme.block,
        scale_dtype=torch.uint8 if mx else torch.float8_e4m3fn,
    )
    of = QuantizationScheme(targets=["Linear"], weights=arguments)
    return (MXFP4PackedCompressor if mx else NVFP4PackedCompressor), of


def dequantize_weight(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """Decodes a packed integer weight.

    Raises:
      Unsupported: another scheme than GPTQ with stored zeros and whole groups in order, or another dtype than the
        scales'.
    """
    if scheme.family != "gptq" or scheme.zero is not ZeroPoint.STORED or "+" in scheme.name:
        raise Unsupported(f"compressed_tensors has no {scheme.name}")
    if scheme.output_rounding is not OutputRounding.DIRECT or tensors.get("g_idx") is not None:
        raise Unsupported("compressed_tensors has no order of groups of its own")
    stored = tensors["scales"].dtype
    if stored is not dtype:
        raise Unsupported(f"compressed_tensors decodes to the dtype of the scales, {stored}, not to {dtype}")
    import torch
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    qweight, qzeros, scales = (_transposed(tensors[name]) for name in ("qweight", "qzeros", "scales"))
    columns = qweight.shape[1] * 32 // scheme.bits
    if scheme.group > 0 and columns % scheme.group:
        raise Unsupported(f"compressed_tensors has whole groups only, K is {columns}")
    arguments = QuantizationArgs(
        num_bits=scheme.bits,
        type="int",
        symmetric=False,
        strategy="group",
        group_size=columns if scheme.group == -1 else scheme.group,
    )
    state = {
        "weight_packed": qweight,
        "weight_scale": scales,
        "weight_zero_point": qzeros,
        "weight_shape": torch.tensor([qweight.shape[0], columns]),
    }
    of = QuantizationScheme(targets=["Linear"], weights=arguments)
    return PackedQuantizationCompressor.decompress(state, of)["weight"].t()


def _transposed(matrix: Any) -> Any:
    """A copy whose last dimension has stride 1, that of one row or column too."""
    return matrix.new_empty(matrix.shape[::-1]).copy_(matrix.t())


IMPLEMENTATION = adapt(
    "compressed_tensors",
    "compressed-tensors",
    "compressed_tensors",
    quantize=quantize,
    dequantize=dequantize,
    dequantize_weight=dequantize_weight,
)
