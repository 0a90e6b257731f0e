"""Wrong on purpose: one is added to AWQ's zero points, as GPTQ's first format wants it (GPTQModel#2350)."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.rules import ZeroPoint

CAUGHT_BY = "known bugs, weights"
SCHEME = "awq_gk"
DIAGNOSIS = "zero points one too high"


def dequantize_plus_one(tensors, scheme, dtype):
    return dequantize_weight(tensors, replace(scheme, zero=ZeroPoint.STORED_MINUS_ONE), dtype)


IMPLEMENTATION = reference("awq_zero_plus_one", dequantize_weight=dequantize_plus_one)
