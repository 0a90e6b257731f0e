"""Wrong on purpose: the product is multiplied by the factor of A once more, after that of both sides."""

import numpy as np
import torch

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "the tensor scale of A applied twice"


def matmul_twice(a, b, scheme, out_dtype):
    left, right = unpacked(a, scheme), unpacked(b, scheme)
    out = multiplied(left, right, scheme, torch.float32, a.packed.device)
    if left.tensor_scale is not None:
        out = out * (np.float32(1) / left.tensor_scale).item()
    return out.to(out_dtype)


IMPLEMENTATION = reference("matmul_tensor_scale_twice", quantize=None, dequantize=None, matmul=matmul_twice)
