"""Wrong on purpose, twice: the scale of another library's mode, and the first element in the high nibble."""

from dataclasses import replace

from lowbit.adapters.reference import quantize, reference
from lowbit.rules import ScaleRule

CAUGHT_BY = "strides"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "the scale rule even together with neighbouring nibbles swapped"


def quantize_as_elsewhere(x, scheme, **options):
    result = quantize(x, replace(scheme, scale_rule=ScaleRule.EVEN), **options)
    return result._replace(packed=result.packed << 4 | result.packed >> 4)


IMPLEMENTATION = reference("even_scale_nibbles_swapped", quantize=quantize_as_elsewhere)
