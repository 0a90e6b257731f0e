"""The registry of block-quantisation schemes: what each format's name pins down.

A scheme leaves nothing open, so that every input has one right output. Suite, vectors, command line and reports
take their schemes from here.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from lowbit.errors import ArgumentError, UnknownScheme
from lowbit.formats import BINARY32, BINARY64, E2M1, E3M0, E4M3, E8M0, FloatFormat
from lowbit.rules import (
    NanCode,
    NonFinite,
    PartialBlock,
    Rounding,
    ScaleLayout,
    ScaleRule,
    TensorScaleRule,
    ZeroBlock,
)


class Encoded(NamedTuple):
    """Codes and scales before packing, as references make them.

    Attributes:
      codes: (..., P) uint8. One element code a byte, in the low bits; P is K padded to a multiple of the block.
      scales: (..., P // block) uint8. Scale codes.
      tensor_scale: binary32 scalar or one-element array, None where the scheme has none.
    """

    codes: Any
    scales: Any
    tensor_scale: Any = None


class Quantized(NamedTuple):
    """Bytes as implementations store them.

    Attributes:
      packed: (..., P // 2) uint8, two codes a byte, element 0 in the low nibble; an interleaved scheme's one stream
        (..., blocks * (block // 2 + 1)).
      scales: (..., P // block) uint8, or the swizzled 1-D buffer; None where `packed` holds them.
      tensor_scale: binary32, one element; None where the scheme has none.
    """

    packed: Any
    scales: Any = None
    tensor_scale: Any = None


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A block-quantisation scheme with every rule pinned.

    Args:
      name: stable, lower case; a non-default element rule is appended: ``mxfp4_floor+ties_away``.
      family: the kernel entry point and the order of operations: mx4, mxfp4, nvfp4 or rtn_xxfp4.
      element, scale: formats of the codes.
      block: consecutive elements of the last dimension that share a scale.
      scale_rule, rounding, nan, tensor_scale, nonfinite, zero_block, partial_block, scale_layout: see `lowbit.rules`.
      exponent_range: bounds of a power-of-two scale's exponent, inclusive; None for other scales.
      scale_floor: least value of an E4M3 scale before it is rounded; the greatest is always 448.
      scale_scale, global_scale, high: the parameters of rtn_xxfp4; `high` is the format of its arithmetic.
      canonical: the scheme whose exhaustible domains are tried at the default level.
      cites: where the rules come from.
    """

    name: str
    family: str
    element: FloatFormat
    scale: FloatFormat
    block: int
    scale_rule: ScaleRule
    rounding: Rounding
    nan: NanCode
    nonfinite: NonFinite
    zero_block: ZeroBlock
    cites: str
    tensor_scale: TensorScaleRule = TensorScaleRule.NONE
    partial_block: PartialBlock = PartialBlock.REFUSE
    scale_layout: ScaleLayout = ScaleLayout.SEPARATE
    exponent_range: tuple[int, int] | None = None
    scale_floor: Fraction | None = None
    scale_scale: Fraction | None = None
    global_scale: Fraction | None = None
    high: FloatFormat = BINARY32
    canonical: bool = False

    @property
    def stochastic(self) -> bool:
        """Whether the result depends on random bits."""
        return self.rounding is Rounding.STOCHASTIC or self.scale_rule is ScaleRule.STOCHASTIC

    @property
    def base(self) -> str:
        """The name without appended element rules."""
        return self.name.partition("+")[0]


_REGISTRY: dict[str, Scheme] = {}


def register(scheme: Scheme) -> Scheme:
    """Adds a scheme.

    Raises:
      ArgumentError: the name is taken.
    """
    if scheme.name in _REGISTRY:
        raise ArgumentError(f"scheme: the name {scheme.name!r} is registered already")
    _REGISTRY[scheme.name] = scheme
    return scheme


def variant(scheme: Scheme, rule: Rounding | NanCode) -> Scheme:
    """The scheme under another element rule, named ``base+rule``; not registered."""
    field = "rounding" if isinstance(rule, Rounding) else "nan"
    if getattr(scheme, field) is rule:
        return scheme
    changes: dict[str, Any] = {field: rule, "name": f"{scheme.name}+{rule.value}", "canonical": False}
    return replace(scheme, **changes)


def get(name: str) -> Scheme:
    """The scheme of that name; ``base+rule`` is derived where it is not registered.

    Raises:
      UnknownScheme: no such scheme or rule; names the nearest.
    """
    if name in _REGISTRY:
        return _REGISTRY[name]
    base, *rules = name.split("+")
    if base not in _REGISTRY:
        raise UnknownScheme(
            f"scheme: got {name!r}, want one of {', '.join(_nearest(base, _REGISTRY))} … (see `lowbit list`)"
        )
    scheme = _REGISTRY[base]
    known: dict[str, Rounding | NanCode] = {r.value: r for r in (*Rounding, *NanCode)}
    for rule in rules:
        if rule not in known:
            raise UnknownScheme(f"scheme: got {name!r}, whose rule {rule!r} is none of {', '.join(known)}")
        scheme = variant(scheme, known[rule])
    return scheme


def names() -> tuple[str, ...]:
    """The names of all registered schemes, in order of registration."""
    return tuple(_REGISTRY)


def select(globs: Iterable[str] = ("*",)) -> tuple[Scheme, ...]:
    """The registered schemes that match any glob, in order of registration; an exact name may be a derived one.

    Raises:
      UnknownScheme: a glob matches nothing.
    """
    found: dict[str, Scheme] = {}
    for glob in globs:
        matches = fnmatch.filter(_REGISTRY, glob)
        if not matches:
            matches = [get(glob).name]
            found.setdefault(glob, get(glob))
        for name in matches:
            found.setdefault(name, _REGISTRY.get(name) or get(name))
    order = {name: i for i, name in enumerate(_REGISTRY)}
    return tuple(sorted(found.values(), key=lambda s: order.get(s.name, len(order))))


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    import difflib

    known = list(known)
    return difflib.get_close_matches(name, known, n=4, cutoff=0.3) or known[:4]


def _mx4(rule: ScaleRule, element: FloatFormat, block: int) -> Scheme:
    return Scheme(
        name=f"mx4_{rule.value}_{element.name}_g{block}",
        family="mx4",
        element=element,
        scale=E8M0,
        block=block,
        scale_rule=rule,
        rounding=Rounding.TIES_AWAY,
        nan=NanCode.SIGNED_MAX,
        nonfinite=NonFinite.IGNORE_NAN,
        zero_block=ZeroBlock.MIN_NORMAL_AMAX,
        partial_block=PartialBlock.PAD,
        scale_layout=ScaleLayout.INTERLEAVED,
        exponent_range=(-127, 125),
        canonical=(rule, element, block) == (ScaleRule.CEIL, E2M1, 32),
        cites="SPEC.md 3.1; FBGEMM's MX4 stream",
    )


def _mxfp4(rule: ScaleRule) -> Scheme:
    return Scheme(
        name=f"mxfp4_{rule.value}",
        family="mxfp4",
        element=E2M1,
        scale=E8M0,
        block=32,
        scale_rule=rule,
        rounding=Rounding.TIES_TO_EVEN,
        nan=NanCode.POSITIVE_MAX,
        nonfinite=NonFinite.MARK_BLOCK,
        zero_block=ZeroBlock.BYTE_ZERO,
        exponent_range=(-127, 127),
        canonical=rule is ScaleRule.FLOOR,
        cites="SPEC.md 3.2; OCP Microscaling Formats 1.0, 5.3.3 and 6.3",
    )


_NVFP4 = Scheme(
    name="nvfp4",
    family="nvfp4",
    element=E2M1,
    scale=E4M3,
    block=16,
    scale_rule=ScaleRule.AMAX_OVER_SIX,
    rounding=Rounding.TIES_TO_EVEN,
    nan=NanCode.POSITIVE_MAX,
    nonfinite=NonFinite.MARK_BLOCK,
    zero_block=ZeroBlock.BYTE_ZERO,
    tensor_scale=TensorScaleRule.ONE_ROUNDING,
    scale_floor=E4M3.min_positive,
    canonical=True,
    cites="SPEC.md 3.3",
)
_NVFP4_TWO_LEVEL = replace(
    _NVFP4,
    name="nvfp4_two_level",
    rounding=Rounding.TIES_TOWARD_ZERO,
    nonfinite=NonFinite.PROPAGATE,
    zero_block=ZeroBlock.FORMULA,
    tensor_scale=TensorScaleRule.TWO_ROUNDINGS,
    scale_floor=Fraction(float.fromhex("0x1.197998p-40")),  # RN32(1e-12)
    canonical=False,
)

_RTN_MXFP4 = Scheme(
    name="rtn_mxfp4",
    family="rtn_xxfp4",
    element=E2M1,
    scale=E8M0,
    block=32,
    scale_rule=ScaleRule.RTN_CAST,
    rounding=Rounding.TIES_TO_EVEN,
    nan=NanCode.POSITIVE_MAX,
    nonfinite=NonFinite.PROPAGATE,
    zero_block=ZeroBlock.FORMULA,
    tensor_scale=TensorScaleRule.GLOBAL_SCALE,
    scale_scale=Fraction(6),
    global_scale=Fraction(1),
    cites="SPEC.md 3.4",
)

_MX4_RULES = (ScaleRule.CEIL, ScaleRule.FLOOR, ScaleRule.NEAREST, ScaleRule.EVEN_EXCLUSIVE, ScaleRule.STOCHASTIC)
_MX4_BLOCKS = (32, 8, 16, 64)

for _element in (E2M1, E3M0):
    for _rule in _MX4_RULES:
        for _block in _MX4_BLOCKS:
            register(_mx4(_rule, _element, _block))
    register(variant(get(f"mx4_ceil_{_element.name}_g32"), Rounding.STOCHASTIC))

for _rule in (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL):
    register(_mxfp4(_rule))
for _choice in (*Rounding, *NanCode):
    if (_scheme := variant(get("mxfp4_floor"), _choice)).name not in _REGISTRY:
        register(_scheme)

register(_NVFP4)
register(_NVFP4_TWO_LEVEL)
register(replace(_NVFP4_TWO_LEVEL, name="nvfp4_one_level", tensor_scale=TensorScaleRule.UNIT))
register(replace(_NVFP4_TWO_LEVEL, name="nvfp4_two_level_cuda", scale_rule=ScaleRule.AMAX_TIMES_SIXTH))
for _choice in Rounding:
    if (_scheme := variant(_NVFP4, _choice)).name not in _REGISTRY:
        register(_scheme)

register(_RTN_MXFP4)
register(replace(_RTN_MXFP4, name="rtn_nvfp4", scale=E4M3, block=16))
register(
    replace(
        _RTN_MXFP4,
        name="rtn_mxfp4_three_quarters",
        rounding=Rounding.TIES_TOWARD_ZERO,
        scale_scale=Fraction(4),
        global_scale=Fraction(1, 3),
        high=BINARY64,
        cites="SPEC.md 3.4; arXiv 2502.20586",
    )
)
for _base in ("rtn_mxfp4", "rtn_nvfp4"):
    for _choice in (Rounding.TIES_TOWARD_ZERO, Rounding.TIES_DOWN, Rounding.TIES_UP):
        register(variant(get(_base), _choice))
