"""Which single change of a rule, or which two, would explain the mismatches?

The reference is run again under every change that can apply. A change that reproduces what the implementation gave,
wrong places and right ones, explains all mismatches; the others are told with their share. Two changes together are
tried where none explains all, and told where they do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lowbit import packing
from lowbit.compare.comparison import spread
from lowbit.errors import LowbitError
from lowbit.formats import FloatFormat
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.blocks import CODE_CHANGES, NANS, ROUNDINGS, suspects
from lowbit.suspects.pairs import Tried, pairs
from lowbit.suspects.scales import STORED
from lowbit.suspects.trial import Suspect, Trial, encode, flushed, to_bfloat16, to_binary16

SHARE, EXACT_SHARE = 0.5, 0.1
"""The least share of mismatches that a partial explanation must take away to be told; less, where nearly all that it
changes is what the implementation gave: chance agrees here and there only."""

CHANCE = 0.1
"""How much of what a suspect changes may be something else than what the implementation gave, in that case."""

SAMPLE = 1 << 11
"""Right codes, and wrong ones, on which two faults of a scalar encoder are tried before they are tried on all."""

UNEXPLAINED = "unexplained: no rule change that was tried accounts for the mismatches"


@dataclass(frozen=True)
class Finding:
    """A suspect that explains something. `remaining`: places still different under it, of `tried`."""

    name: str
    text: str
    tried: int
    remaining: int

    @property
    def share(self) -> float:
        """The part of the mismatches that vanish."""
        return 1 - self.remaining / self.tried

    def __str__(self) -> str:
        if self.remaining == 0:
            if self.tried == 1:
                return f"the one mismatch vanishes with {self.text}"
            return f"all {self.tried:,} mismatches vanish with {self.text}"
        part = f"{self.tried - self.remaining:,} of {self.tried:,} mismatches vanish"
        return f"{part} ({int(100 * self.share)} %) with {self.text}"


@dataclass(frozen=True)
class Diagnosis:
    """What would explain a comparison, best first; nothing if it is unexplained.

    Attributes:
      tried: mismatches on which suspects were tried. mismatched: all of them.
    """

    findings: tuple[Finding, ...]
    tried: int
    mismatched: int

    @property
    def complete(self) -> bool:
        """Whether one suspect explains everything that was tried."""
        return bool(self.findings) and self.findings[0].remaining == 0

    def __str__(self) -> str:
        if not self.findings:
            return UNEXPLAINED
        sentence = str(self.findings[0])
        others = [finding.text for finding in self.findings[1:3] if finding.remaining == self.findings[0].remaining]
        if others:
            sentence += f" (or with {' or '.join(others)}: these inputs do not tell them apart)"
        if self.tried < self.mismatched:
            sentence += f"; tried on {self.tried:,} of {self.mismatched:,}"
        return sentence


def diagnose(
    x: Any, actual: Encoded, scheme: Scheme, expected: Encoded, options: Mapping[str, Any] | None = None
) -> Diagnosis | None:
    """Explains the wrong result of a block quantiser.

    Args:
      x: (..., K) float32, NumPy.
      actual, expected: NumPy, as `compare_encoded` takes them.
      options: tensor_scale, random_bits, scale_random_bits, seed, as given to the implementation and the reference.

    Returns:
      None where nothing differs, or shapes and dtypes do not fit.
    """
    trial = Trial.of(x, actual, scheme, expected, options or {})
    if trial is None:
        return None
    tried = trial.wrong(trial.expected)
    found: list[Finding] = []
    singles: list[Tried] = []
    for group in suspects(trial):
        for suspect, guess in _guesses(group, trial):
            remaining, missed = trial.wrong(guess), trial.missed(guess)
            singles.append(Tried(suspect, guess, remaining))
            if _tells(remaining, missed, tried):
                found.append(Finding(suspect.name, suspect.text, tried, remaining))
        if any(finding.remaining == 0 for finding in found):
            break
    else:
        found += _further(trial, singles, tried, any(finding.share >= SHARE for finding in found))
    total = tried
    if trial.grid is None:
        total = sum(int((np.asarray(a) != np.asarray(e)).sum()) for a, e in zip(actual[:2], expected[:2], strict=True))
    return _ranked(found, tried, total)


def _further(trial: Trial, singles: list[Tried], tried: int, partly: bool) -> Iterator[Finding]:
    """What explains everything where no single change does: two of them, or else what was stored as scales.

    Args:
      partly: whether a single change explains at least half.
    """
    together = [_together(first, second, tried) for first, second in pairs(trial, singles)]
    yield from together
    if together or partly:
        return
    for suspect, guess in _guesses((STORED,), trial):
        remaining = trial.wrong(guess)
        if _tells(remaining, trial.missed(guess), tried):
            yield Finding(suspect.name, suspect.text, tried, remaining)


def diagnose_codes(
    x: Any,
    actual: Any,
    expected: Any,
    element: FloatFormat,
    rounding: Rounding,
    nan: NanCode | None = None,
    *,
    random_bits: Any = None,
) -> Diagnosis | None:
    """Explains the wrong codes of a scalar encoder.

    Args:
      x: (N,) float32; actual, expected: (N,) uint8, all NumPy. At most some million elements.
      element, rounding, nan, random_bits: those under which `expected` is right.
    """
    x, actual, expected = (
        np.asarray(x, np.float32).reshape(-1),
        np.asarray(actual).reshape(-1),
        np.asarray(expected).reshape(-1),
    )
    if not x.shape == actual.shape == expected.shape or (actual == expected).all():
        return None

    def coded(places: Any, faults: Sequence[_Fault]) -> Any:
        """The codes of some inputs under faults that change different things; None if the references refuse them."""
        changes = {fault.part: fault.change for fault in faults}
        rule, special = changes.get("rounding", rounding), changes.get("nan", nan)
        source = changes.get("input", lambda v: v)(x[places])
        random = None if random_bits is None or rule is not Rounding.STOCHASTIC else random_bits.reshape(-1)[places]
        try:
            codes = expected[places] if [*changes] == ["codes"] else encode(source, element, rule, special, random)
        except LowbitError:
            return None
        return changes.get("codes", lambda codes, _: codes)(codes, element)

    faults = list(_code_faults(rounding, nan))
    wrong = actual != expected
    tried, everywhere, found = int(wrong.sum()), np.arange(x.size), []
    for fault in faults:
        guess = coded(everywhere, [fault])
        if guess is not None and _tells(*(scores := _score(actual, expected, guess)), tried):
            found.append(Finding(fault.name, fault.text, tried, scores[0]))
    if tried > 1 and not any(finding.remaining == 0 for finding in found):
        bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
        few = np.concatenate([bad[spread(bad.size, SAMPLE)], good[spread(good.size, SAMPLE)]])
        for both in itertools.combinations(faults, 2):
            if both[0].part != both[1].part and all(
                np.array_equal(coded(at, both), actual[at]) for at in (few, everywhere)
            ):
                found.append(_together(*both, tried))
    return _ranked(found, tried, tried)


class _Fault(NamedTuple):
    """What one fault of a scalar encoder changes: rounding, nan, input or codes, and to what."""

    name: str
    text: str
    part: str
    change: Any


def _code_faults(rounding: Rounding, nan: NanCode | None) -> Iterator[_Fault]:
    yield from (_Fault(r.value, text, "rounding", r) for r, text in ROUNDINGS.items() if r is not rounding)
    yield from (_Fault(n.value, text, "nan", n) for n, text in NANS.items() if nan and n is not nan)
    yield _Fault("input_bfloat16", "the input rounded to bfloat16 first", "input", to_bfloat16)
    yield _Fault("input_binary16", "the input rounded to binary16 first", "input", to_binary16)
    yield _Fault("input_flushed", "subnormal inputs flushed to zero", "input", flushed)
    yield from (_Fault(name, text, "codes", change) for name, text, change in CODE_CHANGES)


def diagnose_bytes(actual: Any, expected: Any, *, scales: Any = None) -> Diagnosis | None:
    """Explains wrong packed bytes, or a wrong SWIZZLE_32_4_4 buffer.

    Args:
      actual, expected: uint8 of one shape, NumPy.
      scales: (rows, columns) uint8, for a buffer: the scales that it should hold.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape or (actual == expected).all():
        return None
    tried = int((actual != expected).sum())
    table = list(_PACKED) if scales is None else list(_LAYOUTS)
    if scales is not None:
        padding = packing.swizzle_padding(*scales.shape)
        guess = np.where(padding, actual, expected)
        table.append(
            Suspect("padding", "other padding bytes: all scales are right, the padding is not 0", lambda _: guess)
        )
    source = expected if scales is None else np.asarray(scales)
    return _ranked(_findings(table, source, partial(_score, actual, expected), tried), tried, tried)


