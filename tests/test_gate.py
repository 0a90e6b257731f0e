"""Waivers in a run of the suite: what was selected, what a user sees, and what JUnit and GitHub get."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from suite_runs import ROOT, run_pytest

from lowbit import waivers, waiving
from lowbit.errors import LowbitError, ReportError
from lowbit.records import Record, read_about, read_records
from lowbit.suite.gate import Gate, refused_as_usage
from lowbit.suite.selection import select

ENTRY = """
[[waiver]]
scheme = "mxfp4_*"
check = "shapes"
digest = "115:668e3499fc1fc9e4"
reason = "r"
issue = "https://example.org"
expires = 2027-03-31
"""


SETTING = waiving.Setting(
    device="cuda, NVIDIA H200 (sm_90)",
    level="full",
    seed=7,
    weights="",
    implementations=("mine",),
    today=datetime.date(2026, 11, 29),
)


def gate(tmp_path: Path, text: str, *schemes: str) -> Gate:
    path = tmp_path / "w.toml"
    path.write_text(text, encoding="utf-8")
    opened = Gate(str(path), None, SETTING, schemes or [s.name for s in select(["*"])], select)
    opened.collected = {file.name for file in (ROOT / "conformance" / "lowbit" / "suite").glob("test_*.py")}
    return opened


def session(*args: str, **fields: object) -> SimpleNamespace:
    options = SimpleNamespace(scheme=None, weights=None)
    config = SimpleNamespace(args=args or ["conformance/"], option=options)
    return SimpleNamespace(**{"shouldstop": False, "shouldfail": False, "exitstatus": 0, "config": config, **fields})


def closed(opened: Gate, started: SimpleNamespace, *records: Record) -> waiving.Findings:
    opened.close(started, {}, list(records))  # type: ignore[arg-type]
    return opened.findings


def test_a_whole_run_finds_an_unmatched_waiver(tmp_path: Path) -> None:
    assert len(closed(gate(tmp_path, ENTRY), session()).failures) == 1


def test_what_was_not_selected_is_not_unmatched(tmp_path: Path) -> None:
    by_scheme = closed(gate(tmp_path, ENTRY, "mxfp4_floor", "nvfp4"), session())
    assert by_scheme.failures == []
    assert "was not selected" in by_scheme.unjudged[0][1]
    assert len(closed(gate(tmp_path, ENTRY.replace("mxfp4_*", "nvfp4"), "nvfp4"), session()).failures) == 1

    by_word = gate(tmp_path, ENTRY)
    by_word.leave_out("mine", "mxfp4_even", "shapes", "test_shapes.py::test_shapes[mine-mxfp4_even]")
    assert closed(by_word, session()).unjudged == [
        ("w.toml, line 2, waiver 1", "shapes of mxfp4_even was not selected")
    ]
    another = gate(tmp_path, ENTRY)
    another.leave_out("mine", "mxfp4_even", "encode")
    assert len(closed(another, session()).failures) == 1

    derived = closed(gate(tmp_path, ENTRY.replace("mxfp4_*", "gptq4_v1_g96")), session())
    assert derived.unjudged == [("w.toml, line 2, waiver 1", "scheme gptq4_v1_g96 was not selected")]


@pytest.mark.parametrize(
    "started",
    [
        session("conformance/lowbit/suite/test_shapes.py::test_shapes"),
        session(shouldfail="stopping after 1 failures"),
        session(exitstatus=2),
    ],
)
def test_a_run_of_a_part_or_that_was_stopped(tmp_path: Path, started: SimpleNamespace) -> None:
    found = closed(gate(tmp_path, ENTRY), started)
    assert (found.failures, len(found.unjudged)) == ([], 1)


def test_files_that_were_not_collected(tmp_path: Path) -> None:
    opened = gate(tmp_path, ENTRY)
    opened.collected.discard("test_shapes.py")
    assert closed(opened, session()).failures == []


def test_a_start_that_fails_is_told_as_usage() -> None:
    def configure(self: object, config: pytest.Config) -> None:
        raise ReportError("report_dir: x: Read-only file system")

    with pytest.raises(pytest.UsageError, match=r"^report_dir: x: Read-only file system$"):
        refused_as_usage(configure)(None, None)  # type: ignore[arg-type]


def test_a_scheme_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LowbitError, match=r"w\.toml, line 2, waiver 1: scheme: got 'mxpf4'"):
        gate(tmp_path, ENTRY.replace("mxfp4_*", "mxpf4"))


# -- the suite


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, Path]]:
    """A wrong kernel without waivers in a worker; and with waivers made from that, and what CI wants."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["conformance/", "-p", "no:cacheprovider", "--level", "quick", "--device", "cpu"]
    words += ["--impl", "tests/mutants/ties_away.py:IMPLEMENTATION", "--scheme", "mxfp4_floor"]
    words += ["-k", "test_boundaries or test_edges or test_every_pair_of_codes"]
    other = ["-n", "1", "--max-mismatches", "1"]
    done = run_pytest(*words, *other, "--report-dir", f"{folder}/a", output=folder / "a.txt")
    (first,) = (folder / "a").iterdir()
    found = {"first": (done.code, done.output, first)}
    entries = waivers.entries(read_records(first), read_about(first))
    floor = ENTRY.replace("mxfp4_*", "mxfp4_floor")
    beside = ENTRY.replace("mxfp4_*", "mxfp4_even") + floor.replace("shapes", "strides")
    filled = "\n".join(entries).replace('reason = ""', 'reason = "r"')
    filled = filled.replace('issue = ""', 'issue = "https://example.org"')
    (folder / "w.toml").write_text(filled + beside, encoding="utf-8")
    extra = ["--waivers", f"{folder}/w.toml", "--baseline", str(first), "--junitxml", f"{folder}/junit.xml", "--github"]
    os.environ["GITHUB_STEP_SUMMARY"] = f"{folder}/step.md"
    try:
        done = run_pytest(*words, *extra, "--report-dir", f"{folder}/b", output=folder / "b.txt")
    finally:
        del os.environ["GITHUB_STEP_SUMMARY"]
    (second,) = (folder / "b").iterdir()
    return found | {"second": (done.code, done.output, second)}


