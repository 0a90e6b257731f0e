"""Wrong on purpose: the scales are read in plain row-major order, as if nobody had swizzled them."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "the swizzle omitted"


def read(side, scheme):
    right = unpacked(side, scheme)
    buffer = side.scales.cpu().numpy()
    return right._replace(scales=buffer[: right.scales.size].reshape(right.scales.shape))


def matmul_unswizzled(a, b, scheme, out_dtype):
    return multiplied(read(a, scheme), read(b, scheme), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_swizzle_omitted", quantize=None, dequantize=None, matmul=matmul_unswizzled)
