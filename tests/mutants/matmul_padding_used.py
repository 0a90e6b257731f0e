"""Wrong on purpose: K is rounded up to whole tiles of scales, with codes of 0 but with the scales of the padding."""

import numpy as np

from lowbit import packing
from lowbit.adapters.reference import multiplied, reference, unpacked

CAUGHT_BY = "matmul padding"
SCHEME = "nvfp4"
DIAGNOSIS = "padding of the scales used"


def padded(side, scheme):
    right = unpacked(side, scheme)
    rows, columns = right.scales.shape
    more = -columns % 4
    buffer = side.scales.cpu().numpy()
    scales = packing.unswizzle(buffer, rows, columns + more)
    return right._replace(codes=np.pad(right.codes, ((0, 0), (0, more * scheme.block))), scales=scales)


def matmul_padded(a, b, scheme, out_dtype):
    return multiplied(padded(a, scheme), padded(b, scheme), scheme, out_dtype, a.packed.device)


IMPLEMENTATION = reference("matmul_padding_used", quantize=None, dequantize=None, matmul=matmul_padded)
