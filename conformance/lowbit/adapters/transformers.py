"""transformers' decoder of MXFP4 checkpoints, `convert_moe_packed_tensors`; it has no encoder of its own."""

from __future__ import annotations

from typing import Any

from lowbit.adapters._released import adapt
from lowbit.implementation import Quantized, Unsupported
from lowbit.schemes import Scheme


def dequantize(quantized: Quantized, scheme: Scheme, dtype: Any) -> Any:
    """Decodes rows as one expert's; the function returns them transposed.

    Raises:
      Unsupported: another family than mxfp4.
    """
    if scheme.family != "mxfp4":
        raise Unsupported(f"transformers has no {scheme.name}")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    packed, scales = quantized.packed, quantized.scales
    rows = packed.numel() // max(packed.shape[-1], 1)
    blocks = packed.reshape(1, rows, scales.shape[-1], scheme.block // 2)
    values = convert_moe_packed_tensors(blocks, scales.reshape(1, rows, scales.shape[-1]), dtype=dtype)
    return values.transpose(1, 2).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


IMPLEMENTATION = adapt("transformers", "transformers", "transformers", dequantize=dequantize)
