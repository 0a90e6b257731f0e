"""Wrong on purpose: the product is multiplied by the encode factors g, not by their reciprocals."""

import numpy as np

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "both tensor scales inverted"


def inverted(encoded):
    g = encoded.tensor_scale
    return encoded if g is None else encoded._replace(tensor_scale=np.float32(1) / g)


def matmul_inverted(a, b, scheme, out_dtype):
    left, right = inverted(unpacked(a, scheme)), inverted(unpacked(b, scheme))
    return multiplied(left, right, scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_tensor_scale_inverted", quantize=None, dequantize=None, matmul=matmul_inverted)
