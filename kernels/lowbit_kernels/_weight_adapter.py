"""The weight dequantisers as `dequantize_weight` of an implementation under judgement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lowbit.errors import ArgumentError, Unsupported
from lowbit.rules import Arithmetic, Grouping, OutputRounding, ZeroPoint
from lowbit.weights import FP4_CODEBOOK, NF4_CODEBOOK, WeightScheme
from lowbit_kernels.awq import dequantize_awq
from lowbit_kernels.gptq import dequantize_gptq
from lowbit_kernels.int8 import dequantize_int8
from lowbit_kernels.nf4 import dequantize_fp4, dequantize_nf4
from lowbit_kernels.squeezellm import dequantize_squeezellm

ARITHMETIC = {
    "awq": (Arithmetic.EXACT_PRODUCT,),
    "gptq": (Arithmetic.EXACT_PRODUCT,),
    "nf4": (Arithmetic.BINARY32_PRODUCT,),
    "fp4": (Arithmetic.BINARY32_PRODUCT,),
    "int8": (Arithmetic.BINARY32_PRODUCT,),
    "squeezellm": (Arithmetic.LOOKUP, Arithmetic.LOOKUP_SUM),
}
"""What the kernel of each family computes."""

CODEBOOKS = {"nf4": NF4_CODEBOOK, "fp4": FP4_CODEBOOK}


def dequantize_weight(
    tensors: Mapping[str, Any], scheme: WeightScheme, dtype: torch.dtype, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Decodes a stored weight by the kernel of the scheme's family.

    Args:
      tensors: the entries that `lowbit.weight_tensors` names for the scheme.
      scheme: any weight scheme.
      dtype: float16, bfloat16 or float32.
      out: the result, to write into.
    Returns:
      (K, N) of dtype, (N, K) for int8, the entry ``shape`` for nf4 and fp4.
    Raises:
      Unsupported: a scheme, or a dialect of one, that has no kernel here.
      ArgumentError: a term of the scheme is missing.
    """
    _require_kernel(scheme)
    options: dict[str, Any] = {"dtype": dtype, "out": out}
    if scheme.family == "awq":
        stored = (tensors["qweight"], tensors["qzeros"], tensors["scales"])
        return dequantize_awq(*stored, group_size=scheme.group, **options)
    if scheme.family == "gptq":
        g_idx = _term(tensors, "g_idx", scheme, scheme.grouping is Grouping.ACT_ORDER)
        zeros = "v1" if scheme.zero is ZeroPoint.STORED_MINUS_ONE else "v2"
        options |= {"bits": scheme.bits, "group_size": scheme.group, "zeros": zeros}
        return dequantize_gptq(tensors["qweight"], tensors["qzeros"], tensors["scales"], g_idx, **options)
    if scheme.family == "int8":
        return dequantize_int8(tensors["weight"], tensors["scale"], **options)
    if scheme.family == "squeezellm":
        options["sparse"] = _term(tensors, "sparse", scheme, scheme.sparse)
        options["full_rows"] = _term(tensors, "full_rows", scheme, scheme.full_rows)
        return dequantize_squeezellm(tensors["qweight"], tensors["lookup_table"], bits=scheme.bits, **options)
    if scheme.nested:
        options["nested"] = tuple(tensors[name] for name in ("code2", "absmax2", "offset", "block_size2"))
    decode = dequantize_nf4 if scheme.family == "nf4" else dequantize_fp4
    return decode(tensors["packed"], tensors["absmax"], shape=tensors["shape"], block_size=scheme.group, **options)


def _term(tensors: Mapping[str, Any], name: str, scheme: WeightScheme, needed: bool) -> Any:
    """An entry that only some schemes need; the kernels would decode without it."""
    if needed and tensors.get(name) is None:
        raise ArgumentError(f"{name}: got None, want the entry that {scheme.name} has")
    return tensors.get(name)


def _require_kernel(scheme: WeightScheme) -> None:
    """Raises Unsupported for a scheme that none of the kernels computes."""
    if scheme.family not in ARITHMETIC:
        raise Unsupported(f"no kernel of the family {scheme.family}")
    if scheme.arithmetic not in ARITHMETIC[scheme.family]:
        raise Unsupported(f"no kernel of {scheme.family} computes {scheme.arithmetic.value}")
    if scheme.output_rounding is not OutputRounding.DIRECT:
        raise Unsupported(f"the kernels round once, to the output dtype, not {scheme.output_rounding.value}")
    if scheme.codebook != CODEBOOKS.get(scheme.family, ()):
        raise Unsupported(f"the kernel of {scheme.family} has one codebook, not that of {scheme.name}")
