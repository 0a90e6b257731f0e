"""Records survive what happens to runs: odd values, killed processes, workers in any order."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowbit.compare import compare_codes, failure
from lowbit.compare.comparison import Comparison
from lowbit.errors import ArgumentError, ReportError
from lowbit.formats import E2M1, E4M3
from lowbit.records import (
    MISMATCH_COLUMNS,
    SUMMARY_COLUMNS,
    Record,
    Run,
    append,
    mismatches,
    plain,
    read,
    read_about,
    read_records,
    read_run,
    readable,
    summary,
)

HOSTILE = "<script>alert(1)</script>\"'&\u2028\n\x1b[31m\x00\ud800é漢"


def wrong() -> Comparison:
    x = np.array([0.25, np.nan, np.inf, -0.0], np.float32)
    return compare_codes(x, np.array([1, 0, 6, 0], np.uint8), np.array([0, 7, 7, 8], np.uint8), E2M1)


def record(**fields: object) -> Record:
    return Record(**{"scheme": "mxfp4_floor", "check": "encode", "status": "pass", **fields})  # type: ignore[arg-type]


def started(tmp_path: Path) -> Run:
    return Run.start(tmp_path, {"device": "cpu"}, ["pytest", "conformance/"], {"level": "full"}, 7)


def test_status_follows_from_the_comparison() -> None:
    assert Record.of(Comparison("codes", 5), scheme="s", check="c").status == "pass"
    found = Record.of(wrong(), scheme="s", check="c")
    assert (found.status, found.compared, found.mismatched) == ("mismatch", 4, 4)
    assert found.kinds == {"nan": 1, "zero_sign": 1, "saturation": 1, "tie": 1}
    assert Record.of(failure("shape", tensor="codes", message="m"), scheme="s", check="c").status == "mismatch"


def test_comparing_nothing_is_an_error() -> None:
    nothing = Record.of(Comparison("codes", 0), scheme="s", check="c")
    assert nothing.status == "error"
    assert "nothing was compared of codes" in nothing.message


def test_unknown_status_is_refused() -> None:
    with pytest.raises(ArgumentError, match="status"):
        record(status="passed")


def test_round_trip_through_json(tmp_path: Path) -> None:
    """NaN, Inf, -0, huge integers, NumPy scalars, any text: JSON without extensions, and back."""
    before = Record.of(
        wrong(), scheme=HOSTILE, check="c", node=HOSTILE, extra={"tensor": HOSTILE, "big": 1 << 200, "n": np.int64(3)}
    )
    path = tmp_path / "records.jsonl"
    append(path, before)
    append(path, record(seconds=0.5))
    text = path.read_text(encoding="ascii")
    assert text.count("\n") == 2
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    after, second = read(path)
    assert after.as_dict() == before.as_dict()
    assert (after.scheme, after.extra) == (HOSTILE, {"tensor": HOSTILE, "big": 1 << 200, "n": 3})
    by_kind = {sample["kind"]: sample for sample in after.samples}
    assert by_kind["nan"]["x"] == "nan"
    assert by_kind["saturation"]["x"] == "inf"
    assert by_kind["zero_sign"]["value_expected"] == 0
    assert math.copysign(1, by_kind["zero_sign"]["value_expected"]) == -1
    assert second == record(seconds=0.5)


def test_plain_takes_anything() -> None:
    assert plain({1: (float("nan"), -math.inf, np.float32(2), np.bool_(True), Path("a"), {3, 1}, None)}) == {
        "1": ["nan", "-inf", 2.0, True, "a", [1, 3], None]
    }


def test_torn_and_foreign_lines(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append(path, record())
    with path.open("a") as file:
        file.write('[1]\n{"scheme": "a"}\n{"scheme":"a","check":"b","status":"pass","compared":"many"}\n')
        file.write(
            '{"scheme":"a","check":"b","status":"pass","samples":[3]}\n{"scheme":"a","check":"b","status":"pass","later":1}\n'
        )
        file.write('{"scheme": "cut o')
    with pytest.raises(ReportError, match=r"records\.jsonl, line 2: no record"):
        read(path)
    problems: list[str] = []
    assert [r.scheme for r in read(path, problems)] == ["mxfp4_floor", "a"]
    assert [re.sub(r"\D", "", problem.partition(",")[2]) for problem in problems] == ["2", "3", "4", "5", "7"]
    with pytest.raises(ReportError, match="nowhere"):
        read(tmp_path / "nowhere")


def test_run_says_so_until_it_is_finished(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", run.id)
    assert run.folder == tmp_path / run.id
    about = read_about(run.folder)
    assert (about["finished"], about["exit_status"], about["seed"]) == (None, None, 7)
    assert about["environment"] == {"device": "cpu"}
    run.add(record())
    assert [r.run for r in read_records(run.folder)] == [run.id]
    run.finish(1)
    about = read_about(run.folder)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", about["finished"])
    assert (about["exit_status"], about["problems"]) == (1, [])


def test_run_without_records_leaves_an_empty_file(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert read_run(run.folder) == ([], [])
    assert run.finish(5) == []
    assert (run.folder / "records.jsonl").read_bytes() == b""


def test_two_runs_in_one_second_have_two_folders(tmp_path: Path) -> None:
    assert len({started(tmp_path).folder for _ in range(20)}) == 20


@pytest.mark.parametrize("place", ["file", "file/below", "/dev/null/below"])
def test_a_folder_that_cannot_be_written_to(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match=r"^report_dir: .*(file|below)"):
        Run.start(tmp_path / place, {}, "pytest", {}, 7)


def test_workers_are_merged_in_order_of_node(tmp_path: Path) -> None:
    """The merged file does not depend on which worker ran what."""
    texts = []
    for shuffle in (0, 1):
        run = started(tmp_path / str(shuffle))
        nodes = [f"test_a.py::test[{i}]" for i in range(6)]
        for i, node in enumerate(nodes[:: -1 if shuffle else 1]):
            worker = Run.join(run.folder, f"gw{(i + shuffle) % 2}")
            worker.add(record(node=node, seconds=0.0))
        run.add(record(node="", status="not_run", message="needs a GPU"))
        assert len(read_records(run.folder)) == 7  # readable before they are merged
        found = run.finish(0)
        assert [r.node for r in found] == ["", *nodes]
        assert [path.name for path in sorted(run.folder.iterdir())] == ["records.jsonl", "run.json"]
        assert [r.node for r in read_records(run.folder)] == ["", *nodes]
        texts.append((run.folder / "records.jsonl").read_text().replace(run.id, "RUN"))
    assert texts[0] == texts[1]


def test_lines_of_a_killed_worker_count(tmp_path: Path) -> None:
    """A process killed in the middle of a line: its earlier lines are kept, the torn one is told."""
    run = started(tmp_path)
    code = (
        "import os, signal, sys\n"
        "from lowbit.records import Record, Run\n"
        "run = Run.join(sys.argv[1], 'gw3')\n"
        "for i in range(3):\n"
        "    run.add(Record(scheme='s', check='c', status='pass', compared=1, node=str(i)))\n"
        "file = open(run.path, 'a')\n"
        'file.write(\'{"scheme": "s", "che\')\n'
        "file.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run.folder)], check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.returncode == -9
    assert len(run.finish(1)) == 3
    assert len(read_records(run.folder)) == 3
    assert read_about(run.folder)["problems"] == ["records.gw3.jsonl, line 4: no record (JSONDecodeError)"]


@pytest.mark.parametrize("text", ["", "[]", "{", "nul"])
def test_folder_that_is_no_run(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReportError, match="run_dir"):
        read_about(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ReportError, match=r"run\.json"):
        read_about(tmp_path)


def test_tables_have_their_columns_and_keep_integers(tmp_path: Path) -> None:
    big = 10**30
    found = [Record.of(wrong(), scheme="s", check="c"), record(compared=big, extra={"b": 1, "a": 2})]
    frame = summary(found)
    assert tuple(frame.columns) == SUMMARY_COLUMNS
    assert frame["compared"].tolist() == [4, big]
    assert frame["kinds"].tolist() == ["nan=1 zero_sign=1 saturation=1 tie=1", ""]
    assert frame["extra"].tolist() == ["", '{"a": 2, "b": 1}']
    lanes = mismatches([record(samples=[{"lane": 3}, {"lane": None}])])["lane"]
    assert (repr(lanes[0]), lanes[1]) == ("3", None)  # not 3.0, as beside a NaN
    rows = mismatches(found)
    assert tuple(rows.columns) == MISMATCH_COLUMNS
    assert rows["x_bits"].tolist() == ["0x7fc00000", "0x80000000", "0x7f800000", "0x3e800000"]
    assert rows["actual_fields"].tolist() == ["0|00|0", "0|00|0", "0|11|0", "0|00|1"]
    assert tuple(mismatches([]).columns) == MISMATCH_COLUMNS
    assert tuple(summary([]).columns) == SUMMARY_COLUMNS


def test_sample_as_people_read_it() -> None:
    comparison = compare_codes(
        np.array([500.0], np.float32), np.array([0x7D], np.uint8), np.array([0x7E], np.uint8), E4M3
    )
    found = readable(Record.of(comparison, scheme="s", check="c").samples[0])
    assert (found["actual"], found["actual_fields"], found["coordinates"]) == ("0x7d", "0|1111|101", "[0]")
    odd = readable({"actual": 300, "expected": "7", "format": "e2m1", "coordinates": None, "x_bits": None})
    assert (odd["actual"], odd["actual_fields"], odd["expected"], odd["input"]) == ("0x12c", None, None, None)


@pytest.mark.parametrize(
    "fields",
    [
        '"mismatched": 1, "compared": 2',
        '"status": "mismatch", "mismatched": 3, "compared": 2, "kinds": {"tie": 3}',
        '"status": "mismatch", "mismatched": 3, "compared": 2',
        '"compared": -1',
        '"status": "mismatch", "compared": 3, "mismatched": -1',
        '"compared": true',
        '"compared": 1.0',
        '"compared": 9223372036854775808',
        '"kinds": {"tie": true}',
        '"kinds": {"tie": -1}',
        '"status": "passed"',
        '"status": "waived", "status": "pass"',
        '"extra": {"a": 1, "a": 2}',
        '"seconds": NaN',
        '"seconds": -1',
        '"seconds": true',
        '"seconds": 1e400',
        f'"seconds": 1{"0" * 400}',
        f'"extra": {{"a": {"[" * 33}{"]" * 33}}}',
        f'"extra": {{"a": {"[" * 99999}{"]" * 99999}}}',
        f'"compared": {"9" * 5000}',
    ],
)
def test_records_that_contradict_themselves_are_none(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "records.jsonl"
    status = "" if fields.startswith('"status"') else '"status": "pass", '
    path.write_text(f'{{"scheme": "s", "check": "c", {status}{fields}}}\n')
    problems: list[str] = []
    assert read(path, problems) == []
    assert len(problems) == 1


def test_records_at_the_bounds_are_records(tmp_path: Path) -> None:
    """2^63 - 1 elements; a shape that is wrong, beside elements that all differ."""
    path = tmp_path / "records.jsonl"
    append(path, record(compared=(1 << 63) - 1))
    append(path, record(status="mismatch", mismatched=1, kinds={"dtype": 1}))
    append(path, record(status="mismatch", compared=4, mismatched=6, kinds={"error": 1, "shape": 1, "tie": 4}))
    append(path, record(extra={"a": [[[1]]]}))
    assert len(read(path)) == 4


@pytest.mark.parametrize("text", ["[" * 99999, '{"a": ' * 99999, '{"a": 1, "a": 2}', f'{{"a": {"9" * 5000}}}'])
def test_run_json_that_cannot_be_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ReportError, match=r"run\.json"):
        read_about(tmp_path)
