"""Wrong on purpose: a table of magnitudes under the scale's magnitude, and signs of the codes alone."""

from lowbit.adapters.reference import dequantize, reference

CAUGHT_BY = "decode"
SCHEME = "nvfp4"
DIAGNOSIS = "the sign of scale bytes ignored"


def dequantize_unsigned(quantized, scheme, dtype):
    if scheme.name == SCHEME:
        quantized = quantized._replace(scales=quantized.scales & 0x7F)
    return dequantize(quantized, scheme, dtype)


IMPLEMENTATION = reference("scale_sign_ignored", dequantize=dequantize_unsigned)
