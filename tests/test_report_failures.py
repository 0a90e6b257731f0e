"""What a page tells of failed and waived checks, whatever else it has to leave out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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
