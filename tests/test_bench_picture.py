"""The bench's picture: one mark and one bar a row, misses told apart without colour, nothing that needs a network."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lowbit_kernels import _bench_picture as picture
from lowbit_kernels import bench
from lowbit_kernels._bench_results import Results, Row
from lowbit_kernels._bench_timing import Spread

NAMESPACE = "{http://www.w3.org/2000/svg}"


def row(name: str, fraction: float | None, target: float | None = None, dtype: str = "bfloat16") -> Row:
    return Row(name, dtype, 4096, 8192, 100_000_000, Spread(30.0, 29.0, 31.0, 28.0, 33.0, 40), fraction, target)


ROWS = [
    row("quantize_mxfp4_floor", 0.91, 0.9),
    row("quantize_mx4_ceil", 0.8, 0.82),
    row("dequantize_gptq2", 0.93),
    row("copy", 1.0),
    row("host:quantize_mxfp4_floor", None),
]


def marks(text: str, tag: str, kind: str) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(text).iter(NAMESPACE + tag) if e.get("class") == kind]


def test_each_row_has_a_mark_and_a_bar() -> None:
    """The copy is the roof, host times are no fraction of it: neither is drawn."""
    text = picture.draw(ROWS, "a run")
    for kind in ("met", "below", "none"):
        assert len(marks(text, "circle", kind)) == len(marks(text, "rect", kind)) == 1, kind
    assert len(marks(text, "path", "tick")) == 2


def test_bars_are_as_long_as_their_fractions() -> None:
    text = picture.draw([row("a", 0.5, 0.9), row("b", 0.25, 0.2)], "a run")
    lengths = [float(bar.get("width", "")) for kind in ("below", "met") for bar in marks(text, "rect", kind)]
    assert lengths[0] == pytest.approx(2 * lengths[1], abs=0.1)


def test_a_mark_lies_below_the_roof_by_its_fraction() -> None:
    """At a fraction of 1 it lies on the line."""
    text = picture.draw([row("a", 1.0), row("b", 1.0, dtype="float16")], "a run")
    ends = [float(x) for x in re.findall(r"-?[\d.]+", marks(text, "path", "roof")[0].get("d", ""))]
    x, y = (float(marks(text, "circle", "none")[0].get(name, "")) for name in ("cx", "cy"))
    on_line = ends[1] + (x - ends[0]) / (ends[2] - ends[0]) * (ends[3] - ends[1])
    assert y == pytest.approx(on_line, abs=0.3)


def test_names_are_text_and_the_bytes_are_the_same_each_time() -> None:
    text = picture.draw([row("<script>alert(1)</script>", 0.5)], 'a "run" & <b>')
    assert text == picture.draw([row("<script>alert(1)</script>", 0.5)], 'a "run" & <b>')
    assert not list(ElementTree.fromstring(text).iter(NAMESPACE + "script"))
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_nothing_measured() -> None:
    assert "nothing was measured" in picture.draw([], "a run")


def test_a_run_is_drawn_again_from_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU; the device's name comes from the JSON file."""
    with Results(tmp_path / "run.csv", {"gpu": {"name": "Some GPU"}}) as found:
        for each in ROWS:
            found.add(each)
    assert bench.main(["--draw", str(tmp_path / "run.csv")]) == 0
    text = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert "lowbit bench on one Some GPU" in text
    assert len(marks(text, "rect", "met")) == 1
    assert bench.main(["--draw", str(tmp_path / "none.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err
