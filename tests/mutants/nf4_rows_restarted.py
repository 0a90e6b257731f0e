"""Wrong on purpose: blocks begin anew in every row, as many a row as fit wholly (bitsandbytes 0.50.2 on the CPU)."""

import numpy as np
import torch

from lowbit.adapters.reference import dequantize_weight, reference

CAUGHT_BY = "weights shapes"
SCHEME = "nf4_b64"
DIAGNOSIS = "blocks restarted in every row"


def dequantize_by_rows(tensors, scheme, dtype):
    if len(tensors["shape"]) < 2 or not np.prod(tensors["shape"]):
        return dequantize_weight(tensors, scheme, dtype)
    columns, last = tensors["shape"][-1], len(tensors["absmax"]) - 1
    rows = [
        torch.arange(columns) // scheme.group + columns // scheme.group * i
        for i in range(np.prod(tensors["shape"][:-1]))
    ]
    ones = {**tensors, "absmax": torch.ones_like(tensors["absmax"])}
    values = dequantize_weight(ones, scheme, torch.float32)
    absmax = tensors["absmax"][torch.cat(rows).clamp(max=last).to(values.device)]
    return (values * absmax.view(values.shape)).to(dtype)


IMPLEMENTATION = reference("nf4_rows_restarted", dequantize_weight=dequantize_by_rows)
