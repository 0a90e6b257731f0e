"""Wrong on purpose, twice: exact midpoints go away from zero, and NaN becomes +0, as in a ladder of comparisons."""

from lowbit.adapters.reference import quantize, reference
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import variant

CAUGHT_BY = "encode edges"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "ties away from zero together with NaN encoded as +0"


def quantize_by_comparisons(x, scheme, **options):
    return quantize(x, variant(variant(scheme, Rounding.TIES_AWAY), NanCode.ZERO), **options)


IMPLEMENTATION = reference("ties_away_nan_zero", quantize=quantize_by_comparisons)
