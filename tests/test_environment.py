"""The environment of a run: what is there, plainly, and nothing that identifies the machine's user."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

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


def test_environment_survives_programs_that_hang_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "GIT_SECONDS", 0.1)
    assert environment._command(sys.executable, "-c", "import time; time.sleep(5)") is None
    assert environment._command(sys.executable, "-c", "raise SystemExit(3)") is None
    assert environment._command("no-such-program-anywhere") is None
