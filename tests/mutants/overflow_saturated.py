"""Wrong on purpose: binary16 results that overflow become 65504, as some guides have it (vllm#16579)."""

import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights scales"
SCHEME = "awq_g128"
DIAGNOSIS = "overflow to the greatest finite value of binary16"


def dequantize_saturated(tensors, scheme, dtype):
    result = dequantize_weight(tensors, scheme, dtype)
    if dtype is torch.float16:
        overflown = result.isinf() & dequantize_weight(tensors, scheme, torch.float32).isfinite()
        result[overflown] = result[overflown].clamp(-65504, 65504)
    return result


IMPLEMENTATION = reference("overflow_saturated", dequantize_weight=dequantize_saturated)
