"""Votes: independent witnesses answer every case again, and one that differs stops everything.

Independence is counted by provenance, that is by who wrote the code that decides. lowbit's references `exact` and
`bits` count as two: they were written apart, in other terms, and share the tables of formats and schemes only.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lowbit.errors import WitnessDisagreement
from lowbit.vectors.group import Group

PROVENANCES = 2
"""Independent witnesses that every case needs."""


@dataclass(frozen=True)
class Answer:
    """What a witness says on one question of a case, beside what the file says; both as the file writes it."""

    case: str
    question: str
    given: str
    expected: str


@dataclass(frozen=True)
class Witness:
    """Somebody who can answer.

    Attributes:
      name: as the manifest has it.
      provenance: whose code decides; two witnesses of one provenance are one.
      about: what it answers, in words.
      ask: the answers to a group, none to what it cannot judge.
      distribution: the installed package whose version counts, None for lowbit's own.
      module: what must be importable.
    """

    name: str
    provenance: str
    about: str
    ask: Callable[[Group], Iterator[Answer]]
    distribution: str | None = None
    module: str | None = None

    @property
    def available(self) -> bool:
        """Whether it can be asked here."""
        return self.module is None or importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        """Of the installed package; "" for lowbit's own."""
        return importlib.metadata.version(self.distribution) if self.distribution else ""


@dataclass(frozen=True)
class Disagreement:
    """An answer that differs from the file's."""

    witness: str
    group: Group
    answer: Answer

    def __str__(self) -> str:
        rule = ", ".join(part for part in (self.group.subject, self.group.rounding, self.group.nan) if part)
        return (
            f"{self.group.file}: {self.group.name}, case {self.answer.case!r}: {self.answer.question}: "
            f"{self.witness} says {_cut(self.answer.given, self.answer.expected)}, "
            f"the vectors {_cut(self.answer.expected, self.answer.given)} (rule: {rule})"
        )


@dataclass
class Votes:
    """The outcome of a vote.

    Attributes:
      counts: group → witness → cases on which it agreed.
      disagreements: all that was contradicted, at most `limit` a group and witness.
      short: group → a case with fewer than `PROVENANCES` independent witnesses.
    """

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    disagreements: list[Disagreement] = field(default_factory=list)
    short: dict[str, str] = field(default_factory=dict)

    def require(self) -> None:
        """Passes only if nothing was contradicted and every case has enough witnesses.

        Raises:
          WitnessDisagreement: names the witness, the case and the rule; or a case that too few have judged.
        """
        if self.disagreements:
            shown = "\n  ".join(str(d) for d in self.disagreements[:10])
            more = f"\n  … and {len(self.disagreements) - 10} more" if len(self.disagreements) > 10 else ""
            raise WitnessDisagreement(f"witnesses differ from the vectors:\n  {shown}{more}")
        for group, case in self.short.items():
            raise WitnessDisagreement(
                f"{group}, case {case!r}: got fewer than {PROVENANCES} independent witnesses, want at least as many"
            )


def witnesses() -> tuple[Witness, ...]:
    """Every witness that lowbit knows, installed or not."""
    from lowbit.vectors import witness_casts, witness_hand, witness_layouts, witness_mpfr, witness_own

    own = (*witness_own.WITNESSES, *witness_layouts.WITNESSES, *witness_hand.WITNESSES)
    return (*own, witness_mpfr.WITNESS, *witness_casts.WITNESSES)


def vote(groups: Iterable[Group], asked: Sequence[Witness], *, limit: int = 3) -> Votes:
    """Asks witnesses about every group.

    Args:
      asked: those that are available; the others are left out.
      limit: disagreements kept of one witness and group.
    """
    votes = Votes()
    present = [witness for witness in asked if witness.available]
    for group in groups:
        counts: dict[str, int] = {}
        provenances: dict[str, set[str]] = {}
        for witness in present:
            agreed: set[str] = set()
            wrong: set[str] = set()
            kept = 0
            for answer in witness.ask(group):
                if answer.given == answer.expected:
                    agreed.add(answer.case)
                    continue
                wrong.add(answer.case)
                if kept < limit:
                    votes.disagreements.append(Disagreement(witness.name, group, answer))
                    kept += 1
            agreed -= wrong
            if agreed:
                counts[witness.name] = len(agreed)
            for case in agreed:
                provenances.setdefault(case, set()).add(witness.provenance)
        votes.counts[group.name] = counts
        short = [c.name for c in group.cases if len(provenances.get(c.name, ())) < PROVENANCES]
        if short:
            votes.short[group.name] = short[0]
    return votes


def _cut(text: str, other: str) -> str:
    """A long answer around the first place where it differs."""
    if len(text) <= 24:
        return text or "nothing"
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), 0)
    start = max(at - 4, 0)
    return f"{'…' if start else ''}{text[start : at + 12]}… (from digit {at})"
