"""Wrong on purpose: one is added to whole words of zero points, so that 15 carries (AutoGPTQ#325)."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.rules import ZeroPoint

CAUGHT_BY = "weights codes"
SCHEME = "gptq4_v1_g128"
DIAGNOSIS = "it carries into the neighbour"


def dequantize_with_carry(tensors, scheme, dtype):
    changed = {**tensors, "qzeros": tensors["qzeros"] + 0x11111111}
    return dequantize_weight(changed, replace(scheme, zero=ZeroPoint.STORED), dtype)


IMPLEMENTATION = reference("zeros_carry", dequantize_weight=dequantize_with_carry)