def _buffer(scales: Any, place: Callable[[Any, Any, int, int], Any]) -> Any:
    """A buffer with scale (r, c) at place(r, c, rows, columns); None where that leaves the buffer."""
    rows, columns = scales.shape
    buffer = np.zeros(packing.swizzled_size(rows, columns), dtype=np.uint8)
    at = place(np.arange(rows)[:, None], np.arange(columns)[None, :], rows, columns)
    if at.max(initial=0) >= buffer.size:
        return None
    buffer[at] = scales
    return buffer


def _inside(r: Any, c: Any) -> Any:
    """The offset inside a tile of 128 rows and 4 columns."""
    return (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4


_LAYOUTS: tuple[Suspect, ...] = tuple(
    Suspect(name, text, partial(_buffer, place=place))
    for name, text, place in (
        ("swizzle_omitted", "scales in plain row-major order: the swizzle omitted", lambda r, c, m, n: r * n + c),
        ("transposed", "scales in plain column-major order", lambda r, c, m, n: c * m + r),
        (
            "tiles_transposed",
            "the tiles in column-major order",
            lambda r, c, m, n: (c // 4 * -(-m // 128) + r // 128) * 512 + _inside(r, c),
        ),
        (
            "unpadded_index",
            "tile offsets from the unpadded number of columns",
            lambda r, c, m, n: (r // 128 * (n // 4) + c // 4) * 512 + _inside(r, c),
        ),
        (
            "tile_row_major",
            "each tile in row-major order",
            lambda r, c, m, n: (r // 128 * -(-n // 4) + c // 4) * 512 + r % 128 * 4 + c % 4,
        ),
    )
)

_PACKED: tuple[Suspect, ...] = (
    Suspect("nibbles_swapped", "neighbouring nibbles swapped", lambda b: (b << 4 | b >> 4).astype(np.uint8)),
    Suspect("bytes_reversed", "the bytes of each 32-bit word reversed", lambda b: _words(b, 4)),
    Suspect("bits_inverted", "every bit inverted", lambda b: ~b),
    Suspect("zeros", "nothing stored but zeros", lambda b: np.zeros_like(b)),
)


def _words(data: Any, size: int) -> Any:
    return None if data.size % size else data.reshape(-1, size)[:, ::-1].reshape(data.shape)


def _score(actual: Any, expected: Any, guess: Any) -> tuple[int, float]:
    """How many places differ under a guess, and the part of what it changes that is not what was given."""
    differ, changed = guess != actual, guess != expected
    return int(differ.sum()), float((differ & changed).sum() / max(changed.sum(), 1))


def _together(first: Suspect | _Fault, second: Suspect | _Fault, tried: int) -> Finding:
    """Two faults that explain everything."""
    return Finding(f"{first.name} + {second.name}", f"{first.text} together with {second.text}", tried, 0)


def _guesses(table: Iterable[Suspect], source: Any) -> Iterator[tuple[Suspect, Any]]:
    """The suspects of a table that can occur, each with what it gives."""
    for suspect in table:
        try:
            guess = suspect.guess(source)
        except LowbitError:
            continue  # the references do not know this combination of rules
        if guess is not None:
            yield suspect, guess


def _tells(remaining: int, missed: float, tried: int) -> bool:
    """Whether a change takes enough mismatches away to be told."""
    return 1 - remaining / tried >= (EXACT_SHARE if missed <= CHANCE else SHARE)


def _findings(
    table: Iterable[Suspect], source: Any, score: Callable[[Any], tuple[int, float]], tried: int
) -> list[Finding]:
    """The suspects of a table that apply and take some mismatches away.

    Args:
      score: as `_score`, of a guess.
    """
    found = []
    for suspect, guess in _guesses(table, source):
        remaining, missed = score(guess)
        if _tells(remaining, missed, tried):
            found.append(Finding(suspect.name, suspect.text, tried, remaining))
    return found


def _ranked(found: list[Finding], tried: int, mismatched: int) -> Diagnosis:
    return Diagnosis(tuple(sorted(found, key=lambda finding: finding.remaining)), tried, mismatched)
