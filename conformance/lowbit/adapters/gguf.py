"""gguf's MXFP4 in NumPy: blocks of a scale byte and 16 bytes whose nibbles are elements j, low, and j + 16, high.

Its other types have no scheme here: q4_0 and q8_0 store a binary16 scale before the codes of 32 weights.
"""

from __future__ import annotations

from typing import Any

from lowbit import packing
from lowbit.adapters._released import adapt, decline_options
from lowbit.implementation import Quantized, Unsupported
from lowbit.schemes import Scheme

QUANTISED = "mxfp4_floor+ties_toward_zero"
"""What the quantiser follows: the floor of log2, and of two codes equally near the one of smaller magnitude."""

HALF = 16


def quantize(x: Any, scheme: Scheme, **options: Any) -> Quantized:
    """Quantises on the host.

    Raises:
      Unsupported: another scheme than `QUANTISED`; any option.
    """
    if scheme.name != QUANTISED:
        raise Unsupported(f"gguf quantises under {QUANTISED}, not {scheme.name}")
    decline_options("gguf", options)
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        stored = quants.quantize(x.detach().float().cpu().numpy(), GGMLQuantizationType.MXFP4)
    blocks = torch.from_numpy(stored).unflatten(-1, (-1, 1 + HALF))
    halves = blocks[..., 1:]
    codes = torch.cat([halves & 15, halves >> 4], -1).flatten(-2)
    return Quantized(packing.pack_nibbles(codes).to(x.device), blocks[..., 0].contiguous().to(x.device))


def dequantize(quantized: Quantized, scheme: Scheme, dtype: Any) -> Any:
    """Decodes on the host, to binary32 as gguf does, then casts.

    Raises:
      Unsupported: another family than mxfp4.
    """
    if scheme.family != "mxfp4":
        raise Unsupported(f"gguf has no {scheme.name}")
    import numpy as np
    import torch
    from gguf import GGMLQuantizationType, quants

    codes = packing.unpack_nibbles(quantized.packed.cpu()).unflatten(-1, (-1, 2, HALF))
    halves = codes[..., 0, :] | codes[..., 1, :] << 4
    blocks = torch.cat([quantized.scales.cpu().unsqueeze(-1), halves], -1).flatten(-2)
    with np.errstate(all="ignore"):
        values = quants.dequantize(blocks.numpy(), GGMLQuantizationType.MXFP4)
    return torch.from_numpy(values).to(quantized.packed.device, dtype)


IMPLEMENTATION = adapt("gguf", "gguf", "gguf", quantize=quantize, dequantize=dequantize)
