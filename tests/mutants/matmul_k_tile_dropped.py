"""Wrong on purpose: the loop over K ends one tile of 64 early where K is no multiple of 64."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "the last K tile dropped"


def matmul_dropped(a, b, scheme, out_dtype):
    left, right = unpacked(a, scheme), unpacked(b, scheme)
    kept = left.codes.shape[1] // 64 * 64
    for side in (left, right):
        side.codes[:, kept:] = 0
    return multiplied(left, right, scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_k_tile_dropped", quantize=None, dequantize=None, matmul=matmul_dropped)
