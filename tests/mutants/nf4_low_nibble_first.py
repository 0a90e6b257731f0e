"""Wrong on purpose: the low nibble of an NF4 byte taken for the even element."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights codes"
SCHEME = "nf4_b64"
DIAGNOSIS = "the low nibble first"


def dequantize_low_first(tensors, scheme, dtype):
    return dequantize_weight(tensors, replace(scheme, packing=replace(scheme.packing, order=(0,))), dtype)


IMPLEMENTATION = reference("nf4_low_nibble_first", dequantize_weight=dequantize_low_first)
