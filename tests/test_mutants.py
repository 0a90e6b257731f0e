"""Wrong kernels: each must be caught, by the check named for it and with the right diagnosis."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowbit.records import read_records

ROOT = Path(__file__).parents[1]
MUTANTS = sorted((ROOT / "tests" / "mutants").glob("*.py"))


def declared(path: Path) -> dict[str, str]:
    """What the mutant says of itself, without running the suite."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: getattr(module, name) for name in ("CAUGHT_BY", "SCHEME", "DIAGNOSIS")}


@pytest.mark.parametrize("path", MUTANTS, ids=lambda p: p.stem)
def test_mutant_is_caught(path: Path, tmp_path: Path) -> None:
    """Exit code 1, a mismatch in the named check, the named diagnosis, and a first screen that says so."""
    about = declared(path)
    command = [sys.executable, "-m", "pytest", "conformance/", "--impl", f"{path}:IMPLEMENTATION", "--device", "cpu"]
    command += [
        "--scheme",
        about["SCHEME"],
        "--level",
        "quick",
        "--report-dir",
        str(tmp_path),
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    (folder,) = tmp_path.iterdir()
    caught = [r for r in read_records(folder) if r.status == "mismatch" and r.check == about["CAUGHT_BY"]]
    assert caught, done.stdout
    assert any(about["DIAGNOSIS"] in (record.diagnosis or "") for record in caught), [r.diagnosis for r in caught]
    page = (folder / "index.html").read_text()
    assert about["DIAGNOSIS"] in page
    assert caught[0].repeat.startswith("pytest ")
