"""What an implementation may change of the process around it, found after each call."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Setting:
    """One thing of the process.

    Attributes:
      put: sets it again; None to leave a change as it is. The states of random generators are left: put back, they
        would make an implementation that draws from them look as if it repeated itself. The environment is left
        because libraries keep things there once and for all.
      fault: whether a change is a fault: it changes what others compute.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any] | None = None
    fault: bool = False


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # naming the CPU would install a mode


def _set_filling(value: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = value  # type: ignore[attr-defined]


def _numpy_state() -> Any:
    state: Any = np.random.get_state(legacy=False)
    return state["state"]["pos"], state["state"]["key"].tobytes()


SETTINGS = (
    Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype, fault=True),
    Setting("torch's default device", torch.get_default_device, _set_device, fault=True),
    Setting(
        "torch's deterministic mode",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        fault=True,
    ),
    Setting(
        "torch's filling of uninitialised memory",
        lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        _set_filling,
        fault=True,
    ),
    Setting("torch's gradient mode", torch.is_grad_enabled, torch._C._set_grad_enabled),
    Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("the working directory", os.getcwd, os.chdir),
    Setting("torch's random state", lambda: torch.get_rng_state().numpy().tobytes()),
    Setting("NumPy's random state", _numpy_state),
    Setting("Python's random state", random.getstate),
    Setting("the environment", lambda: dict(os.environ)),
)


def taken() -> list[Any]:
    """The process as it is."""
    return [setting.get() for setting in SETTINGS]


def changes(before: list[Any]) -> Iterator[tuple[str, bool]]:
    """A sentence for each change since then, without its subject, and whether it is a fault; puts back what can be."""
    for setting, old in zip(SETTINGS, before, strict=True):
        new = setting.get()
        if new == old:
            continue
        text = f"changed {setting.name}"
        if isinstance(old, dict):
            keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            text += f" ({', '.join(keys)})"
        elif setting.put is not None:
            text += f" from {old} to {new}; it was put back"
        if setting.put is not None:
            setting.put(old)
        yield text, setting.fault
