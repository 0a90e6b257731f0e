"""The E2M1 instruction where no GPU has it: Triton's interpreter with its PTX emulated as the manual says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from kernel_calls import DEVICE
from ptx_emulation import run

from lowbit_kernels import _e2m1_hardware


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The instruction, real or emulated; in the interpreter, how many pairs each use of it converted."""
    counts: list[int] = []
    if DEVICE.type == "cuda":
        if torch.version.hip is not None or torch.cuda.get_device_capability() < (10, 0):
            pytest.skip("needs compute capability 10.0: conversion by the device's instruction is NOT judged here")
        yield counts
        return

    def emulate(text: str, constraints: str, values: list[Any], types: Any, pure: bool, pack: int) -> Any:
        assert (constraints, pack) == ("=r,f,f", 1)
        given = {f"${place}": value.data.view(np.uint32) for place, value in enumerate(values, 1)}
        handle = type(values[0])(run(text, given)["$0"].astype(np.int32), tl.int32)
        counts.append(handle.data.size)
        return SimpleNamespace(get_result=lambda place: handle)

    from triton.runtime import interpreter

    monkeypatch.setattr(interpreter.interpreter_builder, "create_inline_asm", emulate, raising=False)
    monkeypatch.setattr(_e2m1_hardware, "require_device", lambda x: None)
    yield counts
