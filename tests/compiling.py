"""Runs a script that compiles kernels ahead of time, in a process of its own: there Triton must not interpret."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

TARGETS = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950")


def compiled_by(script: str) -> Any:
    """What a script of this folder prints, which is JSON."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = [str(HERE.parent / root) for root in ("conformance", "kernels")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*paths, environment.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(HERE / script)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
