"""ml_dtypes' casts from float32: the scalar stage of its float4, float6, float8 and E8M0 types, on the host."""

from __future__ import annotations

from typing import Any

from lowbit.adapters._released import adapt, decline_options
from lowbit.formats import FloatFormat
from lowbit.implementation import Unsupported
from lowbit.rules import Rounding

TYPES = {
    "e2m1": "float4_e2m1fn",
    "e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e8m0": "float8_e8m0fnu",
}
"""Format → the name of its type."""


def encode(x: Any, element: FloatFormat, rounding: Rounding, **options: Any) -> Any:
    """The cast.

    Raises:
      Unsupported: a format without a type, or another rounding than to nearest, ties to even.
    """
    decline_options("ml_dtypes", options)
    if element.name not in TYPES:
        raise Unsupported(f"ml_dtypes has no {element.name}")
    if rounding is not Rounding.TIES_TO_EVEN:
        raise Unsupported("ml_dtypes casts to nearest, ties to even")
    import ml_dtypes
    import numpy as np
    import torch

    with np.errstate(all="ignore"):
        codes = x.detach().cpu().numpy().astype(getattr(ml_dtypes, TYPES[element.name]))
    return torch.from_numpy(codes.view(np.uint8)).to(x.device)


IMPLEMENTATION = adapt("ml_dtypes", "ml_dtypes", "ml_dtypes", encode=encode)
