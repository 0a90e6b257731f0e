"""The bench: its files, its comparison, its command, by a clock of ours. No time is judged."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from lowbit import cli
from lowbit.errors import ArgumentError, DeviceError
from lowbit_kernels import _bench_operations as operations
from lowbit_kernels import _bench_results as results
from lowbit_kernels import _bench_timing as timing
from lowbit_kernels import _launch, bench
from lowbit_kernels._bench_case import Case
from lowbit_kernels._bench_operations import COPY, OPERATIONS
from lowbit_kernels._bench_results import Results, Row
from lowbit_kernels._bench_timing import Spread

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def steady(microseconds: float, samples: int = 44) -> Spread:
    return Spread.of([microseconds * (1 + 0.001 * (i % 11 - 5)) for i in range(samples)])


def row(name: str = "quantize_mxfp4_floor", microseconds: float = 80.0, fraction: float | None = 0.9) -> Row:
    return Row(name, "bfloat16", 16384, 8192, 339_738_624, steady(microseconds), fraction, 0.9)


def test_the_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.csv"
    rows = [row(), row("host:quantize_mxfp4_floor", 30.0, None)]
    with Results(path, {"git": None}) as found:
        for number, each in enumerate(rows, 1):
            found.add(each)
            assert [r.key for r in results.read(path)] == [r.key for r in rows[:number]], "not on disk at once"
        found.fail("copy:uint8 1 x 1", ValueError("no"))
    lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert lines[0] == (
        [
            *("operation", "dtype", "rows", "columns", "bytes", "microseconds"),
            *("terabytes_per_second", "fraction_of_copy", "target"),
        ]
    )
    assert lines[1] == (
        ["quantize_mxfp4_floor", "bfloat16", "16384", "8192", "339738624", "80.000", "4.2467", "0.9000", "0.90"]
    )
    assert lines[2][5:8] == ["30.000", "", ""]
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert facts["environment"] == {"git": None}
    assert facts["errors"] == {"copy:uint8 1 x 1": "ValueError: no"}
    assert facts["rows"][0]["microseconds"]["samples"] == 44
    again = results.read(path)
    assert [r.cells() for r in again] == [r.cells() for r in rows]
    assert again[0].spread.high == pytest.approx(rows[0].spread.high, abs=0.001)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("", "got the columns (none), want operation, dtype"),
        ("a,b\n1,2\n", "got the columns a, b, want"),
        (",".join(results.COLUMNS) + "\nquantize,bfloat16,1\n", "has a row that cannot be read"),
        (",".join(results.COLUMNS) + "\nq,bfloat16,1,1,x,1,1,1,1\n", "has a row that cannot be read"),
    ],
)
def test_files_that_are_none_of_ours(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "run.csv"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match="compare: ") as caught:
        results.read(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("microseconds", "mark"), [(80.0, "0.900"), (80.3, "0.900"), (82.0, "slower"), (78.0, "faster")]
)
@pytest.mark.parametrize("spreads", [True, False])
def test_compare(tmp_path: Path, microseconds: float, mark: str, spreads: bool) -> None:
    path = tmp_path / "run.csv"
    with Results(path, {}) as found:
        found.add(row())
        found.add(row("dequantize_mx4"))
    if not spreads:
        path.with_suffix(".json").unlink()
    _, same, new, missing = results.compare([row(microseconds=microseconds), row("copy")], results.read(path))
    assert f"{microseconds / 80:.3f} 0.900 -> 0.900" in same
    assert same.endswith(mark)
    assert new.endswith("new")
    assert missing.startswith("dequantize_mx4 ")
    assert missing.endswith("not measured this time")


def test_a_difference_within_the_spread_is_none() -> None:
    wide = Spread(median=80, low=70, high=90, minimum=60, maximum=100, samples=40)
    assert results.change(steady(85.0), wide) == ""
    assert results.change(steady(92.0), wide) == "slower"
    assert results.change(wide, steady(75.0)) == ""


def test_an_earlier_run_without_spreads_was_as_unsteady_as_this_one() -> None:
    point = Spread(median=80, low=80, high=80, minimum=80, maximum=80, samples=0)
    assert results.change(steady(80.6), point) == ""
    assert results.change(steady(80.7), point) == "slower"
    assert results.change(steady(79.2), point) == "faster"


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = results.environment(torch.device("cpu"), "abc", {"small": False})
    assert found["git"] == {"commit": "abc"}
    assert found["torch"] == str(torch.__version__)
    assert {"triton", "python", "started", "options"} <= set(found)
    monkeypatch.setattr(results, "_command", lambda *words: None)
    assert results.environment(torch.device("cpu"), None, {})["git"] is None


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the clock: the last case runs once, the copy takes 100 us and everything else 125."""

    def record(cases: list[Case], launches: int) -> timing.Sample:
        cases[-1]()
        return timing.Sample(lambda: None, launches, tuple(cases), "fake")

    monkeypatch.setattr(timing, "require_gpu", lambda: DEVICE)
    monkeypatch.setattr(timing, "l2_bytes", lambda device: 1)
    monkeypatch.setattr(timing, "record", record)
    monkeypatch.setattr(timing, "interleave", lambda subject, reference: (steady(125.0), steady(100.0)))
    monkeypatch.setattr(timing, "host", lambda *functions: [steady(26.0), steady(20.0), steady(13.0)])
    monkeypatch.setattr(bench.compilation, "compile_all", lambda jobs, processes: None)


