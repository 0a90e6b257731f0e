"""Wrong on purpose, twice: AWQ's words read in GPTQ's plain order, and its zero points read with one added."""

from dataclasses import replace

from lowbit.adapters.reference import dequantize_weight, reference
from lowbit.implementation import Unsupported
from lowbit.rules import ZeroPoint

CAUGHT_BY = "weights codes"
SCHEME = "awq_g128"
DIAGNOSIS = "in codes and zero points together with zero points one too high"


def dequantize_as_gptq(tensors, scheme, dtype):
    if scheme.family != "awq":
        raise Unsupported("this mutant knows AWQ only")
    packings = {name: replace(getattr(scheme, name), order=(0,)) for name in ("packing", "zero_packing")}
    return dequantize_weight(tensors, replace(scheme, zero=ZeroPoint.STORED_MINUS_ONE, **packings), dtype)


IMPLEMENTATION = reference("awq_read_as_gptq", dequantize_weight=dequantize_as_gptq)
