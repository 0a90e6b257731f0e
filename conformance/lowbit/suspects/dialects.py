"""NVFP4 as other libraries order its operations: dialects that no registered scheme has (SPEC.md section 6).

`/` and `·` round to binary32; a is the tensor's amax, p = a/2688, g = 2688/a; E4M3 and E2M1 round to nearest, ties to
even. A scale that is not finite follows IEEE arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lowbit.compare.kinds import value_table
from lowbit.formats import E2M1, E4M3
from lowbit.rules import NanCode, Rounding, TensorScaleRule
from lowbit.schemes import Encoded
from lowbit.suspects.trial import Floats, Suspect, Trial, encode

ONE, SIX, MOST = np.float32(1), np.float32(6), np.float32(2688)
GREATEST = np.float32(np.finfo(np.float32).max)
SIXTH = ONE / SIX


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One order of operations.

    Attributes:
      scale: (amax of a block, a) -> what is clamped and rounded to E4M3, all float32.
      clamp: its bounds. ones: whether a scale of 0 is taken for 1.
      element: (x, s, a) -> what is rounded to E2M1.
    """

    name: str
    scale: Callable[[Any, Any], Any]
    clamp: tuple[float, float]
    element: Callable[[Any, Any, Any], Any]
    scale_text: str
    element_text: str
    zero_text: str
    ones: bool = False

    def quantize(self, x: Floats, a: np.float32, nan: NanCode) -> Encoded:
        """Codes (B, block) and scales (B, 1) of blocks of a tensor whose amax is a; tensor_scale g."""
        low, high = (np.float32(bound) for bound in self.clamp)
        with np.errstate(all="ignore"):
            amax = np.abs(x).max(axis=1, keepdims=True)
            scale = self.scale(amax, a).astype(np.float32)
            if self.ones:
                scale = np.where(scale == 0, ONE, scale)
            scales = encode(np.minimum(np.maximum(scale, low), high), E4M3, Rounding.TIES_TO_EVEN, None)
            s = value_table(E4M3)[scales].astype(np.float32)
            quotient = np.asarray(self.element(x, s, a), np.float32)
            return Encoded(encode(quotient, E2M1, Rounding.TIES_TO_EVEN, nan), scales, _encode_factor(a))


def _encode_factor(a: Any) -> Any:
    """TransformerEngine's S: 2688 / a, finite, 1 for a tensor of zeros."""
    with np.errstate(all="ignore"):
        return ONE if a == 0 else np.minimum(MOST / a, GREATEST)


def _transformer_engine(x: Any, s: Any, a: Any) -> Any:
    return x * np.minimum(ONE / (s * (ONE / _encode_factor(a))), GREATEST)


ALL: tuple[Dialect, ...] = (
    Dialect(
        name="torchao",
        scale=lambda amax, a: (amax / SIX) / (a / MOST),
        clamp=(2.0**-6, 448),
        element=lambda x, s, a: x * ((ONE / (a / MOST)) / s),
        scale_text="(amax / 6) / p, clamped to 2^-6..448",
        element_text="x · ((1 / p) / s)",
        zero_text="byte 0x08, codes 0",
    ),
    Dialect(
        name="transformer_engine",
        scale=lambda amax, a: amax * (_encode_factor(a) * SIXTH),
        clamp=(0, 448),
        element=_transformer_engine,
        scale_text="amax · (S · (1/6)), not clamped below",
        element_text="x · min(1 / (s · (1/S)), FLT_MAX)",
        zero_text="byte 0, codes 0",
    ),
    Dialect(
        name="fbgemm",
        scale=lambda amax, a: (amax / SIX) * (MOST / a),
        clamp=(0, 448),
        element=lambda x, s, a: x / (s / (MOST / a)),
        scale_text="(amax / 6) · g, not clamped below",
        element_text="x / (s / g)",
        zero_text="byte 0, codes 7 (0/0)",
    ),
    Dialect(
        name="mslk",
        scale=lambda amax, a: (amax / SIX) * (MOST / a),
        clamp=(2.0**-9, 448),
        element=lambda x, s, a: x * ((MOST / a) / s),
        scale_text="(amax / 6) · g, clamped to 2^-9..448",
        element_text="x · (g / s)",
        zero_text="byte 1, codes 0",
    ),
    Dialect(
        name="mslk_imprecise",
        scale=lambda amax, a: (amax * SIXTH) * (MOST / a),
        clamp=(2.0**-9, 448),
        element=lambda x, s, a: x * ((MOST / a) / s),
        scale_text="(amax · (1/6)) · g, clamped to 2^-9..448",
        element_text="x · (g / s)",
        zero_text="byte 1, codes 0",
    ),
    Dialect(
        name="modelopt",
        scale=lambda amax, a: amax / (SIX * (a / MOST)),
        clamp=(2.0**-9, 448),
        element=lambda x, s, a: (x / (a / MOST)) / s,
        scale_text="amax / (6 · p), clamped to 2^-9..448, 0 taken for 1",
        element_text="(x / p) / s",
        zero_text="byte 0x38, codes 0",
        ones=True,
    ),
)
"""The table of SPEC.md section 6."""


def _follow(trial: Trial, dialect: Dialect) -> Encoded | None:
    """What the dialect makes of the trial's tensor; None where its amax is not known."""
    scheme = trial.scheme
    if scheme.family != "nvfp4" or trial.given or scheme.tensor_scale is TensorScaleRule.UNIT:
        return None
    with np.errstate(invalid="ignore"):
        a = np.abs(trial.x).max(initial=0)
    found = dialect.quantize(trial.x, np.float32(a), scheme.nan)
    return found._replace(tensor_scale=_as_returned(trial.actual.tensor_scale, found.tensor_scale))


def _as_returned(actual: Any, g: Any) -> Any:
    """The factor that was returned, where it is g up to the roundings of 1 / p: the dialects do not say which."""
    if actual is None:
        return g
    with np.errstate(all="ignore"):
        near = abs(np.float64(actual) - np.float64(g)) <= np.float64(g) * 2.0**-22
    return actual if near else g


DIALECTS: tuple[Suspect, ...] = tuple(
    Suspect(
        d.name,
        f"the dialect {d.name}: scale {d.scale_text}, element {d.element_text}",
        partial(_follow, dialect=d),
    )
    for d in ALL
)
"""The dialects as suspects."""
