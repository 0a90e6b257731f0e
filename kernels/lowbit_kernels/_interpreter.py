"""Triton's interpreter without work that no result depends on.

    lean()      a context for one launch

It replaces the language's functions anew at every call of a device function, though they stay replaced to the end of
the launch; and it computes, after every sum, difference and product of integers, whether that overflowed, which only
its debugging mode would look at. Together that is more than half of its time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Within it one kernel may be started; a version of Triton that is built otherwise works as it always does."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    patch: Any = getattr(interpreter, "_patch_lang", None)
    options: Any = getattr(builder, "options", None)
    if patch is None or not hasattr(options, "sanitize_overflow") or options.debug:
        yield
        return
    interpreter._patch_lang = _once(patch)
    builder.options = dataclasses.replace(options, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter._patch_lang, builder.options = patch, options


def _once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Calls it once for the functions of each module; the first call is the kernel's own, the others ignore results."""
    done: set[int] = set()

    def patch_once(function: Any) -> Any:
        names = id(function.__globals__)
        if names in done:
            return None
        done.add(names)
        return patch(function)

    return patch_once
