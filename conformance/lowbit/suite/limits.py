"""How long one call of an implementation may take, with all that it leaves to a GPU."""

from __future__ import annotations

import faulthandler
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

GRACE = 0.1
"""Part of the limit, at least one second, after which an exception that was swallowed is raised again."""

ENDURANCE = 3
"""Graces after which a process that no exception reaches is ended."""


class TimeLimit(BaseException):
    """A call took too long. No `except Exception` of it swallows this."""


class Clock:
    """Ends a check whose implementation hangs; does nothing without a limit.

    Attributes:
      limit: seconds; 0 for none.
    """

    def __init__(self) -> None:
        self.limit = 0.0
        self._log: IO[str] | None = None
        self._operation = ""

    @property
    def end(self) -> float:
        """Seconds after which the process is ended, if no exception can be raised in it."""
        return self.limit + ENDURANCE * max(1.0, GRACE * self.limit)

    def open(self, limit: float, log: Path | None) -> None:
        """Sets the limit.

        Args:
          log: where the stacks of a process are written that has to be ended; None never to end one.
        """
        self.limit = limit
        if limit and log is not None:
            self._log = log.open("w")

    def close(self) -> None:
        """Stops, and removes a log in which nothing stands."""
        self.stop()
        if self._log is not None:
            self._log.close()
            with suppress(FileNotFoundError):
                Path(self._log.name).unlink()
        self._log, self.limit = None, 0.0

    def start(self, operation: str) -> None:
        """An operation is called."""
        if not self.limit:
            return
        self._operation = operation
        if _signals():
            signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, self.limit, max(1.0, GRACE * self.limit))
        if self._log is not None:
            faulthandler.dump_traceback_later(self.end, exit=True, file=self._log)

    def stop(self) -> None:
        """It has returned, or raised."""
        if self.limit and _signals():
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._log is not None:
            faulthandler.cancel_dump_traceback_later()

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise TimeLimit(f"hung after {self.limit:g} s in {self._operation}")


CLOCK = Clock()
"""The clock of this process: it has one timer."""


def _signals() -> bool:
    """Whether a timer can raise here: on Unix, in the main thread."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
