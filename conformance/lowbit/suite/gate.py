"""What a run is held against beside the references: waivers, and an earlier run; and what it left out itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from lowbit import waivers, waiving
from lowbit.errors import LowbitError, UnknownScheme
from lowbit.records import Record, read_about, read_run
from lowbit.report import diff, diff_files, text
from lowbit.report.diff import Difference
from lowbit.waivers import Waiver

SUITE = Path(__file__).resolve().parent

PROPERTIES = (
    *("implementation", "version", "scheme", "check", "status", "assurance", "level"),
    *("compared", "mismatched", "kinds", "digest", "diagnosis"),
)
"""What a test tells of itself in JUnit and other reports of pytest."""

UNJUDGED = 5
"""Waivers that a terminal lists of those that a run says nothing of."""

ENTRIES = 1
"""Entries of waivers that a terminal shows; `lowbit report waivers` has all."""

Select = Callable[[Sequence[str]], Sequence[Any]]
"""Schemes by globs; raises UnknownScheme for one that nothing matches."""


class Gate:
    """The waivers and the baseline of one run.

    Attributes:
      waivers: those of the file, [] without one.
      findings: what became of them, after `close`.
      difference: from the earlier run, after `close`; None without one.
    """

    def __init__(
        self,
        waiver_file: str | None,
        baseline: str | None,
        setting: waiving.Setting,
        schemes: Iterable[str],
        select: Select,
    ):
        """Reads both.

        Args:
          schemes: names of those that the run selected.

        Raises:
          LowbitError: a file or a folder is not understood, or a waiver names no scheme.
        """
        self.setting = setting
        self.waivers: list[Waiver] = waivers.read(waiver_file) if waiver_file else []
        self.file = Path(waiver_file).name if waiver_file else ""
        self.baseline = Path(baseline) if baseline else None
        if self.baseline is not None:
            read_about(self.baseline)
        self.findings = waiving.Findings([], [])
        self.difference: Difference | None = None
        self.left_out: set[tuple[str, str, str, str]] = set()
        self.collected: set[str] = set()
        selected = set(schemes)
        self._others: dict[str, set[str]] = {}
        for waiver in self.waivers:
            if waiver.scheme not in self._others:
                self._others[waiver.scheme] = self._meant(waiver, select) - selected

    def _meant(self, waiver: Waiver, select: Select) -> set[str]:
        try:
            return {scheme.name for scheme in select([waiver.scheme])}
        except UnknownScheme as error:
            raise LowbitError(f"waivers: {waiver.place}: {error}") from error

    # -- what the run leaves out

    def leave_out(self, implementation: str, scheme: str, check: str, node: str = "") -> None:
        """Notes a check that this run was told not to make, or cannot make here."""
        if self.waivers:
            self.left_out.add((implementation, scheme, check, node))

    def deselect(self, items: Iterable[pytest.Item]) -> None:
        for item in items:
            mark, spec = item.get_closest_marker("lowbit"), getattr(item, "callspec", None)
            subject = spec.params.get("subject") if spec else None
            if mark and isinstance(subject, tuple):
                self.leave_out(subject[0].name, subject[1].name, mark.kwargs["name"], node_of(item))

    def told(self) -> dict[str, Any]:
        """What only a worker knows, for the process that owns the run."""
        return {"left_out": [list(key) for key in self.left_out], "collected": sorted(self.collected)}

    def hear(self, told: dict[str, Any]) -> None:
        """Takes over what a worker told."""
        self.left_out.update(tuple(key) for key in told.get("left_out", ()))
        self.collected.update(told.get("collected", ()))

    def _missing(self, session: pytest.Session) -> str:
        """Why not all of the suite was looked at, or not to the end; "" if it was."""
        if session.shouldstop or session.shouldfail or int(session.exitstatus) in (2, 3):
            return "the run was stopped before its end"
        files = {path.name for path in SUITE.glob("test_*.py")}
        if any("::" in arg for arg in session.config.args) or not files <= self.collected:
            return "the command line names a part of the suite"
        return ""

    def _left_out(self, waiver: Waiver) -> str:
        if others := self._others[waiver.scheme]:
            return f"scheme {min(others)} was not selected"
        for implementation, scheme, check, node in sorted(self.left_out):
            if waiver.covers(implementation, scheme, check, node or waiver.node):
                return f"{check} of {scheme} was not selected"
        return ""

    # -- the end

    def waive(self, record: Record) -> Record:
        """The record, waived if a waiver expects exactly this."""
        return waiving.waive(record, self.waivers, self.setting) if self.waivers else record

    def close(self, session: pytest.Session, about: dict[str, Any], records: list[Record]) -> list[Record]:
        """Judges the waivers, compares with the earlier run; returns the records of waivers that fail."""
        missing = self._missing(session)
        if self.waivers:
            self.findings = waiving.judge(
                self.waivers, records, self.setting, lambda waiver: missing or self._left_out(waiver)
            )
        failures = self.findings.failures
        if self.baseline is not None:
            earlier, problems = read_run(self.baseline)
            before, options = read_about(self.baseline), session.config.option
            self.difference = diff.compare(
                before,
                earlier,
                about,
                [*records, *failures],
                partial=bool(missing or about.get("deselected")) or _narrowed(options, before.get("options")),
                running=True,
                problems=problems,
            )
        return failures

    def about(self) -> dict[str, Any]:
        """What run.json says of both."""
        told: dict[str, Any] = {}
        if self.file:
            unjudged = [list(pair) for pair in self.findings.unjudged]
            told["waivers"] = {"file": self.file, "entries": len(self.waivers), "unjudged": unjudged}
        if self.baseline is not None:
            told["baseline"] = self.baseline.name
        return told

    @property
    def stops(self) -> bool:
        """Whether the comparison with the earlier run fails this one."""
        return self.difference is not None and bool(self.difference.exit_code)

    def write(self, folder: Path) -> None:
        """Writes the difference beside the run's other files: baseline.json, baseline.csv, baseline.html."""
        if self.difference is not None:
            diff_files.write(folder / diff_files.BASELINE, diff_files.as_json(self.difference))
            diff_files.write(folder / "baseline.csv", diff_files.as_csv(self.difference))
            diff_files.write(folder / "baseline.html", diff_files.as_page(self.difference))

    def lines(
        self, records: Sequence[Record], about: dict[str, Any], folder: Path
    ) -> Iterator[tuple[str, dict[str, bool]]]:
        """The lines that end a run in the terminal, with the style of each."""
        red, yellow = {"red": True, "bold": True}, {"yellow": True}
        for record in records:
            if record.check == waiving.CHECK:
                yield f"waiver failed: {text.line(record.message)}", red
        unjudged = self.findings.unjudged
        for place, why in unjudged[:UNJUDGED]:
            yield f"waiver not judged: {text.line(place)}: {text.line(why)}", yellow
        if len(unjudged) > UNJUDGED:
            yield f"waiver not judged: {len(unjudged) - UNJUDGED:,} more, in run.json", yellow
        wrong = [record for record in records if record.status == "mismatch"]
        found = waivers.entries(wrong, about)
        if found:
            yield "to waive what is known, fill in reason and issue, and add to the file of --waivers:", {}
            for entry in found[:ENTRIES]:
                yield from ((f"  {line}" if line else "", {}) for line in entry.splitlines())
            if len(found) > ENTRIES:
                yield f"  … and {len(found) - ENTRIES:,} more: lowbit report waivers {text.line(folder)}", {}
        if self.difference is not None:
            yield "compared with an earlier run:", {}
            for line in self.difference.lines(limit=5):
                yield f"  {line}", red if line == "SOMETHING NEW" else {}