def test_a_run_without_waivers_says_how_to_waive(runs: dict[str, tuple[int, str, Path]]) -> None:
    code, output, folder = runs["first"]
    assert code == 1, output
    wrong = [r for r in read_records(folder) if r.status == "mismatch"]
    assert {r.check for r in wrong} == {"encode", "encode edges"}
    assert f'digest = "{wrong[0].digest}"' in output
    assert f"lowbit report waivers {folder}" in output
    with (folder / "summary.csv").open() as table:
        assert wrong[0].digest in table.read()
    assert f"digest = &#34;{wrong[0].digest}&#34;" in (folder / "index.html").read_text(encoding="utf-8")


def test_a_waived_run_passes_and_says_so(runs: dict[str, tuple[int, str, Path]]) -> None:
    """Digests of a run in a worker that kept one sample hold in a run without workers that keeps twenty."""
    code, output, folder = runs["second"]
    assert code == 0, output
    assert "PASSED WITH 2 WAIVED" in output
    assert re.search(r"1 passed, 2 waived|\b2 waived", output.splitlines()[-1])
    assert "waived: encode, encode edges: r (https://example.org, until " in output
    found = {r.check: r for r in read_records(folder) if r.status != "not_run"}
    statuses = {name: r.status for name, r in found.items()}
    assert statuses == {"encode": "waived", "encode edges": "waived", "packing": "pass"}
    earlier = {r.check: r for r in read_records(runs["first"][2])}
    for name in ("encode", "encode edges"):
        assert found[name].mismatched == earlier[name].mismatched > len(earlier[name].samples)
        assert found[name].digest == earlier[name].digest
        assert found[name].samples
    assert "PASSED WITH 2 WAIVED" in (folder / "index.html").read_text(encoding="utf-8")
    assert read_about(folder)["exit_status"] == 0


