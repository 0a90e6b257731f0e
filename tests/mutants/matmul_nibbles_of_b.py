"""Wrong on purpose: the nibbles of B are taken in the other order, high one first."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "neighbouring nibbles of B swapped"


def matmul_swapped(a, b, scheme, out_dtype):
    swapped = b._replace(packed=(b.packed << 4) | (b.packed >> 4))
    return multiplied(unpacked(a, scheme), unpacked(swapped, scheme), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_nibbles_of_b", quantize=None, dequantize=None, matmul=matmul_swapped)
