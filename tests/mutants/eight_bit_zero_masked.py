"""Wrong on purpose: 8-bit zero points are cut to their low four bits (AutoGPTQ)."""

import torch

from lowbit import packing_weights
from lowbit.adapters.reference import dequantize_weight, reference, weights_on_host

CAUGHT_BY = "weights codes"
SCHEME = "gptq8_v1_g128"
DIAGNOSIS = "zero points masked with 0xF"


def dequantize_masked(tensors, scheme, dtype):
    zeros = packing_weights.unpack_zeros(weights_on_host(tensors)["qzeros"], scheme)
    changed = torch.from_numpy(packing_weights.pack_zeros(zeros & 0xF, scheme)).to(tensors["qzeros"].device)
    return dequantize_weight({**tensors, "qzeros": changed}, scheme, dtype)


IMPLEMENTATION = reference("eight_bit_zero_masked", dequantize_weight=dequantize_masked)
