"""Wrong on purpose: the tensor scale of B is forgotten."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "the tensor scale of B forgotten"


def matmul_forgotten(a, b, scheme, out_dtype):
    left, right = unpacked(a, scheme), unpacked(b, scheme)
    return multiplied(left, right._replace(tensor_scale=None), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_tensor_scale_forgotten", quantize=None, dequantize=None, matmul=matmul_forgotten)
