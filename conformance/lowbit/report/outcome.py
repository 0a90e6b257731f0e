"""What a run's records add up to: the verdict, and the matrix scheme × check."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowbit.records import Record, miscount
from lowbit.report.text import anchor, line

ORDER = ("error", "mismatch", "waived", "not_run", "unsupported", "pass")
"""Statuses, the one that matters most first."""

LEVELS = {
    "quick": "REDUCED RUN, level quick: boundaries and shapes only; exhaustible domains were not run through.",
    "full": "Level full: whole 16-bit and scale domains for the canonical schemes, boundaries for all. "
    "Not every domain was tried: that is level exhaustive.",
}
"""What a level below exhaustive leaves out."""

LOUD = ("quick",)
"""Levels that are a warning; others are the usual ones, and only noted."""

JUDGED = ("pass", "mismatch", "error")
"""Statuses whose counts bear on the verdict. What was waived is told apart: it shows nothing, whatever it compared."""


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
      verdict: PASS, PASSED WITH n WAIVED, FAIL, INCOMPLETE or NOTHING COMPARED.
      because: a sentence for the verdict.
      incomplete: the run did not reach its end, whatever the verdict.
      warnings: what a reader must know before believing the verdict, loud.
      notes: what is good to know, and usual.
      compared, mismatched: of the records whose status is in `JUDGED`.
      statuses: status → number of records.
    """

    verdict: str
    because: str
    incomplete: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    compared: int
    mismatched: int
    statuses: dict[str, int]


def judge(about: Mapping[str, Any], records: Sequence[Record], problems: Sequence[str] = ()) -> Outcome:
    """The verdict over a run.

    A failure is a failure also in a run that did not finish; a run that did not finish, or compared nothing, never
    passes; nor does one that ended with another exit status than 0. Only records of a status in `JUDGED` count as
    compared.

    Args:
      about: run.json. problems: lines of records that could not be read, beside those that `about` tells.
    """
    earlier = about.get("problems")
    told = [str(problem) for problem in earlier] if isinstance(earlier, list) else []
    problems = list(dict.fromkeys([*problems, *told, *_contradictions(records)]))
    statuses = Counter(record.status for record in records)
    judged = [record for record in records if record.status in JUDGED]
    compared, mismatched = sum(r.compared for r in judged), sum(r.mismatched for r in judged)
    waived = sum(r.mismatched for r in records if r.status == "waived")
    failing = statuses["mismatch"] + statuses["error"]
    finished, status = about.get("finished"), about.get("exit_status")
    unknown = isinstance(status, bool) or not isinstance(status, int)
    lost = bool(problems or miscount(about, records))
    incomplete = not finished or lost or unknown or status in (2, 3)
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
            "No record that counts compares anything: this run shows nothing about the implementation.",
        )
    elif status != 0:
        verdict, because = (
            "FAIL",
            f"No record fails, but the run ended with exit status {status}: see its terminal output.",
        )
    else:
        beside = f" Not among them: {waived:,} that differ in waived checks." if waived else ""
        checks = len({(r.implementation, r.scheme, r.check) for r in records if r.status == "waived"})
        verdict = f"PASSED WITH {checks:,} WAIVED" if checks else "PASS"
        because = f"{compared:,} elements compared bit for bit, none differs.{beside}"
    return Outcome(
        verdict,
        because,
        incomplete,
        tuple(_warnings(about, records, problems, statuses)),
        tuple(LEVELS[level] for level in _levels(about, records) if level in LEVELS and level not in LOUD),
        compared,
        mismatched,
        dict(statuses),
    )


def _contradictions(records: Iterable[Record]) -> Iterable[str]:
    """Mismatches in records that say they compared nothing."""
    for record in records:
        if record.status in ("unsupported", "not_run") and record.mismatched:
            yield f"{record.scheme} × {record.check}: {record.status}, but {record.mismatched:,} mismatches"


def _levels(about: Mapping[str, Any], records: Iterable[Record]) -> list[str]:
    return sorted({record.level for record in records} or {str(about.get("level") or "")})


