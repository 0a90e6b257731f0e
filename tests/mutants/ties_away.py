"""Wrong on purpose: exact midpoints go away from zero (triton#8110)."""

from lowbit.adapters.reference import quantize, reference
from lowbit.rules import Rounding
from lowbit.schemes import variant

CAUGHT_BY = "encode"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "ties away"


def quantize_ties_away(x, scheme, **options):
    return quantize(x, variant(scheme, Rounding.TIES_AWAY), **options)


IMPLEMENTATION = reference("ties_away", quantize=quantize_ties_away)
