"""What a run's records add up to: the verdict, and the matrix scheme × check."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowbit.records import Record
from lowbit.report.text import anchor, line

ORDER = ("error", "mismatch", "waived", "not_run", "unsupported", "pass")
"""Statuses, the one that matters most first."""

LEVELS = {
    "quick": "REDUCED RUN, level quick: boundaries and shapes only; exhaustible domains were not run through.",
    "full": "Level full: whole 16-bit and scale domains for the canonical schemes, boundaries for all. "
    "Not every domain was tried: that is level exhaustive.",
}
"""What a level below exhaustive leaves out."""


@dataclass
class Cell:
    """All records of one check of one scheme of one implementation."""

    implementation: str
    scheme: str
    check: str
    records: list[Record] = field(default_factory=list)

    @property
    def status(self) -> str:
        """The gravest of its records; something that passed outweighs what did not run."""
        found = {record.status for record in self.records}
        if "pass" in found and not found & {"error", "mismatch", "waived"}:
            return "pass"
        return next(status for status in ORDER if status in found)

    @property
    def failed(self) -> bool:
        return any(record.failed for record in self.records)

    @property
    def compared(self) -> int:
        return sum(record.compared for record in self.records)

    @property
    def mismatched(self) -> int:
        return sum(record.mismatched for record in self.records)

    @property
    def assurance(self) -> str:
        """What the records say, each once."""
        return " + ".join(dict.fromkeys(record.assurance for record in self.records if record.assurance))

    @property
    def anchor(self) -> str:
        return anchor(self.implementation, self.scheme, self.check)


@dataclass(frozen=True)
class Outcome:
    """A run at a glance.

    Attributes:
      verdict: PASS, FAIL, INCOMPLETE or NOTHING COMPARED.
      because: a sentence for the verdict.
      incomplete: the run did not reach its end, whatever the verdict.
      warnings: what a reader must know before believing the verdict, loud.
      statuses: status → number of records.
    """

    verdict: str
    because: str
    incomplete: bool
    warnings: tuple[str, ...]
    compared: int
    mismatched: int
    statuses: dict[str, int]


def judge(about: Mapping[str, Any], records: Sequence[Record], problems: Sequence[str] = ()) -> Outcome:
    """The verdict over a run.

    A failure is a failure also in a run that did not finish; a run that did not finish, or compared nothing, never
    passes; nor does one that ended with another exit status than 0.

    Args:
      about: run.json. problems: lines of records that could not be read.
    """
    statuses = Counter(record.status for record in records)
    compared, mismatched = sum(r.compared for r in records), sum(r.mismatched for r in records)
    failing = statuses["mismatch"] + statuses["error"]
    finished, status = about.get("finished"), about.get("exit_status")
    incomplete = not finished or bool(problems) or status in (2, 3)
    if failing:
        checks = len({(r.implementation, r.scheme, r.check) for r in records if r.failed})
        verdict = "FAIL"
        because = (
            f"{checks:,} of {len(matrix(records)):,} checks failed; "
            f"{mismatched:,} of {compared:,} compared elements differ."
        )
    elif incomplete:
        verdict, because = (
            "INCOMPLETE",
            "The run did not reach its end, so that nothing can be said of what is missing.",
        )
    elif compared == 0:
        verdict, because = (
            "NOTHING COMPARED",
            "No record compares anything: this run shows nothing about the implementation.",
        )
    elif status != 0:
        verdict, because = (
            "FAIL",
            f"No record fails, but the run ended with exit status {status}: see its terminal output.",
        )
    else:
        verdict, because = "PASS", f"{compared:,} elements compared bit for bit, none differs."
    return Outcome(
        verdict,
        because,
        incomplete,
        tuple(_warnings(about, records, problems, statuses)),
        compared,
        mismatched,
        dict(statuses),
    )


def _warnings(
    about: Mapping[str, Any], records: Sequence[Record], problems: Sequence[str], statuses: Mapping[str, int]
) -> Iterable[str]:
    if not about.get("finished"):
        yield "INCOMPLETE RUN: it was started and never finished. What follows is what it had."
    elif about.get("exit_status") in (2, 3):
        yield f"INCOMPLETE RUN: it was broken off (exit status {about['exit_status']})."
    if problems:
        yield f"INCOMPLETE RUN: {len(problems)} line(s) of records could not be read: {line('; '.join(problems), 300)}"
    for level in sorted({r.level for r in records} or {str(about.get("level") or "")}):
        if level in LEVELS:
            yield LEVELS[level]
    options = about.get("options")
    chosen = options.get("scheme") if isinstance(options, Mapping) else None
    if chosen:
        names = ", ".join(map(str, chosen)) if isinstance(chosen, list) else chosen
        yield f"Only these schemes were selected: {line(names, 300)}"
    if statuses.get("not_run"):
        yield f"NOT RUN: {statuses['not_run']:,} check(s), listed below with the reasons."
    if statuses.get("unsupported"):
        yield f"UNSUPPORTED by the implementation: {statuses['unsupported']:,} check(s), listed below."
    if statuses.get("waived"):
        yield f"WAIVED: {statuses['waived']:,} check(s), listed below."


def matrix(records: Iterable[Record]) -> dict[tuple[str, str, str], Cell]:
    """(implementation, scheme, check) → cell, in the order in which they first occur."""
    cells: dict[tuple[str, str, str], Cell] = {}
    for record in records:
        key = record.implementation, record.scheme, record.check
        cells.setdefault(key, Cell(*key)).records.append(record)
    return cells


def axes(cells: Mapping[tuple[str, str, str], Cell]) -> tuple[list[tuple[str, str]], list[str]]:
    """The rows (implementation, scheme) and the columns (check) of a matrix; the row of all schemes comes last."""
    rows = list(dict.fromkeys((implementation, scheme) for implementation, scheme, _ in cells))
    return sorted(rows, key=lambda row: row[1] == "*"), list(dict.fromkeys(check for _, _, check in cells))


def first_failures(records: Iterable[Record], limit: int) -> list[tuple[Record, int]]:
    """Failing records that differ in what is wrong, each with the number of records like it.

    Two records are alike if their diagnoses, or without one their checks and messages, begin alike but for numbers.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.failed:
            text = record.diagnosis or f"{record.check}: {record.message[:200]}"
            groups.setdefault(re.sub(r"[\d,.]+", "#", re.split("[(;]", text)[0]), []).append(record)
    explained = sorted(groups.values(), key=lambda group: not group[0].diagnosis)
    return [(group[0], len(group)) for group in explained[:limit]]
