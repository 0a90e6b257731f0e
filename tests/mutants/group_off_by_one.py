"""Wrong on purpose: scales and zero points of the next group, the last group's where there is none."""

import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "the next group: the group index off by one"


def dequantize_next(tensors, scheme, dtype):
    groups = (torch.arange(len(tensors["scales"])) + 1).clamp(max=len(tensors["scales"]) - 1)
    changed = {name: tensors[name][groups] for name in ("qzeros", "scales")}
    return dequantize_weight({**tensors, **changed}, scheme, dtype)


IMPLEMENTATION = reference("group_off_by_one", dequantize_weight=dequantize_next)
