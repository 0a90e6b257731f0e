"""optimum-quanto's dequantisers: int8 a channel as it stores it; 4 and 2 bits with integer zero points in its packing.

quanto stores no AWQ or GPTQ weight: codes are unpacked from those and packed by quanto's `PackedTensor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.adapters._integers import integers
from lowbit.adapters._released import adapt
from lowbit.implementation import Unsupported
from lowbit.weights import WeightScheme

CHANNEL = ("int8_torch", "int8_channel")
"""With binary32 scales, the only ones that int8_channel has, both say the same."""


def dequantize_weight(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """Decodes a stored weight.

    Raises:
      Unsupported: int8_scb; other families; 3 or 8 bits with zero points; g_idx; a short last group; an output of
        another dtype than the scales where the scheme rounds once.
    """
    if scheme.name in CHANNEL:
        from optimum.quanto import WeightQBytesTensor, qint8

        data = tensors["weight"]
        scale = tensors["scale"].unsqueeze(1)
        return WeightQBytesTensor(qint8, 0, data.size(), data.stride(), data, scale, None).dequantize().to(dtype)
    if scheme.bits not in (2, 4):
        raise Unsupported(f"quanto has no {scheme.name}: it packs 2 and 4 bits")
    weight = integers("quanto", tensors, scheme, dtype)
    from optimum.quanto import WeightQBitsTensor, qint2, qint4
    from optimum.quanto.tensor.packed import PackedTensor

    codes = weight.codes.t().contiguous()  # (N, K)
    packed = PackedTensor.pack(codes.reshape(-1, weight.group), scheme.bits)
    scale, shift = (part.t().reshape(-1, 1) for part in (weight.scales, weight.zeros))
    kind = qint4 if scheme.bits == 4 else qint2
    held = WeightQBitsTensor(kind, 0, weight.group, codes.size(), codes.stride(), packed, scale, shift)
    return held.dequantize().t().to(dtype)


IMPLEMENTATION = adapt("quanto", "optimum-quanto", "optimum", dequantize_weight=dequantize_weight)
