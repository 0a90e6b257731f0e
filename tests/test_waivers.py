"""Waivers: what a digest stands for, which files are refused, which mismatches are waived, and which waivers fail."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from lowbit import waivers, waiving
from lowbit.errors import ArgumentError
from lowbit.records import Record
from lowbit.report.outcome import judge as verdict_of
from lowbit.waivers import Waiver, matches

TODAY = datetime.date(2026, 11, 29)
H200 = "cuda, NVIDIA H200 (sm_90)"
DIGEST = "115:668e3499fc1fc9e4"

ENTRY = f"""
[[waiver]]
scheme = "mxfp4_*"
check = "shapes"
digest = "{DIGEST}"
reason = "ties"
issue = "https://example.org/issues/7"
expires = 2027-03-31
"""


# -- the file


def read(tmp_path: Path, text: str) -> list[Waiver]:
    path = tmp_path / "w.toml"
    path.write_text(text, encoding="utf-8")
    return waivers.read(path)


def test_an_entry(tmp_path: Path) -> None:
    other = ENTRY.replace('"\nreason', '"\nseed = 7\nreason').replace("mxfp4_*", "nvfp4")
    first, second = read(tmp_path, ENTRY + other)
    assert (first.place, second.place) == ("w.toml, line 2, waiver 1", "w.toml, line 10, waiver 2")
    assert (first.digests, first.expires, first.seed) == ((DIGEST,), datetime.date(2027, 3, 31), None)
    assert (second.scheme, second.seed, second.architecture) == ("nvfp4", 7, "*")
    assert read(tmp_path, "# none yet\n") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("scheme", "sheme"), "line 2, waiver 1: sheme: got 'mxfp4_*', want scheme?"),
        (('scheme = "mxfp4_*"', ""), "waiver 1: scheme: is missing, want a node, or a scheme and a check"),
        (('check = "shapes"', ""), "waiver 1: check: is missing"),
        (('check = "shapes"', "check = 3"), "waiver 1: check: got '3', want a text"),
        (('reason = "ties"', 'reason = " "'), "waiver 1: reason: got ' ', want a text that is not empty"),
        (('reason = "ties"', ""), "waiver 1: reason: is missing, want why this may ship"),
        (("https://example.org/issues/7", "#7"), "waiver 1: issue: got '#7', want a link"),
        (('issue = "https://example.org/issues/7"', ""), "waiver 1: issue: is missing"),
        (("issues/7", r"issues/7\n"), "waiver 1: issue: got 'https://example.org/issues/7\\n', want a link"),
        (("2027-03-31", '"2027-03-31"'), "waiver 1: expires: got '2027-03-31', want the last day"),
        (("2027-03-31", "2027-03-31T00:00:00Z"), "waiver 1: expires: got"),
        (("2027-03-31", "2027-02-30"), "w.toml: Invalid date"),
        (("expires = 2027-03-31", ""), "waiver 1: expires: is missing"),
        ((f'"{DIGEST}"', '"668e3499fc1fc9e4"'), "waiver 1: digest: got '668e3499fc1fc9e4', want one or a list"),
        ((f'"{DIGEST}"', "[]"), "waiver 1: digest: got '[]'"),
        ((f'"{DIGEST}"', f'["{DIGEST}", "{DIGEST}"]'), "want each of them once"),
        (('reason = "ties"', 'reason = "ties"\nseed = "7"'), "waiver 1: seed: got '7', want the number"),
        (("[[waiver]]", "[[waivers]]"), "w.toml: got 'waivers', want entries that begin with [[waiver]]"),
        (("[[waiver]]", "[waiver]"), "w.toml: got one `waiver`"),
        (("[[waiver]]", "[[waiver]"), "w.toml: Expected"),
        (('scheme = "mxfp4_*"', "seed = 1" + 5000 * "0"), "w.toml: "),
    ],
)
def test_files_that_are_refused(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(ArgumentError) as error:
        read(tmp_path, ENTRY.replace(*change))
    assert says in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="No such file"):
        waivers.read(tmp_path / "none.toml")
    (tmp_path / "w.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match=r"w\.toml.*want a TOML file"):
        waivers.read(tmp_path / "w.toml")


def test_a_header_inside_a_text_does_not_misplace_the_others(tmp_path: Path) -> None:
    text = ENTRY.replace('"ties"', '"""\n[[waiver]]\n"""')
    assert [w.place for w in read(tmp_path, text)] == ["w.toml, waiver 1"]


def test_globs_and_architectures() -> None:
    assert matches("test_a.py::test_b[x-mxfp4]", "test_a.py::test_b[x-mxfp4]")
    assert matches("test_b[x-mxfp4]", "test_?[x-*]")
    assert not matches("x", "[x]")
    assert not matches("mxfp4_floor", "mxfp4")
    assert matches("a[!b]\nc", "a[!b]*c")
    assert not matches("ac", "a[!b]c")
    assert not matches("a" * 100 + "b", "*a" * 40)  # in no time, though there are many ways to try
    assert waivers.architectures(H200) == ("cuda", "sm_90", "NVIDIA H200", "9.0")
    assert waivers.architectures("cuda, Thing (with name) (sm_120), Triton interpreter — x")[1:] == (
        *("sm_120", "Thing (with name)"),
        "12.0",
    )
    assert waivers.architectures("cpu, Triton interpreter — GPU code generation not judged") == ("cpu",)


# -- what is waived


def waiver(**fields: object) -> Waiver:
    given = {"place": "w.toml, waiver 1", "digests": (record().digest,), "reason": "ties", "issue": "https://e.org/7"}
    given |= {"expires": TODAY, "scheme": "mxfp4_*", "check": "shapes", **fields}
    return Waiver(**given)  # type: ignore[arg-type]


def record(**fields: object) -> Record:
    given: dict[str, object] = {"implementation": "mine", "version": "1", "scheme": "mxfp4_floor", "check": "shapes"}
    given |= {"status": "mismatch", "device": H200, "level": "full", "compared": 400, "mismatched": 115}
    given |= {"node": "suite/test_shapes.py::test_shapes[mine-mxfp4_floor]", "kinds": {"tie": 115}}
    given |= {"digests": {"tie": 3}, "samples": [{"tensor": "codes"}], "diagnosis": "ties away"}
    return Record(**given | fields)  # type: ignore[arg-type]


def passing(**fields: object) -> Record:
    return record(**{"status": "pass", "mismatched": 0, "kinds": {}, "digests": {}, "samples": [], **fields})


def setting(**fields: object) -> waiving.Setting:
    given = {"device": H200, "level": "full", "seed": 7, "weights": "", "implementations": ("mine",), "today": TODAY}
    return waiving.Setting(**given | fields)  # type: ignore[arg-type]


def waive(found: Record, *each: Waiver, **fields: object) -> Record:
    return waiving.waive(found, each, setting(**fields))


def test_a_waived_record_keeps_what_was_found() -> None:
    found = waive(record(message="m"), waiver())
    assert found.status == "waived"
    assert not found.failed
    kept = ("compared", "mismatched", "kinds", "samples", "diagnosis", "digest")
    assert [getattr(found, name) for name in kept] == [getattr(record(), name) for name in kept]
    assert found.message == "ties (https://e.org/7, until 2026-11-29); m"
    assert found.extra == {"waiver": "w.toml, waiver 1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"scheme": "*", "check": "*", "node": "*test_shapes.py::test_shapes[mine-mxfp4_floor]"},
        {"scheme": "*", "check": "*", "node": "elsewhere/suite/test_shapes.py::*[mine-*]"},
        {"implementation": "m*", "level": "full", "seed": 7},
        *({"architecture": name} for name in ("sm_9?", "9.0", "*h200*", "cuda", "*")),
        {"digests": ("1:0000000000000000", record().digest)},
    ],
)
def test_what_an_entry_may_say(fields: dict[str, object]) -> None:
    assert waive(record(), waiver(**fields)).status == "waived"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"digests": (DIGEST,)}, f"wrong in a new way: w.toml, waiver 1 waives {DIGEST}, this is 115:"),
        ({"expires": TODAY - datetime.timedelta(1)}, "not waived: w.toml, waiver 1 expired on 2026-11-28"),
        ({"architecture": "sm_100"}, "not waived: w.toml, waiver 1 is for architecture sm_100"),
        ({"level": "quick"}, "is for level quick"),
        ({"seed": 8}, "is for seed 8"),
        ({"weights": "model.safetensors"}, "is for weights model.safetensors"),
        ({"implementation": "other"}, ""),
        ({"scheme": "nvfp4"}, ""),
        ({"check": "shape"}, ""),
        ({"node": "test_shapes.py::test_strides*"}, ""),
    ],
)
def test_what_is_not_waived(fields: dict[str, object], says: str) -> None:
    found = waive(record(), waiver(**fields))
    assert found.status == "mismatch"
    assert says in found.message
    assert bool(says) == bool(found.message)


def test_only_mismatches_are_waived() -> None:
    """A call that raised may hide anything, and what passes needs no waiver."""
    for found in (record(status="error"), passing(), record(status="unsupported", mismatched=0, kinds={})):
        assert waive(found, waiver(digests=(record().digest, DIGEST))) is found


def test_one_more_mismatch_or_another_kind_is_a_new_way() -> None:
    other = (
        record(mismatched=116, kinds={"tie": 116}),
        record(kinds={"tie": 114, "value": 1}, digests={"tie": 3, "value": 0}),
        record(digests={"tie": 4}),
        record(digests={}),
    )
    for found in other:
        assert "wrong in a new way" in waive(found, waiver()).message


# -- waivers that fail


def fails(records: list[Record], *each: Waiver, left_out: str = "", **fields: object) -> waiving.Findings:
    return waiving.judge(each, records, setting(**fields), lambda waiver: left_out)


@pytest.mark.parametrize(
    ("records", "fields", "says"),
    [
        ([passing()], {}, "no longer needed: nothing is wrong with the digest 115:"),
        ([passing()], {}, "mxfp4_floor × shapes passes; remove it"),
        ([record(status="unsupported", mismatched=0, kinds={})], {}, "is declined by the implementation; remove it"),
        ([passing(check="encode")], {}, "unmatched: no check ran that it could mean (scheme mxfp4_*, check shapes)"),
        ([], {}, "unmatched"),
        ([record(status="waived")], {"expires": TODAY - datetime.timedelta(1)}, "expired on 2026-11-28: settle"),
        ([], {"expires": TODAY - datetime.timedelta(1)}, "expired"),
        ([record(status="waived")], {"digests": (record().digest, DIGEST)}, f"the digest {DIGEST} any more; remove it"),
    ],
)
def test_a_waiver_that_fails(records: list[Record], fields: dict[str, object], says: str) -> None:
    (found,) = fails(records, waiver(**fields)).failures
    assert (found.status, found.check, found.implementation) == ("error", waiving.CHECK, "mine")
    assert found.failed
    assert says in found.message
    assert found.message.startswith("w.toml, waiver 1: ")
    assert found.message.endswith("It says: ties (https://e.org/7, until " + str(waiver(**fields).expires) + ")")


def test_a_waiver_that_holds_does_not_fail() -> None:
    assert fails([record(status="waived"), passing(scheme="mxfp4_even")], waiver()) == waiving.Findings([], [])


def test_what_fails_already_is_not_told_twice() -> None:
    for found in (record(), record(status="error")):
        assert fails([found], waiver(digests=(DIGEST,))).failures == []


@pytest.mark.parametrize("fields", [{}, {"expires": TODAY - datetime.timedelta(1)}])
def test_a_part_of_a_run_does_not_call_a_waiver_unmatched(fields: dict[str, object]) -> None:
    found = fails([], waiver(**fields), left_out="deselected")
    assert found == waiving.Findings([], [("w.toml, waiver 1", "deselected")])


def test_a_part_of_a_run_says_nothing_of_what_else_a_glob_means() -> None:
    """One scheme of several passes, and the others were not selected."""
    found = fails([passing()], waiver(), left_out="not selected")
    assert (found.failures, len(found.unjudged)) == ([], 1)
    exact = waiver(scheme="*", check="*", node="test_shapes.py::test_shapes[mine-mxfp4_floor]")
    assert len(fails([passing()], exact, left_out="not selected").failures) == 1


def test_waivers_for_elsewhere_are_not_judged() -> None:
    other = {"architecture": "sm_100", "level": "quick", "seed": 9, "weights": "m", "implementation": "other"}
    for name, value in other.items():
        found = fails([], waiver(**{name: value}))
        assert (found.failures, found.unjudged) == ([], [("w.toml, waiver 1", f"it is for {name} {value}")])


# -- entries to paste, and the verdict


def filled(entries: list[str]) -> str:
    text = "\n".join(entries)
    return text.replace('reason = ""', 'reason = "r"').replace('issue = ""', 'issue = "https://example.org"')


def test_entries_to_paste_waive_just_what_they_were_made_from(tmp_path: Path) -> None:
    hostile = record(implementation='a"b\\\n\x7f\ud800é*[x]', check="encode 2^32")
    tensors = [record(check="checkpoint", digests={"tie": n}, extra={"tensor": str(n)}) for n in (1, 2)]
    found = [record(), hostile, *tensors, passing()]
    about = {"seed": 7, "started": "2026-11-29T10:00:00Z", "options": {"weights": "m.safetensors"}}
    made = waivers.entries(found, about)
    assert len(made) == 3
    with pytest.raises(ArgumentError, match="reason: got '', want a text"):
        read(tmp_path, made[0])
    entries = read(tmp_path, filled(made))
    assert entries[0].expires == datetime.date(2026, 12, 29)
    assert (entries[0].architecture, entries[0].level, entries[0].seed) == ("sm_90", "full", 7)
    assert len(entries[2].digests) == 2
    here = setting(weights="m.safetensors", implementations=("mine", hostile.implementation))
    after = [waiving.waive(each, entries, here) for each in found]
    assert [each.status for each in after] == ["waived"] * 4 + ["pass"]
    assert waiving.judge(entries, after, here, lambda waiver: "") == waiving.Findings([], [])


@pytest.mark.parametrize(
    ("started", "expires"),
    [("2026-12-31T23:59:59Z", "2027-01-30"), ("9999-12-31", "1970-01-31"), (None, "1970-01-31"), ([1], "1970-01-31")],
)
def test_entries_of_a_run_of_any_day(started: object, expires: str) -> None:
    """The last days of the calendar have no day thirty days later."""
    assert waivers.entries([record()], {"started": started})[0].endswith(f"expires = {expires}")


def test_the_verdict_is_never_a_plain_pass() -> None:
    ended = {"finished": "now", "exit_status": 0}
    two = [record(status="waived"), record(status="waived", check="encode", mismatched=1, kinds={"tie": 1})]
    found = verdict_of(ended, [passing(), *two])
    assert found.verdict == "PASSED WITH 2 WAIVED"
    assert "Not among them: 116 that differ in waived checks." in found.because
    assert verdict_of(ended, [passing()]).verdict == "PASS"
    assert verdict_of(ended, [passing(), *two, record()]).verdict == "FAIL"
    told = verdict_of({**ended, "waivers": {"unjudged": [["w.toml, waiver 1", "it is for seed 9"]]}}, [passing()])
    assert "WAIVERS NOT JUDGED: 1, for it is for seed 9" in told.warnings
