"""Wrong on purpose: one is taken from AWQ's zero points, and 0 becomes 15 (GPTQModel#2352)."""

import torch

from lowbit import packing_weights
from lowbit.adapters.reference import dequantize_weight, reference, weights_on_host

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "zero points one too low"


def dequantize_minus_one(tensors, scheme, dtype):
    zeros = packing_weights.unpack_zeros(weights_on_host(tensors)["qzeros"], scheme)
    words = packing_weights.pack_zeros((zeros - 1) % 16, scheme)
    changed = torch.from_numpy(words).to(tensors["qzeros"].device)
    return dequantize_weight({**tensors, "qzeros": changed}, scheme, dtype)


IMPLEMENTATION = reference("awq_zero_minus_one", dequantize_weight=dequantize_minus_one)
