"""Every kernel compiles for every architecture it is meant for, none of which has to be here.

The interpreter and ahead-of-time compilation exclude each other, so `compile_matrix.py` runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.compile_matrix

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")


@pytest.fixture(scope="module")
def matrix() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(ROOT / "conformance"), str(ROOT / "kernels"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, str(HERE / "compile_matrix.py")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(matrix: dict[str, Any], target: str) -> None:
    compiled = matrix["compiled"][target]
    failures = {kernel: [text for text in outcomes if text] for kernel, outcomes in compiled.items()}
    assert not {kernel: texts for kernel, texts in failures.items() if texts}
    assert sorted(compiled) == matrix["kernels"], "a kernel that no call of the matrix launches"


def test_a_cpu_tensor_is_refused_without_the_interpreter(matrix: dict[str, Any]) -> None:
    assert matrix["refusal"].startswith("x: got a tensor on cpu, want a GPU")
    assert "TRITON_INTERPRET=1" in matrix["refusal"]
