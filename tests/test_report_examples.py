"""The examples in the tree are what this version makes of their records, and say what README says of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from examples import EXAMPLES, MADE, ROOT, RUNS, WINDOW, Example

from lowbit import report
from lowbit.records import read_about, read_run
from lowbit.report.outcome import judge

NAMES = [example.name for example in RUNS]


@pytest.mark.parametrize("example", RUNS, ids=NAMES)
def test_examples_are_fresh(example: Example, tmp_path: Path) -> None:
    folder = EXAMPLES / example.name
    for name in ("run.json", "records.jsonl"):
        shutil.copy(folder / name, tmp_path / name)
    report.build(tmp_path)
    for name in MADE:
        fresh = (tmp_path / name).read_bytes() == (folder / name).read_bytes()
        assert fresh, f"{example.name}/{name} is out of date: python tests/examples.py --pages"


@pytest.mark.parametrize("example", RUNS, ids=NAMES)
def test_examples_are_small_and_say_that_they_are_examples(example: Example) -> None:
    folder = EXAMPLES / example.name
    assert {path.name for path in folder.iterdir()} == {*MADE, "run.json", "records.jsonl"}
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_500_000
    assert "AN EXAMPLE: time, versions and commit are fixed" in (folder / "index.html").read_text(encoding="utf-8")
    for shade in ("light", "dark"):
        picture = (EXAMPLES / f"{example.name}-{shade}.png").read_bytes()
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == WINDOW
        assert len(picture) < 300_000


def test_one_passes_and_one_names_its_fault() -> None:
    found = {}
    for example in RUNS:
        records, problems = read_run(EXAMPLES / example.name)
        found[example.name] = judge(read_about(EXAMPLES / example.name), records, problems)
    assert found["passing"].verdict == "PASS"
    assert found["passing"].compared > 1_000_000
    assert found["failing"].verdict == "FAIL"
    page = (EXAMPLES / "failing" / "index.html").read_text(encoding="utf-8")
    first_screen = page[: page.index('<main id="content"')]
    assert re.search(r"all \d+ mismatches vanish with ties away from zero", first_screen)
    assert 'class="map"' in page
    assert 'class="confusion written"' in page


def test_readme_shows_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"reports/examples/[\w./-]+", readme):
        assert (ROOT / path).exists(), path
    for example in RUNS:
        assert f"reports/examples/{example.name}/index.html" in readme
        assert f"reports/examples/{example.name}-light.png" in readme
