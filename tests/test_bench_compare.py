"""The benchmark of comparisons counts what it damaged, and says so where it does not."""

from __future__ import annotations

import pytest

from lowbit.bench import compare as bench_compare


@pytest.mark.parametrize("scheme", ["mxfp4_floor", "nvfp4"])
def test_it_finds_what_it_damaged(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--elements", "50000", "--mismatches", "12e3", "--device", "cpu", "--scheme", scheme]
    assert bench_compare.main(size) == 0
    said = capsys.readouterr().out
    assert "mismatches                   12,000\n" in said
    assert "  scale                      12\n" in said
    assert "verdict                      ok" in said


def test_a_wrong_count_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    damage = bench_compare._damage
    monkeypatch.setattr(bench_compare, "_damage", lambda codes, places: damage(codes, max(places - 1, 0)))
    assert bench_compare.main(["--elements", "50000", "--mismatches", "1000", "--device", "cpu"]) == 1
    assert "WRONG COUNTS" in capsys.readouterr().out


def test_more_mismatches_than_places(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_compare.main(["--elements", "5000", "--mismatches", "6000", "--device", "cpu"])
    assert "mismatches: got 6000" in capsys.readouterr().err
