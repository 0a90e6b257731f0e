"""Every mismatch of a run, on request, written as it is found (`--all-mismatches`)."""

from __future__ import annotations

from functools import partial

from lowbit.compare.comparison import LISTED, Comparison
from lowbit.records import Run
from lowbit.report import parquet
from lowbit.suite.judge import Judge


class Listing:
    """The full list of one process; does nothing unless it is wanted.

    Raises:
      ReportError: it is wanted and pyarrow is missing.
    """

    def __init__(self, wanted: bool):
        if wanted:
            parquet.require()
        LISTED.set(wanted)
        self.wanted = wanted
        self.parts: parquet.Parts | None = None
        self.run = ""

    def open(self, run: Run) -> None:
        """Makes the folder of the parts in the run's folder."""
        if self.wanted:
            self.parts, self.run = parquet.Parts(run.folder, run.worker), run.id

    def hear(self, judge: Judge, node: str) -> None:
        """Lists what a judge keeps from now on, under the id of its node."""
        judge.listen = partial(self._write, judge, node) if self.parts is not None else None

    def _write(self, judge: Judge, node: str, comparison: Comparison) -> None:
        assert self.parts is not None
        assert comparison.rows is not None
        names = {
            "run": self.run,
            "implementation": judge.subject.name,
            "version": judge.subject.version,
            "scheme": judge.scheme.name,
            "check": judge.check,
            "node": node,
        }
        for rows in comparison.rows():
            # A judge names the parts of a check in its samples afterwards.
            tensor = ": ".join([*judge.parts, rows.tensor])
            self.parts.add(rows.columns() | {"tensor": tensor}, names)

    def close(self) -> None:
        """Finishes the part, so that it can be read whatever happens later."""
        if self.parts is not None:
            self.parts.close()
