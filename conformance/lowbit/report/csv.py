"""The CSV files of a run: summary.csv, one row a record; mismatches.csv, one row a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lowbit.records import Record, mismatches, summary
from lowbit.tables import inert


def write(folder: Path, records: Sequence[Record]) -> None:
    """Writes both files, also where there is nothing to write but the header."""
    for name, frame in (("summary.csv", summary(records)), ("mismatches.csv", mismatches(records))):
        with open(folder / name, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            inert(frame).to_csv(file, index=False, lineterminator="\n")
