"""Every kernel compiles for every architecture it is meant for, none of which has to be here.

The interpreter and ahead-of-time compilation exclude each other, so `compile_matrix.py` runs in a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
from compiling import TARGETS, compiled_by

pytestmark = pytest.mark.compile_matrix


@pytest.fixture(scope="module")
def matrix() -> dict[str, Any]:
    return compiled_by("compile_matrix.py")


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(matrix: dict[str, Any], target: str) -> None:
    compiled = matrix["compiled"][target]
    failures = {kernel: [text for text in outcomes if text] for kernel, outcomes in compiled.items()}
    assert not {kernel: texts for kernel, texts in failures.items() if texts}
    assert sorted(compiled) == matrix["kernels"], "a kernel that no call of the matrix launches"


def test_a_cpu_tensor_is_refused_without_the_interpreter(matrix: dict[str, Any]) -> None:
    assert matrix["refusal"].startswith("x: got a tensor on cpu, want a GPU")
    assert "TRITON_INTERPRET=1" in matrix["refusal"]