SHORT = ["--rows", "2", "--columns", "64"]
GROUPED = ["--rows", "128", "--columns", "128"]
"""A shape that every operation takes as it is."""


@pytest.mark.usefixtures("fake")
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.csv"
    assert bench.main([*GROUPED, "--operation", "*:bfloat16", "--out", str(path), "--commit", "abc"]) == 0
    captured = capsys.readouterr()
    chosen = [o for o in OPERATIONS if o.dtype_name == "bfloat16"]
    rows = {(r.operation, r.dtype): r for r in results.read(path)}
    assert list(rows) == [(o.name, o.dtype_name) for o in chosen]
    sizes = {key: found.bytes for key, found in rows.items()}
    for (name, dtype), found in rows.items():
        assert found.spread.median == 125
        assert found.fraction_of_copy == pytest.approx(sizes[name, dtype] / sizes[COPY, dtype] * 0.8, abs=1e-4)
    table = captured.out.splitlines()
    assert table[0].split()[:4] == ["operation", "dtype", "rows", "columns"]
    assert len(table) == len(chosen) + 2
    targets = sum(o.target is not None for o in chosen)
    assert f" of {targets} targets met, 0 failed" in table[-1]
    assert captured.err.count("bench: ") == len(chosen)
    facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert facts["environment"]["git"] == {"commit": "abc"}
    assert facts["rows"][0]["copy_microseconds"] == 100
    assert facts["rows"][0]["method"] == "fake"

    assert bench.main([*GROUPED, "--operation", "dequantize_mx4:bfloat16", "--compare", str(path)]) == 0
    assert "125.00    125.00  1.000" in capsys.readouterr().out


@pytest.mark.usefixtures("fake")
def test_the_others_go_on_when_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(operations.mxfp4, "dequantize_mxfp4", broken)
    path = tmp_path / "run.csv"
    words = ["--operation", "dequantize_[mn][xv]*:bfloat16", "--out", str(path)]
    assert bench.main([*SHORT, *words]) == 1
    captured = capsys.readouterr()
    assert [r.operation for r in results.read(path)] == [COPY, "dequantize_mx4", "dequantize_nvfp4"]
    assert "dequantize_mxfp4:bfloat16 2 x 64 FAILED: RuntimeError: out of registers" in captured.err
    assert "FAILED dequantize_mxfp4:bfloat16 2 x 64: RuntimeError: out of registers" in captured.out
    assert list(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["errors"]) == [
        "dequantize_mxfp4:bfloat16 2 x 64"
    ]


@pytest.mark.usefixtures("fake")
def test_small_shapes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "SMALL_SHAPES", ((1, 64), (3, 80)))
    path = tmp_path / "run.csv"
    words = ["--small", "--operation", "quantize_mxfp4_floor:bfloat16", "--out", str(path)]
    assert bench.main(words) == 0
    assert [r.key for r in results.read(path)] == [
        (name, "bfloat16", rows, columns)
        for rows, columns, measured in ((1, 64, 64), (3, 80, 96))
        for name, columns in (
            (COPY, columns),
            ("quantize_mxfp4_floor", measured),
            ("host:quantize_mxfp4_floor", measured),
            ("empty:quantize_mxfp4_floor", measured),
        )
    ]
    said = "1.30 of an empty kernel, limit 1.3: above; 2.00 of one by our own launch"
    assert capsys.readouterr().out.count(said) == 2


def test_no_number_comes_from_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.csv"
    monkeypatch.setattr(_launch, "INTERPRETED", True)
    assert bench.main(["--out", str(path)]) == 2
    captured = capsys.readouterr()
    assert "got Triton's interpreter" in captured.err
    assert captured.out == ""
    assert not path.exists()


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_launch, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError):
        timing.require_gpu()
    for call in (bench.main, lambda words: cli.main(["bench", *words])):
        assert call(["--small", "--operation", "dequantize_*"]) == 2
        captured = capsys.readouterr()
        assert captured.err == "lowbit bench: device: got no GPU, want one; nothing is measured in the interpreter\n"
        assert captured.out == ""


@pytest.mark.parametrize("words", [["--rows", "0"], ["--columns", "x"], ["--jobs", "-1"], ["run.csv"], ["--operation"]])
def test_usage(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    for call in (bench.main, lambda words: cli.main(["bench", *words])):
        with pytest.raises(SystemExit, match="2"):
            call(words)
        assert "usage: lowbit bench" in capsys.readouterr().err


def test_what_is_wrong_is_said_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--operation", "nothing*"]) == 2
    assert "operation: got 'nothing*'" in capsys.readouterr().err
    assert bench.main(["--compare", "missing.csv"]) == 2
    assert "compare: missing.csv cannot be read" in capsys.readouterr().err


def test_defaults() -> None:
    arguments = bench._parser().parse_args([])
    assert (arguments.rows, arguments.columns, arguments.small, arguments.operation) == (16384, 8192, False, [])
    assert bench.SMALL_SHAPES == ((1, 4096), (17, 8192), (4096, 4112))
