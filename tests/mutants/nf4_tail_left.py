"""Wrong on purpose: elements beyond the last whole block are not written (bitsandbytes#1884)."""

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights codes"
SCHEME = "nf4_b64"
DIAGNOSIS = "the tail of the elements wrong"


def dequantize_whole_blocks(tensors, scheme, dtype):
    result = dequantize_weight(tensors, scheme, dtype)
    result.view(-1)[result.numel() // scheme.group * scheme.group :] = 0
    return result


IMPLEMENTATION = reference("nf4_tail_left", dequantize_weight=dequantize_whole_blocks)
