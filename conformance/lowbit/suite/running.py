"""Which check a process is in, told on disk: one that dies in it leaves its name in the report."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lowbit.records import Record, append, read
from lowbit.suite.limits import CLOCK

PREFIX = "running-"
"""Beginning of the name of such a process among those of workers, whose records every reader of a run reads."""

HUNG = "hung.{}.txt"
"""Where a process writes its stacks that has to be ended because it hangs."""


class Running:
    """The record of the check that this process is in, in a file of its own until the check has ended.

    Args:
      folder: of the run. worker: the process's name, "" for the one that owns the run.
    """

    def __init__(self, folder: Path, worker: str):
        self.name = worker or "main"
        self.path = folder / f"records.{PREFIX}{self.name}.jsonl"
        self.log = folder / HUNG.format(self.name)

    def begin(self, record: Record) -> None:
        hung = f", or hung for {CLOCK.end:g} s where Python cannot interrupt it" if CLOCK.limit else ""
        message = f"the process ended during this check: it exited, crashed or was killed{hung}"
        append(self.path, replace(record, status="error", message=message))

    def end(self) -> None:
        self.path.unlink(missing_ok=True)


def close(folder: Path) -> None:
    """Says of the workers that died in a check whether they hung, and removes their logs."""
    for log in sorted(folder.glob(HUNG.format("*"))):
        name = log.name.split(".")[1]
        path = folder / f"records.{PREFIX}{name}.jsonl"
        stacks = log.read_text(errors="replace")
        if stacks and path.exists():
            found = read(path, [])
            path.unlink()
            for record in found:
                place = next((line.strip() for line in stacks.splitlines() if "File" in line), "")
                message = f"hung after {CLOCK.limit:g} s where Python cannot interrupt it; the process was ended"
                append(path, replace(record, message=f"{message}: {place}"))
        with suppress(FileNotFoundError):
            log.unlink()