def _narrowed(options: Any, before: Any) -> bool:
    """Whether schemes or a checkpoint are selected, and not those that an earlier run had selected."""
    own = list(options.scheme or ()), Path(options.weights).name if options.weights else None
    told = before if isinstance(before, Mapping) else {}
    return any(own) and own != (told.get("scheme"), told.get("weights"))


def node_of(item: pytest.Item) -> str:
    """pytest's node id, with the file that pytest leaves out of it where that was named and lies outside its root."""
    return item.path.name + item.nodeid if item.nodeid.startswith("::") else item.nodeid


def mark(item: pytest.Item, report: Any, record: Record, *, waived: bool) -> None:
    """Gives a test the properties that JUnit and other reports of pytest carry."""
    values = {name: getattr(record, name) for name in PROPERTIES}
    values["status"] = "waived" if waived else record.status
    values["kinds"] = " ".join(f"{kind}={n}" for kind, n in record.kinds.items())
    found = [(name, value if isinstance(value, int) else text.clean(value)) for name, value in values.items()]
    item.user_properties += found
    report.user_properties += found


def refused_as_usage(configure: Callable[[Any, pytest.Config], None]) -> Callable[[Any, pytest.Config], None]:
    """The same hook, whose errors of lowbit are told in a line, without a traceback."""

    @functools.wraps(configure)
    def call(self: Any, config: pytest.Config) -> None:
        try:
            configure(self, config)
        except LowbitError as error:
            raise pytest.UsageError(str(error)) from error

    return call


def today() -> date:
    """The day in UTC."""
    return datetime.now(UTC).date()
