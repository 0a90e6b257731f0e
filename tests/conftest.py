"""Without a GPU the kernels run in Triton's interpreter; that is decided before triton is first imported."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):  # they share the cores; threads that wait spin
    torch.set_num_threads(min(torch.get_num_threads(), max((os.cpu_count() or 1) // workers, 1)))
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())

sys.path.append(str(Path(__file__).parent))  # for modules that tests share


@pytest.fixture
def unplanned() -> Iterator[None]:
    """Nothing is kept from launch to launch: for tests that replace what launches, or what launches are planned by."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in [(n, m) for n, m in sys.modules.items() if n.startswith("lowbit_kernels.")]:
            for each, function in list(vars(module).items()):
                if hasattr(function, "cache_clear"):
                    patch.setattr(module, each, function.__wrapped__)
            if name == "lowbit_kernels._compiled":
                patch.setattr(module, "is_plain", lambda kernel: False)
        yield


@pytest.fixture
def ptx(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """PTX, real or emulated in the interpreter; there the texts that were run."""
    from ptx_emulation import interpret

    return interpret(monkeypatch)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched."""
    from lowbit_kernels import _launch

    names: list[str] = []
    launch = _launch.launch

    def record(kernel: Any, *args: Any, **options: Any) -> Any:
        names.append(kernel.__name__)
        return launch(kernel, *args, **options)

    monkeypatch.setattr(_launch, "launch", record)
    return names


@pytest.fixture(autouse=True)
def _unplanned_where_something_is_replaced(request: pytest.FixtureRequest) -> None:
    """A plan is not made anew for a replaced global, so that a kernel test of one would try nothing on a GPU.

    Before `monkeypatch` is set up, and so undone after it.
    """
    if request.path.name.startswith("test_kernels_") and "monkeypatch" in request.fixturenames:
        request.getfixturevalue("unplanned")
