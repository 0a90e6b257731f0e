"""Wrong on purpose: element 0 in the high nibble (triton#5197)."""

from lowbit.adapters.reference import quantize, reference
from lowbit.implementation import Unsupported
from lowbit.rules import ScaleLayout

CAUGHT_BY = "packing"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "nibbles swapped"


def quantize_swapped(x, scheme, **options):
    if scheme.scale_layout is ScaleLayout.INTERLEAVED:
        raise Unsupported("this mutant knows separate scales only")
    result = quantize(x, scheme, **options)
    return result._replace(packed=(result.packed << 4) | (result.packed >> 4))


IMPLEMENTATION = reference("nibbles_swapped", quantize=quantize_swapped)
