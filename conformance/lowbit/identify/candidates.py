"""What every scheme, dialect and change of a rule makes of probes: the candidates that a quantiser may follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import schemes
from lowbit.errors import LowbitError
from lowbit.references import bits
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.blocks import suspects
from lowbit.suspects.dialects import ALL, Dialect
from lowbit.suspects.pairs import Tried, pairs
from lowbit.suspects.trial import Suspect, Trial

GROUPS = 3
"""Groups of suspects that are candidates: those after them are read off what was given."""

DATA = ("tensor_scale",)
"""Names of further suspects that are."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Something that a quantiser may follow.

    Attributes:
      name, text: of the scheme, dialect or change. scheme: whose rules it has. dialect: from the table of dialects.
      registered: whether it is a scheme or a dialect by itself, not a change of one.
      last: whether it is a fault of the result alone, such as its order.
      make: a trial to what the candidate gives.
      guesses: what it gives, one a trial; None where it cannot be told. actual: what was given.
    """

    name: str
    text: str
    scheme: Scheme
    dialect: Dialect | None
    registered: bool
    make: Callable[[Trial], Encoded | None]
    guesses: tuple[Encoded | None, ...]
    trials: tuple[Trial, ...]
    last: bool = False

    @cached_property
    def agrees(self) -> Mask:
        """(inputs,) bool. The blocks that are as they were given, and then the tensor scales."""
        found = []
        for guess, trial in zip(self.guesses, self.trials, strict=True):
            wrong = np.ones(len(trial.x), np.bool_) if guess is None else trial.wrong_blocks(guess)
            found.append(~wrong)
        return np.concatenate([*found, np.array(self._factors, np.bool_)])

    @property
    def _factors(self) -> list[bool]:
        """Whether each tensor scale is as it was given, where schemes compute one."""
        rule = self.trials[0].scheme.tensor_scale
        if rule in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE):
            return []
        found = []
        for guess, trial in zip(self.guesses, self.trials, strict=True):
            same = guess is not None and trial.wrong(guess) == int(self._places(guess, trial))
            found.append(same)
        return found

    @staticmethod
    def _places(guess: Encoded, trial: Trial) -> int:
        codes = int((guess.codes != trial.actual.codes).sum())
        return codes + int((guess.scales != trial.actual.scales).sum())

    def same(self, part: str, where: Mask) -> tuple[int, int]:
        """How many codes, or scales, of some blocks are as they were given, and of how many.

        Args:
          part: codes or scales. where: (blocks,) bool, of all trials one after another.
        """
        same, start = 0, 0
        for guess, trial in zip(self.guesses, self.trials, strict=True):
            here = where[start : start + len(trial.x)]
            start += len(trial.x)
            if guess is not None:
                same += int((getattr(guess, part) == getattr(trial.actual, part))[here].sum())
        return same, int(where.sum()) * (self.trials[0].scheme.block if part == "codes" else 1)

    @property
    def count(self) -> int:
        return int(self.agrees.sum())

    def same_as(self, other: Candidate) -> bool:
        """Whether no trial tells the two apart."""
        return all(alike(a, b) for a, b in zip(self.guesses, other.guesses, strict=True))


def alike(a: Encoded | None, b: Encoded | None) -> bool:
    """Whether codes, scales and tensor scales are the same."""
    if a is None or b is None:
        return a is b
    scales = [np.asarray(g, np.float32).tobytes() for g in (a.tensor_scale, b.tensor_scale) if g is not None]
    return bool((a.codes == b.codes).all() and (a.scales == b.scales).all() and len({*scales}) <= 1)


def trial_of(x: Any, scheme: Scheme, actual: Encoded | None = None) -> Trial:
    """A whole tensor as a trial; without `actual`, the right result in its place.

    Args:
      x: (rows, columns) float32, whole blocks. actual: codes (rows, columns), scales (rows, blocks).
    """
    block = scheme.block
    expected = bits.quantize(x, scheme)
    sides = []
    for side in (actual or expected, expected):
        g = None if side.tensor_scale is None else np.float32(np.asarray(side.tensor_scale).reshape(-1)[0])
        sides.append(Encoded(side.codes.reshape(-1, block), side.scales.reshape(-1, 1), g))
    grid = (len(x), x.shape[1] // block)
    given, right = sides
    blocks = x.reshape(-1, block)
    return Trial(scheme=scheme, x=blocks, actual=given, expected=right, options={}, grid=grid, given=False)


def candidates(trials: Sequence[Trial]) -> list[Candidate]:
    """All candidates of one scheme, itself first, each with what it gives for every trial.

    Two changes together are among them if they explain the first trial, and nothing single explains all.
    """
    scheme = trials[0].scheme
    trials = tuple(trials)
    found = [_candidate(scheme.name, f"the scheme {scheme.name}", scheme, None, lambda t: t.expected, trials, True)]
    found += [_of_suspect(suspect, trials) for suspect in _changes(trials[0])]
    if max(one.count for one in found) < found[0].agrees.size and trials[0].wrong(trials[0].expected):
        found += _together(trials, found[1:])
    return [one for one in found if any(guess is not None for guess in one.guesses)]


def _changes(trial: Trial) -> Iterator[Suspect]:
    for _, group in zip(range(GROUPS), suspects(trial), strict=False):
        yield from (suspect for suspect in group if suspect.name not in DATA)


def _of_suspect(suspect: Suspect, trials: tuple[Trial, ...]) -> Candidate:
    dialect = next((d for d in ALL if d.name == suspect.name), None)
    scheme = trials[0].scheme
    if suspect.becomes is not None and (changed := suspect.becomes(trials[0])) is not None:
        scheme = changed.scheme
    registered = dialect is not None or suspect.name in schemes.names()
    found = _candidate(suspect.name, suspect.text, scheme, dialect, suspect.guess, trials, registered)
    return replace(found, last=suspect.last)


def _together(trials: tuple[Trial, ...], singles: Sequence[Candidate]) -> list[Candidate]:
    first = trials[0]
    by_name = {suspect.name: suspect for suspect in _changes(first)}
    tried = [
        Tried(by_name[one.name], one.guesses[0], first.wrong(one.guesses[0]))
        for one in singles
        if one.guesses[0] is not None
    ]
    if any(one.remaining == 0 for one in tried):
        return []
    found = []
    for a, b in pairs(first, tried):

        def make(trial: Trial, a: Suspect = a, b: Suspect = b) -> Encoded | None:
            under = guessed(a.guess, trial)
            return None if under is None else guessed(b.guess, trial.assuming(a, under))

        scheme = first.scheme
        for suspect in (a, b):
            if suspect.becomes and (changed := suspect.becomes(replace(first, scheme=scheme))) is not None:
                scheme = changed.scheme
        name, text = f"{a.name} + {b.name}", f"{a.text} together with {b.text}"
        found.append(_candidate(name, text, scheme, None, make, trials, False))
    return found


def _candidate(
    name: str,
    text: str,
    scheme: Scheme,
    dialect: Dialect | None,
    make: Callable[[Trial], Encoded | None],
    trials: tuple[Trial, ...],
    registered: bool,
) -> Candidate:
    return Candidate(
        name=name,
        text=text,
        scheme=scheme,
        dialect=dialect,
        registered=registered,
        make=make,
        guesses=tuple(guessed(make, trial) for trial in trials),
        trials=trials,
    )


def guessed(make: Callable[[Trial], Encoded | None], trial: Trial) -> Encoded | None:
    """What a candidate gives; None also where the references do not know the combination of rules."""
    try:
        return make(trial)
    except LowbitError:
        return None
