"""Wrong on purpose: a tile of 64 rows takes the scales and zero points of its first row's group (vllm#39705)."""

import torch

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.implementation import Unsupported

CAUGHT_BY = "weights codes"
SCHEME = "awq_g32"
DIAGNOSIS = "first row, in tiles of 64 rows"


def dequantize_by_tiles(tensors, scheme, dtype):
    if scheme.group != 32:
        raise Unsupported("this mutant knows groups of 32 only")
    groups = torch.arange(len(tensors["scales"])) // 2 * 2
    changed = {name: tensors[name][groups] for name in ("qzeros", "scales")}
    return dequantize_weight({**tensors, **changed}, scheme, dtype)


IMPLEMENTATION = reference("group_of_tile_start", dequantize_weight=dequantize_by_tiles)