def test_a_waiver_of_what_was_deselected_is_not_unmatched(runs: dict[str, tuple[int, str, Path]]) -> None:
    _, output, folder = runs["second"]
    unjudged = read_about(folder)["waivers"]["unjudged"]
    assert [why for _, why in unjudged] == [
        "scheme mxfp4_even was not selected",
        "strides of mxfp4_floor was not selected",
    ]
    assert "waiver not judged: w.toml, line" in output


def test_the_run_is_compared_with_the_earlier_one(runs: dict[str, tuple[int, str, Path]]) -> None:
    _, output, folder = runs["second"]
    assert "NOTHING NEW" in output
    assert {p.name for p in folder.iterdir()} >= {"baseline.json", "baseline.csv", "baseline.html"}


def test_junit_has_what_was_judged(runs: dict[str, tuple[int, str, Path]]) -> None:
    _, _, folder = runs["second"]
    cases = ElementTree.parse(folder.parents[1] / "junit.xml").getroot().iter("testcase")
    told = {}
    for case in cases:
        names = [p.get("name") for p in case.iter("property")]
        assert len(set(names)) == len(names)
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        told[properties["check"]] = properties, case.find("skipped")
    waived, skipped = told["encode"]
    assert waived["scheme"] == "mxfp4_floor"
    assert waived["status"] == "waived"
    assert waived["assurance"].startswith("breakpoints(")
    assert int(waived["mismatched"]) > 0 < int(waived["compared"])
    assert "ties away" in waived["diagnosis"]
    assert skipped is not None
    assert "waived: r (https://example.org" in skipped.get("message", "")
    assert told["packing"][0]["status"] == "pass"


def test_github_has_a_warning_a_waived_check(runs: dict[str, tuple[int, str, Path]]) -> None:
    _, output, folder = runs["second"]
    commands = [line for line in output.splitlines() if line.startswith("::")]
    assert len(commands) == 2
    assert commands[0].startswith("::warning title=ties_away%3A mxfp4_floor × encode is waived::")
    summary = (folder.parents[1] / "step.md").read_text(encoding="utf-8")
    assert summary.startswith("## lowbit: PASSED WITH 2 WAIVED\n")
    assert summary.count("### Waived: 2") == 1


def test_a_suite_outside_the_root_names_its_nodes_by_file(tmp_path: Path) -> None:
    """As an installed one is: pytest leaves the file that was named out of the ids, and waivers and repeats need it."""
    file = tmp_path / "w.toml"
    node = "test_shapes.py::test_shapes[ties_away-mxfp4_floor]"
    entry = ENTRY.replace('scheme = "mxfp4_*"', f'node = "{node}"').replace('check = "shapes"\n', "")
    file.write_text(re.sub('digest = ".*"', 'digest = "1:0000000000000000"', entry))
    impl = f"{ROOT / 'tests' / 'mutants' / 'ties_away.py'}:IMPLEMENTATION"
    words = ["--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n", "0", "--impl", impl, "--scheme", "mxfp4_floor"]
    words += ["--device", "cpu", "--level", "quick", "--no-html", "--report-dir", str(tmp_path / "runs")]
    words += ["--waivers", str(file), "--pyargs", "lowbit.suite.test_shapes", "-k", "test_shapes and not strides"]
    found = run_pytest(*words, output=tmp_path / "out", cwd=tmp_path)
    [folder] = (tmp_path / "runs").iterdir()
    record = next(r for r in read_records(folder) if r.check == "shapes")
    assert record.node == node, found.output
    assert "pytest --pyargs 'lowbit.suite.test_shapes::test_shapes[ties_away-mxfp4_floor]' --impl" in record.repeat
    assert "waiver 1 waives 1:0000000000000000, this is 115:" in record.message
