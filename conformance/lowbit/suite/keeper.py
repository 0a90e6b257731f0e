"""What keeps a run going, and its report right, whatever an implementation does: hooks around each check."""

from __future__ import annotations

import os
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lowbit.errors import LowbitError, UnknownImplementation
from lowbit.implementation import Implementation, load
from lowbit.records import Record
from lowbit.report import text
from lowbit.suite import escapes, running
from lowbit.suite.escapes import KEYBOARD, PYTEST_OWN, THREADS, told
from lowbit.suite.judge import Judge
from lowbit.suite.limits import CLOCK, TimeLimit
from lowbit.suite.running import Running

JUDGE = pytest.StashKey[Judge]()

SHOWN = 10_000
"""Characters kept of what a check printed."""

SLOW = 1.0
"""Seconds from which on the time that an import took is told."""


def load_timed(targets: list[str], limit: float) -> tuple[list[Implementation], list[str]]:
    """The implementations, and a line for each whose import was slow.

    Raises:
      UnknownImplementation: as `load`; or an import that hangs, or raises what is no `Exception`.
    """
    found, lines = [], []
    for target in targets:
        started = time.perf_counter()
        CLOCK.open(limit, None)
        CLOCK.start("import")
        try:
            found.append(load(target))
        except TimeLimit as error:
            raise UnknownImplementation(f"impl: {target!r} {error}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, PYTEST_OWN):
                raise
            raise UnknownImplementation(f"impl: {target!r} fails on import: {told(error)}") from error
        finally:
            CLOCK.close()
        if (seconds := time.perf_counter() - started) > SLOW:
            lines.append(f"import of {text.clean(target)}: {seconds:.1f} s")
    return found, lines


def limits_of(config: pytest.Config) -> tuple[float, bool]:
    """Seconds that a call may take, and whether a process may be ended in which one takes longer.

    A limit that was given to pytest-timeout holds in place of ours, since both need the one timer of the process; so
    does that of pytest's own fault handler.
    """
    theirs = (getattr(config.option, "timeout", None), os.environ.get("PYTEST_TIMEOUT"), _ini(config, "timeout"))
    limit = 0.0 if any(theirs) else max(0.0, config.option.check_timeout)
    return limit, not float(_ini(config, "faulthandler_timeout") or 0)


def _ini(config: pytest.Config, name: str) -> Any:
    """A setting of pytest's configuration file; None where no plugin knows it."""
    try:
        return config.getini(name)
    except (KeyError, ValueError):
        return None


class Keeper:
    """Hooks of one run, around those of `SuiteRun`.

    Args:
      record: makes the record of a check: of its item, its judge and a status.
      folder: of the run. worker: the process's name in it, "" for the one that owns it.
      limits: as `limits_of` returns.

    Attributes:
      broken: why no check can run any more in this process; "" while they can.
    """

    def __init__(
        self,
        record: Callable[[Any, Judge, str], Record],
        folder: Path,
        worker: str,
        device: str,
        limits: tuple[float, bool],
    ):
        self.record, self.folder, self.device, self.limits = record, folder, device, limits
        self.running = Running(folder, worker)
        self.worker = worker
        self.broken = ""
        self._listening = ExitStack()

    def pytest_sessionstart(self) -> None:
        limit, may_end = self.limits
        CLOCK.open(limit, self.running.log if may_end else None)
        self._listening.enter_context(KEYBOARD.listening())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if not self.worker:
            running.close(self.folder)

    def pytest_unconfigure(self) -> None:
        CLOCK.close()
        self._listening.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        with THREADS.heard():
            try:
                return (yield)
            finally:
                self.running.end()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        judge = item.stash.get(JUDGE, None)
        if judge is not None:
            if self.broken:
                judge.not_run = self.broken
                pytest.skip(self.broken)
            self.running.begin(self.record(item, judge, "error"))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        judge = item.stash.get(JUDGE, None)
        if judge is None:
            return (yield)
        error: BaseException | None = None
        try:
            return (yield)
        except (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest) as escape:
            if judge.not_run is None and not judge.waived:  # no check skips itself
                raise LowbitError(f"{type(escape).__name__} raised inside the check: {escape}") from escape
            raise
        except BaseException as escape:
            error = escape
            raise
        finally:
            for raised in THREADS.taken():
                judge.note(f"a thread raised {raised}")
            for _, name, shown in getattr(item, "_report_sections", ()):
                if len(shown) > SHOWN:
                    judge.note(f"printed {len(shown):,} characters to {name}")
            self._look_at_device(item, judge, error)

    def _look_at_device(self, item: pytest.Item, judge: Judge, error: BaseException | None) -> None:
        """Finds out whether an error of the device, told or taken for a refusal, has left it unusable."""
        suspect = next((e for e in (error, judge.implementation.raised) if escapes.is_of_device(e)), None)
        if suspect is not None and not self.broken and not escapes.answers(self.device):
            self.broken = (
                f"the device no longer answers since {item.nodeid} ({judge.subject.name}), "
                f"which ended with {text.line(told(suspect), 200)}"
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = yield
        report.sections = [(name, _cut(shown)) for name, shown in report.sections]
        return report


def _cut(shown: str) -> str:
    """The beginning and the end of what was printed: whole, it would fill terminals and reports."""
    if len(shown) <= SHOWN:
        return shown
    half = SHOWN // 2
    return f"{shown[:half]}\n… {len(shown) - 2 * half:,} characters left out …\n{shown[-half:]}"
