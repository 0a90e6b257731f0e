"""The environment of a run: what is there, plainly, and nothing that identifies the machine's user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from lowbit import environment

DEVICE = "cpu, Triton interpreter — GPU code generation not judged"


def test_environment_is_plain_and_keeps_no_path() -> None:
    found = environment.collect(DEVICE)
    assert json.loads(json.dumps(found)) == found
    assert found["device"] == DEVICE
    assert found["packages"]["numpy"] == np.__version__
    assert found["gpu"] is None
    assert str(Path.home()) not in json.dumps(found)
    assert str(Path(environment.__file__).parents[2]) not in json.dumps(found)
    assert environment.collect("cpu")["device"] == DEVICE
    git = found["git"]
    assert git is None or (re.fullmatch("[0-9a-f]{40,64}", git["commit"]) and git["dirty"] in (True, False))


def test_the_driver_is_asked_for_once_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record of a run names its device, and a program takes as long as a small check."""
    calls: list[tuple[str, ...]] = []

    def command(*words: str) -> str:
        calls.append(words)
        return "580.1"

    gpu = {"name": "A GPU", "capability": "sm_90"}
    monkeypatch.setattr(environment, "_command", command)
    monkeypatch.setattr(environment, "_gpu", lambda: gpu)
    monkeypatch.setattr(environment, "_git", lambda folder: None)
    assert environment.device_line("cuda").startswith("cuda, A GPU (sm_90)")
    assert calls == []
    assert environment.collect("cuda")["gpu"] == gpu | {"driver": "580.1"}
    assert [words[0] for words in calls] == ["nvidia-smi"]
    monkeypatch.setattr(environment, "_gpu", lambda: None)
    assert environment.collect("cuda, a name")["gpu"] is None


def test_a_device_without_nvidias_program_is_told_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_command", lambda *words: None)
    monkeypatch.setattr(environment, "_gpu", lambda: {"name": "A GPU", "capability": "gfx942"})
    assert environment.collect("cuda")["gpu"] == {"name": "A GPU", "capability": "gfx942"}


def test_a_record_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `device_line` reads of torch: a GPU's properties, no process."""
    properties = types.SimpleNamespace(name="A GPU", major=9, minor=0, total_memory=1 << 37)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: pytest.fail(f"started {words}"))
    assert environment.device_line("cuda").startswith("cuda, A GPU (sm_90)")


def test_environment_survives_programs_that_hang_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "GIT_SECONDS", 0.1)
    assert environment._command(sys.executable, "-c", "import time; time.sleep(5)") is None
    assert environment._command(sys.executable, "-c", "raise SystemExit(3)") is None
    assert environment._command("no-such-program-anywhere") is None
