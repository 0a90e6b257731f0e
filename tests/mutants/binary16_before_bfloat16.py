"""Wrong on purpose: a product with binary16 scales is rounded to binary16 before it becomes bfloat16."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.rules import OutputRounding

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "the product rounded to binary16, the dtype of the scales"


def dequantize_through_scales(tensors, scheme, dtype):
    return dequantize_weight(tensors, replace(scheme, output_rounding=OutputRounding.THROUGH_SCALE_DTYPE), dtype)


IMPLEMENTATION = reference("binary16_before_bfloat16", dequantize_weight=dequantize_through_scales)
