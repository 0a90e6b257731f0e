"""Wrong on purpose: the tensor scale that is returned is twice the one that was used."""

from lowbit.adapters.reference import quantize, reference
from lowbit.implementation import Unsupported

CAUGHT_BY = "golden blocks"
SCHEME = "nvfp4"
DIAGNOSIS = "tensor scale"


def quantize_doubled(x, scheme, **options):
    result = quantize(x, scheme, **options)
    if result.tensor_scale is None:
        raise Unsupported("this mutant knows schemes with a tensor scale only")
    return result._replace(tensor_scale=result.tensor_scale * 2)


IMPLEMENTATION = reference("tensor_scale_doubled", quantize=quantize_doubled)
