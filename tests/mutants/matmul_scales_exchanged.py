"""Wrong on purpose: A is decoded with B's scales and B with A's."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "scales of A and B exchanged"


def matmul_exchanged(a, b, scheme, out_dtype):
    if a.scales.shape != b.scales.shape:  # only there does nothing else notice
        return multiplied(unpacked(a, scheme), unpacked(b, scheme), scheme, out_dtype, a.packed.device)
    left, right = unpacked(a._replace(scales=b.scales), scheme), unpacked(b._replace(scales=a.scales), scheme)
    return multiplied(left, right, scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_scales_exchanged", quantize=None, dequantize=None, matmul=matmul_exchanged)
