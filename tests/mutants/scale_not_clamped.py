"""Wrong on purpose: the scale's exponent is not clamped at byte 0 but wraps, so tiny blocks get a huge scale."""

import numpy as np

from lowbit.adapters.reference import quantize, reference
from lowbit.implementation import Unsupported

CAUGHT_BY = "scale"
SCHEME = "mxfp4_floor"
DIAGNOSIS = "not clamped"


def quantize_not_clamped(x, scheme, **options):
    if scheme.name != SCHEME or options:
        raise Unsupported("this mutant knows mxfp4_floor only, with no options")
    result = quantize(x, scheme, **options)
    blocks = np.abs(x.detach().float().cpu().numpy().reshape(*result.scales.shape, scheme.block))
    amax = blocks.max(axis=-1)
    exponent = np.frexp(np.where(np.isfinite(amax) & (amax > 0), amax, 1).astype(np.float64))[1] - 1 - 2
    byte = np.where(np.isfinite(amax) & (amax > 0), (exponent + 127) % 256, result.scales.cpu().numpy()).astype(
        np.uint8
    )
    return result._replace(scales=result.scales.new_tensor(byte))


IMPLEMENTATION = reference("scale_not_clamped", quantize=quantize_not_clamped)
