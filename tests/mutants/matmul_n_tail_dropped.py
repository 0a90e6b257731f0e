"""Wrong on purpose: the grid has N // 128 programs where N is larger, so the columns of the last tile stay 0."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "the N tail dropped"


def matmul_without_tail(a, b, scheme, out_dtype):
    out = multiplied(unpacked(a, scheme), unpacked(b, scheme), scheme, out_dtype, a.packed.device)
    if out.shape[1] > 128:
        out[:, out.shape[1] // 128 * 128 :] = 0
    return out


IMPLEMENTATION = reference("matmul_n_tail_dropped", quantize=None, dequantize=None, matmul=matmul_without_tail)
