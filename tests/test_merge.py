"""Shards merged into one run: what is refused, what is marked, and that merging makes nothing better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowbit import cli
from lowbit.errors import ReportError
from lowbit.records import Record, Run, read_about, read_records
from lowbit.report import diff, merge
from lowbit.report.outcome import judge


def record(check: str = "encode", **fields: Any) -> Record:
    given = {"implementation": "mine", "version": "1", "scheme": "mxfp4_floor", "check": check, "status": "pass"}
    given |= {"compared": 100, "device": "cpu", "level": "full", "node": f"test_{check}.py::test[mine]", "seconds": 1.5}
    return Record(**given | fields)


def not_run(reason: str = "level exhaustive only") -> Record:
    return record("large", scheme="*", status="not_run", compared=0, node="", message=reason)


def wrong(digest: int = 1, **fields: Any) -> Record:
    return record(
        **{
            "status": "mismatch",
            "mismatched": 3,
            "kinds": {"tie": 3},
            "digests": {"tie": digest},
            "seconds": 2,
            **fields,
        }
    )


def shard(tmp_path: Path, *records: Record, status: int | None = 0, **changes: Any) -> Path:
    made = Run.start(
        tmp_path / "runs",
        {"device": "cpu", "python": "3.11"},
        "pytest conformance/",
        {"level": "full", "scheme": []},
        7,
        implementation="mine",
        version="1",
        level="full",
    )
    for each in records:
        made.add(each)
    if status is not None:
        made.finish(status)
    path = made.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return made.folder


def merged(tmp_path: Path, *folders: Path, **options: Any) -> tuple[dict[str, Any], list[Record]]:
    into = tmp_path / "whole"
    assert merge.merge(folders, into, **options) == into / "index.html"
    return read_about(into), read_records(into)


def test_two_shards_are_one_run(tmp_path: Path) -> None:
    a = shard(tmp_path, record("shapes"), not_run())
    b = shard(tmp_path, wrong(), not_run(), status=1)
    about, records = merged(tmp_path, a, b)
    assert [(r.check, r.status, r.run) for r in records] == [
        ("encode", "mismatch", b.name),
        ("shapes", "pass", a.name),
        ("large", "not_run", a.name),
    ]
    assert (about["run"], about["exit_status"], about["level"], about["seed"]) == ("whole", 1, "full", 7)
    assert [each["run"] for each in about["merged"]] == [a.name, b.name]
    found = judge(about, records)
    assert (found.verdict, found.compared, found.mismatched) == ("FAIL", 200, 3)
    files = {path.name for path in (tmp_path / "whole").iterdir()}
    assert files == {"run.json", "records.jsonl", "summary.csv", "mismatches.csv", "index.html"}
    assert "FAIL" in (tmp_path / "whole" / "index.html").read_text(encoding="utf-8")


def test_the_order_of_the_shards_does_not_matter(tmp_path: Path) -> None:
    a, b = shard(tmp_path, record("shapes")), shard(tmp_path, record())
    texts = []
    for name, folders in (("x", (a, b)), ("y", (b, a))):
        merge.merge(folders, tmp_path / name)
        texts.append((tmp_path / name / "records.jsonl").read_text())
    assert texts[0] == texts[1]


def test_the_same_result_twice_counts_once(tmp_path: Path) -> None:
    """Whatever the time that it took, or the samples that were kept."""
    a, b = shard(tmp_path, wrong(), status=1), shard(tmp_path, wrong(seconds=9, samples=[{"tensor": "t"}]), status=1)
    about, records = merged(tmp_path, a, b)
    assert (len(records), judge(about, records).mismatched) == (1, 3)


def test_one_run_may_tell_of_one_thing_twice(tmp_path: Path) -> None:
    _, records = merged(tmp_path, shard(tmp_path, record(), record()))
    assert len(records) == 2


@pytest.mark.parametrize("other", [record(), wrong(2), record(compared=99), record(status="error", message="boom")])
def test_shards_that_contradict_each_other_are_refused(tmp_path: Path, other: Record) -> None:
    a, b = shard(tmp_path, wrong(), status=1), shard(tmp_path, other)
    with pytest.raises(ReportError, match=f"{a.name} and {b.name} contradict each other in mine: mxfp4_floor × encode"):
        merge.merge([a, b], tmp_path / "whole", mixed=True)
    assert not (tmp_path / "whole").exists()


def test_the_same_check_on_two_devices_is_two_results(tmp_path: Path) -> None:
    a, b = shard(tmp_path, record()), shard(tmp_path, wrong(device="cuda"), status=1)
    _, records = merged(tmp_path, a, b)
    assert [r.status for r in records] == ["pass", "mismatch"]


@pytest.mark.parametrize(
    ("records", "changes", "says"),
    [
        ((record("shapes"),), {"lowbit": "0.0.9"}, r"they differ in lowbit \(0\.1\.0, 0\.0\.9\)"),
        ((record("shapes"),), {"seed": 8}, r"seed \(7, 8\)"),
        ((record("shapes"),), {"level": "quick"}, r"level \(full, quick\)"),
        ((record("shapes", version="2"),), {}, r"the version of mine \(1, 2\)"),
    ],
)
def test_mixtures_are_refused_unless_meant(
    tmp_path: Path, records: tuple[Record, ...], changes: dict[str, Any], says: str
) -> None:
    a, b = shard(tmp_path, record()), shard(tmp_path, *records, **changes)
    with pytest.raises(ReportError, match=says):
        merge.merge([a, b], tmp_path / "whole")
    about, found = merged(tmp_path, a, b, mixed=True)
    assert len(found) == 2
    assert len(about["mixed"]) == 1
    assert about["seed"] == (None if "seed" in changes else 7)


@pytest.mark.parametrize(
    ("status", "changes", "says"),
    [
        (None, {}, "it did not finish"),
        (2, {}, "it was broken off (exit status 2)"),
        (0, {"problems": ["line 3: no record"]}, "line 3: no record"),
    ],
)
def test_incomplete_shards_leave_the_whole_incomplete(
    tmp_path: Path, status: int | None, changes: dict[str, Any], says: str
) -> None:
    a, b = shard(tmp_path, record()), shard(tmp_path, record("shapes"), status=status, **changes)
    about, records = merged(tmp_path, a, b)
    assert about["problems"] == [f"{b.name}: {says}"]
    assert (bool(about["finished"]), about["exit_status"]) == (status is not None, status)
    assert judge(about, records).verdict == "INCOMPLETE"


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_records_that_were_lost_or_added_leave_a_run_incomplete(tmp_path: Path, lines: int) -> None:
    """A file that is cut between two lines, or copied behind itself, is well-formed; run.json has the number."""
    folder = shard(tmp_path, record(), record("shapes"))
    assert judge(read_about(folder), read_records(folder)).verdict == "PASS"
    path = folder / "records.jsonl"
    path.write_text("".join((path.read_text() * 2).splitlines(keepends=True)[:lines]))
    found, about = read_records(folder), read_about(folder)
    said = f"records: {lines} are there, 2 were when the run ended"
    outcome = judge(about, found)
    assert (outcome.verdict, f"INCOMPLETE RUN: {said}." in outcome.warnings) == ("INCOMPLETE", True)
    whole = shard(tmp_path, record(), record("shapes"))
    complete = read_about(whole), read_records(whole)
    assert "the later run is incomplete" in diff.compare(*complete, about, found).stopped
    assert f"the earlier run's {said}" in diff.compare(about, found, *complete).warnings
    merged_about, _ = merged(tmp_path, folder)
    assert merged_about["problems"] == [f"{folder.name}: {said}"]


def test_a_run_that_was_broken_off_outweighs_other_ends(tmp_path: Path) -> None:
    about, _ = merged(tmp_path, shard(tmp_path, status=5), shard(tmp_path, record(), status=2))
    assert about["exit_status"] == 2


def test_a_shard_that_failed_without_a_failing_record_fails_the_whole(tmp_path: Path) -> None:
    about, records = merged(tmp_path, shard(tmp_path, record()), shard(tmp_path, status=1))
    assert judge(about, records).verdict == "FAIL"


def test_selections_are_told(tmp_path: Path) -> None:
    parts = [shard(tmp_path, record()), shard(tmp_path, record("shapes"), deselected=3)]
    about, records = merged(tmp_path, *parts)
    assert "MERGED: 1 of 2 runs were of a selection; what none selected is missing." in judge(about, records).warnings


def test_a_waiver_that_no_shard_could_judge_is_told(tmp_path: Path) -> None:
    unjudged = [["w.toml, waiver 1", "not selected"], ["w.toml, waiver 2", "not selected"]]
    a = shard(tmp_path, record(), waivers={"file": "w.toml", "unjudged": unjudged})
    b = shard(tmp_path, record("shapes"), waivers={"file": "w.toml", "unjudged": unjudged[1:]})
    about, _ = merged(tmp_path, a, b)
    assert about["waivers"] == {"file": "w.toml", "unjudged": unjudged[1:]}


@pytest.mark.parametrize("unjudged", [None, 3, [[]], ["x"], {"a": 1}])
def test_shards_whose_waivers_cannot_be_told(tmp_path: Path, unjudged: object) -> None:
    a = shard(tmp_path, record(), waivers={"file": "w.toml", "unjudged": unjudged})
    about, _ = merged(tmp_path, a, shard(tmp_path, record("shapes")))
    assert about["waivers"] == {"file": "w.toml", "unjudged": []}


def test_ids_that_are_no_text_are_told_apart(tmp_path: Path) -> None:
    parts = [shard(tmp_path, record(), run=[1]), shard(tmp_path, record("shapes"), run=[2])]
    assert len(merged(tmp_path, *parts)[1]) == 2
    again = shard(tmp_path, record("scale"), run=[2])
    with pytest.raises(ReportError, match="got one of them twice"):
        merge.merge([parts[1], again], tmp_path / "other")


def test_machines_are_told(tmp_path: Path) -> None:
    a = shard(tmp_path, record())
    b = shard(tmp_path, record("shapes"), environment={"device": "cuda, X (sm_90)", "python": "3.11", "git": None})
    about, _ = merged(tmp_path, a, b)
    assert about["environment"] == {"device": "cpu; cuda, X (sm_90)", "python": "3.11"}
    assert about["merged"][1]["environment"]["device"] == "cuda, X (sm_90)"


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = shard(tmp_path, record())
    assert cli.main(["report", "merge", str(a), "--into", str(a)]) == 2
    assert "is there already, want a new or an empty folder" in capsys.readouterr().err
    assert cli.main(["report", "merge", str(a), str(a), "--into", f"{tmp_path}/w"]) == 2
    assert "got one of them twice" in capsys.readouterr().err
    assert cli.main(["report", "merge", f"{tmp_path}/none", "--into", f"{tmp_path}/w"]) == 2
    assert "holds no readable run.json" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()
    assert cli.main(["report", "merge", str(a), "--into", f"{tmp_path}/w"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/w/index.html\n"
