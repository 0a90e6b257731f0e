"""The pictures of a failed check: right places, right counts, bounded, and never the end of a report."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from report_runs import PICTURES, failing_run, ties_away

from lowbit import report
from lowbit.report import drawings, html


def test_the_map_says_where() -> None:
    drawn = drawings.drawn(PICTURES)["map"]
    assert drawn["spans"] == ["rows 48 to 63", "blocks 160 to 191"]
    assert (drawn["full"], drawn["cells"], drawn["most"]) == (32, 32 * 50, 7)
    assert drawn["top"][0] == {"count": 7, "at": ["rows 48 to 51", "blocks 160 to 163"]}
    assert drawn["shades"][:4] == [""] * 4  # all are as full as the fullest
    assert drawn["shades"][4].count("M") == 32
    assert drawn["shades"][4].startswith("M40 12.5h1M41 12.5h1")


def test_the_last_cell_of_a_map_ends_with_the_tensor() -> None:
    counts = [[0, 0], [0, 1]]
    found = {"rows": 5, "columns": 3, "unit": "element", "row_step": 4, "column_step": 2, "counts": counts}
    assert drawings.drawn({"map": found})["map"]["spans"] == ["row 4", "element 2"]


def test_shades_are_fifths_of_the_most() -> None:
    found = {
        "rows": 1,
        "columns": 6,
        "unit": "byte",
        "row_step": 1,
        "column_step": 1,
        "counts": [[0, 1, 20, 21, 80, 100]],
    }
    shades = drawings.drawn({"map": found})["map"]["shades"]
    assert shades == ["M1 0.5h1M2 0.5h1", "M3 0.5h1", "", "M4 0.5h1", "M5 0.5h1"]


def test_codes_stand_along_the_number_line() -> None:
    drawn = drawings.drawn(PICTURES)["confusion"]
    assert [code["hex"] for code in drawn["codes"]] == list("fedcba9801234567")
    assert [code["value"] for code in drawn["codes"]][6:10] == ["-0.5", "-0", "0", "0.5"]
    assert drawn["largest"][0] == {"count": 200, "want": "0x0 (0)", "got": "0x1 (0.5)"}
    assert drawn["counts"][0] | {"column": 9, "row": 8, "text": "200"} == drawn["counts"][0]
    assert drawn["shades"] == ["M13 12.5h1M15 0.5h1", "", "", "", "M9 8.5h1"]
    scales = drawings.drawn(PICTURES)["scale_confusion"]
    assert (scales["side"], scales["codes"], scales["left"]) == (41, [], 3)  # too many to write the counts in
    assert scales["largest"][0] == {"count": 2, "want": "0x81 (4)", "got": "0x82 (8)"}
    assert scales["ends"] == ["0x5a (2^-37)", "0x82 (8)"]


def test_histograms_have_a_place_for_what_does_not_occur() -> None:
    drawn = drawings.drawn(PICTURES)["distance"]
    assert [(bar["name"], bar["count"]) for bar in drawn["bars"]] == [("-1", 20), ("0", 0), ("+1", 200), (">32", 4)]
    assert [bar["height"] for bar in drawn["bars"]] == [10, 0, 100, 2]
    assert drawn["top"] == ["+1: 200", "-1: 20", ">32: 4"]
    binades = drawings.drawn(PICTURES)["binade"]
    names = [bar["name"] for bar in binades["bars"]]
    assert names[:3] == ["0", "sub", "-126"]
    assert names[-2:] == ["39", "NaN"]
    places = [(bar["x"], bar["x"] + bar["width"]) for bar in binades["bars"]]
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


@pytest.mark.parametrize(
    "value", [None, 3, "x", [], {}, [1], {"a": 1}, -1, 1e300, True, [[1, 2]], [[1, 2, 3, 4]], [["a", 1, 1]]]
)
@pytest.mark.parametrize("name", PICTURES)
def test_what_is_malformed_is_left_out(name: str, value: object) -> None:
    """Each field of each picture, replaced and dropped: the others are drawn."""
    for field in PICTURES[name]:  # type: ignore[attr-defined]
        given = copy.deepcopy(PICTURES)
        given[name][field] = value
        assert set(drawings.drawn(given)) >= set(PICTURES) - {name}
        del given[name][field]
        assert set(drawings.drawn(given)) >= set(PICTURES) - {name}
    assert set(drawings.drawn({**PICTURES, name: value})) == set(PICTURES) - {name}
    assert drawings.drawn(value) == {}


def test_the_page_draws_them_all(tmp_path: Path) -> None:
    source = report.build(failing_run(tmp_path)).read_text(encoding="utf-8")
    titles = (
        "Where",
        "Codes confused",
        "Scale codes confused",
        "Codes apart",
        "Scale codes apart",
        "Size of the inputs",
    )
    for title in titles:
        assert f"<figcaption><b>{title}</b>" in source, title
    assert source.count("<svg") == len(titles)
    assert "Mismatches lie in <b>rows 48 to 63</b> and <b>blocks 160 to 191</b>" in source


def test_no_number_of_mismatches_makes_a_page_large() -> None:
    """A million samples in one record, and full pictures in a thousand others."""
    failing = ties_away()
    rows = {"rows": 320, "columns": 640, "unit": "block", "row_step": 10, "column_step": 10}
    full = {
        "map": {**rows, "counts": [[1 + (i * j) % 5 for j in range(64)] for i in range(32)]},
        "confusion": {
            "format": "e4m3",
            "pairs": [[i % 256, i // 256 * 16 + i % 16, 1 + i] for i in range(4096)],
            "left": 9,
        },
        "binade": {"pairs": [[e, 1] for e in range(-126, 128)], "zero": 1, "subnormal": 1, "inf": 1, "nan": 1},
    }
    many = ties_away(check="large", compared=1 << 30, mismatched=1 << 20, kinds={"tie": 1 << 20})
    many.samples = list(failing.samples) * ((1 << 20) // len(failing.samples))
    others = [ties_away(check=f"check {i}", mismatched=1 << 20, compared=1 << 30, pictures=full) for i in range(5)]
    others = [replace(others[i % 5], check=f"check {i}") for i in range(1000)]
    source = html.render({"run": "r", "finished": "now", "exit_status": 1}, [many, *others])
    assert len(source.encode()) < 5_000_000
    assert "1,048,576 of 1,073,741,824 differ" in source
    assert "<svg" in source
    assert "Its pictures are left out" in source
