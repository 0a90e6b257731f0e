"""Which lemmas cover the arithmetic of a scheme: from x to its codes, and from amax to the scale."""

from __future__ import annotations

from lowbit.formats import E2M1
from lowbit.proofs.nearest import ROUNDINGS
from lowbit.proofs.pairs import FAST, WORDS
from lowbit.proofs.whole import pairs_lemma
from lowbit.rules import NanCode, Rounding, ScaleRule
from lowbit.schemes import Scheme

NAN = {"mx4": NanCode.SIGNED_MAX, "mxfp4": NanCode.POSITIVE_MAX, "nvfp4": NanCode.POSITIVE_MAX}
"""Families of which there are kernels, and their NaN rule."""


def covering(scheme: Scheme) -> dict[str, tuple[str, ...]]:
    """Names of lemmas by stage, ``element``, ``scale`` and ``decode``; {} for a scheme that no kernel here has."""
    if NAN.get(scheme.family) is not scheme.nan or scheme.scale_rule is ScaleRule.AMAX_TIMES_SIXTH:
        return {}
    if scheme.family == "nvfp4":
        return _nvfp4(scheme)
    element, rounding = scheme.element.name, scheme.rounding
    rule = scheme.scale_rule.value
    byte = f"scale/{element}/{rule}" if scheme.family == "mx4" else f"scale/mxfp4/{rule}"
    amax = tuple(f"amax/{word}" for word in WORDS)
    return {
        "element": _power_of_two_codes(element, rounding),
        "scale": (byte, "scale/powers", *amax),
        "decode": tuple(f"decode/{element}/{word}" for word in WORDS),
    }


def assurance(scheme: Scheme) -> str:
    """What is proved of a scheme's kernels, for a report; empty if nothing is.

    Returns:
      As in ``proved(element: 7 lemmas, scale: 5 lemmas)``. It speaks of the arithmetic as the sources state it, for all
      inputs, and of lemmas that hold when `lowbit prove` says so; the generated code is judged by the checks beside.
    """
    stages = covering(scheme)
    if not stages:
        return ""
    return f"proved({', '.join(f'{stage}: {len(stages[stage])} lemmas' for stage in ('element', 'scale'))})"


def _power_of_two_codes(element: str, rounding: Rounding) -> tuple[str, ...]:
    names = [f"scaled/{element}/{rounding.value}", f"encode_nan/{element}"]
    if rounding is Rounding.STOCHASTIC:  # element by element, never as words
        return tuple(names)
    names.append(f"scaled_narrow/{element}/{rounding.value}")
    names += [f"pairs_split/{word}" for word in WORDS]
    if element == E2M1.name and rounding in FAST:
        names.append(f"nearest/{element}/{Rounding.TIES_TO_EVEN.value}")
        names += [f"pairs/{element}/{rounding.value}/{word}" for word in WORDS]
    else:
        names += [f"pairs_by_encoder/{word}" for word in WORDS]
    return tuple(names)


def _nvfp4(scheme: Scheme) -> dict[str, tuple[str, ...]]:
    canonical, rounding = scheme.base == "nvfp4", scheme.rounding
    element = [f"nvfp4_codes/{rounding.value}", "quotient/never_a_tie", "quotient/scale", "quotient/decides"]
    if rounding in ROUNDINGS.values():
        element += [f"nvfp4_quotient/{rounding.value}", f"nearest/e2m1/{Rounding.TIES_TO_EVEN.value}"]
        element += [pairs_lemma(rounding, word) for word in WORDS]
    else:
        element += [f"encode/e2m1/{rounding.value}", "encode_nan/e2m1"]
    if rounding is Rounding.STOCHASTIC:
        element.append("nvfp4_drawn/stochastic")
    element += [f"pairs_split/{word}" for word in WORDS]
    amax = tuple(f"amax/{word}" for word in WORDS)
    kind = "canonical" if canonical else "two_level"
    return {
        "element": tuple(element),
        "scale": (f"nvfp4_scale/{kind}", "quotient/never_a_tie", "quotient/six", "e4m3/encode", *amax),
        "decode": ("decode/nvfp4", "e4m3/decode"),
    }
