"""Wrong on purpose: the padded matrix of B's scales is read in row-major order, the tiles forgotten."""

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "scales of B read row-major"


def read(side, scheme):
    right = unpacked(side, scheme)
    rows, columns = right.scales.shape
    padded = side.scales.cpu().numpy().reshape(-1, -(-columns // 4) * 4)
    return right._replace(scales=padded[:rows, :columns])


def matmul_row_major(a, b, scheme, out_dtype):
    return multiplied(unpacked(a, scheme), read(b, scheme), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_scales_row_major", quantize=None, dequantize=None, matmul=matmul_row_major)
