"""HQQ's dequantiser on integer zero points: its packing of 8, 4, 3 and 2 bits, groups along K, and its arithmetic.

HQQ stores no AWQ or GPTQ weight: codes are unpacked from those and packed by HQQ's own functions, so what is judged is
that packing, the grouping and `Quantizer.dequantize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.adapters._integers import integers
from lowbit.adapters._released import adapt
from lowbit.weights import WeightScheme


def dequantize_weight(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """Decodes an AWQ or GPTQ weight as HQQ would hold it.

    Raises:
      Unsupported: another family, g_idx, a short last group, or an output of another dtype than the scales.
    """
    weight = integers("hqq", tensors, scheme, dtype)
    from hqq.core.quantize import Quantizer

    rows, columns = weight.codes.shape
    packing = Quantizer.bit_to_packing[scheme.bits]
    meta = {
        "nbits": scheme.bits,
        "group_size": weight.group,
        "shape": (columns, rows),
        "scale": weight.scales.t().reshape(-1, 1),
        "zero": weight.zeros.t().reshape(-1, 1).to(weight.scales.dtype),
        "axis": 1,
        "packing": packing,
        "unpack_view_dtype": Quantizer.unpack_view_dtype[packing],
        "view_as_float": False,
        "compute_dtype": weight.scales.dtype,
    }
    packed = Quantizer.pack[packing](weight.codes.t().reshape(-1, weight.group))
    return Quantizer.dequantize(packed, meta).t().to(dtype)


IMPLEMENTATION = adapt("hqq", "hqq", "hqq", dequantize_weight=dequantize_weight)
