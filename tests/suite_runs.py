"""Runs of the suite, each in a process of its own that starts with what any run imports.

A process per run takes seconds to import torch and pandas; these are forked from one that has. It has nothing of
lowbit and no triton: what a run does on its own account it does here too.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ["torch", "pandas", "pytest", "jinja2", "jsonschema", "ml_dtypes", "rich.console", "rich.progress"]

PROCESSES = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
if sys.platform == "linux":
    PROCESSES.set_forkserver_preload(LIBRARIES)


@functools.cache
def bytecode() -> tempfile.TemporaryDirectory[str] | None:
    """Where runs keep compiled modules for one another, if nothing may be kept beside the sources."""
    return tempfile.TemporaryDirectory() if sys.dont_write_bytecode else None


@dataclass(frozen=True)
class Finished:
    """What became of a run: pytest's exit code, and all that it printed."""

    code: int
    output: str


def run_pytest(*words: str, output: Path, cwd: Path = ROOT) -> Finished:
    """Calls pytest as its command does, in a process without TRITON_INTERPRET.

    Args:
      words: of the command line.
      output: a file for what is printed.
      cwd: the folder that it is called from.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("TRITON_INTERPRET", None)
    kept = bytecode()
    process = PROCESSES.Process(
        target=_main, args=(list(words), str(output), str(cwd), environment, kept.name if kept else None)
    )
    process.start()
    process.join()
    assert process.exitcode is not None
    return Finished(process.exitcode, output.read_text())


def _main(words: list[str], output: str, cwd: str, environment: dict[str, str], compiled: str | None) -> None:
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["pytest", *words]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored, in a job in the background
    if compiled is not None:
        sys.pycache_prefix, sys.dont_write_bytecode = compiled, False

    import pytest

    code = int(pytest.main(words))
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
