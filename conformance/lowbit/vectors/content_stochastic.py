"""Stochastic rounding, all random bits enumerated, and where the bits come from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from lowbit import schemes
from lowbit.formats import BINARY32, E2M1, E3M0, FloatFormat
from lowbit.references import bits, philox
from lowbit.rules import Rounding, ScaleRule
from lowbit.schemes import Scheme
from lowbit.vectors import draws
from lowbit.vectors.content_blocks import Input, answer_of, answered
from lowbit.vectors.content_formats import SOURCES, code_text, first_pattern
from lowbit.vectors.hextext import patterns, word, write_octets, write_words
from lowbit.vectors.payload import Draft, Raw, draft
from lowbit.vectors.steps import GIVEN, rows_of

RANDOM123 = "Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011)"

SEEDS = (0, 1, 0xFFFFFFFFFFFFFFFF, 0x0123456789ABCDEF, 0x8000000000000000)

KEYS = (
    ((0, 0), (0, 0, 0, 0)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)),
    ((0x00000001, 0), (0, 0, 0, 0)),
    ((0, 0x00000001), (0, 0, 0, 0)),
    ((0, 0), (1, 0, 0, 0)),
    ((0, 0), (0xFFFFFFFF, 0, 0, 0)),
    ((0, 0), (0, 1, 0, 0)),
    ((0, 0), (0, 0, 1, 0)),
    ((0, 0), (0, 0, 0, 1)),
)
"""Key, counter: the three known answers of Random123, and each word alone."""

MEANS = (6.0, 1.0, 2.0, 4.0, 0.1, -0.1, 0.5, 0.498046875, 0.001953125, 0.00195, 5.0, -2.5)
"""Elements beside an amax of 6 or 4: representable ones, 0.1, whose mean reports name, and the ends of r's range."""


def build() -> Iterator[Draft]:
    """Thresholds of formats, enumerated blocks, exponents, and the generator."""
    for element in (E2M1, E3M0):
        yield draft(
            f"formats/{element.name}/stochastic.json",
            f"{element.name}/stochastic",
            "stochastic",
            "thresholds",
            thresholds(element),
            format=element.name,
            rounding=Rounding.STOCHASTIC.value,
            source=f"SPEC.md 2; {SOURCES[element.name]}",
            flags=("complete", "stochastic"),
        )
    for scheme in schemes.select():
        yield from _of_scheme(scheme)
    file, source = "generators/philox4x32_10/stochastic.json", f"SPEC.md 2; {RANDOM123}"
    for what, form, cases in (("answers", "philox", map(_philox, KEYS)), ("draws", "draws", _draws())):
        yield draft(
            file,
            f"philox4x32_10/{what}",
            "stochastic",
            form,
            cases,
            generator="philox4x32_10",
            source=source,
            flags=("stochastic",),
        )


def thresholds(element: FloatFormat) -> Iterator[Raw]:
    """For each magnitude above 0, and each r, the first pattern that r rounds up to it.

    r rounds up iff r >= 256 - floor(p * 256), that is iff p >= (256 - r) / 256.
    """
    for code, (low, high) in enumerate(itertools.pairwise(element.magnitudes), 1):
        places = [low + (high - low) * Fraction(256 - r, 256) for r in range(256)]
        firsts = write_words(first_pattern(place, above=False) for place in places)
        yield {"code": code_text(element, code), "firsts": firsts}


def _of_scheme(scheme: Scheme) -> Iterator[Draft]:
    file = f"schemes/{scheme.name}/stochastic.json"
    common = {"scheme": scheme.name, "source": f"SPEC.md 2; {scheme.cites}"}
    if scheme.rounding is Rounding.STOCHASTIC:
        cases = list(enumerated(scheme))
        reports = "FBGEMM, MX4 stochastic_casting; MSLK, stochastic; TransformerEngine#3281"
        yield draft(
            file,
            f"{scheme.name}/enumerated",
            "stochastic",
            "blocks",
            cases,
            scheme=scheme.name,
            source=f"{common['source']}; {reports}",
            flags=("complete", "stochastic"),
        )
    if scheme.scale_rule is ScaleRule.STOCHASTIC and scheme.block == 32:
        same = [s.name for s in schemes.select() if s.scale_rule is scheme.scale_rule and s.element is scheme.element]
        yield draft(
            file,
            f"{scheme.name}/exponents",
            "stochastic",
            "exponents",
            exponents(scheme),
            also=[name for name in same if name != scheme.name],
            flags=("complete", "stochastic", "scale_table"),
            **common,
        )
    if scheme.stochastic:
        yield draft(file, f"{scheme.name}/seeded", "stochastic", "blocks", _seeded(scheme), flags=("seeded",), **common)


