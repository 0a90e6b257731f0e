"""NVIDIA Model Optimizer's tensors: `NVFP4QTensor` and `MXFP4QTensor`, by their PyTorch paths.

It stands for `nvfp4` (its second scaling factor is the decode factor, 1 / g) and for `mxfp4_rceil`: its exponent is
ceil(log2(amax / 6)).
"""

from __future__ import annotations

from typing import Any

from lowbit.adapters._released import adapt, decline_options
from lowbit.implementation import Quantized, Unsupported
from lowbit.schemes import Scheme


def quantize(x: Any, scheme: Scheme, *, tensor_scale: Any = None, **options: Any) -> Quantized:
    """Quantises by `quantize` of the family's tensor.

    Raises:
      Unsupported: a scheme that it does not stand for, random bits, or swizzled scales.
    """
    decline_options("modelopt", options)
    if scheme.name == "nvfp4":
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

        factor = None if tensor_scale is None else (1 / tensor_scale).reshape(())
        made, scales, factor = NVFP4QTensor.quantize(x, scheme.block, weights_scaling_factor_2=factor)
        g = (1 / factor).reshape(1) if tensor_scale is None else tensor_scale
        return Quantized(made._quantized_data, scales, g)
    if scheme.name == "mxfp4_rceil":
        from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

        made, scales = MXFP4QTensor.quantize(x, scheme.block)
        return Quantized(made._quantized_data, scales.reshape(*x.shape[:-1], x.shape[-1] // scheme.block))
    raise Unsupported(f"modelopt has no {scheme.name}")


def dequantize(quantized: Quantized, scheme: Scheme, dtype: Any) -> Any:
    """Decodes by `dequantize` of the family's tensor.

    Raises:
      Unsupported: another family than mxfp4 and nvfp4, or NVFP4 without a tensor scale.
    """
    import torch

    packed = quantized.packed
    shape = torch.Size((*packed.shape[:-1], 2 * packed.shape[-1]))
    if scheme.family == "mxfp4":
        from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor

        made = MXFP4QTensor(shape, dtype, packed)
        return made.dequantize(dtype, scale=quantized.scales.reshape(-1, 1), block_sizes={-1: scheme.block})
    if scheme.family == "nvfp4":
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

        if quantized.tensor_scale is None:
            raise Unsupported("modelopt stores NVFP4 with a second scaling factor")
        factor = (1 / quantized.tensor_scale).reshape(())
        scales = quantized.scales.view(torch.float8_e4m3fn)
        made = NVFP4QTensor(shape, dtype, packed)
        return made.dequantize(dtype, scale=scales, double_scale=factor, block_sizes={-1: scheme.block})
    raise Unsupported(f"modelopt has no {scheme.name}")


IMPLEMENTATION = adapt("modelopt", "nvidia-modelopt", "modelopt", quantize=quantize, dequantize=dequantize)
