"""Wrong on purpose: the accumulator is rounded to bfloat16 before it is multiplied by the tensor scales."""

import numpy as np
import torch

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "rounded to bfloat16 before the tensor scale"


def matmul_rounded_early(a, b, scheme, out_dtype):
    left, right = unpacked(a, scheme), unpacked(b, scheme)
    plain = left._replace(tensor_scale=None), right._replace(tensor_scale=None)
    out = multiplied(*plain, scheme, torch.bfloat16, a.packed.device).float()
    for side in (left, right):
        out = out if side.tensor_scale is None else out * (np.float32(1) / side.tensor_scale).item()
    return out.to(out_dtype)


IMPLEMENTATION = reference("matmul_bf16_before_scale", quantize=None, dequantize=None, matmul=matmul_rounded_early)
