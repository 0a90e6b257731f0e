"""Wrong on purpose: the grid has M // 16 programs, so the rows of the last, partial tile stay 0."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "the M tail dropped"


def matmul_without_tail(a, b, scheme, out_dtype):
    out = multiplied(unpacked(a, scheme), unpacked(b, scheme), scheme, out_dtype, a.packed.device)
    out[out.shape[0] // 16 * 16 :] = 0
    return out


IMPLEMENTATION = reference("matmul_m_tail_dropped", quantize=None, dequantize=None, matmul=matmul_without_tail)
