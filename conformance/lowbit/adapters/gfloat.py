"""gfloat's rounding and encoding, saturating: the scalar stage of its OCP formats in its modes, on the host."""

from __future__ import annotations

from typing import Any

from lowbit.adapters._released import adapt, decline_options
from lowbit.formats import FloatFormat
from lowbit.implementation import Unsupported
from lowbit.rules import Rounding

FORMATS = ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "e8m0")
"""Formats of which it has a description, `format_info_ocp_…`."""

MODES = {
    Rounding.TIES_TO_EVEN: "TiesToEven",
    Rounding.TIES_AWAY: "TiesToAway",
    Rounding.TOWARD_ZERO: "TowardZero",
    Rounding.TOWARD_NEGATIVE: "TowardNegative",
    Rounding.TOWARD_POSITIVE: "TowardPositive",
    Rounding.STOCHASTIC: "StochasticFastest",
}
"""Rule → the name of its `RoundMode`; of its stochastic ones that which adds the bits to floor(p · 2^n)."""


def encode(x: Any, element: FloatFormat, rounding: Rounding, *, random_bits: Any = None, **options: Any) -> Any:
    """`encode_ndarray` of `round_ndarray`; of a code that leaves a byte, the low one.

    Raises:
      Unsupported: a format or rule that gfloat has not.
    """
    decline_options("gfloat", options)
    if element.name not in FORMATS:
        raise Unsupported(f"gfloat describes no {element.name}")
    if rounding not in MODES:
        raise Unsupported(f"gfloat has no mode {rounding.value}")
    import gfloat
    import numpy as np
    import torch
    from gfloat import formats

    info = getattr(formats, f"format_info_ocp_{element.name}")
    stochastic = {}
    if random_bits is not None:
        stochastic = {"srbits": random_bits.detach().cpu().numpy().astype(np.int64), "srnumbits": 8}
    with np.errstate(all="ignore"):
        wide = x.detach().cpu().numpy().astype(np.float64)
        rounded = gfloat.round_ndarray(info, wide, gfloat.RoundMode[MODES[rounding]], True, **stochastic)
        codes = gfloat.encode_ndarray(info, rounded).astype(np.int64)
    return torch.from_numpy(codes.astype(np.uint8)).to(x.device)


IMPLEMENTATION = adapt("gfloat", "gfloat", "gfloat", encode=encode)
