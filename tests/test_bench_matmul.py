"""What the matmul bench measures, in the interpreter and with a clock of ours. No time is judged."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from lowbit.errors import DeviceError
from lowbit_kernels import _bench_timing as timing
from lowbit_kernels import bench_matmul
from lowbit_kernels._bench_case import Case
from lowbit_kernels._bench_timing import Spread
from lowbit_kernels.bench_matmul import Shape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", bench_matmul.PAIRS)
def test_both_multiply_the_same_numbers(name: str) -> None:
    """torch's float32 sums of the same decoded operands, each operand with about 64 terms of size 1."""
    kernel, reference = bench_matmul.PAIRS[name](Shape(3, 16, 64), DEVICE, 0)
    left, right = (case.inputs for case in (kernel, reference))
    assert len(left) >= 4
    exact = right[0].double() @ right[1].double().t()
    assert torch.allclose(kernel.out.double(), exact, rtol=2**-7, atol=0.05)
    assert torch.allclose(reference.out.double(), exact, rtol=2**-7, atol=0.05)


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def steady(microseconds: float) -> Spread:
        return Spread(*[microseconds] * 5, samples=1)

    def record(cases: list[Case], launches: int) -> timing.Sample:
        assert launches % len(cases) == 0
        return timing.Sample(lambda: None, launches, tuple(cases), "fake")

    monkeypatch.setattr(timing, "require_gpu", lambda: DEVICE)
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 1)
    monkeypatch.setattr(timing, "record", record)
    monkeypatch.setattr(timing, "interleave", lambda subject, reference: (steady(20.0), steady(50.0)))
    path = tmp_path / "run.csv"
    assert bench_matmul.main(["--shape", "3,16,64", "--out", str(path)]) == 0
    rows = list(csv.DictReader(path.open()))
    assert [row["operation"] for row in rows] == ["nvfp4_mm", "mxfp4_mm"]
    assert list(rows[0]) == list(bench_matmul.COLUMNS)
    assert [row["speedup"] for row in rows] == ["2.500", "2.500"]
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> torch.device:
        raise DeviceError("device: got no GPU, want one")

    monkeypatch.setattr(timing, "require_gpu", refuse)
    assert bench_matmul.main([]) == 2
    assert "want one" in capsys.readouterr().err


def test_a_wrong_shape_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_matmul.main(["--shape", "3,16"])
    assert "want M,N,K" in capsys.readouterr().err
