"""Wrong on purpose: the nested absmax by a fused multiply-add, rounded once (bitsandbytes, nested absmax)."""

from dataclasses import replace

import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "known bugs, weights"
SCHEME = "nf4_b64+nested"
DIAGNOSIS = "a fused multiply-add in the nested absmax"

NESTED = ("code2", "absmax2", "offset", "block_size2")


def dequantize_fused(tensors, scheme, dtype):
    right = dequantize_weight(tensors, scheme, dtype)
    code2, absmax2, offset, size = (tensors[name] for name in NESTED)
    block = torch.arange(len(tensors["absmax"]), device=absmax2.device) // size
    exact = code2.double()[tensors["absmax"].long()] * absmax2.double()[block] + offset.double().reshape(())
    plain = {name: value for name, value in tensors.items() if name not in NESTED}
    fused = {**plain, "absmax": exact.float()}
    return dequantize_weight(fused, replace(scheme, nested=False), dtype) if right.numel() else right


IMPLEMENTATION = reference("nested_absmax_fused", dequantize_weight=dequantize_fused)
