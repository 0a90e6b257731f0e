"""Wrong on purpose: one is added to the zero points of GPTQ's second format too (vllm#26343)."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.rules import ZeroPoint

CAUGHT_BY = "weights codes"
SCHEME = "gptq4_v2_g128"
DIAGNOSIS = "v2 read as v1"


def dequantize_as_v1(tensors, scheme, dtype):
    return dequantize_weight(tensors, replace(scheme, zero=ZeroPoint.STORED_MINUS_ONE), dtype)


IMPLEMENTATION = reference("v2_read_as_v1", dequantize_weight=dequantize_as_v1)
