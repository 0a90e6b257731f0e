"""bitsandbytes' dequantisers as an implementation: NF4 and FP4, nested or not, and LLM.int8, by its public functions.

Each call is what the library's own layers make of stored tensors; what it returns is passed on as it is.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from lowbit.errors import Unsupported
from lowbit.implementation import Implementation
from lowbit.weights import WeightScheme

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
"""What `dequantize_4bit` takes."""

DIALECTS = ("nf4_four_digit",)
"""Schemes of the 4-bit families whose codebook the library does not have."""


def dequantize_weight(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """Decodes a stored weight.

    Raises:
      Unsupported: a scheme, or a block size, that the library does not have.
    """
    if scheme.family in ("nf4", "fp4") and scheme.base not in DIALECTS:
        return _dequantize_4_bits(tensors, scheme, dtype)
    if scheme.name == "int8_scb":
        from bitsandbytes import functional

        return functional.int8_vectorwise_dequant(tensors["weight"], tensors["scale"]).to(dtype)
    raise Unsupported(f"bitsandbytes has no {scheme.name}")


def _dequantize_4_bits(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    import torch
    from bitsandbytes import functional

    if scheme.group not in BLOCK_SIZES:
        raise Unsupported(f"bitsandbytes has no blocks of {scheme.group}, only of {', '.join(map(str, BLOCK_SIZES))}")
    nested = {}
    if scheme.nested:
        state2 = functional.QuantState(
            absmax=tensors["absmax2"], blocksize=tensors["block_size2"], code=tensors["code2"], dtype=torch.float32
        )
        nested = {"offset": tensors["offset"], "state2": state2}
    packed = tensors["packed"]
    state = functional.QuantState(
        absmax=tensors["absmax"],
        shape=torch.Size(tensors["shape"]),
        code=functional.get_4bit_type(scheme.family, device=packed.device),
        blocksize=scheme.group,
        quant_type=scheme.family,
        dtype=dtype,
        **nested,
    )
    return functional.dequantize_4bit(packed.unsqueeze(1), state)  # its quantiser makes bytes of shape (n / 2, 1)


def _version() -> str:
    try:
        return importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


IMPLEMENTATION = Implementation(name="bitsandbytes", version=_version(), dequantize_weight=dequantize_weight)