def _warnings(
    about: Mapping[str, Any], records: Sequence[Record], problems: Sequence[str], statuses: Mapping[str, int]
) -> Iterable[str]:
    if not about.get("finished"):
        yield "INCOMPLETE RUN: it was started and never finished. What follows is what it had."
    elif about.get("exit_status") in (2, 3):
        yield f"INCOMPLETE RUN: it was broken off (exit status {about['exit_status']})."
    elif isinstance(about.get("exit_status"), bool) or not isinstance(about.get("exit_status"), int):
        yield f"INCOMPLETE RUN: its exit status is no number: {line(about.get('exit_status'), 60) or 'none'}."
    if problems:
        yield f"INCOMPLETE RUN: {len(problems)} line(s) of records could not be read: {line('; '.join(problems), 300)}"
    if told := miscount(about, records):
        yield f"INCOMPLETE RUN: {told}."
    for level in _levels(about, records):
        if level in LOUD:
            yield LEVELS[level]
    options = about.get("options")
    chosen = options.get("scheme") if isinstance(options, Mapping) else None
    if chosen:
        names = ", ".join(map(str, chosen)) if isinstance(chosen, list) else chosen
        yield f"Only these schemes were selected: {line(names, 300)}"
    deselected = about.get("deselected")
    if isinstance(deselected, int) and deselected:
        yield f"REDUCED RUN: {deselected:,} check(s) were deselected on the command line."
    merged = about.get("merged")
    shards = merged if isinstance(merged, list) else []
    reduced = [shard for shard in shards if isinstance(shard, Mapping) and _reduced(shard)]
    if reduced:
        yield f"MERGED: {len(reduced)} of {len(shards)} runs were of a selection; what none selected is missing."
    if statuses.get("not_run"):
        yield f"NOT RUN: {statuses['not_run']:,} check(s), listed below with the reasons."
    if statuses.get("unsupported"):
        yield f"UNSUPPORTED by the implementation: {statuses['unsupported']:,} check(s), listed below."
    if statuses.get("waived"):
        differ = sum(record.mismatched for record in records if record.status == "waived")
        with_what = f" with {differ:,} mismatches that count in no total" if differ else ""
        yield f"WAIVED: {statuses['waived']:,} check(s){with_what}, listed below."
    waivers = about.get("waivers")
    unjudged = waivers.get("unjudged") if isinstance(waivers, Mapping) else None
    if isinstance(unjudged, list) and unjudged:
        yield f"WAIVERS NOT JUDGED: {len(unjudged)}, for {line(_reasons(unjudged), 300)}"


def _reduced(about: Mapping[str, Any]) -> bool:
    options = about.get("options")
    return bool(about.get("deselected") or (isinstance(options, Mapping) and options.get("scheme")))


def _reasons(unjudged: Iterable[Any]) -> str:
    """Reasons, each once, of (place, reason)."""
    return "; ".join(dict.fromkeys(str(pair[-1]) for pair in unjudged if isinstance(pair, list) and pair))


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

    Two records are alike if they have the same kinds of mismatches and their diagnoses name the same cause of all, or
    of some; without a diagnosis, if their checks and messages begin alike but for numbers.
    """
    groups: dict[tuple[str, frozenset[str]], list[Record]] = {}
    for record in records:
        if record.failed:
            text = _cause(record.diagnosis or "")
            if not text:
                text = re.sub(r"[\d,.]+", "#", re.split("[(;]", f"{record.check}: {record.message[:200]}")[0])
            groups.setdefault((text, frozenset(record.kinds)), []).append(record)
    explained = sorted(groups.values(), key=lambda group: not group[0].diagnosis)
    return [(group[0], len(group)) for group in explained[:limit]]


def _cause(diagnosis: str) -> str:
    """A diagnosis without its counts and without what stands behind it in brackets."""
    text = re.sub(r"^(all [\d,]+ mismatches vanish|the one mismatch vanishes) with", "all vanish with", diagnosis)
    text = re.sub(r"^[\d,]+ of [\d,]+ mismatches vanish( \(\d+ %\))? with", "some vanish with", text)
    text = re.sub(r"; tried on [\d,]+ of [\d,]+$", "", text)
    return re.sub(r" \([^()]*(\([^()]*\)[^()]*)*\)$", "", text)
