"""`lowbit doctor` must see what is wrong; each fault is planted once."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import doctor
from lowbit.doctor import Finding, Status
from lowbit.errors import UnknownImplementation


def only(findings: list[Finding], subject: str) -> Finding:
    (found,) = [finding for finding in findings if finding.subject == subject]
    return found


def as_float32(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


class Flushing(np.ndarray):
    """Arithmetic that flushes subnormal results, as FTZ does."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        result = np.asarray(getattr(ufunc, method)(*[np.asarray(i) for i in inputs], **options))
        return np.where(np.abs(result) < np.float32(2.0**-126), np.float32(0), result)


class Chopping(np.ndarray):
    """Addition that rounds toward zero."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        wide = getattr(ufunc, method)(*[np.asarray(i, np.float64) for i in inputs], **options)
        nearest = wide.astype(np.float32)
        return np.where(np.abs(nearest) > np.abs(wide), np.nextafter(nearest, np.float32(0)), nearest)


def test_sound_arithmetic() -> None:
    for array in (as_float32, lambda values: torch.tensor(values, dtype=torch.float32)):
        assert doctor.float_environment("x", array).status is Status.OK


@pytest.mark.parametrize(
    ("kind", "text"), [(Flushing, "flushes subnormals"), (Chopping, "is not rounded to nearest even")]
)
def test_broken_arithmetic_fails(kind: type, text: str) -> None:
    finding = doctor.float_environment("x", lambda values: as_float32(values).view(kind))
    assert finding.status is Status.FAIL
    assert text in finding.text
    assert finding.advice


def test_torch_that_flushes_subnormals_fails() -> None:
    can_flush = torch.set_flush_denormal(True)
    try:
        finding = doctor.float_environment("torch", torch.tensor)
    finally:
        torch.set_flush_denormal(False)
    assert finding.status is (Status.FAIL if can_flush else Status.OK)


def test_an_implementation_that_loads() -> None:
    finding = doctor.default_implementation(lambda name: SimpleNamespace(name=name, version="1.2"), "mine")
    assert finding == Finding(Status.OK, "implementation", "mine 1.2")


@pytest.mark.parametrize("error", [UnknownImplementation("impl: got 'mine'"), RuntimeError("no driver")])
def test_an_implementation_that_does_not_load(error: Exception) -> None:
    def load(name: str) -> None:
        raise error

    finding = doctor.default_implementation(load, "mine")
    assert finding.status is Status.FAIL
    assert str(error) in finding.text


def test_interpreter() -> None:
    (finding,) = doctor.interpreter({"TRITON_INTERPRET": "1"}, True)
    assert finding.status is Status.WARN
    assert "unset" in finding.advice
    for variables, gpu in (
        ({}, True),
        ({}, False),
        ({"TRITON_INTERPRET": "0"}, True),
        ({"TRITON_INTERPRET": "1"}, False),
    ):
        (finding,) = doctor.interpreter(variables, gpu)
        assert finding.status is Status.OK


def test_device() -> None:
    (finding,) = doctor.device(None)
    assert finding.status is Status.FAIL
    (finding,) = doctor.device(SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    assert finding.status is Status.WARN
    assert "--require-gpu" in finding.advice


def test_vectors(tmp_path: Path) -> None:
    places = tmp_path / "_vectors", tmp_path / "vectors"
    assert doctor.vectors(places).status is Status.WARN
    places[1].mkdir()
    assert doctor.vectors(places).status is Status.WARN  # there, but empty
    (places[1] / "manifest.json").touch()
    assert doctor.vectors(places) == Finding(Status.OK, "golden vectors", "in vectors/, checkout")
    places[0].mkdir()
    (places[0] / "manifest.json").touch()
    assert doctor.vectors(places).text == "in _vectors/, shipped"


class Metadata(dict[str, Any]):
    """What `doctor` asks of an installed distribution."""

    def get_all(self, key: str) -> list[str] | None:
        return self.get(key)


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    required = [
        "numpy>=2.0",
        "torch>=99",
        "no-such-package>=1",
        "not-for-us>=1; sys_platform == 'plan9'",
        'gfloat==0.0.1; extra == "test"',
        'pytest>=8; extra == "test"',
        'numpy; extra == "real"',
    ]
    metadata = Metadata({"Version": "9", "Requires-Dist": required, "Provides-Extra": ["test", "real"]})
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)
    findings = list(doctor.packages())
    assert only(findings, "requirements").text == "read from lowbit 9, installed"
    assert only(findings, "numpy").status is Status.OK
    torch_found = only(findings, "torch")
    assert torch_found.status is Status.FAIL
    assert "want >=99" in torch_found.text
    assert torch_found.advice == "pip install 'torch>=99'"
    assert only(findings, "no-such-package").text == "not installed, want >=1"
    assert not [f for f in findings if f.subject == "not-for-us"]
    extra = only(findings, "extra [test]")
    assert extra.status is Status.WARN  # gfloat is there in another version
    assert "lowbit[test]" in extra.advice
    assert only(findings, "extra [real]").status is Status.OK


def test_packages_of_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    findings = list(doctor.packages())
    assert only(findings, "requirements").text == "read from pyproject.toml"
    assert only(findings, "torch").status is Status.OK
    assert {"extra [test]", "extra [real]"} <= {f.subject for f in findings}


@pytest.mark.parametrize(
    ("value", "status"), [("lowbit.plugin", Status.OK), ("other", Status.FAIL), (None, Status.FAIL)]
)
def test_plugin(monkeypatch: pytest.MonkeyPatch, value: str | None, status: Status) -> None:
    points = [] if value is None else [SimpleNamespace(name="lowbit.plugin", value=value)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == "pytest11" else [])
    (finding,) = doctor.plugin()
    assert finding.status is status
    assert ("pip install -e ." in finding.advice) == (status is Status.FAIL)


def test_one_fault_hides_no_other_finding() -> None:
    def load(name: str) -> None:
        raise UnknownImplementation("impl: gone")

    findings = doctor.examine(load, "mine")
    assert only(findings, "implementation").status is Status.FAIL
    assert only(findings, "torch arithmetic").status is Status.OK
    assert only(findings, "numpy arithmetic").status is Status.OK
    assert doctor.exit_code(findings) == 1


def test_rendering() -> None:
    findings = [Finding(Status.OK, "a", "fine"), Finding(Status.WARN, "longer", "hm", "do this")]
    assert doctor.render(findings) == (
        "OK    a       fine\nWARN  longer  hm\n              → do this\n\n1 OK, 1 WARN, 0 FAIL"
    )
    assert doctor.exit_code(findings) == 0
