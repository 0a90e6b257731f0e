"""Wrong on purpose: rows are grouped by their place, whatever g_idx says (AutoGPTQ#62)."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.rules import Grouping

CAUGHT_BY = "weights codes"
SCHEME = "gptq4_v1_g32+act_order"
DIAGNOSIS = "g_idx ignored"


def dequantize_in_place(tensors, scheme, dtype):
    plain = {name: tensor for name, tensor in tensors.items() if name != "g_idx"}
    return dequantize_weight(plain, replace(scheme, grouping=Grouping.SHORT_LAST), dtype)


IMPLEMENTATION = reference("g_idx_ignored", dequantize_weight=dequantize_in_place)
