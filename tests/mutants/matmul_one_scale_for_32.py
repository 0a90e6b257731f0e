"""Wrong on purpose: the column of A's scale is k // 32, as in MXFP4, not k // 16."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "K/32 for K/16"


def matmul_coarse(a, b, scheme, out_dtype):
    left = unpacked(a, scheme)
    scales = left.scales.repeat(2, axis=1)[:, : left.scales.shape[1]]
    return multiplied(left._replace(scales=scales), unpacked(b, scheme), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_one_scale_for_32", quantize=None, dequantize=None, matmul=matmul_coarse)
