"""Wrong on purpose: group size -1 taken for a number, scales read before the tensor from row 64 on (vllm#37329)."""

import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "known bugs, weights"
SCHEME = "awq_gk"
DIAGNOSIS = "group size -1 taken for a number: from row 64 on"


def dequantize_backwards(tensors, scheme, dtype):
    right = dequantize_weight(tensors, scheme, dtype)
    nothing = {name: torch.zeros_like(tensors[name]) for name in ("qzeros", "scales")}
    return torch.cat([right[:64], dequantize_weight({**tensors, **nothing}, scheme, dtype)[64:]])


IMPLEMENTATION = reference("group_minus_one", dequantize_weight=dequantize_backwards)
