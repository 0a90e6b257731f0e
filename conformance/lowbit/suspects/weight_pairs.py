"""Pairs of faults that would explain a wrong weight where no single one does.

A fault changes a part of the weight: its code, zero point, scale, difference, table. The first fault's part is kept and
the second one made beside it; faults of the last rounding go with every other. The best single faults are tried first,
with all others, at a few places, within a budget; what explains these is confirmed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowbit.compare.comparison import spread
from lowbit.compare.kinds import values_differ
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weight_trial import Ints, WeightTrial

BUDGET = 6000
"""Faults that are tried at the few places: a bound of some two seconds on one core."""

SAMPLE = 256
"""Places at which a pair is tried before it is tried at all of them."""

STAGES = ("codebook", "code", "entry", "zero", "absmax", "scale", "integer", "arithmetic", "terms")
"""Parts of a result, in the order in which they are made; the last rounding comes after them."""


def pairs(
    trial: WeightTrial,
    singles: Sequence[tuple[Suspect, int]],
    roundings: Callable[[WeightTrial], Iterator[Suspect]],
) -> Iterator[tuple[Suspect, Suspect]]:
    """The pairs that explain everything: all that have the same first fault, which is the best that there is.

    Args:
      singles: faults of the parts and in how many places each leaves something to explain.
      roundings: of a trial, the faults of its last rounding.
    """
    sample = _sampled(trial)
    changed = {suspect.name: _parts(sample, suspect) for suspect, _ in singles}
    runs = 0
    for first, _ in sorted(singles, key=lambda single: single[1]):
        mine = changed[first.name]
        under = _assuming(sample, first)
        if not mine or under is None:
            continue
        seconds = [s for s, _ in singles if s is not first and _later(mine, changed[s.name])]
        found = False
        for second in [*seconds, *roundings(under)]:
            runs += 1
            if runs > BUDGET:
                return
            if _wrong(under, second) == 0 and _confirmed(trial, first, second, roundings):
                yield first, second
                found = True
        if found:
            return


def _later(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether a fault of some parts can be made after a first one's: it may change what that has made of a part."""
    return bool(second) and max(map(STAGES.index, first)) <= max(map(STAGES.index, second))


def _parts(trial: WeightTrial, suspect: Suspect) -> frozenset[str]:
    """Which parts of the result a fault changes; none where it does something else, or cannot occur."""
    asked: dict[str, Any] = {}
    if suspect.guess(replace(trial, asked=asked)) is None:
        return frozenset()
    return frozenset(asked)


def _assuming(trial: WeightTrial, suspect: Suspect) -> WeightTrial | None:
    """The trial in which a fault is none."""
    asked: dict[str, Any] = {}
    guess = suspect.guess(replace(trial, asked=asked))
    return None if guess is None else replace(trial, fixed=asked, expected=guess)


def _confirmed(
    trial: WeightTrial,
    first: Suspect,
    second: Suspect,
    roundings: Callable[[WeightTrial], Iterator[Suspect]],
) -> bool:
    under = _assuming(trial, first)
    if under is None:
        return False
    # A rounding's suspect holds what it is made of, so that of this trial is looked up.
    again = next((suspect for suspect in roundings(under) if suspect.name == second.name), second)
    return _wrong(under, again) == 0


def _wrong(trial: WeightTrial, suspect: Suspect) -> int | None:
    guess: Ints | None = suspect.guess(trial)
    return None if guess is None else trial.wrong(guess)


def _sampled(trial: WeightTrial) -> WeightTrial:
    """Some places of a trial, half of them wrong."""
    wrong = values_differ(trial.fmt)(trial.actual, trial.expected)
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    few = bad[spread(bad.size, SAMPLE // 2)]
    kept = np.sort(np.concatenate([few, good[spread(good.size, SAMPLE - few.size)]]))
    return replace(trial, places=trial.places[kept], actual=trial.actual[kept], expected=trial.expected[kept])
