"""Small tensors under every registered scheme, by topic, with codes and scales.

Only the inputs stand here; the answers are the references'. The canonical schemes try NaN and Inf in every lane, the
others in six; every scheme meets every tie in every lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import schemes
from lowbit.references import bits
from lowbit.rules import Rounding, ScaleRule
from lowbit.schemes import Scheme
from lowbit.vectors import draws
from lowbit.vectors.content_scales import dialect_inputs, has_dialects
from lowbit.vectors.hextext import patterns, word, write_digits, write_octets, write_words
from lowbit.vectors.payload import Draft, Raw, draft
from lowbit.vectors.steps import GIVEN, unit_amax

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Input:
    """A tensor to be quantised.

    Attributes:
      name: unique in its topic.
      x: (rows, K) float32.
      g: the tensor scale that is given, where the scheme takes one; None: it is computed.
    """

    name: str
    x: Floats
    flags: tuple[str, ...] = ()
    g: float | None = None


def build() -> Iterator[Draft]:
    """The blocks of every scheme, one group a topic."""
    for scheme in schemes.select():
        for topic, (inputs, flags) in TOPICS.items():
            if topic not in topics_of(scheme):
                continue
            cases = [answered(item, scheme) for item in inputs(scheme)]
            if cases:
                yield draft(
                    f"schemes/{scheme.name}/blocks.json",
                    f"{scheme.name}/{topic}",
                    "blocks",
                    "blocks",
                    cases,
                    scheme=scheme.name,
                    source=scheme.cites,
                    flags=flags,
                )


def answered(item: Input, scheme: Scheme, **options: Any) -> Raw:
    """A case: the input, the random bits that the scheme needs, and what a reference gives.

    Args:
      options: further arguments of `quantize`, in place of random bits drawn here.
    """
    fields: Raw = {"name": item.name, "shape": list(item.x.shape), "x": write_words(patterns(item.x))}
    if item.g is not None:
        options["tensor_scale"] = np.float32(item.g)
        fields["given_tensor_scale"] = word(patterns(np.array([item.g], np.float32))[0])
    drawn = f"{scheme.name} {item.name}"
    if scheme.rounding is Rounding.STOCHASTIC and not options.keys() & {"random_bits", "seed"}:
        options["random_bits"] = draws.octets(drawn, item.x.shape)
        fields["random_bits"] = write_octets(options["random_bits"].ravel())
    if scheme.scale_rule is ScaleRule.STOCHASTIC and not options.keys() & {"scale_random_bits", "seed"}:
        groups = -(-item.x.shape[-1] // scheme.block)
        options["scale_random_bits"] = draws.integers31(drawn, (*item.x.shape[:-1], groups))
        fields["scale_random_bits"] = write_words(options["scale_random_bits"].ravel())
    if item.flags:
        fields["flags"] = list(item.flags)
    return fields | answer_of(bits.quantize(item.x, scheme, **options))


def answer_of(encoded: schemes.Encoded) -> Raw:
    """The fields of a case that hold its answer."""
    fields: Raw = {"codes": write_digits(encoded.codes.ravel()), "scales": write_octets(encoded.scales.ravel())}
    if encoded.tensor_scale is not None:
        pattern = patterns(np.array([encoded.tensor_scale], np.float32))[0]
        fields["tensor_scale"] = word(0x7FC00000 if pattern & 0x7FFFFFFF > 0x7F800000 else pattern)
    return fields


# -- topics: inputs of a scheme


def _zeros(scheme: Scheme) -> Iterator[Input]:
    zero = np.zeros((1, scheme.block), np.float32)
    alternating = zero.copy()
    alternating[0, ::2] = -0.0
    yield Input("+0", zero)
    yield Input("-0", -zero, ("negative_zero",))
    yield Input("+0 and -0 by turns", alternating, ("negative_zero",))
    beside = np.concatenate([alternating, _ordinary(scheme, "beside zeros", 1)], axis=1)
    yield Input("a zero block beside another", beside, ("negative_zero", "several_blocks"))


def _subnormals(scheme: Scheme) -> Iterator[Input]:
    drawn = draws.words(f"{scheme.name} subnormals", 2 * scheme.block)
    tiny = (drawn & np.uint32(0x807FFFFF)).view(np.float32).reshape(2, 1, scheme.block)
    pinned = tiny[1].copy()
    pinned[0, 0] = 1.0
    normal = tiny[1].copy()
    normal[0, 0] = _float(0x00800000)
    yield Input("subnormals only", tiny[0])
    yield Input("the least normal among subnormals", normal)
    yield Input("1 among subnormals", pinned, ("underflow",))


SPECIALS = (0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000)
"""A signalling NaN, a negative quiet NaN, +Inf, -Inf."""


def _specials(scheme: Scheme) -> Iterator[Input]:
    block = scheme.block
    lanes = range(block) if scheme.canonical else sorted({0, 1, block // 2 - 1, block // 2, block - 2, block - 1})
    ordinary = _ordinary(scheme, "specials", 1)
    for turn, lane in enumerate(lanes):
        for pattern in SPECIALS if scheme.canonical else SPECIALS[turn % 4 : turn % 4 + 1]:
            yield Input(f"{word(pattern)} in lane {lane}", _with(ordinary, {lane: pattern}), _flags_of(pattern))
    both = ("inf", "nan_input")
    yield Input("NaN only", _with(ordinary, dict.fromkeys(range(block), 0x7FC00000)), ("nan_input",))
    yield Input("Inf and -Inf only", _with(ordinary, {i: SPECIALS[2 + i % 2] for i in range(block)}), ("inf",))
    yield Input("NaN, Inf and -Inf", _with(ordinary, {0: 0x7F800000, 1: 0xFFFFFFFF, block - 1: 0xFF800000}), both)
    beside = np.concatenate([_with(ordinary, {1: 0x7FC00000}), ordinary], axis=1)
    yield Input("a block with NaN beside another", beside, ("nan_input", "several_blocks"))


EXTREMES: dict[str, int] = {
    "2^-149": 0x00000001,
    "below 2^-126": 0x007FFFFF,
    "2^-126": 0x00800000,
    "above 2^-126": 0x00800001,
    "2^-125": 0x01000000,
    "below 2^-124": 0x017FFFFF,
    "above 2^-124": 0x01800001,
    "2^126": 0x7E800000,
    "2^127": 0x7F000000,
    "1.75 * 2^127": 0x7F600000,
    "above 1.75 * 2^127": 0x7F600001,
    "FLT_MAX": 0x7F7FFFFF,
}
"""amax → pattern: at the ends of binary32, and of the range of power-of-two scales."""


def _extremes(scheme: Scheme) -> Iterator[Input]:
    fractions = np.array([1, -1 / 2, 3 / 4, -1 / 3, 1 / 8, -1 / 12, 1 / 24, -1 / 64], np.float32)
    for name, pattern in EXTREMES.items():
        with np.errstate(under="ignore"):
            x = np.resize(fractions, (1, scheme.block)) * _float(pattern)
        yield Input(f"amax {name}", x, ("subnormal",) if pattern < 0x00800000 else ())
        if scheme.tensor_scale in GIVEN:
            yield Input(f"amax {name}, g 1", x, ("given_tensor_scale",), 1.0)
    if scheme.tensor_scale in GIVEN:
        over = np.resize(fractions, (1, scheme.block)) * _float(0x7F7FFFFF)
        yield Input("g that overflows", over, ("given_tensor_scale", "saturation"), 1e30)
        yield Input("g that underflows", over * np.float32(2.0**-120), ("given_tensor_scale", "underflow"), 1e-40)


def _scale_underflow(scheme: Scheme) -> Iterator[Input]:
    for exponent in (-10, -20, -40) if scheme.family == "nvfp4" else (-20,):
        blocks = [_ordinary(scheme, f"block {exponent}", 1), _ordinary(scheme, "far below", 1, exponent)]
        yield Input(f"a block 2^{exponent} below", np.concatenate(blocks, axis=1))


def _saturation(scheme: Scheme) -> Iterator[Input]:
    pin = _float(unit_amax(scheme))
    largest = np.float32(float(scheme.element.max_value)) * _unit(scheme)
    values = np.linspace(float(largest), float(pin), scheme.block, dtype=np.float64).astype(np.float32)
    values[1::2] *= -1
    values[0] = pin
    if float(pin) > float(largest):
        yield Input("from the largest value to the greatest amax", values[None, :], g=_given(scheme))


def _ties(scheme: Scheme) -> Iterator[Input]:
    pin = _float(unit_amax(scheme))
    exact = scheme.global_scale or Fraction(1)
    ties = [t for t, m in _middles(scheme) if abs(t) <= pin and Fraction(float(t)) == m * exact]
    open_pairs = set(itertools.product(range(len(ties)), range(scheme.block)))
    for number in itertools.count():
        if not open_pairs:
            return
        missing = [sum(lane == i for _, lane in open_pairs) for i in range(scheme.block)]
        pinned = min(range(scheme.block), key=lambda lane: (missing[lane], (lane - number) % scheme.block))
        x = np.zeros((1, scheme.block), np.float32)
        for lane in range(scheme.block):
            turn = (lane + number) % len(ties)
            choice = next((i for i in (turn, *range(len(ties))) if (i, lane) in open_pairs), turn)
            x[0, lane] = pin if lane == pinned else ties[choice]
            if lane != pinned:
                open_pairs.discard((choice, lane))
        yield Input(f"ties {number}, greatest amax in lane {pinned}", x, g=_given(scheme))


def _near_ties(scheme: Scheme) -> Iterator[Input]:
    unit, pin = _unit(scheme), _float(unit_amax(scheme))
    values = [np.float32(float(v)) * unit for v in scheme.element.magnitudes]
    points = np.array([*(t for t, _ in _middles(scheme)), *values, *(-v for v in values)], np.float32)
    near = np.concatenate([np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))])
    near = near[np.abs(near) <= pin]
    lanes = scheme.block - 1
    for number in range(-(-near.size // lanes)):
        x = np.full((1, scheme.block), pin, np.float32)
        part = near[number * lanes : (number + 1) * lanes]
        x[0, 1 : 1 + part.size] = part
        yield Input(f"beside codes and ties {number}", x, g=_given(scheme))


def _random(scheme: Scheme) -> Iterator[Input]:
    for number in range(2):
        yield Input(f"ordinary {number}", _ordinary(scheme, f"ordinary {number}", 1), ("ordinary",))
        x = draws.through_bfloat16(_ordinary(scheme, f"bfloat16 {number}", 1))
        yield Input(f"bfloat16 {number}", x, ("bfloat16", "ordinary"))
        anything = draws.finite_patterns(f"{scheme.name} patterns {number}", scheme.block)[None, :]
        yield Input(f"patterns {number}", anything, ("random_patterns",))
    rows = np.concatenate([_ordinary(scheme, f"tensor {i}", 2, i) for i in (-3, 0, 5)])
    yield Input("3 rows of 2 blocks", rows, ("ordinary", "several_blocks"))


def _dialects(scheme: Scheme) -> Iterator[Input]:
    if has_dialects(scheme):
        for name, x, g, flags in dialect_inputs(scheme):
            yield Input(name, x, flags, g)


TOPICS: dict[str, tuple[Callable[[Scheme], Iterator[Input]], tuple[str, ...]]] = {
    "zeros": (_zeros, ("zero_block",)),
    "subnormals": (_subnormals, ("subnormal",)),
    "specials": (_specials, ("nan",)),
    "extremes": (_extremes, ("extreme_scale",)),
    "scale_underflow": (_scale_underflow, ("scale_underflow", "several_blocks")),
    "saturation": (_saturation, ("saturation",)),
    "ties": (_ties, ("tie",)),
    "near_ties": (_near_ties, ("near_tie",)),
    "random": (_random, ()),
    "dialects": (_dialects, ()),
}
"""Name → inputs, and the flags of the whole group."""


def topics_of(scheme: Scheme) -> tuple[str, ...]:
    """All topics; fewer for a scheme that differs from another one in its code for NaN, or in its block, only."""
    if "+nan_" in scheme.name:
        return "zeros", "specials"
    if scheme.family == "mx4" and scheme.block != 32:
        return "zeros", "specials", "ties", "random"
    return tuple(TOPICS)


# -- parts


def _float(pattern: int) -> np.float32:
    return np.uint32(pattern).view(np.float32)


def _ordinary(scheme: Scheme, name: str, blocks: int, exponent: int = 0) -> Floats:
    return draws.ordinary(f"{scheme.name} {name}", blocks * scheme.block, exponent)[None, :]


def _with(block: Floats, lanes: dict[int, int]) -> Floats:
    """The block with patterns in lanes; integers, since a float32 assignment may quiet a signalling NaN."""
    bits_of = block.view(np.uint32).copy()
    for lane, pattern in lanes.items():
        bits_of[0, lane] = pattern
    return bits_of.view(np.float32)


def _flags_of(pattern: int) -> tuple[str, ...]:
    return ("nan_input",) if pattern & 0x7FFFFFFF > 0x7F800000 else ("inf",)


def _given(scheme: Scheme) -> float | None:
    return 1.0 if scheme.tensor_scale in GIVEN else None


def _unit(scheme: Scheme) -> np.float32:
    """What an element of value 1 stands for in a block of scale 1."""
    return np.float32(1 if scheme.global_scale is None else float(scheme.global_scale))


def _middles(scheme: Scheme) -> list[tuple[np.float32, Fraction]]:
    """Every midpoint between two values of the element, both signs: times the unit and rounded, and itself."""
    middles = [sign * (a + b) / 2 for a, b in itertools.pairwise(scheme.element.magnitudes) for sign in (1, -1)]
    return [(np.float32(float(middle)) * _unit(scheme), middle) for middle in middles]
