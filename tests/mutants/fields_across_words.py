"""Wrong on purpose: a 3-bit field that crosses into the next word loses the bits that are there (GPTQModel#2251)."""

import torch

from lowbit import packing_weights
from lowbit.adapters.reference import dequantize_weight, reference, weights_on_host
from lowbit.implementation import Unsupported

CAUGHT_BY = "weights codes"
SCHEME = "gptq3_v1_g128"
DIAGNOSIS = "fields that cross words cut off at the end of the first, in codes"


def dequantize_cut(tensors, scheme, dtype):
    if scheme.bits != 3:
        raise Unsupported("this mutant knows 3 bits only")
    codes = packing_weights.unpack_codes(weights_on_host(tensors)["qweight"], scheme)
    codes[10::32] &= 3  # two of its bits are in the first word
    codes[21::32] &= 1
    changed = torch.from_numpy(packing_weights.pack_codes(codes, scheme)).to(tensors["qweight"].device)
    return dequantize_weight({**tensors, "qweight": changed}, scheme, dtype)


IMPLEMENTATION = reference("fields_across_words", dequantize_weight=dequantize_cut)
