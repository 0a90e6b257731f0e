"""The check of the GPU's own conversion: not run without one, and what it says where the instruction is emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hardware_emulation import DEVICE, converted
from suite_runs import run_pytest

from lowbit import schemes
from lowbit.adapters import reference
from lowbit.implementation import Unsupported
from lowbit.records import read_records
from lowbit.suite import test_hardware
from lowbit.suite.block_judge import BlockJudge
from lowbit.suite.judge import Settings
from lowbit_kernels import _e2m1_hardware, adapter

__all__ = ["converted"]

TESTED = pytest.mark.parametrize("scheme", ["mxfp4_floor", "nvfp4"])


def judge_of(scheme: str, subject: Any = adapter.IMPLEMENTATION) -> BlockJudge:
    settings = Settings(device=DEVICE.type, level="quick", seed=0, interpreted=DEVICE.type == "cpu")
    return BlockJudge(subject, schemes.get(scheme), settings, "encode hardware")


def test_without_a_gpu_it_is_reported_as_not_run(tmp_path: Path) -> None:
    suite = "conformance/lowbit/suite"
    words = [f"{suite}/test_hardware.py", f"{suite}/test_packing.py::test_every_pair_of_codes", "--device", "cpu"]
    words += ["--level", "quick", "--scheme", "mxfp4_floor", "--no-html", "-q", "-p", "no:cacheprovider"]
    done = run_pytest(*words, "--report-dir", str(tmp_path / "runs"), output=tmp_path / "output.txt")
    assert done.code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    (left_out,) = (r for r in read_records(folder) if r.check == "encode hardware")
    assert left_out.status == "not_run"
    assert "compute capability 10.0" in left_out.message
    assert "NOT judged, this run has no GPU" in left_out.message
    assert "NOT judged" in done.output


@pytest.mark.parametrize(
    ("capability", "hip", "reason"),
    [((9, 0), None, "this GPU has 9.0"), ((12, 0), "7.0", "another maker's"), ((10, 3), None, ""), ((12, 0), None, "")],
)
def test_which_gpus_have_it(
    capability: tuple[int, int], hip: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    said = test_hardware.no_instruction(Settings(device="cuda", level="quick", seed=0))
    assert said.endswith(reason)
    assert bool(said) == bool(reason)
    interpreted = Settings(device="cuda", level="quick", seed=0, interpreted=True)
    assert "no GPU" in test_hardware.no_instruction(interpreted)


def test_for_which_schemes_it_is() -> None:
    found = {scheme.name for scheme in schemes.select(["*"]) if test_hardware.converted(scheme)}
    assert found == {"mxfp4_floor", "nvfp4"}


@TESTED
def test_a_right_conversion_passes(scheme: str, converted: list[int]) -> None:
    judge = judge_of(scheme)
    test_hardware.test_conversion_by_the_gpu(judge)
    assert judge.mismatched == 0
    assert judge.compared > 200_000
    assert judge.assurance.startswith("exhaustive(")
    assert DEVICE.type == "cuda" or sum(converted) > 100_000


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a text that a kernel has been compiled with stays")
def test_exchanged_operands_are_caught(converted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged = _e2m1_hardware.PAIR.value.replace("$2, $1", "$1, $2")
    monkeypatch.setattr(_e2m1_hardware.PAIR, "value", exchanged)
    judge = judge_of("mxfp4_floor")
    test_hardware.test_conversion_by_the_gpu(judge)
    assert judge.mismatched > 10_000
    assert "value" in {kind for found in judge.comparisons for kind in found.kinds}


def test_an_implementation_that_has_none_declines() -> None:
    with pytest.raises(Unsupported, match="declares no hardware="):
        test_hardware.test_conversion_by_the_gpu(judge_of("nvfp4", reference.IMPLEMENTATION))