def enumerated(scheme: Scheme) -> Iterator[Raw]:
    """One block, and every random byte for all its elements alike: a case for each range of bytes of one result."""
    x = np.zeros((1, scheme.block), np.float32)
    amax = 4.0 if scheme.scale_rule is ScaleRule.CEIL else 6.0  # scale 1
    if scheme.element is E3M0:
        amax *= 2
    values = np.array([amax, *MEANS[1:]], np.float32)
    x[0, : values.size] = np.where(np.abs(values) > amax, amax, values)
    g = 1.0 if scheme.tensor_scale in GIVEN else None
    options = {} if g is None else {"tensor_scale": np.float32(g)}
    tall = np.repeat(x, 256, axis=0)
    random = np.repeat(np.arange(256, dtype=np.uint8)[:, None], scheme.block, axis=1)
    encoded = bits.quantize(tall, scheme, random_bits=random, **options)  # type: ignore[arg-type]
    starts = [0, *(r for r in range(1, 256) if (encoded.codes[r] != encoded.codes[r - 1]).any())]
    for first, last in zip(starts, [*(start - 1 for start in starts[1:]), 255], strict=True):
        fields: Raw = {"name": f"r {first:02x} to {last:02x}", "shape": list(x.shape), "x": write_words(patterns(x))}
        if g is not None:
            fields["given_tensor_scale"] = word(patterns(np.array([g], np.float32))[0])
        fields |= {"random_first": f"{first:02x}", "random_last": f"{last:02x}"}
        one = schemes.Encoded(encoded.codes[first], encoded.scales[first], encoded.tensor_scale)
        yield fields | answer_of(one)


AMAXES = (
    *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x01000000, 0x3F800000, 0x3F800001, 0x3FBFFFFF),
    *(0x3FC00000, 0x3FE00000, 0x3FE00001, 0x3FFFFFFF, 0x40000000, 0x40C00000, 0x7F000000, 0x7F7FFFFF, 0x7F800000),
)
"""Magnitudes of the block's only element, at the ends of binades and of binary32."""


def exponents(scheme: Scheme) -> Iterator[Raw]:
    """One amax a few lines: every random integer, of which the low 23 - m bits count."""
    last = (1 << (BINARY32.mantissa_bits - scheme.element.mantissa_bits)) - 1
    for pattern in AMAXES:
        amax = np.uint32(pattern).view(np.float32)

        def codes(r: np.ndarray, amax: np.float32 = amax) -> np.ndarray:
            return bits.scale_codes(np.full(r.shape, amax), scheme, random_bits=r.astype(np.int32))

        for first, end, code in rows_of(codes, 0, last):
            yield {"x": word(pattern), "first": word(first), "last": word(end), "code": f"{code:02x}"}


def _seeded(scheme: Scheme) -> Iterator[Raw]:
    for seed in SEEDS[2:4]:
        name = f"seed {seed:016x}"
        columns = scheme.block + 3 if scheme.family == "mx4" else 2 * scheme.block
        x = draws.ordinary(f"{scheme.name} {name}", 3 * columns).reshape(3, columns)
        fields = answered(Input(name, x), scheme, seed=seed)
        yield fields | {"seed": f"{seed:016x}"}


def _philox(row: tuple[tuple[int, int], tuple[int, int, int, int]]) -> Raw:
    key, counter = row
    answer = philox.philox4x32(key, counter)
    return {"key": write_words(key), "counter": write_words(counter), "words": write_words(answer.tolist())}


def _draws() -> Iterator[Raw]:
    """Streams from the start, from inside a counter, and over the carry into the counter's second word."""
    for seed, (stream, start) in itertools.product(SEEDS, ((0, 0), (0, (1 << 36) - 5), (1, 0), (1, (1 << 34) - 3))):
        if stream == 0:
            values = write_octets(philox.element_bytes(seed, 37, start))
        else:
            values = write_words(philox.scale_words(seed, 9, start).tolist())
        yield {"seed": f"{seed:016x}", "stream": stream, "start": f"{start:016x}", "values": values}
