"""GPU memory that several workers share: who may take much of it, and what each gives back after a check."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

KEPT = 1 << 30
"""Bytes that a worker may hold between two checks though it does not use them."""


LOCK = "turn.lock"
"""The file, in a run's folder, that a worker locks for its turn."""


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Waits until no other worker of the run that writes to this folder is inside."""
    if sys.platform == "win32":  # one GPU worker at a time is all that is supported there
        yield
        return
    import fcntl

    with (folder / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


def give_back() -> None:
    """Returns what torch's allocator keeps for later, where that is much: other workers may need it now."""
    with suppress(RuntimeError):  # a device that no longer answers has nothing to give back
        if torch.cuda.is_initialized() and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > KEPT:
            torch.cuda.empty_cache()
