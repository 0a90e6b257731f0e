"""What comes out of an implementation beside a result: results of no use, exceptions that would end the run, threads.

pytest takes some exceptions for its own (`KeyboardInterrupt`, `pytest.exit`, skips); raised by an implementation they
would end the run, or count as no failure. They go on as `Escaped`, which is an error like any other.
"""

from __future__ import annotations

import signal
import threading
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from lowbit.errors import LowbitError


class Escaped(LowbitError):
    """An implementation raised what is no `Exception`, or what pytest takes for its own."""


class WrongForm(LowbitError):
    """A result that nothing can be read from; the judge has kept the fault, and the check ends with it."""


PYTEST_OWN = (pytest.exit.Exception, unittest.SkipTest)
"""Exceptions by which pytest is told something; its others derive from BaseException alone."""


def told(error: BaseException) -> str:
    """Type and text of an exception, also of one whose text cannot be had."""
    try:
        text = str(error)
    except Exception:  # other people's __str__
        text = "its text cannot be had"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Keyboard:
    """Whether an interrupt came from outside, or an implementation raised it.

    Attributes:
      pressed: SIGINT arrived. It counts as arrived where nobody listens.
    """

    def __init__(self) -> None:
        self.pressed = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listens inside the block, where Python's own handler is in place and this is the main thread.

        Where SIGINT is ignored, as in what `nohup` and scripts start in the background, none can arrive.
        """
        before = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()
        if not main or before not in (signal.default_int_handler, signal.SIG_IGN):
            yield
            return
        self.pressed = False
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self.pressed = True

    def _note(self, number: int, frame: Any) -> None:
        self.pressed = True
        signal.default_int_handler(number, frame)


KEYBOARD = Keyboard()


class Threads:
    """Exceptions that threads raise while a check runs, by `threading.excepthook`."""

    def __init__(self) -> None:
        self._raised: list[str] = []

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hears them inside the block, and lets whoever heard them before hear them too."""
        before = threading.excepthook
        self._raised.clear()

        def hear(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is not None:
                self._raised.append(told(args.exc_value))
            before(args)

        threading.excepthook = hear
        try:
            yield
        finally:
            threading.excepthook = before

    def taken(self) -> list[str]:
        """What was heard since the last time."""
        found = self._raised[:]
        del self._raised[: len(found)]
        return found


THREADS = Threads()


def is_of_device(error: BaseException | None) -> bool:
    """Whether a GPU, not Python code, reported an exception or one that it came from; memory that ran out does not."""
    while error is not None:
        if not isinstance(error, torch.OutOfMemoryError) and (
            isinstance(error, torch.AcceleratorError)
            or any(name in told(error) for name in ("CUDA error", "HIP error", "device-side assert"))
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def answers(device: str) -> bool:
    """Whether a device still computes: some of its errors leave it unusable until the process ends, others do not."""
    try:
        return int((torch.ones(2, device=device) + 1).sum().item()) == 4
    except RuntimeError:
        return False
