"""What a page tells of failed and waived checks, whatever else it has to leave out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import DEVICE, record, ties_away

from lowbit import report
from lowbit.records import Record, Run
from lowbit.report import html, text


def page(folder: Path, *records: Record) -> str:
    """The source of the page of a run of these records."""
    made = Run.start(folder, {"device": DEVICE}, "pytest conformance/", {"level": "full"}, 7)
    for one in records:
        made.add(one)
    made.finish(0)
    return report.build(made.folder).read_text(encoding="utf-8")


def test_waived_checks_are_loud_and_told_in_full(tmp_path: Path) -> None:
    """Reason, link, waiver and diagnosis stand before the matrix; the mismatches among the failed checks."""
    why = "vendor rounds so until 2027-03-01, https://example.org/issues/12 javascript:alert(1)"
    waived = replace(ties_away(check="scale", message=why, extra={"waiver": "waivers.toml, 3"}), status="waived")
    source = page(tmp_path, record(), waived)
    before, after = source.split('<h2 id="matrix">')
    link = '<a href="https://example.org/issues/12" rel="noopener noreferrer">https://example.org/issues/12</a>'
    for words in (
        '<span class="status waived">WAIVED</span> <b>scale</b>',
        f"<b>{waived.mismatched} differ</b>",
        "waived by waivers.toml, 3",
        f"vendor rounds so until 2027-03-01, {link}",
        "ties away from zero",
    ):
        assert words in before, words
    assert 'href="javascript' not in source
    assert "Failed checks, and waived ones" in after
    assert "0xbe000000" in after
    anchor = text.anchor("ties_away", "mxfp4_floor", "scale")
    assert f'id="{anchor}"' in after
    assert f'<a href="#{anchor}">waived</a>' in after


def test_what_fails_is_never_cut_from_the_matrix() -> None:
    """The last of many schemes and of many checks comes first, with a link to its section."""
    many = [record(scheme=f"s{i}", check=f"c{j}") for i in range(200) for j in range(80)]
    failing = ties_away(check="c79")
    failing.scheme = "s199"
    source = html.render({"run": "r", "finished": "now", "exit_status": 1}, [*many, failing])
    assert f'href="#{text.anchor("ties_away", "s199", "c79")}">✗ ' in source
    assert source.index(">s199</th>") < source.index(">s0</th>")
    assert "20 more checks are in" in source


@pytest.mark.parametrize(
    ("causes", "beside", "left"), [(1, "", ""), (2, "1 more finding", ""), (6, "5 more findings", "2 more findings")]
)
def test_other_findings_are_told_beside_the_first(tmp_path: Path, causes: int, beside: str, left: str) -> None:
    """The first screen names one cause; a reader who stops there must know that there are others."""
    failing = [
        record(
            check=f"c{i}",
            status="mismatch",
            compared=9,
            mismatched=1,
            kinds={"tie": 1},
            diagnosis=f"{'abcdef'[i]} was broken",
        )
        for i in range(causes)
    ]
    source = page(tmp_path, *failing)
    screen, wrong = source.split('<main id="content"')
    assert ("more finding" in screen) == bool(beside)
    assert f"{beside}</a>" in screen
    assert ("that differ from these" in wrong) == bool(left)
    assert f"{left} that differ from these" in wrong or not left


def test_a_mismatch_without_a_diagnosis_says_so(tmp_path: Path) -> None:
    """An empty place could be read as a cause that was looked for and not found, which is said in other words."""
    plain = {"status": "mismatch", "mismatched": 1, "kinds": {"value": 1}}
    said = "No diagnosis was made of this."
    assert page(tmp_path / "a", record(**plain)).count(said) == 2
    assert said not in page(tmp_path / "b", record(**plain, diagnosis="unexplained: no rule change"))
    assert said not in page(tmp_path / "c", record(status="error", compared=0, message="boom"))
