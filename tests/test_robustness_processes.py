"""Implementations that end the process, or hang where nothing can interrupt them; and what an import may do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_robustness import BYTES, FILE, PACKING, Told, run

from lowbit.errors import UnknownImplementation
from lowbit.records import read_about, read_run
from lowbit.report import build
from lowbit.suite import escapes
from lowbit.suite.escapes import KEYBOARD
from lowbit.suite.keeper import limits_of, load_timed
from lowbit.suite.limits import CLOCK, Clock, TimeLimit

SELECTED = ("-k", "(test_every_byte_is_written and plain) or test_every_pair")
ENDED = "the process ended during this check: it exited, crashed or was killed"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    names = ["FINE", "DIES", "HANGS_NATIVELY"]
    return run(tmp_path_factory.mktemp("run"), names, *SELECTED, "-n", "2", "--check-timeout", "1")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dies", ENDED),
        ("hangs_natively", 'hung after 1 s where Python cannot interrupt it; the process was ended: File "'),
    ],
)
def test_a_worker_that_ends_leaves_the_name_of_its_check(told: Told, name: str, message: str) -> None:
    (record,) = told.records[name, BYTES]
    assert record.status == "error"
    assert record.message.startswith(message)
    assert f"[{name}-mxfp4_floor-plain]" in record.node
    assert message.split('"')[0] in told.page


def test_the_others_are_judged_under_new_workers(told: Told) -> None:
    """A run of two workers of which two die reaches its end."""
    assert told.done.code == 1
    statuses = {name: told.records[name, PACKING][0].status for name in ("fine", "dies", "hangs_natively")}
    assert set(statuses.values()) == {"pass"}
    assert told.records["fine", BYTES][0].status == "pass"
    assert "INCOMPLETE" not in told.page


def test_the_page_of_a_process_that_ended_is_incomplete_and_names_the_check(tmp_path: Path) -> None:
    """Without workers nothing can be written at the end; `lowbit report build` makes a page of what was there."""
    found = run(tmp_path, ["CRASHES", "FINE"], *SELECTED)
    assert found.page == ""
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_about(folder)["finished"] is None
    (record,) = read_run(folder)[0]
    assert record.status == "error"
    build(folder)
    page = (folder / "index.html").read_text()
    assert "INCOMPLETE RUN" in page
    assert ENDED in page
    assert "test_every_byte_is_written[crashes-mxfp4_floor-plain]" in page


def target(tmp_path: Path, body: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(body)
    return f"{path}:IMPLEMENTATION"


def test_a_slow_import_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWBIT_SLOW_IMPORT", "1")
    (found,), (line,) = load_timed([f"{FILE}:FINE"], 5)
    assert found.name == "fine"
    assert line.startswith(f"import of {FILE}:FINE: 1.")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import sys; sys.exit(0)", "fails on import: SystemExit: 0"),
        ("import pytest; pytest.exit('enough')", "fails on import: Exit: enough"),
        ("import pytest; pytest.skip('today', allow_module_level=True)", "fails on import: Skipped: today"),
        ("import time; time.sleep(60)", "hung after 0.3 s in import"),
        ("1 / 0", "fails on import: ZeroDivisionError: division by zero"),
    ],
)
def test_an_import_that_ends_the_run_is_refused(tmp_path: Path, body: str, says: str) -> None:
    """A module that leaves with exit code 0 must not pass for a run in which nothing is wrong."""
    with pytest.raises(UnknownImplementation, match=says):
        load_timed([target(tmp_path, body)], 0.3)
    assert CLOCK.limit == 0


def test_a_clock_without_a_limit_does_nothing() -> None:
    before = signal.getsignal(signal.SIGALRM)
    clock = Clock()
    clock.open(0, None)
    clock.start("quantize")
    clock.stop()
    clock.close()
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize(
    ("option", "ini", "limits"),
    [
        (None, {}, (5.0, True)),
        (30.0, {}, (0.0, True)),
        (None, {"timeout": "30"}, (0.0, True)),
        (None, {"timeout": None, "faulthandler_timeout": "60"}, (5.0, False)),
    ],
)
def test_limits_of_other_plugins_hold(
    monkeypatch: pytest.MonkeyPatch, option: float | None, ini: dict[str, Any], limits: tuple[float, bool]
) -> None:
    """There is one timer in a process: who gave pytest-timeout a limit means that one."""
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)
    config: Any = SimpleNamespace(
        option=SimpleNamespace(timeout=option, check_timeout=5), getini=lambda name: ini[name]
    )
    assert limits_of(config) == limits


def test_no_handler_of_exceptions_swallows_the_limit() -> None:
    assert not issubclass(TimeLimit, Exception)


@pytest.fixture
def interrupts() -> Iterator[Callable[[Any], Any]]:
    """Sets what SIGINT does: it may be ignored from the start, in a job in the background."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_from_outside_is_told_from_one_that_is_raised(interrupts: Callable[[Any], Any]) -> None:
    interrupts(signal.default_int_handler)
    with KEYBOARD.listening():
        assert not KEYBOARD.pressed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert KEYBOARD.pressed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_interrupts_are_ignored_none_comes_from_outside(interrupts: Callable[[Any], Any]) -> None:
    interrupts(signal.SIG_IGN)
    with KEYBOARD.listening():
        signal.raise_signal(signal.SIGINT)
        assert not KEYBOARD.pressed
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert KEYBOARD.pressed


def test_anothers_handler_of_interrupts_stays(interrupts: Callable[[Any], Any]) -> None:
    """Whether an interrupt has come it alone knows: each counts as one from outside."""
    heard: list[int] = []
    interrupts(lambda number, frame: heard.append(number))
    with KEYBOARD.listening():
        assert KEYBOARD.pressed
        signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


def test_threads_are_heard_and_heard_by_others_too(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", others.append)
    with escapes.THREADS.heard():
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    assert escapes.THREADS.taken() == ["ZeroDivisionError: division by zero"]
    assert escapes.THREADS.taken() == []
    assert len(others) == 1


def test_what_is_an_error_of_the_device() -> None:
    assert escapes.is_of_device(torch.AcceleratorError("CUDA error: misaligned address"))
    assert escapes.is_of_device(RuntimeError("CUDA error: device-side assert triggered"))
    assert not escapes.is_of_device(torch.OutOfMemoryError("CUDA out of memory"))
    assert not escapes.is_of_device(ValueError("x: got a view, want it contiguous"))
    assert not escapes.is_of_device(None)
    outer = ValueError("wrapped")
    outer.__cause__ = torch.AcceleratorError("CUDA error: misaligned address")
    assert escapes.is_of_device(outer)
    assert escapes.answers("cpu")
