"""Runs a command and watches the memory of its process, as Linux counts it."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lowbit.errors import ArgumentError

INTERVAL = 0.02
"""Seconds between two looks."""

FIELDS = {"peak": "VmHWM", "anonymous": "RssAnon", "files": "RssFile", "shared": "RssShmem"}


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Args:
      code: its exit code. output: what it wrote, both streams.
      seconds: from start to end.
      cpu: seconds of cores that it and its own children used, which hardly depend on what else the machine does.
      peak: most bytes resident at once, of every kind, which the system itself keeps.
      anonymous, files, shared: most bytes seen of the process's own, of mapped files (libraries), and shared with
        other processes or a driver; each at a moment of its own.
    """

    code: int
    output: str
    seconds: float
    cpu: float
    peak: int
    anonymous: int
    files: int
    shared: int


def run(command: Sequence[str], log: Path) -> Finished:
    """Runs a command to its end; of children that it starts itself no memory is counted.

    It is killed where an exception, such as an interrupt, ends the watching.

    Args:
      log: a file for what it writes.

    Raises:
      ArgumentError: this system does not tell the memory of a process.
    """
    if not Path("/proc/self/status").exists():
        raise ArgumentError("the memory of a process is read from /proc, which this system lacks: want Linux")
    most = dict.fromkeys(FIELDS, 0)
    with log.open("wb") as file:
        before = _cores()
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
            code = None
            try:
                while code is None:
                    for name, value in _status(process.pid).items():
                        most[name] = max(most[name], value)
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(INTERVAL)
            finally:
                process.kill()  # nothing where it has ended
                process.wait()
        seconds = time.perf_counter() - started
    return Finished(code, log.read_text(encoding="utf-8", errors="replace"), seconds, _cores() - before, **most)


def _cores() -> float:
    """Seconds of cores used by all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _status(pid: int) -> dict[str, int]:
    """Bytes by the names of `FIELDS`; {} of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(said[field].split()[0]) << 10 for name, field in FIELDS.items() if field in said}
