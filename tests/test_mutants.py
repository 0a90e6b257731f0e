"""Wrong kernels: each must be caught, by the check named for it and with the right diagnosis.

Those caught by one module of the suite are judged in one run, each under its own scheme.
"""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from suite_runs import ROOT, run_pytest

from lowbit.records import read_records

SUITE = ROOT / "conformance" / "lowbit" / "suite"
CHECK = re.compile(r'^@check\(\s*"([^"]+)".*?^def (test_\w+)', re.DOTALL | re.MULTILINE)
"""A check in a module of the suite: its name and its function."""

MODULES = {name: path.name for path in SUITE.glob("test_*.py") for name, _ in CHECK.findall(path.read_text())}
"""Check → the module of the suite that holds it."""


@dataclass(frozen=True)
class Mutant:
    """What a mutant says of itself."""

    path: Path
    name: str
    caught_by: str
    scheme: str
    diagnosis: str


def declared(path: Path) -> Mutant:
    """Reads a mutant without running the suite."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Mutant(path, module.IMPLEMENTATION.name, module.CAUGHT_BY, module.SCHEME, module.DIAGNOSIS)


def grouped() -> dict[str, list[Mutant]]:
    """The mutants by the module of the suite that must catch them."""
    found: dict[str, list[Mutant]] = defaultdict(list)
    for path in sorted((ROOT / "tests" / "mutants").glob("*.py")):
        mutant = declared(path)
        assert mutant.caught_by in MODULES, f"{path.stem}: no check is named {mutant.caught_by!r}"
        found[MODULES[mutant.caught_by]].append(mutant)
    return dict(sorted(found.items()))


def nodes(mutant: Mutant, module: str) -> str:
    """The nodes that must catch a mutant, as -k selects them: each that is called after the check."""
    functions = [function for name, function in CHECK.findall((SUITE / module).read_text()) if name == mutant.caught_by]
    return f"(({' or '.join(functions)}) and {mutant.name}-{mutant.scheme})"


GROUPS = grouped()


@pytest.mark.parametrize("module", GROUPS)
def test_mutants_are_caught(module: str, tmp_path: Path) -> None:
    """Exit code 1, a mismatch in the named check, the named diagnosis, and a page that says so."""
    mutants = GROUPS[module]
    words = [f"conformance/lowbit/suite/{module}", "--device", "cpu"]
    words += [word for mutant in mutants for word in ("--impl", f"{mutant.path}:IMPLEMENTATION")]
    words += [word for scheme in sorted({m.scheme for m in mutants}) for word in ("--scheme", scheme)]
    words += ["-k", " or ".join(nodes(mutant, module) for mutant in mutants)]
    words += ["--level", "quick", "--report-dir", str(tmp_path / "runs"), "-q", "-p", "no:cacheprovider"]
    done = run_pytest(*words, output=tmp_path / "output.txt")
    assert done.code == 1, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    records = [record for record in read_records(folder) if record.status == "mismatch"]
    page = (folder / "index.html").read_text()
    missed = {}
    for mutant in mutants:
        caught = [
            record
            for record in records
            if (record.implementation, record.scheme, record.check) == (mutant.name, mutant.scheme, mutant.caught_by)
        ]
        said = [record.diagnosis for record in caught]
        if not any(mutant.diagnosis in (text or "") for text in said) or mutant.diagnosis not in page:
            missed[mutant.name] = said
        assert all(record.repeat.startswith("pytest ") for record in caught)
    assert not missed, f"want the named check to fail with the named diagnosis; it said {missed}\n{done.output[-3000:]}"


def test_mutants_have_names_of_their_own() -> None:
    names = [mutant.name for mutants in GROUPS.values() for mutant in mutants]
    assert len(set(names)) == len(names)
