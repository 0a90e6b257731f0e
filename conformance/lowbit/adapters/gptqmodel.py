"""GPTQModel's dequantiser, that of its `TorchLinear`; v1 zero points go through its own conversion to v2.

The layer chooses: PyTorch on the CPU, its Triton kernel on a GPU where the words are contiguous and N fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowbit.adapters._integers import computed
from lowbit.adapters._released import adapt
from lowbit.implementation import Unsupported
from lowbit.rules import Grouping, ZeroPoint
from lowbit.weights import WeightScheme

GROUPS = (-1, 16, 32, 64, 128, 256, 512, 1024)
"""What `TorchLinear` takes."""


def dequantize_weight(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """Decodes a stored weight as a layer that has loaded it.

    Raises:
      Unsupported: another family than gptq; a group size that it lacks; an output of another dtype than the scales
        where the scheme rounds once.
    """
    if scheme.family != "gptq":
        raise Unsupported(f"gptqmodel's TorchLinear has no {scheme.name}")
    if scheme.group not in GROUPS:
        raise Unsupported(f"gptqmodel has no groups of {scheme.group}, only of {', '.join(map(str, GROUPS))}")
    scales = computed("gptqmodel", tensors["scales"], scheme, dtype)
    import torch
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    rows, columns = tensors["qweight"].shape[0] * 32 // scheme.bits, scales.shape[1]
    layer = TorchLinear(
        bits=scheme.bits,
        group_size=scheme.group,
        sym=False,
        desc_act=scheme.grouping is Grouping.ACT_ORDER,
        in_features=rows,
        out_features=columns,
        pack_dtype=torch.int32,
        bias=False,
    )
    layer.to(scales.device).eval()  # in training, or with an index elsewhere, it does not take its kernel
    layer.qweight, layer.qzeros, layer.scales = tensors["qweight"], tensors["qzeros"].clone(), scales
    if tensors.get("g_idx") is not None:
        layer.g_idx = tensors["g_idx"]
    if scheme.zero is ZeroPoint.STORED_MINUS_ONE:
        convert_gptq_v1_to_v2_format_module(layer, bits=scheme.bits, pack_dtype=torch.int32)
    return layer.dequantize_weight().to(dtype)


IMPLEMENTATION = adapt("gptqmodel", "gptqmodel", "gptqmodel", dequantize_weight=dequantize_weight)
