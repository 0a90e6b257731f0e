"""Annotations and step summaries: one a check, bounded, and nothing in a name ends a command or a cell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lowbit import cli, plugin
from lowbit.records import Record, Run
from lowbit.report import github

ENDED = {"finished": "now", "exit_status": 1, "level": "full"}


def record(**fields: Any) -> Record:
    given = {"implementation": "mine", "version": "1", "scheme": "mxfp4_floor", "check": "shapes", "status": "mismatch"}
    given |= {
        "compared": 400,
        "mismatched": 115,
        "kinds": {"tie": 115},
        "diagnosis": "all 115 mismatches vanish with x",
    }
    return Record(**given | fields)


def passing(**fields: Any) -> Record:
    return record(**{"status": "pass", "mismatched": 0, "kinds": {}, "diagnosis": "", "message": "", **fields})


def test_one_annotation_a_check() -> None:
    lines = github.commands(
        [
            record(),
            record(),
            passing(check="encode"),
            record(check="scale", status="waived", message="r (https://e.org)"),
        ]
    )
    assert lines == [
        "::error title=mine%3A mxfp4_floor × shapes fails::"
        "230 of 800 differ (tie 230). all 115 mismatches vanish with x",
        "::warning title=mine%3A mxfp4_floor × scale is waived::"
        "115 of 400 differ (tie 115). all 115 mismatches vanish with x. r (https://e.org)",
    ]


def test_nothing_ends_a_command() -> None:
    hostile = "a%0A,title=b::c\r\n::error::\x1b[31m\ud800"
    for line in github.commands([record(implementation=hostile, message=hostile, diagnosis=hostile)]):
        assert "\n" not in line
        assert "\r" not in line
        title, _, message = line.removeprefix("::error title=").partition("::")
        assert title.startswith("a%250A%2Ctitle=b%3A%3Ac\\u000d %3A%3Aerror%3A%3A\\u001b[31m\\ud800%3A mxfp4")
        assert "%0A" not in message


def test_an_error_without_counts() -> None:
    (line,) = github.commands([record(status="error", mismatched=0, kinds={}, diagnosis="", message="boom")])
    assert line.endswith("fails::boom")


def test_no_more_than_github_shows() -> None:
    lines = github.commands([record(check=f"c{i}") for i in range(30)])
    assert len(lines) == github.ANNOTATIONS
    assert lines[-1] == "::error title=lowbit%3A 30 checks%3A each fails::21 more: see the report"


def test_the_summary() -> None:
    silent = passing(check="large", scheme="*", status="not_run", compared=0, message="needs a GPU")
    waived = record(check="scale", status="waived", message="ties (https://e.org/7, until 2027-01-01)")
    text = github.summary(ENDED, [record(), passing(check="encode"), waived, silent])
    lines = text.splitlines()
    assert lines[0] == "## lowbit: FAIL"
    assert "mine 1: 1 of 4 checks failed; 115 of 800 compared elements differ." in lines
    assert (
        "| mine | mxfp4\\_floor | shapes | 115 | 400 | 115 of 400 differ (tie 115). all 115 mismatches vanish with x |"
        in lines
    )
    assert "### Waived: 1" in lines
    assert any("https://e.org/7, until 2027-01-01" in line for line in lines)
    assert "* not run: large: needs a GPU" in lines


def test_nothing_ends_a_cell_or_a_tag() -> None:
    hostile = "a|b`c`<img src=x onerror=alert(1)>\n| d | [x](javascript:1) \\| @team *e*"
    text = github.summary(ENDED, [record(implementation=hostile, check=hostile, message=hostile, diagnosis=hostile)])
    assert "<img" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| a")]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 7
    assert "](" not in row.replace("\\]", "")
    assert not re.search(r"(?<!\\)[`@*]", row)


def test_a_summary_is_bounded() -> None:
    long = "x" * 10_000
    text = github.summary(ENDED, [record(check=f"{i}{long}", message=long, diagnosis=long) for i in range(500)])
    assert len(text.encode()) < 1 << 20
    assert "… and 400 more" in text


def test_the_command_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.start(tmp_path, {"device": "cpu"}, "pytest", {}, 7)
    run.add(record())
    run.finish(1)
    file = tmp_path / "step.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    assert cli.main(["report", "github", str(run.folder)]) == 0
    assert capsys.readouterr().out.startswith("::error title=")
    assert file.read_text().startswith("before\n## lowbit: FAIL\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert cli.main(["report", "github", str(run.folder)]) == 0
    assert "no step summary: GITHUB_STEP_SUMMARY: Is a directory" in capsys.readouterr().out
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert cli.main(["report", "github", str(run.folder)]) == 0


@pytest.mark.parametrize(("value", "default"), [("true", True), ("false", False), (None, False)])
def test_it_is_told_only_where_github_listens(
    value: str | None, default: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    else:
        monkeypatch.setenv("GITHUB_ACTIONS", value)
    parser = pytest.Parser(_ispytest=True)
    plugin.add_options(parser)
    assert parser.parse_known_args([]).github is default
    assert parser.parse_known_args(["--github"]).github is True
