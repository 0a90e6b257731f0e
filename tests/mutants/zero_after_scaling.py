"""Wrong on purpose: q·s - z·s in the dtype of the scales, each step rounded, in place of s·(q - z)."""

import torch

from lowbit import packing_weights
from lowbit.adapters.reference import reference, weights_on_host

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "the zero subtracted after scaling"


def dequantize_scaled_first(tensors, scheme, dtype):
    host, scales = weights_on_host(tensors), tensors["scales"]
    codes = torch.from_numpy(packing_weights.unpack_codes(host["qweight"], scheme)).to(scales)
    zeros = torch.from_numpy(packing_weights.unpack_zeros(host["qzeros"], scheme)).to(scales)
    group = torch.arange(len(codes), device=scales.device) // scheme.group_size(len(codes))
    return (codes * scales[group] - (zeros * scales)[group]).to(dtype)


IMPLEMENTATION = reference("zero_after_scaling", dequantize_weight=dequantize_scaled_first)
