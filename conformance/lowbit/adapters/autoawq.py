"""AutoAWQ's dequantisers of its GEMM layout: `dequantize_gemm` in PyTorch; on a GPU, that in Triton, as its layer."""

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
      Unsupported: another family than awq; an output of another dtype than the scales where the scheme rounds once; a
        group size that the Triton kernel lacks.
    """
    if scheme.family != "awq":
        raise Unsupported(f"autoawq has no {scheme.name}")
    qweight, scales = tensors["qweight"], computed("autoawq", tensors["scales"], scheme, dtype)
    from awq.utils.packing_utils import dequantize_gemm

    group = scheme.group_size(qweight.shape[0])
    if qweight.is_cuda:
        from awq.modules.triton import gemm

        if group not in (*gemm.AWQ_TRITON_SUPPORTED_GROUP_SIZES, qweight.shape[0]):
            raise Unsupported(f"autoawq's kernel has no groups of {group}")
        return gemm.awq_dequantize_triton(qweight, scales, tensors["qzeros"]).to(dtype)
    return dequantize_gemm(qweight, tensors["qzeros"], scales, scheme.bits, group).to(dtype)


IMPLEMENTATION = adapt("autoawq", "autoawq", "awq", dequantize_weight=dequantize_weight)
