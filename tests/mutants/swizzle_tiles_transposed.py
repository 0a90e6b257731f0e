"""Wrong on purpose: tiles of the swizzled scales go down the columns first."""

from dataclasses import replace

from lowbit import packing
from lowbit.adapters.reference import reference

CAUGHT_BY = "swizzle layout"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "the tiles in column-major order"


def swizzle_down_first(scales):
    buffer = packing.swizzle(scales)
    if not scales.numel():
        return buffer
    rows, columns = scales.numel() // scales.shape[-1], scales.shape[-1]
    return buffer.view(-(-rows // 128), -(-columns // 4), 512).transpose(0, 1).reshape(-1)


IMPLEMENTATION = replace(reference("swizzle_tiles_transposed"), swizzle=swizzle_down_first)
