"""Wrong on purpose: fields of an AWQ word taken in their order, not in AWQ's (GPTQModel, AWQ converter)."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "the word order omitted"


def dequantize_in_order(tensors, scheme, dtype):
    packing, zero_packing = (replace(words, order=(0,)) for words in (scheme.packing, scheme.zero_packing))
    return dequantize_weight(tensors, replace(scheme, packing=packing, zero_packing=zero_packing), dtype)


IMPLEMENTATION = reference("awq_order_omitted", dequantize_weight=dequantize_in_order)
