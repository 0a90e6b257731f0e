"""Wrong on purpose: columns beyond the last whole 64 are not written (vllm#13227)."""

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights shapes"
SCHEME = "awq_g128"
DIAGNOSIS = "the tail of the columns wrong, from 64 of 72 on"


def dequantize_whole_tiles(tensors, scheme, dtype):
    result = dequantize_weight(tensors, scheme, dtype)
    whole = result.shape[1] // 64 * 64
    if whole:
        result[:, whole:] = 0
    return result


IMPLEMENTATION = reference("columns_tail_left", dequantize_weight=dequantize_whole_tiles)
