"""The verdict over records, and which failures are alike, without a page around them."""

from __future__ import annotations

import pytest

from lowbit.records import Record
from lowbit.report.outcome import first_failures, judge


def record(**fields: object) -> Record:
    given = {"scheme": "mxfp4_floor", "check": "encode", "status": "pass", "level": "exhaustive", "compared": 9}
    return Record(**{**given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [False, True, None, "0", 0.0])
def test_exit_status_that_is_no_integer(status: object) -> None:
    found = judge({"finished": "now", "exit_status": status}, [record()])
    assert found.verdict == "INCOMPLETE"
    assert found.warnings


def test_problems_in_run_json_are_problems() -> None:
    found = judge({"finished": "now", "exit_status": 0, "problems": ["line 3: no record"]}, [record()])
    assert (found.verdict, found.incomplete) == ("INCOMPLETE", True)


def test_only_records_with_the_same_cause_are_alike() -> None:
    def failing(diagnosis: str, **kinds: int) -> Record:
        return record(status="mismatch", compared=99, mismatched=9, kinds=kinds or {"tie": 9}, diagnosis=diagnosis)

    alike = [
        failing("all 9 mismatches vanish with ties up (or with ties away: these inputs do not tell them apart)"),
        failing("the one mismatch vanishes with ties up"),
        failing("all 4 mismatches vanish with ties up; tried on 4 of 9"),
    ]
    others = [
        failing("all 9 mismatches vanish with ties up", tie=5, value=4),
        failing("all 9 mismatches vanish with ties down"),
        failing("5 of 9 mismatches vanish (55 %) with ties up"),
        failing("5 of 9 mismatches vanish (55 %) with ties down"),
        failing("all 9 mismatches vanish with block scales 2 times too large"),
        failing("all 9 mismatches vanish with block scales 4 times too large"),
    ]
    assert [n for _, n in first_failures([*alike, *others], 20)] == [len(alike), *[1] * len(others)]


def test_usual_level_is_a_note_and_not_a_warning() -> None:
    ended = {"finished": "now", "exit_status": 0}
    full, quick = (judge(ended, [record(level=level)]) for level in ("full", "quick"))
    assert (len(full.notes), len(full.warnings)) == (1, 0)
    assert (len(quick.notes), len(quick.warnings)) == (0, 1)
