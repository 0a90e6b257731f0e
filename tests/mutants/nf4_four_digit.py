"""Wrong on purpose: NF4's codebook rounded to four digits, as documents print it."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.weights import NF4_FOUR_DIGIT_CODEBOOK

CAUGHT_BY = "weights codes"
SCHEME = "nf4_b64"
DIAGNOSIS = "the NF4 codebook of four digits"


def dequantize_printed(tensors, scheme, dtype):
    return dequantize_weight(tensors, replace(scheme, codebook=NF4_FOUR_DIGIT_CODEBOOK), dtype)


IMPLEMENTATION = reference("nf4_four_digit", dequantize_weight=dequantize_printed)
