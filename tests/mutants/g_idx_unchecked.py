"""Wrong on purpose: a g_idx out of range reads some other group's scales instead of raising (GPTQModel#2949)."""

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights refusals"
SCHEME = "gptq4_v1_g32+act_order"
DIAGNOSIS = "not validated: g_idx of"


def dequantize_unchecked(tensors, scheme, dtype):
    changed = dict(tensors)
    if changed.get("g_idx") is not None and not changed["g_idx"].is_floating_point():
        changed["g_idx"] = changed["g_idx"] % max(len(tensors["scales"]), 1)
    return dequantize_weight(changed, scheme, dtype)


IMPLEMENTATION = reference("g_idx_unchecked", dequantize_weight=dequantize_unchecked)
