"""Golden vectors: made again they are the same, a touched digit is found, and witnesses can stop them.

Most tests work on a small folder made of a few groups, because making and voting on all takes half a minute; one test
does that.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowbit.cli import main
from lowbit.errors import ArgumentError, WitnessDisagreement
from lowbit.formats import E2M1
from lowbit.references import bits
from lowbit.rules import Rounding
from lowbit.vectors import (
    content_formats,
    content_known_bugs,
    content_layouts,
    content_scales,
    content_stochastic,
    locate,
    votes,
)
from lowbit.vectors import manifest as manifests
from lowbit.vectors.diff import compare, contents
from lowbit.vectors.lint import lint
from lowbit.vectors.make import OverwriteRefused, check, make
from lowbit.vectors.payload import Draft, render, render_plain
from lowbit.vectors.read import groups, payloads
from lowbit.vectors.votes import Answer, Witness

ROOT = Path(__file__).resolve().parents[1]
VECTORS = ROOT / "vectors"

SMALL = ("e2m1/", "nibbles/", "mxfp4_floor/", "philox4x32_10/")
"""Beginnings of the names of the groups of the small folder: one or two of every kind."""

QUICK = (content_formats, content_scales, content_layouts, content_stochastic, content_known_bugs)
"""The parts of the content that take no time to make."""


@pytest.fixture(scope="module")
def drafts() -> tuple[Draft, ...]:
    return tuple(draft for part in QUICK for draft in part.build() if draft.raw["name"].startswith(SMALL))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, drafts: tuple[Draft, ...]) -> Path:
    folder = tmp_path_factory.mktemp("made") / "vectors"
    folder.mkdir()
    shutil.copy(VECTORS / "VECTORS.md", folder)
    make(folder, drafts=drafts)
    return folder


@pytest.fixture
def small(tmp_path: Path, made: Path) -> Path:
    """A copy of the small folder, to be spoilt."""
    return Path(shutil.copytree(made, tmp_path / "vectors"))


# -- made again


def test_the_manifest_counts_what_is_there() -> None:
    """That all of it is made again the same and voted on is for `lowbit vectors check`, which `.ci/run` runs."""
    counts = json.loads((locate() / "manifest.json").read_bytes())["counts"]
    found = groups()
    assert len(found) == counts["groups"]
    assert sum(len(group.cases) for group in found) == counts["cases"] > 20_000


def test_a_small_folder_is_in_order(small: Path, drafts: tuple[Draft, ...]) -> None:
    assert lint(small) == []
    assert check(small, drafts=drafts).problems == []
    assert make(small, drafts=drafts).changes == []  # nothing to do, and nothing is logged
    assert len((small / "CHANGES.jsonl").read_text().splitlines()) == 1


def test_size() -> None:
    assert sum(path.stat().st_size for path in VECTORS.rglob("*") if path.is_file()) < 5_000_000


# -- a touched digit


def flipped(data: bytes, near: float) -> bytes:
    """The data with one hex digit changed, about that part of the way through."""
    places = [found.start() for found in re.finditer(rb"[0-9a-f]", data)]
    at = places[int(near * (len(places) - 1))]
    digit = b"0123456789abcdef".index(data[at : at + 1])
    return data[:at] + b"0123456789abcdef"[digit ^ 1 : (digit ^ 1) + 1] + data[at + 1 :]


def test_one_digit_in_every_file_is_found(tmp_path: Path) -> None:
    """Every file of the checkout but the manifest has one digit wrong, and every one is named."""
    folder = tmp_path / "vectors"
    shutil.copytree(VECTORS, folder)
    touched = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    for index, path in enumerate(sorted(touched)):
        path.write_bytes(flipped(path.read_bytes(), (index % 97) / 96))
    assert len(touched) > 150
    assert {problem.file for problem in lint(folder)} == {path.relative_to(folder).as_posix() for path in touched}


@pytest.mark.parametrize("near", [0, 0.01, 0.3, 0.5, 0.77, 0.9, 0.99, 1])
def test_one_digit_of_the_manifest_is_found(small: Path, near: float) -> None:
    path = small / "manifest.json"
    path.write_bytes(flipped(path.read_bytes(), near))
    assert [problem.file for problem in lint(small)][:1] == ["manifest.json"]


def rehash(folder: Path) -> None:
    """Makes the manifest fit the files, as somebody would who wants a change to pass."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for file, row in manifest["files"].items():
        row |= manifests._hashed((folder / file).read_bytes())
    path.write_bytes(render_plain({**manifest, "sha256": manifests.own_hash(manifest)}))


