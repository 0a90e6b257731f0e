"""A kernel's key in the compile cache does not depend on what was launched before it."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from triton.runtime.jit import DependenciesFinder

from lowbit_kernels._cache_keys import called_by, settle

LIMIT = tl.constexpr(7)


def innermost(x):
    return x + LIMIT


def inner(x):
    return innermost(x)


def outer(x):
    return inner(x)


innermost, inner, outer = (triton.runtime.JITFunction(f) for f in (innermost, inner, outer))  # type: ignore[assignment]
FUNCTIONS: Any = (innermost, inner, outer)


def merge_first(self: Any, function: Any) -> None:
    """As Triton up to 3.6: the constants before the key that collects them."""
    self.used_global_vals.update(function.used_global_vals)
    self.hasher.update((function.cache_key + str(getattr(function, "noinline", False))).encode())


def key_of_outer(monkeypatch: pytest.MonkeyPatch, *before: Any, settled: bool) -> str:
    monkeypatch.setattr(DependenciesFinder, "_update_hash", merge_first)
    for function in FUNCTIONS:
        function.hash, function.used_global_vals = None, {}
    for function in (*before, FUNCTIONS[2]):  # as launches do
        if settled:
            settle(function)
        _ = function.cache_key
    return FUNCTIONS[2].cache_key


@pytest.mark.parametrize("before", [(), (innermost,), (inner,), (innermost, inner)], ids=len)
def test_a_key_does_not_depend_on_what_came_before(before: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_of_outer(monkeypatch, *before, settled=True) == key_of_outer(monkeypatch, settled=True)


def test_without_it_the_key_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would say nothing."""
    assert key_of_outer(monkeypatch, settled=False) != key_of_outer(monkeypatch, innermost, inner, settled=False)


def test_what_a_function_calls() -> None:
    assert list(called_by(outer)) == [inner]
    assert list(called_by(innermost)) == []
