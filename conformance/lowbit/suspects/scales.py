"""Faults of the block scale alone: not clamped, off by powers of two, zero at byte 0, rounded otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lowbit.compare.kinds import double
from lowbit.formats import E4M3
from lowbit.references import bits, bits_mx
from lowbit.rules import Rounding, ScaleRule
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.trial import COMPUTED, Floats, Suspect, Trial, encode, flushed, to_bfloat16, to_binary16

ONE = np.float32(1)

SHIFT = 64
"""amax times 2**±SHIFT is exact and far from the clamps."""


def _exponents(trial: Trial) -> Any:
    """(B, 1) int64. Exponents of power-of-two scales as if there were no clamp; None for other scales.

    Where the block has NaN, Inf or zeros only, the expected exponent: those have rules of their own.
    """
    scheme = trial.scheme
    if scheme.exponent_range is None or scheme.scale_rule is ScaleRule.STOCHASTIC or not trial.separable:
        return None
    amax = np.abs(np.where(np.isnan(trial.x), 0, trial.x)).max(axis=1, keepdims=True)
    usable = np.isfinite(amax) & (amax > 0) & np.isfinite(trial.x).all(axis=1, keepdims=True)
    down = np.where(amax < 1, -SHIFT, SHIFT)
    moved = np.ldexp(np.where(usable, amax, 1).astype(np.float32), -down)
    free = bits.scale_codes(moved, scheme).astype(np.int64) - scheme.scale.bias + down
    return np.where(usable, free, trial.expected.scales.astype(np.int64) - scheme.scale.bias)


def _unclamped(trial: Trial, codes: str) -> Encoded | None:
    """Byte E + 127 modulo 256, E unclamped.

    Args:
      codes: "clamped" as they should be, "unclamped" by 2**E, "wrapped" by the byte that is stored.
    """
    exponents = _exponents(trial)
    if exponents is None:
        return None
    scales = ((exponents + trial.scheme.scale.bias) & 0xFF).astype(np.uint8)
    if codes == "clamped":
        return trial.expected._replace(scales=scales)
    if codes == "wrapped":
        return trial.expected._replace(scales=scales, codes=trial.codes_for(scales))
    return trial.expected._replace(scales=scales, codes=_codes_by(trial, exponents))


def _unclamped_codes(trial: Trial) -> Encoded | None:
    exponents = _exponents(trial)
    return None if exponents is None else trial.expected._replace(codes=_codes_by(trial, exponents))


def _codes_by(trial: Trial, exponents: Any) -> Any:
    """Codes of x · 2**-E; those of marked blocks stay."""
    codes = trial.encode(np.ldexp(double(trial.x), -exponents))
    marked = trial.expected.scales == trial.scheme.scale.nan_magnitude
    return np.where(marked, trial.expected.codes, codes).astype(np.uint8)


def _byte_zero(trial: Trial, scale: float) -> Encoded | None:
    """Codes of blocks with scale byte 0 divided by something else than 2**-127."""
    if trial.scheme.exponent_range is None or not trial.separable:
        return None
    with np.errstate(all="ignore"):
        codes = trial.encode(double(trial.x) / scale)
    return trial.expected._replace(codes=np.where(trial.expected.scales == 0, codes, trial.expected.codes))


def _shifted(trial: Trial, steps: int, follow: bool) -> Encoded | None:
    """Power-of-two scales too high by some steps, and the codes that follow from them, or not."""
    if trial.scheme.scale.mantissa_bits or not trial.separable:
        return None
    right = trial.expected.scales.astype(np.int64)
    top = trial.scheme.scale.max_magnitude
    scales = np.where(right > top, right, np.clip(right + steps, 0, top)).astype(np.uint8)
    return trial.expected._replace(scales=scales, codes=trial.codes_for(scales) if follow else trial.expected.codes)


def _stepped(trial: Trial, steps: int) -> Encoded | None:
    """Every scale byte off by some steps, modulo 256, marks and clamped ones too, the codes right.

    None where that is what `_shifted` gives: it says by which factor.
    """
    scales = ((trial.expected.scales.astype(np.int64) + steps) & 0xFF).astype(np.uint8)
    told = _shifted(trial, steps, follow=False)
    return None if told is not None and (told.scales == scales).all() else trial.expected._replace(scales=scales)


def _cast(trial: Trial, rounding: Rounding) -> Encoded | None:
    """E4M3 scales rounded by another rule; blocks with a rule of their own keep theirs."""
    scheme = trial.scheme
    if scheme.scale_rule is not ScaleRule.AMAX_OVER_SIX or scheme.scale_floor is None or not trial.separable:
        return None
    ratio = trial.amax.astype(np.float32) / np.float32(6)
    with np.errstate(invalid="ignore"):
        clamped = np.clip(ratio, np.float32(float(scheme.scale_floor)), np.float32(float(E4M3.max_value)))
    special = (trial.expected.scales == 0) | (trial.expected.scales == E4M3.nan_magnitude)
    scales = np.where(special, trial.expected.scales, encode(clamped, E4M3, rounding, None))
    return trial.expected._replace(scales=scales, codes=trial.codes_for(scales))


def _by_amax(trial: Trial, change: Callable[[Floats], Floats]) -> Encoded | None:
    """Scales of a changed amax, and the codes that follow: a monotone change of every element changes amax alike."""
    if not trial.separable:
        return None
    g = trial.expected.tensor_scale if trial.scheme.tensor_scale in COMPUTED else None
    if g is not None and not (np.isfinite(g) and g > 0):
        return None
    scales = trial.quantize(x=change(trial.x), g=g).scales
    return trial.expected._replace(scales=scales, codes=trial.codes_for(scales))


def _by_exponent(trial: Trial, exponent: Callable[[Any, Any], Any]) -> Encoded | None:
    """Scales 2**E by a formula of amax, clamped as the scheme does, and the codes that follow.

    Args:
      exponent: (amax (B, 1) float32, scheme) -> E.
    """
    scheme = trial.scheme
    if scheme.exponent_range is None or scheme.scale_rule is ScaleRule.STOCHASTIC or not trial.separable:
        return None
    with np.errstate(invalid="ignore"):
        amax = np.abs(trial.x).max(axis=1, keepdims=True)
    usable = np.isfinite(amax) & (amax > 0)
    free = np.asarray(exponent(np.where(usable, amax, ONE), scheme)).astype(np.int64)
    codes = np.clip(free, *scheme.exponent_range) + scheme.scale.bias
    scales = np.where(usable, codes, trial.expected.scales).astype(np.uint8)
    return trial.expected._replace(scales=scales, codes=trial.codes_for(scales))


def _floor_of_quotient(amax: Any, scheme: Scheme) -> Any:
    """floor(log2(amax / max)), exactly."""
    return np.frexp(amax.astype(np.float64) / float(scheme.element.max_value))[1] - 1


def _in_floating_point(amax: Any, scheme: Scheme, whole: Callable[[Any], Any]) -> Any:
    return whole(np.log2(amax.astype(np.float32))) - bits_mx.element_exponent(scheme)


def _flushed_scales(trial: Trial, follow: bool) -> Encoded | None:
    """E4M3 scales below the least normal one stored as 0; the codes of the right scale, or of the stored one."""
    if trial.scheme.scale is not E4M3 or not trial.separable:
        return None
    subnormal = trial.expected.scales < 1 << E4M3.mantissa_bits
    scales = np.where(subnormal, 0, trial.expected.scales).astype(np.uint8)
    return trial.expected._replace(scales=scales, codes=trial.codes_for(scales) if follow else trial.expected.codes)


def observed(trial: Trial) -> Iterator[Suspect]:
    """What no rule gives, read off what was given: a factor, one byte for all blocks of zeros, or with NaN or Inf."""
    g, right = trial.actual.tensor_scale, trial.expected.tensor_scale
    if None not in (g, right) and g != right and trial.scheme.tensor_scale in COMPUTED:
        with np.errstate(all="ignore"):
            inverse, times = g == ONE / right, float(g) / float(right)
        text = "the reciprocal of the tensor scale" if inverse else f"a tensor scale {times:.6g} times the right one"
        yield Suspect("factor_returned", f"{text} returned, with the right codes and scales", _factor, last=True)
    zeros = (trial.x == 0).all(axis=1)
    yield from _constant(trial, zeros, "zeros", "blocks of zeros", both=True)
    loud = ~np.isfinite(trial.x).all(axis=1)
    yield from _constant(trial, loud, "nonfinite", "blocks with NaN or Inf", both=False)


def _factor(trial: Trial) -> Encoded:
    return trial.expected._replace(tensor_scale=trial.actual.tensor_scale)


def _constant(trial: Trial, where: Any, name: str, words: str, *, both: bool) -> Iterator[Suspect]:
    scales, codes = np.unique(trial.actual.scales[where]), np.unique(trial.actual.codes[where])
    if scales.size != 1:
        return
    scale = int(scales[0])
    text = f"{words} stored with scale byte {scale:#04x}"
    yield Suspect(f"{name}_{scale:#04x}", text, partial(_stored_alike, where=where, scale=scale, code=None), last=True)
    if both and codes.size == 1:
        code = int(codes[0])
        guess = partial(_stored_alike, where=where, scale=scale, code=code)
        yield Suspect(f"{name}_{scale:#04x}_{code:#x}", f"{text} and every code {code:#x}", guess, last=True)


def _stored_alike(trial: Trial, where: Any, scale: int, code: int | None) -> Encoded | None:
    if len(where) != len(trial.x):
        return None
    scales, codes = trial.expected.scales.copy(), trial.expected.codes.copy()
    scales[where] = scale
    if code is not None:
        codes[where] = code
    return trial.expected._replace(scales=scales, codes=codes)


def _stored(trial: Trial) -> Encoded | None:
    """The scales that were stored, with the codes that belong to them."""
    if not trial.separable or (trial.actual.scales == trial.expected.scales).all():
        return None
    return trial.actual._replace(codes=trial.codes_for(trial.actual.scales))


def _steps(steps: int, tail: str) -> str:
    return f"block scales {2 ** abs(steps)} times too {'large' if steps > 0 else 'small'}{tail}"


def _bytes(steps: int) -> str:
    """What is said of `_stepped`."""
    return f"scale bytes one step too {'large' if steps > 0 else 'small'}, the codes those of the right scale"


SCALES: tuple[Suspect, ...] = (
    Suspect(
        "unclamped", "the scale exponent not clamped: its byte wraps modulo 256", partial(_unclamped, codes="clamped")
    ),
    Suspect(
        "unclamped_codes_follow",
        "the scale exponent not clamped, in byte and codes alike: the byte wraps modulo 256",
        partial(_unclamped, codes="unclamped"),
    ),
    Suspect(
        "wrapped",
        "the scale exponent not clamped: its byte wraps modulo 256, and the codes use the wrapped byte",
        partial(_unclamped, codes="wrapped"),
    ),
    Suspect("codes_unclamped", "codes that use the scale exponent before it was clamped", _unclamped_codes),
    Suspect("byte_zero_is_zero", "scale byte 0 taken for zero", partial(_byte_zero, scale=0.0)),
    Suspect("byte_zero_is_infinite", "scale byte 0 dividing to zero", partial(_byte_zero, scale=float("inf"))),
    Suspect("byte_zero_min_normal", "scale byte 0 taken for 2^-126", partial(_byte_zero, scale=2.0**-126)),
    *(
        Suspect(f"scale_shifted_{n:+}", _steps(n, ""), partial(_shifted, steps=n, follow=True))
        for n in (1, -1, 2, -2, 3, -3)
    ),
    *(
        Suspect(
            f"scale_stored_{n:+}",
            _steps(n, ", the codes those of the right scale"),
            partial(_shifted, steps=n, follow=False),
        )
        for n in (1, -1, 2, -2, 3, -3)
    ),
    *(Suspect(f"scale_byte_{n:+}", _bytes(n), partial(_stepped, steps=n)) for n in (1, -1)),
    Suspect("amax_bfloat16", "amax rounded to bfloat16 before the scale", partial(_by_amax, change=to_bfloat16)),
    Suspect("amax_binary16", "amax rounded to binary16 before the scale", partial(_by_amax, change=to_binary16)),
    Suspect("amax_flushed", "subnormal amax flushed to zero", partial(_by_amax, change=flushed)),
    Suspect(
        "floor_of_quotient",
        "the scale exponent floor(log2(amax / max)) of the element's largest value max",
        partial(_by_exponent, exponent=_floor_of_quotient),
    ),
    *(
        Suspect(
            f"log2_{name}",
            f"the scale rule {name} with log2 in floating point",
            partial(_by_exponent, exponent=partial(_in_floating_point, whole=whole)),
        )
        for name, whole in (("floor", np.floor), ("ceil", np.ceil), ("nearest", np.rint))
    ),
    Suspect(
        "scale_flushed",
        "subnormal E4M3 scales flushed to zero, in byte and codes alike",
        partial(_flushed_scales, follow=True),
    ),
    Suspect(
        "scale_stored_flushed",
        "subnormal E4M3 scales flushed to zero, the codes those of the right scale",
        partial(_flushed_scales, follow=False),
    ),
    Suspect("scale_truncated", "E4M3 scales truncated toward zero", partial(_cast, rounding=Rounding.TOWARD_ZERO)),
    Suspect("scale_rounded_up", "E4M3 scales rounded up", partial(_cast, rounding=Rounding.TOWARD_POSITIVE)),
    Suspect("scale_ties_away", "E4M3 scales with ties away from zero", partial(_cast, rounding=Rounding.TIES_AWAY)),
)
"""Faults of the block scale that no other rule of the scheme makes."""

STORED = Suspect(
    "scale_alone", "the block scales that it stored: only these are wrong, the codes follow from them", _stored
)
"""Says where the fault is when no rule says which; true of any wrong scale, so it is tried last."""
