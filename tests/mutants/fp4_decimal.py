"""Wrong on purpose: FP4's 1/192 as the decimal 0.00520833 (bitsandbytes#2025)."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "known bugs, weights"
SCHEME = "fp4_b64"
DIAGNOSIS = "0.00520833 (0x3baaaaa4) in place of 1/192"


def dequantize_decimal(tensors, scheme, dtype):
    codebook = [
        0x3BAAAAA4 | value & 0x80000000 if code % 8 == 1 else value for code, value in enumerate(scheme.codebook)
    ]
    return dequantize_weight(tensors, replace(scheme, codebook=tuple(codebook)), dtype)


IMPLEMENTATION = reference("fp4_decimal", dequantize_weight=dequantize_decimal)
