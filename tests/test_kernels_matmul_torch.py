"""The way to torch's scaled matmul and back to the kernel, tested without the hardware that goes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowbit.schemes import Scheme
from lowbit_kernels import _matmul_launch, _matmul_scaled, mxfp4_mm, nvfp4_mm
from lowbit_kernels._matmul_launch import Operands

from .matmul_checks import FAMILIES, MXFP4, NVFP4, factor, launched, stored, summable

BF16 = torch.bfloat16
M, N, K = 33, 48, 256


@pytest.fixture(autouse=True)
def _nothing_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_matmul_scaled, "_REFUSED", set())


def operands(scheme: Scheme, factors: tuple[Any, Any] = (0.7, 1.3)) -> Operands:
    """(33, 256) by (48, 256): a shape that torch takes."""
    given = stored(summable(scheme, M, N, K // scheme.block), scheme)
    return launched(scheme, given, factors if scheme is NVFP4 else (None, None))


class Gpu(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch) -> list[Operands]:
    """As if torch multiplied here: it writes 7. Collects what it was asked for."""
    asked: list[Operands] = []

    def arguments(given: Operands, out_dtype: torch.dtype) -> dict[str, Any]:
        asked.append(given)
        return {"value": torch.full((given.a.shape[0], given.b.shape[0]), 7.0, dtype=out_dtype)}

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (10, 0))
    monkeypatch.setattr(_matmul_scaled, "arguments", arguments)
    monkeypatch.setattr(_matmul_scaled, "call", lambda keywords: keywords["value"])
    return asked


def buffer(rows: int = M, columns: int = N, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=dtype).as_subclass(Gpu)


@FAMILIES
def test_torch_multiplies_into_the_buffer(scheme: Scheme, blackwell: list[Operands]) -> None:
    out = buffer()
    assert _matmul_scaled.multiply(operands(scheme), out) is True
    assert (out == 7).all()
    assert len(blackwell) == 1


@FAMILIES
def test_on_other_devices_nothing_is_asked(
    scheme: Scheme, blackwell: list[Operands], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = torch.zeros(M, N, dtype=BF16)
    assert _matmul_scaled.multiply(operands(scheme), out) is False, "not a GPU"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    assert _matmul_scaled.multiply(operands(scheme), buffer()) is False, "compute capability 9"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (10, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert _matmul_scaled.multiply(operands(scheme), buffer()) is False, "AMD"
    assert not blackwell


def test_a_shape_that_torch_does_not_take(blackwell: list[Operands]) -> None:
    given = launched(NVFP4, stored(summable(NVFP4, M, 24, 3), NVFP4))
    assert _matmul_scaled.multiply(given, buffer(M, 24)) is False
    assert not blackwell


def test_a_build_without_the_kernel_is_asked_once(blackwell: list[Operands], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(keywords: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError("MXFP4 scaling supported on ROCM and CUDA+FBGEMM_GENAI only")

    monkeypatch.setattr(_matmul_scaled, "call", refuse)
    out = buffer()
    for _ in range(2):
        assert _matmul_scaled.multiply(operands(MXFP4), out) is False
    assert len(blackwell) == 1
    assert not out.any(), "left to the kernel"
    monkeypatch.setattr(_matmul_scaled, "call", lambda keywords: keywords["value"])
    assert _matmul_scaled.multiply(operands(NVFP4), out) is True, "the other format is another question"


def test_a_shape_without_an_algorithm_is_left_to_the_kernel(
    blackwell: list[Operands], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again for other shapes; every other error is one."""
    answers = iter(["CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`", "out of memory"])

    def fail(keywords: dict[str, Any]) -> torch.Tensor:
        raise RuntimeError(next(answers))

    monkeypatch.setattr(_matmul_scaled, "call", fail)
    assert _matmul_scaled.multiply(operands(NVFP4), buffer()) is False
    with pytest.raises(RuntimeError, match="out of memory"):
        _matmul_scaled.multiply(operands(NVFP4), buffer())
    assert len(blackwell) == 2


@FAMILIES
def test_the_public_functions_ask_torch_first(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a in two dimensions; and launch the kernel where torch says no."""
    given = stored(summable(scheme, 6, 16, 5), scheme)
    seen: list[tuple[Operands, torch.Tensor]] = []
    answers = {True: 0, False: 0}

    def asked(wanted: Operands, out: torch.Tensor) -> bool:
        seen.append((wanted, out))
        out.fill_(7.0)
        return answer

    def launches(wanted: Operands, out: torch.Tensor) -> None:
        answers[answer] += 1
        out.fill_(5.0)

    monkeypatch.setattr(_matmul_scaled, "multiply", asked)
    monkeypatch.setattr(_matmul_launch, "multiply", launches)
    for answer in (True, False):
        a = given.a.view(2, 3, -1)
        result = mxfp4_mm(a, *given[1:]) if scheme is MXFP4 else nvfp4_mm(a, *given[1:], factor(0.7), None)
        assert (result == (7.0 if answer else 5.0)).all()
        wanted, out = seen[-1]
        assert (tuple(wanted.a.shape), tuple(out.shape), wanted.mx) == ((6, given.a.shape[1]), (6, 16), scheme is MXFP4)
    assert answers == {True: 0, False: 1}
