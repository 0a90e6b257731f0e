"""Launches that are planned once: what is taken from a plan, and when Triton looks at the arguments again."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from suite_runs import run_pytest

from lowbit_kernels import _compiled, _launch, _matmul_hopper, _nvfp4_launch, _pairs, _plans

STORAGE = torch.zeros(64, dtype=torch.uint8)
ON_GPU: Any = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=0))


class Log:
    """What was launched anew, and what was started again."""

    def __init__(self) -> None:
        self.anew: list[Any] = []
        self.again: list[Any] = []

    def launch(self, kernel: Any, grid: Any, tensor: Any, *args: Any, **options: Any) -> Any:
        self.anew.append((kernel, grid, args, options))
        return None if options.get("unkept") else (len(self.anew), kernel, ())

    def run(self, started: Any, grid: Any, device: int, args: Any) -> None:
        self.again.append((started[0], grid, device, args))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(_launch, "INTERPRETED", False)
    monkeypatch.setattr(_launch, "launch", made.launch)
    monkeypatch.setattr(_compiled, "run", made.run)
    monkeypatch.setattr(_compiled, "is_plain", lambda kernel: kernel != "hooked")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return made


def plan(kernel: str = "kernel", **options: Any) -> _plans.Plan:
    return _plans.Plan(kernel, (3,), [16, 1], {"SIZE": 4} | options)


def test_the_like_is_started_again(log: Log) -> None:
    one = plan()
    _plans.launch(one, ON_GPU, STORAGE, STORAGE, last=(5, 6))
    _plans.launch(one, ON_GPU, STORAGE[16:], STORAGE, last=(7, 8))
    assert log.anew == [("kernel", (3,), (STORAGE, STORAGE, 16, 1, 5, 6), {"SIZE": 4})]
    ((number, grid, device, args),) = log.again
    assert (number, grid, device, args[2:]) == (1, (3,), 0, (16, 1, 7, 8))
    assert args[0].data_ptr() == STORAGE.data_ptr() + 16


@pytest.mark.parametrize(
    "other",
    [
        {"tensors": (STORAGE[1:], STORAGE)},
        {"tensors": (STORAGE, STORAGE[1:])},
        {"tensors": (STORAGE.view(torch.int8), STORAGE)},
        {"last": (1, 6)},
        {"last": (16, 6)},
        {"last": (5, 2**31)},
        {"plan": plan()},
    ],
    ids=["another address", "of the second", "another dtype", "1", "16", "64 bits", "another plan"],
)
def test_what_differs_is_launched_and_kept_beside(log: Log, other: dict[str, Any]) -> None:
    first: dict[str, Any] = {"plan": plan(), "tensors": (STORAGE, STORAGE), "last": (5, 6)}
    for call in (first, first | other) * 2:
        _plans.launch(call["plan"], ON_GPU, *call["tensors"], last=call["last"])
    assert len(log.anew) == 2
    assert [number for number, *_ in log.again] == [1, 2]


def test_words_are_seen_where_triton_looks(log: Log) -> None:
    """Of the last tensor alone, also where a dimension of one element has a stride that no word has."""
    one = _plans.Plan("kernel", (3,), [16], {}, torch.int32)
    row = torch.zeros(9, dtype=torch.bfloat16).as_strided((1, 8), (9, 1))
    other = torch.zeros(4, 8, dtype=torch.bfloat16)
    for result in (row, other, row):
        _plans.launch(one, ON_GPU, STORAGE, result)
    ((_, _, (first, seen, *integers), _),) = log.anew
    assert (first is STORAGE, seen.dtype, seen.shape, integers) == (True, torch.int32, (4,), [16])
    assert seen.data_ptr() == row.data_ptr()
    assert [args[1].data_ptr() for *_, args in log.again] == [other.data_ptr(), row.data_ptr()]
    _plans.launch(one, ON_GPU, STORAGE, other.to(torch.float16))
    assert [args[1].dtype for _, _, args, _ in log.anew] == [torch.int32] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_decoder_stores_words_where_all_are_aligned(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of NVFP4 tells without a view what `_pairs.output_pairs` does by one: of a start in memory and in a view."""
    memory, actual, expected = bytearray(512), [], []
    monkeypatch.setattr(_plans, "launch", lambda plan, *_: actual.append((plan.word or dtype, plan.options["PAIRS"])))
    for place, start in itertools.product(range(5), range(4)):
        out = torch.frombuffer(memory, dtype=dtype, offset=place * dtype.itemsize)[start : start + 32].view(2, 16)
        _nvfp4_launch._read(STORAGE[:16].view(2, 8), STORAGE[:2].view(2, 1), None, out)
        stored, pairs = _pairs.output_pairs(out, 16)
        expected.append((stored.dtype, pairs))
    assert actual == expected
    assert len(set(expected)) == 2


