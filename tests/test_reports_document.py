"""REPORTS.md names every column and field that a run writes, in order, and none that it does not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np

from lowbit import schemes
from lowbit.compare import compare_encoded
from lowbit.compare.comparison import Sample
from lowbit.compare.kinds import KINDS
from lowbit.compare.pictures import COLUMNS, PAIRS, REACH, ROWS, SPECIAL, UNITS
from lowbit.records import MISMATCH_COLUMNS, STATUSES, SUMMARY_COLUMNS, Record, Run, read_about
from lowbit.references import bits
from lowbit.report import merge, parquet

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "REPORTS.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """The first table under a heading: its first column, in order, with the other cells."""
    section = re.split(r"^#+ ", TEXT.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    found = {row[0].strip("`"): row[1:] for row in rows}
    assert len(found) == len(rows), heading
    return found


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def test_columns() -> None:
    assert tuple(table("## summary.csv")) == SUMMARY_COLUMNS
    assert tuple(table("## mismatches.csv and mismatches.parquet")) == MISMATCH_COLUMNS
    assert names(table("## summary.csv")["status"][-1]) == set(STATUSES)


def test_types_of_the_parquet_file() -> None:
    kinds = {"integer": "int64", "number": "float64"}
    found = {
        name: kinds.get(row[0].partition(",")[0])
        for name, row in table("## mismatches.csv and mismatches.parquet").items()
    }
    assert {name: kind for name, kind in found.items() if kind} == parquet.NUMBERS
    assert f"at most {parquet.GROUP:,} rows" in TEXT
    assert f"{parquet.PART:,} rows a part" in " ".join(TEXT.split())


def test_kinds() -> None:
    assert {kind: cells[0] for kind, cells in table("## Kinds").items()} == KINDS


def test_fields_of_a_record() -> None:
    assert sorted(table("## records.jsonl")) == sorted(f.name for f in dataclasses.fields(Record))
    assert list(table("### A sample")) == [f.name for f in dataclasses.fields(Sample)]


def test_fields_of_run_json(tmp_path: Path) -> None:
    """Those of a run, of one with waivers and a baseline, and of a merged one."""
    folders = []
    for seed in (1, 2):
        run = Run.start(tmp_path / "runs", {"device": "cpu"}, "pytest", {}, seed)
        run.add(Record(scheme="s", check="c", status="pass", compared=1, node="n"))
        run.finish(0, deselected=0, waivers={}, baseline="b")
        folders.append(run.folder)
    merge.merge(folders, tmp_path / "whole", mixed=True)
    written = read_about(folders[0]).keys() | read_about(tmp_path / "whole").keys()
    assert set(table("## run.json")) == written


def test_pictures() -> None:
    scheme = schemes.get("mxfp4_floor")
    x = np.ones((2, 64), np.float32)
    right = bits.quantize(x, scheme)
    wrong = right._replace(codes=right.codes ^ 1, scales=right.scales ^ 1)
    record = Record.of(compare_encoded(x, wrong, right, scheme), scheme="s", check="c")
    documented = table("### Pictures")
    assert set(documented) == set(record.pictures)
    for name, picture in record.pictures.items():
        assert names(documented[name][0]) == set(picture), name
    assert {"zero", "subnormal", "inf", "nan"} == set(SPECIAL)
    flat = " ".join(TEXT.split())
    assert f"`unit` is `{UNITS[0]}`, `{UNITS[1]}` or `{UNITS[2]}`" in flat
    for bound in (f"at most {ROWS} × {COLUMNS} cells", f"the most frequent {PAIRS:,}", f"above {REACH}"):
        assert bound in flat


def test_readme_links_to_it() -> None:
    assert "(REPORTS.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
