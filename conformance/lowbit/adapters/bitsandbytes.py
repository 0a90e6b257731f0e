"""bitsandbytes' dequantisers as implementations: NF4 and FP4, nested or not, and LLM.int8, by its public functions.

Each call is what the library's own layers make of stored tensors; what it returns is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lowbit.adapters._released import adapt
from lowbit.errors import Unsupported
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


def dequantize_rows(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    """The same, but a weight of one dimension goes in as a matrix of one row, and its row comes out.

    Layers hold matrices; on the CPU a weight of one dimension comes back as one, and no values are compared then.
    """
    shape = tuple(tensors.get("shape", ()))
    if len(shape) != 1 or scheme.family not in ("nf4", "fp4"):
        return dequantize_weight(tensors, scheme, dtype)
    return dequantize_weight({**tensors, "shape": (1, *shape)}, scheme, dtype).reshape(-1)


def _dequantize_4_bits(tensors: Mapping[str, Any], scheme: WeightScheme, dtype: Any) -> Any:
    if scheme.group not in BLOCK_SIZES:
        raise Unsupported(f"bitsandbytes has no blocks of {scheme.group}, only of {', '.join(map(str, BLOCK_SIZES))}")
    import torch
    from bitsandbytes import functional

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


IMPLEMENTATION = adapt("bitsandbytes", "bitsandbytes", "bitsandbytes", dequantize_weight=dequantize_weight)

ROWS = replace(
    adapt("bitsandbytes", "bitsandbytes", "bitsandbytes", dequantize_weight=dequantize_rows), name="bitsandbytes_rows"
)
"""To judge values on the CPU where the shape of a weight of one dimension is lost."""
