"""Wrong on purpose: the 128 x 4 tiles of the scales are taken in column-major order."""

import numpy as np

from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul exact"
SCHEME = "nvfp4"
DIAGNOSIS = "the swizzle transposed"


def read(side, scheme):
    right = unpacked(side, scheme)
    rows, columns = right.scales.shape
    r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
    tile = c // 4 * -(-rows // 128) + r // 128
    offset = tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    return right._replace(scales=side.scales.cpu().numpy()[offset])


def matmul_transposed(a, b, scheme, out_dtype):
    return multiplied(read(a, scheme), read(b, scheme), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_swizzle_transposed", quantize=None, dequantize=None, matmul=matmul_transposed)
