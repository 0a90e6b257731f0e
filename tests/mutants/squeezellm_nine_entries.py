"""Wrong on purpose: a channel's 3-bit table is taken to have 9 entries (SqueezeLLM in vllm)."""

import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "known bugs, weights"
SCHEME = "squeezellm3"
DIAGNOSIS = "9 entries a channel in place of 8"


def dequantize_nine(tensors, scheme, dtype):
    table = tensors["lookup_table"]
    channels, entries = table.shape
    place = torch.arange(channels)[:, None] * (entries + 1) + torch.arange(entries)
    changed = table.reshape(-1)[(place % table.numel()).to(table.device)]
    return dequantize_weight({**tensors, "lookup_table": changed}, scheme, dtype)


IMPLEMENTATION = reference("squeezellm_nine_entries", dequantize_weight=dequantize_nine)