def test_a_device_has_its_own(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    one = plan()
    for device in (0, 1, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        there: Any = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=device))
        _plans.launch(one, there, STORAGE)
    assert len(log.anew) == 2
    assert [(number, device) for number, _, device, _ in log.again] == [(1, 0), (2, 1)]


def test_triton_looks_every_time(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """At another device than the current one, where something is set, at what is not kept, in the interpreter."""
    on_cpu: Any = SimpleNamespace(is_cuda=False, device=SimpleNamespace(index=None))
    elsewhere: Any = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=1))
    for tensor, one in ((on_cpu, plan()), (elsewhere, plan()), (ON_GPU, plan("hooked")), (ON_GPU, plan(unkept=True))):
        for _ in range(2):
            _plans.launch(one, tensor, STORAGE)
        assert not one.started
    monkeypatch.setattr(_launch, "INTERPRETED", True)
    for _ in range(2):
        _plans.launch(plan(), ON_GPU, STORAGE)
    assert (len(log.anew), log.again) == (10, [])


def test_one_plan_of_each_kind(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter there is none: tests replace what it is made of."""
    made = []

    def make(*arguments: Any) -> Any:
        made.append(arguments)
        return plan()

    keeping = _plans.kept(make)
    assert keeping(1, 2) is keeping(1, 2)
    assert keeping(2, 1) is not keeping(1, 2)
    assert made == [(1, 2), (2, 1)]
    monkeypatch.setattr(_launch, "INTERPRETED", True)
    assert _plans.kept(make) is make


def kept() -> list[Any]:
    """What the package's modules keep from call to call, and at least one function that always does."""
    modules = [module for name, module in sys.modules.items() if name.startswith("lowbit_kernels.")]
    return [function for module in modules for function in vars(module).values() if hasattr(function, "cache_clear")]


def test_a_test_that_replaces_what_launches_are_planned_by_keeps_none(request: pytest.FixtureRequest) -> None:
    """`conftest.py` gives each kernel test that asks for `monkeypatch` this fixture before it."""
    assert _matmul_hopper.available in kept()
    request.getfixturevalue("unplanned")
    assert not kept()
    assert not _compiled.is_plain(None)


def test_kernel_tests_are_such_tests(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    source = """
import pytest

made = []

@pytest.fixture
def unplanned():
    made.append("unplanned")

@pytest.fixture
def monkeypatch():
    made.append("monkeypatch")

@pytest.fixture
def replaced(monkeypatch):
    pass

def test_other():
    assert made == []

def test_direct(monkeypatch):
    assert made == ["unplanned", "monkeypatch"]

def test_through_a_fixture(replaced):
    assert made == ["unplanned", "monkeypatch"] * 2
"""
    (tmp_path / "test_kernels_any.py").write_text(source)
    words = [str(tmp_path), f"--rootdir={tmp_path}", "-p", "no:cacheprovider", "-n", "0"]
    done = run_pytest(*words, output=tmp_path / "printed", cwd=tmp_path)
    assert done.code == 0, done.output
    assert "3 passed" in done.output
