"""A run where GitHub shows it: annotations, one a check, and a step summary in Markdown.

Names and messages are other people's: nothing in them ends a command, a cell or a tag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lowbit.records import Record
from lowbit.report.outcome import Cell, judge, matrix
from lowbit.report.text import count, diagnosis, line, of_kinds

ANNOTATIONS = 10
"""What GitHub shows of one sort for a step; the last one tells how many more there are."""

ROWS = 100
"""Rows of one table: a step summary may have a mebibyte."""

SUMMARY = "GITHUB_STEP_SUMMARY"
"""The variable that names the file to append a summary to."""

LENGTH = 500
"""Letters of one text in an annotation or a cell."""

_SPECIAL = re.compile(r"([\\`*_\[\]#|~@])")


def commands(records: Sequence[Record]) -> list[str]:
    """Workflow commands: an error a check that fails, a warning a check that is waived."""
    cells = list(matrix(records).values())
    failed = [cell for cell in cells if cell.failed]
    waived = [cell for cell in cells if not cell.failed and cell.status == "waived"]
    return [*_commands("error", "fails", failed), *_commands("warning", "is waived", waived)]


def _commands(command: str, verb: str, cells: Sequence[Cell]) -> list[str]:
    shown = cells if len(cells) <= ANNOTATIONS else cells[: ANNOTATIONS - 1]
    lines = [_command(command, f"{_where(cell)} {verb}", _told(cell)) for cell in shown]
    if len(cells) > len(shown):
        more = f"{len(cells) - len(shown):,} more: see the report"
        lines.append(_command(command, f"lowbit: {len(cells):,} checks: each {verb}", more))
    return lines


def _command(command: str, title: str, message: str) -> str:
    return f"::{command} title={escape(title, parameter=True)}::{escape(message)}"


def escape(text: str, *, parameter: bool = False) -> str:
    """A text in a workflow command, in its message or in one of its parameters."""
    text = line(text, LENGTH).replace("%", "%25")
    return text.replace(":", "%3A").replace(",", "%2C") if parameter else text


def _where(cell: Cell) -> str:
    return f"{cell.implementation}: {cell.scheme} × {cell.check}"


def _told(cell: Cell) -> str:
    """What is wrong with a check, and why."""
    records = [r for r in cell.records if r.failed] or [r for r in cell.records if r.status == "waived"]
    first = records[0]
    why = dict.fromkeys((diagnosis(first), first.message))
    counts = f"{count(cell.mismatched)} of {count(cell.compared)} differ" if cell.mismatched else ""
    kinds: dict[str, int] = {}
    for record in records:
        for kind, n in record.kinds.items():
            kinds[kind] = kinds.get(kind, 0) + n
    counts += f" ({of_kinds(kinds)})" if kinds else ""
    return ". ".join(filter(None, [counts, *why])) or first.status


def markdown(text: Any) -> str:
    """A text in a cell of Markdown: letters that mean something there, and in HTML, mean nothing."""
    safe = line(text, LENGTH).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", safe)


def summary(about: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The step summary: verdict, what fails, what is waived, what did not run."""
    outcome = judge(about, records)
    judged = dict.fromkeys(f"{r.implementation} {r.version}".strip() for r in records if r.version)
    named = ", ".join(judged) or str(about.get("implementation") or "nothing named")
    parts = [f"## lowbit: {markdown(outcome.verdict)}", "", markdown(f"{named}: {outcome.because}"), ""]
    parts += [f"* {markdown(warning)}" for warning in (*outcome.warnings, *outcome.notes)]
    devices = dict.fromkeys(record.device for record in records if record.device)
    parts += [f"* device: {markdown(device)}" for device in devices]
    cells = list(matrix(records).values())
    parts += _table("Fails", ["wrong", "compared"], [(c, (c.mismatched, c.compared)) for c in cells if c.failed])
    waived = [(c, (c.mismatched, c.compared)) for c in cells if not c.failed and c.status == "waived"]
    parts += _table("Waived", ["wrong", "compared"], waived)
    silent: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record.status in ("not_run", "unsupported"):
            key = record.status.replace("_", " "), record.message or "no reason given"
            silent.setdefault(key, []).append(record.check)
    if silent:
        parts += ["", "### Not run", ""]
        for (status, why), checks in list(silent.items())[:ROWS]:
            names = list(dict.fromkeys(checks))
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            parts.append(f"* {status}: {markdown(', '.join(names[:8]) + more)}: {markdown(why)}")
    return "\n".join(parts) + "\n"


def _table(title: str, numbers: Sequence[str], rows: Sequence[tuple[Cell, tuple[int, int]]]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"### {title}: {len(rows):,}", ""]
    lines.append(f"| implementation | scheme | check | {' | '.join(numbers)} | what |")
    lines.append(f"|---|---|---|{'---:|' * len(numbers)}---|")
    for cell, counts in rows[:ROWS]:
        names = " | ".join(map(markdown, (cell.implementation, cell.scheme, cell.check)))
        lines.append(f"| {names} | {' | '.join(map(count, counts))} | {markdown(_told(cell))} |")
    return lines + ([f"\n… and {len(rows) - ROWS:,} more"] if len(rows) > ROWS else [])


def tell(about: Mapping[str, Any], records: Sequence[Record]) -> list[str]:
    """Appends the step summary to its file, if there is one; returns the lines to print."""
    lines = commands(records)
    path = os.environ.get(SUMMARY)
    if path:
        try:
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(summary(about, records))
        except OSError as error:
            lines.append(f"lowbit: no step summary: {SUMMARY}: {error.strerror}")
    return lines
