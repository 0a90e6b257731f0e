"""Whatever an implementation does, its check says what it was, and the run goes on: all of them in one run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import misbehaving
import pytest
from suite_runs import ROOT, Finished, run_pytest

from lowbit.implementation import Implementation
from lowbit.records import Record, read_records

FAST = ("--scheme", "mxfp4_floor", "--level", "quick", "--device", "cpu")
FILE = ROOT / "tests" / "misbehaving.py"
BYTES, VALUES, PACKING, STRIDES = "unwritten bytes", "unwritten values", "packing", "strides"

CASES: dict[str, tuple[str, str, str, str]] = {
    "RAISES": (BYTES, "error", "", r"RuntimeError: boom"),
    "MUTE": (BYTES, "error", "", r"Mute: its text cannot be had"),
    "INTERRUPTS": (BYTES, "error", "", r"quantize raised KeyboardInterrupt"),
    "EXITS": (BYTES, "error", "", r"quantize raised SystemExit: 0"),
    "ENDS_PYTEST": (BYTES, "error", "", r"quantize raised Exit: enough"),
    "STRANGE": (BYTES, "error", "", r"quantize raised Strange: odd"),
    "LAUNCH": (BYTES, "error", "", r"RuntimeError: CUDA error: invalid configuration argument"),
    "HANGS": (BYTES, "error", "", r"hung after 1 s in quantize"),
    "HANGS_ON": (BYTES, "error", "", r"hung after 1 s in quantize"),
    "HANGS_STUBBORNLY": (BYTES, "error", "", r"hung after 1 s in quantize"),
    "NARROW": (BYTES, "unsupported", "", r"quantize of narrow takes no swizzle="),
    "SHORT": (BYTES, "mismatch", "shape", r"scales: got None, want torch.uint8 \(33, 5\)"),
    "NOTHING": (BYTES, "mismatch", "shape", r"quantize returned tuple of 0, want a Quantized of three"),
    "SINGLE": (BYTES, "mismatch", "shape", r"quantize returned torch.uint8 \(33, 80\), want a Quantized of three"),
    "ARRAY": (BYTES, "mismatch", "dtype", r"quantize: scales: got ndarray, want a tensor"),
    "WIDE": (BYTES, "mismatch", "dtype", r"packed: got torch.int32 \(33, 80\), want one byte an element"),
    "CUT": (BYTES, "mismatch", "shape", r"packed: got shape \(32, 80\), want \(33, 80\)"),
    "ELSEWHERE": (BYTES, "mismatch", "dtype", r"quantize: packed: got a tensor on meta, want cpu"),
    "DECODES_ELSEWHERE": (VALUES, "mismatch", "dtype", r"dequantize: got a tensor on meta, want cpu"),
    "DECODES_PAIR": (VALUES, "mismatch", "dtype", r"dequantize: got tuple, want a tensor"),
    "VIEW": (BYTES, "mismatch", "view", r"quantize returned a view of its argument 0"),
    "MUTATES": (BYTES, "mismatch", "changed_input", r"quantize changed its argument 0"),
    "BESIDE": (STRIDES, "mismatch", "guard", r"quantize wrote to memory beside its argument 0"),
    "AFTER": (BYTES, "mismatch", "guard", r"torch.uint8 \(33, 80\): 1 bytes after its end, the nearest 1 away"),
    "BEFORE": (BYTES, "mismatch", "guard", r"torch.uint8 \(33, 80\): 1 bytes before its beginning, the nearest 1 away"),
    "DECODES_OVER": (VALUES, "mismatch", "guard", r"torch.float32 \(33, 160\): 1 bytes after its end"),
    "SWIZZLES_OVER": (BYTES, "mismatch", "guard", r"torch.uint8 \(3072,\): 1 bytes after its end"),
    "LEAVES": (BYTES, "mismatch", "unwritten", r"1 of 2,640 bytes of packed were not written, the first at 2639"),
    "DECODES_LEAVING": (VALUES, "mismatch", "unwritten", r"4 of 21,120 bytes of values, binary32 were not written"),
    "CHANCE": (BYTES, "mismatch", "nondeterministic", r"the same call, made again, gave other bits"),
    "PRINTS": (BYTES, "pass", "", r"printed 30,000,003 characters to stdout"),
    "PRINTS_AND_RAISES": (BYTES, "error", "", r"after much talk; printed 10,000,001 characters to stdout"),
    "DTYPE": (BYTES, "mismatch", "setting", r"torch's default dtype from torch.float32 to torch.float64; it was put"),
    "DETERMINISTIC": (BYTES, "mismatch", "setting", r"torch's deterministic mode from \d to \d; it was put back"),
    "DRAWS": (BYTES, "pass", "", r"quantize changed torch's random state"),
    "ENVIRONMENT": (BYTES, "pass", "", r"quantize changed the environment \(LOWBIT_TEST\)"),
    "THREAD": (BYTES, "mismatch", "error", r"a thread raised ValueError: in a thread"),
}
"""Attribute of `misbehaving` → the check that tells, its status, a kind of mismatch, and the message."""


@dataclass(frozen=True)
class Told:
    """A run of all of them: what was printed, the records, the page."""

    done: Finished
    records: dict[tuple[str, str], list[Record]]
    page: str


def run(folder: Path, names: list[str], *words: str) -> Told:
    given = [word for name in names for word in ("--impl", f"{FILE}:{name}")]
    options = ("--report-dir", str(folder / "runs"), "-p", "no:cacheprovider", *FAST)
    done = run_pytest("conformance/", *options, *given, *words, output=folder / "output.txt")
    (made,) = (folder / "runs").iterdir()
    found: dict[tuple[str, str], list[Record]] = {}
    for record in read_records(made):
        found.setdefault((record.implementation, record.check), []).append(record)
    page = made / "index.html"
    return Told(done, found, page.read_text() if page.exists() else "")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    selected = (
        "(test_every_byte_is_written and (plain or swizzles_over or narrow)) or test_every_pair_of_codes"
        " or (test_every_value_is_written and (decodes or fine)) or (test_strides and (beside or fine))"
    )
    words = ("-k", f"({selected}) and not strides_of", "--check-timeout", "1")
    return run(tmp_path_factory.mktemp("run"), [*CASES, "FINE"], *words)


def name_of(attribute: str) -> str:
    found: Implementation = getattr(misbehaving, attribute)
    return found.name


@pytest.mark.parametrize("attribute", CASES)
def test_each_is_told_as_what_it_is(told: Told, attribute: str) -> None:
    check, status, kind, message = CASES[attribute]
    records = told.records[name_of(attribute), check]
    found = [r for r in records if r.status == status and re.search(message, r.message)]
    assert found, [(r.status, r.kinds, r.message) for r in records]
    assert not kind or any(kind in r.kinds for r in found), [r.kinds for r in found]


@pytest.mark.parametrize("attribute", [a for a, case in CASES.items() if case[0] == BYTES])
def test_the_run_goes_on(told: Told, attribute: str) -> None:
    """The check after it passes, under the same implementation."""
    assert [record.status for record in told.records[name_of(attribute), PACKING]] == ["pass"]


def test_who_behaves_is_not_blamed(told: Told) -> None:
    """It comes last in every check, after all the others."""
    mine = {check: records for (name, check), records in told.records.items() if name == "fine"}
    assert {record.status for check in (BYTES, VALUES, PACKING, STRIDES) for record in mine[check]} == {"pass"}
    passed = [record for records in mine.values() for record in records if record.status == "pass"]
    assert all(record.message == "" for record in passed)


def test_the_run_ends_as_any_other(told: Told) -> None:
    assert told.done.code == 1
    assert "hung after 1 s in quantize" in told.page
    assert "INCOMPLETE" not in told.page
    assert len(told.done.output) < 2_000_000
    assert "characters left out" in told.done.output


def test_a_broken_device_is_not_blamed_on_who_comes_later(tmp_path: Path) -> None:
    """By a fake, on the CPU: an error of a GPU after which a probe of the device fails too."""
    found = run(tmp_path, ["FINE", "BREAKS", "RAISES"], "-k", "test_every_byte_is_written or test_every_pair")
    assert found.done.code == 1
    (broken, *rest) = found.records["breaks", BYTES]
    assert (broken.status, broken.message) == (
        "error",
        "AcceleratorError: CUDA error: an illegal memory access was encountered",
    )
    later = [*rest, *found.records["raises", BYTES], *found.records["fine", PACKING], *found.records["raises", PACKING]]
    assert {record.status for record in later} == {"not_run"}
    for record in later:
        assert record.message.startswith("the device no longer answers since ")
        assert "test_every_byte_is_written[breaks-mxfp4_floor-plain] (breaks)" in record.message
        assert "illegal memory access" in record.message
    assert found.records["fine", BYTES][0].status == "pass"
    assert "the device no longer answers" in found.page
