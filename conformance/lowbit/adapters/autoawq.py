"""AutoAWQ's dequantiser of its GEMM layout, `dequantize_gemm`, in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.adapters._integers import computed
from lowbit.adapters._released import adapt
from lowbit.implementation import Unsupported
from lowbit.weights import WeightScheme


def dequantize_weight(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """Decodes a stored weight.

    Raises:
      Unsupported: another family than awq, or an output of another dtype than the scales where the scheme rounds once.
    """
    if scheme.family != "awq":
        raise Unsupported(f"autoawq has no {scheme.name}")
    qweight, scales = tensors["qweight"], computed("autoawq", tensors["scales"], scheme, dtype)
    from awq.utils.packing_utils import dequantize_gemm

    group = scheme.group_size(qweight.shape[0])
    return dequantize_gemm(qweight, tensors["qzeros"], scales, scheme.bits, group).to(dtype)


IMPLEMENTATION = adapt("autoawq", "autoawq", "awq", dequantize_weight=dequantize_weight)
