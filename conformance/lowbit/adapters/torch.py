"""PyTorch's own casts to float8 and E8M0, and the swizzled layout as its test helpers have it.

torch has no cast to E2M1, and no public function for the layout: `to_blocked` is a helper of its own tests.
"""

from __future__ import annotations

from typing import Any

from lowbit.adapters._released import adapt, decline_options
from lowbit.formats import FloatFormat
from lowbit.implementation import Unsupported
from lowbit.rules import Rounding

DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu"}
"""Format → the name of torch's dtype."""


def encode(x: Any, element: FloatFormat, rounding: Rounding, **options: Any) -> Any:
    """The cast.

    Raises:
      Unsupported: a format without a cast, or another rounding than to nearest, ties to even.
    """
    decline_options("torch", options)
    if element.name not in DTYPES:
        raise Unsupported(f"torch has no cast to {element.name}")
    if rounding is not Rounding.TIES_TO_EVEN:
        raise Unsupported("torch casts to nearest, ties to even")
    import torch

    return x.to(getattr(torch, DTYPES[element.name])).view(torch.uint8)


def swizzle(scales: Any) -> Any:
    """`to_blocked` of `torch.testing._internal.common_quantized`, which takes a matrix."""
    from torch.testing._internal.common_quantized import to_blocked

    return to_blocked(scales)


IMPLEMENTATION = adapt("torch", "torch", "torch", encode=encode, swizzle=swizzle)
