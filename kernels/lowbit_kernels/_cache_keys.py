"""One key in the compile cache for one kernel, whatever a process has launched before.

Triton up to 3.6 takes the constants of a called function into its caller's key before it asks for the called function's
own key, which is what collects them: they are in the key only if something else had asked earlier. So the key of a
kernel depends on the order of launches, and processes compile again what others have compiled. Asking for the keys of
what is called first makes it the same everywhere, and costs nothing that Triton would not do itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import triton

FUNCTION: Any = getattr(triton.runtime.jit, "JITCallable", triton.runtime.JITFunction)
"""What has a key: functions for the device and those that compute constants."""


def settle(function: Any) -> None:
    """Asks for the keys of all that a function calls, the innermost first, then for its own."""
    met: set[int] = set()

    def ask(one: Any) -> None:
        if one.hash is None and id(one) not in met:
            met.add(id(one))
            for called in called_by(one):
                ask(called)
            _ = one.cache_key

    ask(function)


def called_by(function: Any) -> Iterator[Any]:
    """The functions with a key that one names, by themselves or as an attribute of a module."""
    code, space = function.fn.__code__, function.fn.__globals__
    names = {*code.co_names, *(name for part in code.co_consts for name in getattr(part, "co_names", ()))}
    named = [space[name] for name in sorted(names) if name in space]
    for module in [value for value in named if isinstance(value, ModuleType)]:
        named += [getattr(module, name) for name in sorted(names) if hasattr(module, name)]
    return (value for value in named if isinstance(value, FUNCTION))