@pytest.mark.parametrize("near", [0.45, 0.6, 0.8, 0.95])
def test_a_digit_changed_together_with_its_hash_is_found(small: Path, drafts: tuple[Draft, ...], near: float) -> None:
    """The files are made again and compared, so that no hash can vouch for a wrong value."""
    path = small / "formats/e2m1/stochastic.json"
    path.write_bytes(flipped(path.read_bytes(), near))
    rehash(small)
    found = check(small, drafts=drafts)
    assert "formats/e2m1/stochastic.json" in {problem.file for problem in found.problems}
    assert any("e2m1/stochastic, case" in str(problem) for problem in found.problems)


# -- lint


def changed(folder: Path, file: str, change: Callable[[dict[str, Any]], None]) -> list[str]:
    """What lint says of a file after a change that left its layout and all hashes right."""
    path = folder / file
    content = json.loads(path.read_bytes())
    change(content)
    known = content.keys() == {"flags", "groups", "schema_version"}
    path.write_bytes(render(content) if known else json.dumps(content).encode())
    rehash(folder)
    return [problem.text for problem in lint(folder) if problem.file == file]


def edit(*steps: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the place that all steps but the last lead to."""
    *path, key, value = steps

    def change(content: dict[str, Any]) -> None:
        place: Any = content
        for step in path:
            place = place[step]
        place[key] = value

    return change


FIRST = ("groups", 0, "cases", 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edit("comment", "hello"), "'comment' was unexpected"),
        (edit("groups", 0, "comment", "hello"), "'comment' was unexpected"),
        (edit(*FIRST, "comment", "hello"), "'comment' was unexpected"),
        (edit("groups", 0, "scheme", "mxfp4_floor"), "valid under each of"),
        (edit("groups", 0, "kind", "guess"), "'guess' is not one of"),
        (edit("groups", 0, "format", "e9m9"), "format 'e9m9' is not known"),
        (edit("groups", 0, "flags", ["complete", "rounding", "tie"]), "flag 'tie' has no explanation"),
        (edit("flags", "tie", "a tie"), "flag 'tie' is explained, but nothing carries it"),
        (edit("groups", 1, "name", "e2m1/ties_to_even"), "stands in formats/e2m1/breakpoints.json too"),
        (edit(*FIRST, "first", "0000000G"), "does not match"),
        (edit(*FIRST, "last", "3e7fffff"), "a gap from 3e800000 on"),
        (edit("groups", 0, "cases", 1, "first", "3e800000"), "begins before row 00000000 has ended"),
        (lambda content: content["groups"][0]["cases"].pop(), "rows do not fill the domain"),
        (lambda content: content["groups"][0]["cases"].append(content["groups"][0]["cases"][0]), "stands there twice"),
        (lambda content: content["groups"][0]["cases"][0].pop("code"), "'code' is a required property"),
        (edit("schema_version", 2), "1 was expected"),
    ],
)
def test_lint_finds(small: Path, change: Callable[[dict[str, Any]], None], says: str) -> None:
    found = changed(small, "formats/e2m1/breakpoints.json", change)
    assert any(says in text for text in found), found


def test_lint_finds_wrong_lengths(small: Path) -> None:
    found = changed(small, "schemes/mxfp4_floor/known_bugs.json", edit(*FIRST, "codes", "0" * 31))
    assert any("codes has 31 items, want 32" in text for text in found), found


def test_lint_finds_layout_keys_twice_and_stray_files(small: Path) -> None:
    path = small / "formats/e2m1/decode.json"
    original = path.read_bytes()
    path.write_bytes(original.replace(b'{"binary32"', b'{ "binary32"', 1))
    rehash(small)
    assert [problem.text for problem in lint(small)] == ["laid out otherwise than `lowbit vectors make` does"]
    path.write_bytes(original.replace(b'"code": "0"', b'"code": "0", "code": "0"', 1))
    rehash(small)
    assert any("'code' stands there twice" in str(problem) for problem in lint(small))
    path.write_bytes(original)
    rehash(small)
    (small / "formats/e2m1/more.json").write_bytes(original)
    assert any(str(p) == "formats/e2m1/more.json: not listed in the manifest" for p in lint(small))


# -- witnesses


def absent(name: str) -> list[Witness]:
    """All witnesses, one of them not installed."""
    return [replace(w, module="not_installed_anywhere") if w.name == name else w for w in votes.witnesses()]


@pytest.mark.parametrize("name", ["gmpy2", "gfloat", "ml_dtypes"])
def test_a_missing_witness_is_named_and_the_others_decide(small: Path, drafts: tuple[Draft, ...], name: str) -> None:
    found = check(small, drafts=drafts, witnesses=absent(name))
    assert found.ok
    assert found.missing == [name]
    assert f"witness not installed here: {name}" in found.lines()
    assert name not in found.voted


def test_too_few_witnesses_stop_the_writing(tmp_path: Path, drafts: tuple[Draft, ...]) -> None:
    """`packing` and `formula` know layouts only, so that one reference alone is left for numbers."""
    with pytest.raises(WitnessDisagreement, match="fewer than 2 independent witnesses"):
        make(
            tmp_path,
            drafts=drafts,
            witnesses=[w for w in votes.witnesses() if w.name in ("bits", "packing", "formula")],
        )
    assert not list(tmp_path.iterdir())


def test_two_witnesses_of_one_provenance_are_one(tmp_path: Path, drafts: tuple[Draft, ...]) -> None:
    exact = next(w for w in votes.witnesses() if w.name == "exact")
    twin = Witness("twin", exact.provenance, "the same code again", exact.ask)
    few = [draft for draft in drafts if draft.raw["name"] == "e2m1/ties_up"]
    with pytest.raises(WitnessDisagreement, match="fewer than 2"):
        make(tmp_path, drafts=few, witnesses=[exact, twin])


def test_a_disagreement_stops_the_writing_and_names_the_rule(tmp_path: Path, drafts: tuple[Draft, ...]) -> None:
    """A witness that takes ties upwards differs on the tables of other rules."""

    def ask(group: Any) -> Iterator[Answer]:
        for case in group.cases if group.name == "e2m1/ties_to_even" else ():
            code = int(bits.encode(np.array([case.last], np.uint32).view(np.float32), E2M1, Rounding.TIES_UP)[0])
            yield Answer(case.name, f"code of {case.last:08x}", f"{code:x}", case.fields["code"])

    asked = [*votes.witnesses(), Witness("upward", "a test", "ties", ask)]
    with pytest.raises(WitnessDisagreement) as error:
        make(tmp_path, drafts=drafts, witnesses=asked)
    text = str(error.value)
    assert "e2m1/ties_to_even, case '00000000': code of 3e800000: upward says 1, the vectors 0" in text
    assert "rule: e2m1, ties_to_even" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "field", "value", "witness"),
    [
        ("e2m1/ties_away", "code", "1", "exact"),
        ("e2m1/decode", "binary32", "3f800000", "bits"),
        ("mxfp4_floor/known_bugs", "scales", "7e", "reports"),
        ("nibbles/order", "packed", "24", "formula"),
        ("mxfp4_floor/scale", "code", "05", "gmpy2"),
        ("philox4x32_10/answers", "words", "6627e8d5 e169c58d bc57ac4c 9b00dbd9", "random123"),
        ("e2m1/stochastic", "firsts", " ".join(["3f000001"] * 256), "gfloat"),
    ],
)
def test_a_wrong_value_is_contradicted(
    tmp_path: Path, drafts: tuple[Draft, ...], name: str, field: str, value: str, witness: str
) -> None:
    """A faulty maker: its value reaches no file, and the witness named, among others, says so."""
    right = next(draft for draft in drafts if draft.raw["name"] == name)
    cases = [dict(case) for case in right.raw["cases"]]
    cases[0][field] = value
    with pytest.raises(WitnessDisagreement, match=f"{witness} says"):
        make(tmp_path, drafts=[Draft(right.file, {**right.raw, "cases": cases})])
    assert not list(tmp_path.iterdir())


def test_every_case_of_the_checkout_has_two_provenances() -> None:
    manifest = json.loads((VECTORS / "manifest.json").read_bytes())
    provenance = {name: row["provenance"] for name, row in manifest["provenance"]["witnesses"].items()}
    for name, row in manifest["groups"].items():
        full = {provenance[w] for w, count in row["votes"].items() if count == row["cases"]}
        assert len(full) >= 2, name
        assert {"exact", "bits"} <= row["votes"].keys() or row["file"].startswith("layouts/"), name


# -- overwriting


def test_adding_is_free_and_logged(small: Path, drafts: tuple[Draft, ...]) -> None:
    more = next(draft for draft in content_formats.build() if draft.raw["name"] == "e3m0/decode")
    difference = make(small, drafts=[*drafts, more])
    assert not difference.overwrites
    assert [change.group for change in difference.of("added")] == ["e3m0/decode"]
    assert lint(small) == []
    entries = [json.loads(line) for line in (small / "CHANGES.jsonl").read_text().splitlines()]
    assert [entry["added"] for entry in entries] == [len(drafts), 1]


def test_taking_away_wants_overwrite_and_a_reason(small: Path, drafts: tuple[Draft, ...]) -> None:
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    fewer = [draft for draft in drafts if not draft.raw["name"].startswith("nibbles")]
    with pytest.raises(OverwriteRefused, match=r"removed: nibbles/order"):
        make(small, drafts=fewer)
    with pytest.raises(ArgumentError, match="reason: got none"):
        make(small, drafts=fewer, overwrite=True, reason=" ")
    assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == before
    make(small, drafts=fewer, overwrite=True, reason="the layout went away")
    assert not (small / "layouts/nibbles").exists()
    last = json.loads((small / "CHANGES.jsonl").read_text().splitlines()[-1])
    assert (last["reason"], last["removed"], last["groups"]) == ("the layout went away", 1, ["nibbles/order"])
    assert lint(small) == []


def test_changing_a_value_wants_overwrite_and_shows_it(small: Path, drafts: tuple[Draft, ...]) -> None:
    """A file whose value is wrong is not put right in silence either."""
    path = small / "formats/e2m1/decode.json"
    path.write_bytes(path.read_bytes().replace(b"40c00000", b"40e00000"))
    with pytest.raises(OverwriteRefused, match=r"e2m1/decode, case '7': binary32 40e00000 -> 40c00000"):
        make(small, drafts=drafts)
    make(small, drafts=drafts, overwrite=True, reason="repairs a touched file")
    assert lint(small) == []


def test_diff(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(small, other)
    assert compare(contents(small), contents(other)).lines() == ["no difference"]
    path = other / "formats/e2m1/breakpoints.json"
    path.write_bytes(path.read_bytes().replace(b'"last": "3e800000"', b'"last": "3e7fffff"', 1))
    assert main(["vectors", "diff", str(small), str(other)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["changed: e2m1/ties_to_even, case '00000000': last 3e800000 -> 3e7fffff", "1 changed"]
    assert main(["vectors", "diff", str(small), str(small)]) == 0


# -- the command


def test_commands(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "lint", "--root", str(small)]) == 0
    assert capsys.readouterr().out == "in order\n"
    path = small / "formats/e2m1/decode.json"
    path.write_bytes(flipped(path.read_bytes(), 0.9))
    assert main(["vectors", "lint", "--root", str(small)]) == 1
    assert "formats/e2m1/decode.json: sha256 is not the manifest's" in capsys.readouterr().out
    assert main(["vectors", "make", "--root", str(small), "--overwrite"]) == 2
    assert "reason: got none" in capsys.readouterr().err
    assert main(["vectors", "lint", "--root", str(tmp_path)]) == 2
    assert "found no manifest.json" in capsys.readouterr().err
    assert main(["vectors", "export", "e2m1", "--rounding", "ties_up"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 32
    assert main(["vectors", "judge", "e2m1", "not/there", "--report-dir", str(tmp_path)]) == 2


def test_neither_torch_nor_triton_is_needed(tmp_path: Path) -> None:
    """A Python in which they cannot be imported makes, reads, exports, judges and reports."""
    program = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
from lowbit import pipe, schemes
from lowbit.vectors import content_formats, content_layouts, groups, make, read, votes
from lowbit.vectors.hexlines import scheme_lines
drafts = [*content_formats.build(), *content_layouts.build()]
few = [draft for draft in drafts if draft.raw["name"].startswith(("e2m1/ties", "nvfp4/packed", "nibbles"))]
make.make({str(tmp_path / "made")!r}, drafts=few)
assert len(groups()) > 600 and votes.witnesses()
assert read("formats/e2m1/decode.json")[0].cases[7].binary32 == 0x40C00000
lines = scheme_lines(schemes.get("mxfp4_ceil"))
answered = [f"{{line.words}} {{line.answer}}" for line in lines]
found = pipe.judge("mxfp4_ceil", answered, program="x", report_dir={str(tmp_path)!r})
assert found.status == 0
assert not {{"torch", "triton"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_payload_paths_are_sorted_whatever_the_file_system_does(small: Path) -> None:
    names = [path.relative_to(small).as_posix() for path in payloads(small)]
    assert names == sorted(names)
    assert len(names) == 8
