"""Two runs beside each other: what counts as new, what is never called fixed, and when the runs are hard to compare."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lowbit import cli, report
from lowbit.records import Record, Run
from lowbit.report import diff, diff_files
from lowbit.report.diff import Difference
from lowbit.suite.gate import Gate
from lowbit.suite.selection import select
from lowbit.waiving import Setting

ABOUT: dict[str, Any] = {
    "run": "a",
    "lowbit": "1",
    "level": "full",
    "seed": 7,
    "implementation": "mine",
    "version": "1",
    "finished": "now",
    "exit_status": 1,
    "options": {"scheme": [], "level": "full", "impl": ["x"], "require_gpu": False},
    "environment": {"device": "cpu", "python": "3.11", "packages": {"torch": "2.13"}, "flags": {"cpu_threads": 2}},
}
HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202e\ud800"


def record(kinds: dict[str, int] | None = None, *, digest: int = 1, **fields: Any) -> Record:
    """A record that passes, or with mismatches of some kinds."""
    kinds = kinds or {}
    wrong = sum(kinds.values())
    given = {"implementation": "mine", "scheme": "mxfp4_floor", "check": "shapes", "compared": 100, "kinds": kinds}
    given |= {"status": "mismatch" if kinds else "pass", "mismatched": wrong}
    return Record(**given | {"digests": dict.fromkeys(kinds, digest), **fields})


def compare(before: list[Record], after: list[Record], **options: Any) -> Difference:
    return diff.compare(ABOUT, before, {**ABOUT, "run": "b"}, after, **options)


def whats(found: Difference) -> list[tuple[str, str, int, int]]:
    return [(c.what, c.kind, c.before, c.after) for c in found.changes]


@pytest.mark.parametrize(
    ("before", "after", "changes", "code"),
    [
        (record(), record(), [], 0),
        (record({"tie": 3}), record({"tie": 3}), [("same", "tie", 3, 3)], 0),
        (record(), record({"tie": 3}), [("new", "tie", 0, 3)], 1),
        (record({"tie": 3}), record(), [("fixed", "tie", 3, 0)], 0),
        (record({"tie": 3}), record({"tie": 4}), [("changed", "tie", 3, 4)], 1),
        # fewer may still hide new ones: nothing but the same digest says that they are the same
        (record({"tie": 3}), record({"tie": 2}), [("changed", "tie", 3, 2)], 1),
        (record({"tie": 3}), record({"tie": 3}, digest=2), [("changed", "tie", 3, 3)], 1),
        (
            record({"tie": 3, "nan": 1}),
            record({"tie": 3, "value": 2}),
            [("new", "value", 0, 2), ("same", "tie", 3, 3), ("fixed", "nan", 1, 0)],
            1,
        ),
        # without digests, as in runs of earlier versions, by number
        (record({"tie": 3}, digests={}), record({"tie": 3}), [("same", "tie", 3, 3)], 0),
        (record({"tie": 3}, digests={}), record({"tie": 4}), [("changed", "tie", 3, 4)], 1),
        (record(), record(compared=60), [("judged less", "", 100, 60)], 0),
        (record(), record({"tie": 3}, status="waived"), [("new, waived", "tie", 0, 3)], 0),
        (record({"tie": 3}), record({"tie": 3}, status="waived"), [("same", "tie", 3, 3)], 0),
        (record({"tie": 3}, status="waived"), record({"tie": 3}), [("same", "tie", 3, 3)], 0),
    ],
)
def test_one_check(before: Record, after: Record, changes: list[tuple[str, str, int, int]], code: int) -> None:
    other = record(check="encode")  # so that something is judged in any case
    found = compare([before, other], [after, other])
    assert (whats(found), found.exit_code) == (changes, code)


NOT_JUDGED = [
    ([], "there is no record of it"),
    ([record(status="unsupported", compared=0, message="not today")], "unsupported: not today"),
    ([record(status="not_run", compared=0, message="no GPU")], "not run: no GPU"),
    ([record(status="not_run", compared=0, scheme="*", message="no GPU")], "not run: no GPU"),
    ([record(status="error", compared=0, message="boom")], "error: boom"),
]


@pytest.mark.parametrize(("after", "note"), NOT_JUDGED)
@pytest.mark.parametrize("before", [record(), record({"tie": 3}), record({"tie": 3}, status="waived")])
def test_what_is_no_longer_judged_is_a_regression_and_never_fixed(
    before: Record, after: list[Record], note: str
) -> None:
    other = record(check="encode")
    found = compare([before, other], [*after, other])
    first, *rest = found.changes
    if first.what == "new":  # the call that raised is a failure beside
        (first,), rest = rest, [first]
    assert (first.what, first.note, first.before) == ("no longer judged", note, before.mismatched)
    assert [(c.what, c.kind) for c in rest] == ([("new", "error")] if note == "error: boom" else [])
    assert found.exit_code == 1


def test_a_check_that_was_never_judged_is_no_regression() -> None:
    other = record(check="encode")
    silent = record(status="not_run", compared=0, scheme="*", message="needs a GPU")
    assert compare([other], [other, silent]).exit_code == 0
    new = compare([other, silent], [other, record()])
    assert (whats(new), new.exit_code) == ([("judged", "", 0, 0)], 0)


def test_a_part_of_a_run_misses_nothing_that_was_not_selected() -> None:
    other = record(check="encode")
    found = compare([record(), other], [other], partial=True)
    assert ([c.what for c in found.changes], found.exit_code) == (["not selected"], 0)
    declined = record(status="unsupported", compared=0)
    assert compare([record(), other], [other, declined], partial=True).exit_code == 1


def test_records_of_one_check_are_taken_together() -> None:
    """Parametrised checks and steps: their order is nothing new, another digest in one of them is."""
    parts = [record({"tie": 3}, digest=n) for n in (1, 2)]
    assert whats(compare(parts, parts[::-1])) == [("same", "tie", 6, 6)]
    assert whats(compare(parts, [parts[0], parts[0]])) == [("changed", "tie", 6, 6)]


def test_tensors_of_a_checkpoint_are_rows() -> None:
    tensors = [record({"tie": 3}, digest=n, extra={"tensor": f"t{n}"}) for n in (1, 2)]
    found = compare(tensors, [tensors[0], record(extra={"tensor": "t2"})])
    assert [(c.what, c.tensor) for c in found.changes] == [("same", "t1"), ("fixed", "t2")]


def test_a_later_run_that_shows_nothing_is_stopped() -> None:
    assert compare([], []).stopped == ("the later run compared nothing",)
    for about in ({"finished": None}, {"exit_status": 2}, {"problems": ["line 3"]}):
        found = diff.compare(ABOUT, [record()], {**ABOUT, **about}, [record()])
        assert (found.stopped, found.exit_code) == (("the later run is incomplete",), 1)
        assert diff.compare(ABOUT, [record()], {**ABOUT, **about}, [record()], running=True).exit_code == 0
        before = diff.compare({**ABOUT, **about}, [record()], ABOUT, [record()])
        assert (before.warnings, before.exit_code) == (("the earlier run is incomplete",), 0)


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"level": "quick"}, "level differs: full → quick"),
        ({"seed": 8}, "seed differs: 7 → 8"),
        ({"lowbit": "2"}, "lowbit differs: 1 → 2"),
        ({"version": "2"}, "version differs: 1 → 2"),
        ({"deselected": 4}, "checks deselected differs: 0 → 4"),
        ({"options": {"scheme": ["nvfp4"]}}, "options · scheme differs: none → ['nvfp4']"),
        ({"environment": {**ABOUT["environment"], "device": "cuda"}}, "environment · device differs: cpu → cuda"),
        (
            {"environment": {**ABOUT["environment"], "packages": {"torch": "2.11"}}},
            "environment · packages · torch differs: 2.13 → 2.11",
        ),
        ({"environment": {**ABOUT["environment"], "flags": {}}}, "environment · flags · cpu_threads differs: 2 → none"),
        ({"environment": None}, "environment · python differs: 3.11 → none"),
    ],
)
def test_what_makes_runs_hard_to_compare_is_said(change: dict[str, Any], warning: str) -> None:
    found = diff.compare(ABOUT, [record()], {**ABOUT, **change}, [record()])
    assert warning in found.warnings
    assert found.exit_code == 0
    assert len(found.warnings) == 1 or change == {"environment": None}


def test_another_exception_is_not_the_same_error() -> None:
    """What a message says after its type may hold an address, or a time, that is another one each time."""
    raised = [
        record(status="error", compared=0, message=text) for text in ("OSError: 0x7f", "OSError: 0x80", "KeyError")
    ]
    assert whats(compare([raised[0]], [raised[1]])) == [("same", "error", 1, 1)]
    found = compare([raised[0]], [raised[2]])
    assert (whats(found), found.exit_code) == ([("changed", "error", 1, 1)], 1)


def test_runs_in_the_wrong_order_are_told() -> None:
    """Exchanged, what is new reads as fixed, and nothing fails: the reader must be told."""
    early, late = ({**ABOUT, "run": day, "started": f"2026-11-{day}T00:00:00Z"} for day in ("01", "02"))
    assert diff.compare(early, [record()], late, [record()]).warnings == ()
    (warning,) = diff.compare(late, [record({"tie": 3})], early, [record()]).warnings
    assert warning == "B began before A, 2026-11-01T00:00:00Z and 2026-11-02T00:00:00Z: are they exchanged?"
    assert diff.compare(early, [record()], early, [record()]).warnings == ("a run is compared with itself",)


def test_two_runs_of_one_implementation_each_are_compared_whatever_it_is_called() -> None:
    found = compare([record({"tie": 3})], [record({"tie": 3}, implementation="mine-2")])
    assert [c.what for c in found.changes] == ["same"]
    assert found.warnings == ("implementation: mine → mine-2, compared with each other",)
    two = compare([record(), record(implementation="other")], [record(implementation="mine-2")])
    assert [c.what for c in two.changes] == ["no longer judged", "no longer judged", "judged"]


def test_the_columns_are_documented() -> None:
    told = (Path(__file__).parents[1] / "REPORTS.md").read_text(encoding="utf-8").split("\n## baseline.csv\n")[1]
    rows = [line.split("|")[1:] for line in told.split("\n## ")[0].splitlines() if line.startswith("| `")]
    assert tuple(row[0].strip(" `") for row in rows) == diff.COLUMNS
    assert set(re.findall(r"`([^`]+)`", rows[0][3])) == set(diff.ORDER) == set(diff.MEANS)


# -- as files, and the command


class Tags(HTMLParser):
    def __init__(self, source: str):
        super().__init__()
        self.found: list[str] = []
        self.words: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_text_stays_text_in_every_form(tmp_path: Path) -> None:
    names = {"implementation": HOSTILE, "check": f"=1+1{HOSTILE}", "scheme": HOSTILE}
    found = diff.compare(
        {**ABOUT, "run": HOSTILE},
        [record(**names)],
        {**ABOUT, "level": HOSTILE},
        [record({HOSTILE: 3}, status="waived", message=HOSTILE, **names)],
    )
    page = Tags(diff_files.as_page(found))
    assert "script" not in page.found
    assert "<script>alert(1)</script>" in " ".join(page.words)
    assert Tags(diff_files.as_section(found)).found[0] == "section"
    for text in ("\n".join(found.lines()), diff_files.as_page(found)):
        assert not set("\x1b\u202e\ud800") & set(text)
    diff_files.write(tmp_path / "d.csv", diff_files.as_csv(found))
    with (tmp_path / "d.csv").open(encoding="utf-8", newline="") as file:
        header, row = csv.reader(file)
    assert tuple(header) == diff.COLUMNS
    assert row[3].startswith("'=1+1")
    assert json.loads(diff_files.as_json(found))["changes"][0]["what"] == "new, waived"


def stored(tmp_path: Path, *records: Record, status: int = 0) -> str:
    return selected(tmp_path, {}, *records, status=status)


def selected(tmp_path: Path, options: dict[str, Any], *records: Record, status: int = 0) -> str:
    """A run's folder whose command line had these options."""
    made = Run.start(tmp_path / "runs", {"device": "cpu"}, "pytest", options, 7, implementation="mine", level="full")
    for each in records:
        made.add(each)
    made.finish(status)
    return str(made.folder)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(tmp_path, record()), stored(tmp_path, record({"tie": 3}), status=1)
    assert cli.main(["report", "diff", a, a]) == 0
    assert capsys.readouterr().out.endswith("1 checks without a mismatch in either run\nNOTHING NEW\n")
    files = ["--csv", f"{tmp_path}/d.csv", "--html", f"{tmp_path}/d.html"]
    assert cli.main(["report", "diff", a, b, *files]) == 1
    out = capsys.readouterr().out
    assert "new: 1 (mismatches of this kind where there were none)\n  mine: mxfp4_floor × shapes: tie 0 → 3\n" in out
    assert out.endswith("SOMETHING NEW\n")
    assert (tmp_path / "d.csv").read_text().count("\n") == 2
    assert "Something is new" in (tmp_path / "d.html").read_text()
    assert cli.main(["report", "diff", a, b, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"new": 1}
    assert cli.main(["report", "diff", b, a]) == 0
    assert cli.main(["report", "diff", a, f"{tmp_path}/none"]) == 2
    assert "holds no readable run.json" in capsys.readouterr().err


def test_a_damaged_later_run_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(tmp_path, record()), stored(tmp_path, record())
    with open(f"{b}/records.jsonl", "a") as file:
        file.write("{")
    assert cli.main(["report", "diff", a, b]) == 1
    assert "stopped: the later run is incomplete" in capsys.readouterr().out
    assert cli.main(["report", "diff", b, a]) == 0
    assert "warning: the earlier run's records are damaged" in capsys.readouterr().out


def test_the_page_of_a_run_has_the_difference(tmp_path: Path) -> None:
    """Also where it is built again; a file that was damaged is told, not passed over."""
    folder = Path(stored(tmp_path, record({"tie": 3}), status=1))
    found = compare([record(scheme=HOSTILE)], [record({"tie": 3}, scheme=HOSTILE)])
    diff_files.write(folder / diff_files.BASELINE, diff_files.as_json(found))
    page = report.build(folder).read_text(encoding="utf-8")
    assert '<a href="#difference">' in page
    assert diff_files.as_section(found) in page
    assert "<script>alert" not in page
    for damage in ("{", "[]", '{"changes": [{"what": "old"}]}', "[" * 100_000):
        (folder / diff_files.BASELINE).write_text(damage)
        assert "baseline.json cannot be read" in report.build(folder).read_text(encoding="utf-8")


# -- a run that is compared while it ends


def closed(tmp_path: Path, baseline: str, *records: Record, scheme: object = None) -> Gate:
    import datetime

    setting = Setting(
        device="cpu", level="full", seed=7, weights="", implementations=("mine",), today=datetime.date(2026, 1, 1)
    )
    gate = Gate(None, baseline, setting, [], select)
    gate.collected = {path.name for path in Path(gate_file()).parent.glob("test_*.py")}
    options = SimpleNamespace(scheme=scheme, weights=None)
    config = SimpleNamespace(args=["conformance/"], option=options)
    session = SimpleNamespace(shouldstop=False, shouldfail=False, exitstatus=0, config=config)
    gate.close(session, {**ABOUT, "finished": None}, list(records))  # type: ignore[arg-type]
    return gate


def gate_file() -> str:
    from lowbit.suite import gate

    return gate.__file__


def test_a_run_fails_for_what_it_no_longer_judges(tmp_path: Path) -> None:
    baseline = stored(tmp_path, record(), record(check="encode"))
    gate = closed(tmp_path, baseline, record())
    assert gate.stops
    assert gate.about() == {"baseline": Path(baseline).name}
    assert any("no longer judged: 1" in line for line, _ in gate.lines([], {}, tmp_path))
    gate.write(tmp_path)
    assert json.loads((tmp_path / "baseline.json").read_text())["exit_code"] == 1
    assert gate.difference == Difference.of(json.loads((tmp_path / "baseline.json").read_text()))
    assert not closed(tmp_path, baseline, record(), record(check="encode")).stops
    assert not closed(tmp_path, baseline, record(), scheme=["mxfp4_floor"]).stops


def test_a_selection_that_both_runs_made_excuses_nothing(tmp_path: Path) -> None:
    """A release that always names its schemes must notice a check that is gone, as one that names none does."""
    options = {"scheme": ["mxfp4_*"], "weights": None}
    baseline = selected(tmp_path, options, record(), record(check="encode"))
    assert closed(tmp_path, baseline, record(), scheme=["mxfp4_*"]).stops
    assert not closed(tmp_path, baseline, record(), record(check="encode"), scheme=["mxfp4_*"]).stops
    assert not closed(tmp_path, baseline, record(), scheme=["mxfp4_floor"]).stops
