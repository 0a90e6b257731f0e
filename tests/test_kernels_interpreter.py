"""Launches in Triton's interpreter leave out what no result depends on, and leave the interpreter as it was."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from lowbit_kernels import _launch, dequantize_gptq
from lowbit_kernels._interpreter import lean

pytestmark = pytest.mark.skipif(not _launch.INTERPRETED, reason="kernels are compiled here")


@triton.jit
def increment(x):
    return x + 1


@triton.jit
def increment_kernel(x_ptr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(x_ptr + index, increment(increment(tl.load(x_ptr + index))))


@triton.jit
def failing_kernel(x_ptr):
    tl.static_assert(False, "on purpose")


def interpreter() -> Any:
    return sys.modules["triton.runtime.interpreter"]


def state() -> tuple[Any, Any, Any]:
    return interpreter()._patch_lang, interpreter().interpreter_builder.options, tl.load


def test_the_language_is_replaced_once_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of dequantize_gptq runs some hundred device functions, of a few modules."""
    patch, calls = interpreter()._patch_lang, []

    def counted(function: Any) -> Any:
        calls.append(function.__module__)
        assert not interpreter().interpreter_builder.options.sanitize_overflow
        return patch(function)

    monkeypatch.setattr(interpreter(), "_patch_lang", counted)
    stored = torch.zeros(8, 32, dtype=torch.int32), torch.zeros(2, 4, dtype=torch.int32), torch.ones(2, 32).half()
    result = dequantize_gptq(*stored, torch.arange(64, dtype=torch.int32) % 2, group_size=32, zeros="v2")
    assert result.abs().max() == 0
    assert calls[0] == "lowbit_kernels._weight_gptq"
    assert len(set(calls)) == len(calls) <= 4


def test_results_are_those_of_the_whole_interpreter() -> None:
    """Integers wrap in both."""
    expected = torch.tensor([2**31 - 2, 2**31 - 1, -1, 0], dtype=torch.int32)
    actual = expected.clone()
    increment_kernel[(1,)](expected, BLOCK=4)
    with lean():
        increment_kernel[(1,)](actual, BLOCK=4)
    assert actual.tolist() == expected.tolist() == [-(2**31), -(2**31) + 1, 1, 2]


def test_the_interpreter_is_left_as_it_was() -> None:
    before = state()
    with lean():
        increment_kernel[(1,)](torch.zeros(4, dtype=torch.int32), BLOCK=4)
    assert state() == before
    with pytest.raises(Exception, match="on purpose"), lean():
        failing_kernel[(1,)](torch.zeros(1))
    assert state() == before


@pytest.mark.parametrize("there", [{}, {"_patch_lang": print}, {"_patch_lang": print, "interpreter_builder": object()}])
def test_an_interpreter_of_another_shape_is_left_alone(monkeypatch: pytest.MonkeyPatch, there: dict[str, Any]) -> None:
    other = SimpleNamespace(**there)
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", other)
    with lean():
        assert vars(other) == there
