"""Wrong on purpose: 16-bit results are multiplied by the tensor scale's reciprocal in place of divided by it."""

import torch

from lowbit.adapters.reference import dequantize, reference

CAUGHT_BY = "decode"
SCHEME = "nvfp4"
DIAGNOSIS = "a reciprocal instead of a division: (value · s) · (1 / g)"


def dequantize_by_reciprocal(quantized, scheme, dtype):
    if scheme.name != SCHEME or dtype == torch.float32 or quantized.tensor_scale is None:
        return dequantize(quantized, scheme, dtype)
    unscaled = dequantize(quantized._replace(tensor_scale=None), scheme, torch.float32)
    return (unscaled * torch.reciprocal(quantized.tensor_scale)).to(dtype)


IMPLEMENTATION = reference("tensor_scale_reciprocal", dequantize=dequantize_by_reciprocal)
