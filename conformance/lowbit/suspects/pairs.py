"""Pairs of faults that would explain a wrong block quantiser where no single one does.

The first fault is taken for right, and the second looked for under it. Faults that are made of the right result alone
(signs, nibbles, places of scales) are added to every other one on all blocks. Of the rest, those that change the whole
reference are tried with all others, the best ones first, on a few blocks that they leave wrong, within a budget of
runs of the reference; what explains these is confirmed on everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lowbit.errors import LowbitError
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Encoded
from lowbit.suspects.scales import SCALES, STORED, observed
from lowbit.suspects.trial import Suspect, Trial

BUDGET = 2000
"""Runs of the reference on a sample: a bound of about two seconds on one core."""

SAMPLE = 512
"""Elements on which a pair is tried before it is tried on everything."""

LEAST = 2
"""Mismatches below which one fault is enough."""

FIRST = tuple(rule.value for rule in TensorScaleRule)
"""Names of faults that change what a factor is made of: they must be the first of a pair."""


class Tried(NamedTuple):
    """A single fault, what it gives, and in how many places that is not what was given."""

    suspect: Suspect
    guess: Encoded
    remaining: int


def pairs(trial: Trial, singles: Sequence[Tried]) -> Iterator[tuple[Suspect, Suspect]]:
    """The pairs that explain everything: all that have the same better half, which is the best that there is.

    Args:
      singles: every fault that can occur, none of which explains everything.
    """
    if trial.wrong(trial.expected) < LEAST:
        return
    order = [tried.suspect for tried in singles]
    seen = {suspect.name for suspect in observed(trial)}  # read off what was given, so only if no rule explains it
    ordered = sorted(singles, key=lambda tried: tried.remaining)
    ruled = [tried for tried in ordered if tried.suspect.name not in seen]
    yield from list(_added(trial, ruled)) or list(_combined(trial, ruled, order)) or _added(trial, ordered)


def _added(trial: Trial, singles: Sequence[Tried]) -> Iterator[tuple[Suspect, Suspect]]:
    """Faults of the result alone after any other fault: no reference runs."""
    lasts = [tried.suspect for tried in singles if tried.suspect.last]
    for i, (first, guess, _) in enumerate(singles):
        under = trial.assuming(first, guess)
        found = False
        for second in lasts:
            if second is first or (first.last and any(second is earlier.suspect for earlier in singles[:i])):
                continue
            if _wrong(under, second) == 0:
                yield first, second
                found = True
        if found:
            return


def _combined(trial: Trial, singles: Sequence[Tried], order: Sequence[Suspect]) -> Iterator[tuple[Suspect, Suspect]]:
    """Other faults under another rule, input, factor or scale; the scales that were stored come last."""
    ordered = sorted(singles, key=lambda tried: tried.suspect.name not in FIRST)
    bases = [tried for tried in ordered if tried.suspect.becomes]
    firsts = [tried for tried in bases if _changes(trial, tried.guess)]
    scales = [tried for tried in ordered if any(tried.suspect is suspect for suspect in SCALES)]
    stages = [t.suspect for t in ordered if not t.suspect.becomes and not t.suspect.last]
    rank = [suspect for suspect in order if suspect.becomes]  # such faults have no order of their own
    found, runs = False, 0
    for i, (first, guess, _) in enumerate((*firsts, *scales)):
        earlier = {tried.suspect.name for tried in firsts[: i + 1]}
        later = [tried.suspect for tried in bases if first.becomes and tried.suspect.name not in earlier]
        seconds = [suspect for suspect in (*later, *stages) if suspect is not first][: BUDGET - runs]
        runs += len(seconds)
        for second in _explaining(trial.assuming(first, guess), seconds):
            turned = second in rank and rank.index(second) < rank.index(first)
            yield (second, first) if turned else (first, second)
            found = True
        if found:
            return
    if _wrong(trial, STORED) not in (0, None):
        for first, guess, _ in firsts:
            yield from ((first, second) for second in _explaining(trial.assuming(first, guess), [STORED]))


def _explaining(under: Trial, seconds: Sequence[Suspect]) -> Iterator[Suspect]:
    """Those that explain everything under a first fault: a sample of it, and then all of it."""
    sample = under.sampled(max(2, SAMPLE // under.scheme.block))
    if sample is None:
        return
    for second in seconds:
        if _wrong(sample, second) == 0 and (sample is under or _wrong(under, second) == 0):
            yield second


def _changes(trial: Trial, guess: Encoded) -> bool:
    """Whether a fault shows anywhere in the trial: one that does not may still be the second of a pair."""
    right = trial.expected
    return bool((guess.codes != right.codes).any() or (guess.scales != right.scales).any())


def _wrong(trial: Trial, suspect: Suspect) -> int | None:
    """In how many places what the suspect gives differs from what the implementation gave; None if it cannot occur."""
    try:
        guess = suspect.guess(trial)
    except LowbitError:
        return None  # the references do not know this combination of rules
    return None if guess is None else trial.wrong(guess)
