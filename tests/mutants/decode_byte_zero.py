"""Wrong on purpose: 2^-127 by an exp2 that flushes subnormals, so that scale byte 0 decodes to 0 (pytorch#125557)."""

import torch

from lowbit.adapters.reference import dequantize, reference

CAUGHT_BY = "decode"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "scale byte 0 taken for zero"


def dequantize_flushed(quantized, scheme, dtype):
    values = dequantize(quantized, scheme, dtype)
    scales = quantized.scales.repeat_interleave(scheme.block, -1)
    return torch.where(scales == 0, torch.zeros_like(values).copysign(values), values)


IMPLEMENTATION = reference("decode_byte_zero", dequantize=dequantize_flushed)
