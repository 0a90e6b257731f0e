"""Wrong on purpose: column k of an int8 weight is scaled by the scale of channel k (bitsandbytes#1142)."""

import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights codes"
SCHEME = "int8_channel"
DIAGNOSIS = "scales along the other axis"


def dequantize_by_columns(tensors, scheme, dtype):
    right = dequantize_weight(tensors, scheme, dtype)
    if not right.numel():
        return right
    channel = torch.arange(right.shape[1], device=right.device) % len(tensors["scale"])
    return (tensors["weight"].float() * tensors["scale"][channel]).to(dtype)


IMPLEMENTATION = reference("int8_other_axis", dequantize_weight=dequantize_by_columns)
