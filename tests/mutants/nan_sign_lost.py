"""Wrong on purpose: NaN of either sign becomes the positive code, as after a GPU's cast from binary16."""

from lowbit.adapters.reference import quantize, reference
from lowbit.rules import NanCode
from lowbit.schemes import variant

CAUGHT_BY = "encode special"
SCHEME = "mx4_ceil_e2m1_g32"
DIAGNOSIS = "NaN encoded as +max"


def quantize_nan_positive(x, scheme, **options):
    return quantize(x, variant(scheme, NanCode.POSITIVE_MAX), **options)


IMPLEMENTATION = reference("nan_sign_lost", quantize=quantize_nan_positive)
