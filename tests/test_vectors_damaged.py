"""Golden vectors that were damaged: told by name before anything is judged by them, and put back only on purpose."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from test_vectors import QUICK, SMALL, VECTORS, flipped, rehash

from lowbit import vectors
from lowbit.errors import ArgumentError
from lowbit.vectors import manifest as manifests
from lowbit.vectors.diff import contents
from lowbit.vectors.lint import lint
from lowbit.vectors.make import OverwriteRefused, make
from lowbit.vectors.payload import Draft, render_plain


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


# -- before judging


def spoil(folder: Path, file: str, old: bytes, new: bytes, *, rehashed: bool = True) -> tuple[str, ...]:
    """What `verify` says after one replacement; with hashes made to fit, only the content can tell."""
    data = (folder / file).read_bytes()
    assert old in data
    (folder / file).write_bytes(data.replace(old, new, 1))
    if rehashed:
        rehash(folder)
    return vectors.verify(folder)


def test_verify_is_silent_and_fast_on_the_checkout() -> None:
    started = time.process_time()
    assert vectors.verify() == ()
    assert time.process_time() - started < 1


def test_verify_names_every_touched_file(tmp_path: Path) -> None:
    folder = tmp_path / "vectors"
    shutil.copytree(VECTORS, folder)
    touched = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    for index, path in enumerate(touched):
        path.write_bytes(flipped(path.read_bytes(), (index % 97) / 96))
    found = vectors.verify(folder)
    for path in touched:
        start = f"vectors: {path.relative_to(folder).as_posix()} is not what the manifest says (sha256): got "
        assert any(problem.startswith(start) for problem in found), start


def test_verify_names_missing_and_extra_files(small: Path) -> None:
    data = (small / "formats/e2m1/decode.json").read_bytes()
    (small / "formats/e2m1/decode.json").rename(small / "formats/e2m1/other.json")
    (small / "notes.txt").write_bytes(data)
    assert vectors.verify(small) == (
        "vectors: formats/e2m1/decode.json is missing, the manifest lists it",
        "vectors: formats/e2m1/other.json is not in the manifest",
        "vectors: notes.txt is not in the manifest",
    )


@pytest.mark.parametrize("data", [b"[" * 200_000, b"{}", b"[]", b'{"files": []}', b"\xff", b'{"files": {"a": 1}}'])
def test_verify_and_readers_refuse_a_damaged_manifest(small: Path, data: bytes) -> None:
    (small / "manifest.json").write_bytes(data)
    assert [problem[:22] for problem in vectors.verify(small)] == ["vectors: manifest.json"]
    assert "manifest.json" in {problem.file for problem in lint(small)}
    with pytest.raises(ArgumentError, match=r"manifest\.json"):
        vectors.groups(small)


def test_verify_finds_a_manifest_that_is_not_its_own(small: Path) -> None:
    found = spoil(small, "manifest.json", b'"python": "', b'"python": "9', rehashed=False)
    assert len(found) == 1
    assert found[0].startswith("vectors: manifest.json is not what was made (its own sha256)")


@pytest.mark.parametrize("data", [b"[" * 200_000, b'{"groups": ' * 200_000])
def test_deep_json_is_an_argument_error(small: Path, data: bytes) -> None:
    (small / "formats/e2m1/decode.json").write_bytes(data)
    for read in (vectors.groups, contents):
        with pytest.raises(ArgumentError, match=r"formats/e2m1/decode\.json: nested too deeply"):
            read(small)
    assert any("nested too deeply" in problem for problem in vectors.verify(small))
    assert "formats/e2m1/decode.json" in {problem.file for problem in lint(small)}


TABLE = "formats/e2m1/breakpoints.json"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"last": "3e800000"', b'"last": "3e7fffff"', "row 3e800001: a gap from 3e800000 on"),
        (b'"last": "3e800000"', b'"last": "3e800001"', "row 3e800001: begins before row 00000000 has ended"),
        (b'{"code": "0"', b'{"code": "2"', "row 3e800001: code 01 is below that of the row before it"),
        (b'"first": "00000000"', b'"first": "00000001"', "does not begin there"),
    ],
)
def test_verify_reads_tables(small: Path, old: bytes, new: bytes, says: str) -> None:
    """Even where all hashes fit."""
    found = spoil(small, TABLE, old, new)
    assert any(text.startswith(f"vectors: {TABLE}: e2m1/ties_to_even: ") and says in text for text in found), found


@pytest.mark.parametrize("version", ["1.0", "true", "2", '"1"'])
def test_schema_version_is_the_integer(small: Path, version: str) -> None:
    says = spoil(small, TABLE, b'"schema_version": 1', f'"schema_version": {version}'.encode())
    assert any(f"{TABLE}: schema_version: got " in text for text in says)
    assert TABLE in {problem.file for problem in lint(small)}
    with pytest.raises(ArgumentError, match="schema_version: got "):
        vectors.read(TABLE, small)


@pytest.mark.parametrize(
    ("file", "old", "new", "place"),
    [
        ("formats/e3m2/decode.json", b'"binary32": "3d800000"', b'"binary32": "3d800001"', "e3m2/decode, case '01'"),
        ("formats/e4m3/breakpoints.json", b'"last": "3a800000"', b'"last": "3a800001"', "e4m3/ties_to_even, case"),
        ("formats/e8m0/breakpoints.json", b'"last": "00600000"', b'"last": "00600001"', "e8m0/ties_to_even, case"),
        ("layouts/nibbles/layout.json", b'"packed": "42"', b'"packed": "24"', "nibbles/order, case"),
        ("generators/philox4x32_10/stochastic.json", b"6627e8d5", b"6627e8d4", "philox4x32_10/answers, case"),
        ("generators/philox4x32_10/stochastic.json", b'"values": "', b'"values": "00', "philox4x32_10/draws, case"),
        ("schemes/rtn_mxfp4_three_quarters/decode.json", b'"0000 000b', b'"0000 000c', "decode, case '00'"),
        ("schemes/rtn_nvfp4/scale.json", b'"code": "09"', b'"code": "08"', "rtn_nvfp4/scale, case"),
    ],
)
def test_references_judge_what_no_implementation_is_asked(
    tmp_path: Path, file: str, old: bytes, new: bytes, place: str
) -> None:
    """One value wrong, told by file, group and case; without it, nothing is told of the same file."""
    assert vectors.check_against_references(vectors.read(file)) == ()
    shutil.copytree(VECTORS, tmp_path / "vectors")
    spoil(tmp_path / "vectors", file, old, new)
    found = vectors.check_against_references(vectors.read(file, tmp_path / "vectors"))
    assert any(text.startswith(f"vectors: {file}: ") and place in text for text in found), found


def test_references_are_quick_and_agree() -> None:
    groups = vectors.groups()
    started = time.process_time()
    assert vectors.check_against_references(groups) == ()
    assert time.process_time() - started < 3


# -- overwriting what was lost, or half written


@pytest.mark.parametrize("how", ["deleted", "unreadable", "deep", "shape", "blank"])
def test_a_lost_payload_wants_a_reason_and_is_put_back(small: Path, drafts: tuple[Draft, ...], how: str) -> None:
    file = "formats/e2m1/decode.json"
    path = small / file
    right = path.read_bytes()
    texts = {
        "unreadable": b"{",
        "deep": b"[" * 200_000,
        "shape": b'{"groups": [3], "flags": {}}',
        "blank": right + b" ",
    }
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(texts[how])
    with pytest.raises(OverwriteRefused, match=rf"--overwrite --reason TEXT(?s:.)*changed: {file}: file "):
        make(small, drafts=drafts)
    make(small, drafts=drafts, overwrite=True, reason="it was lost")
    assert path.read_bytes() == right
    assert lint(small) == []
    last = json.loads((small / "CHANGES.jsonl").read_text().splitlines()[-1])
    assert last["reason"] == "it was lost"
    assert file in last["groups"]


def test_a_value_exchanged_by_hand_for_what_is_made_now_wants_a_reason(small: Path, drafts: tuple[Draft, ...]) -> None:
    """A payload that is what would be made, but not what the manifest says, has been changed without a word."""
    path = small / "manifest.json"
    whole = json.loads(path.read_bytes())
    whole["files"]["formats/e2m1/decode.json"]["sha256"] = "0" * 64
    path.write_bytes(render_plain({**whole, "sha256": manifests.own_hash(whole)}))
    with pytest.raises(OverwriteRefused, match=r"formats/e2m1/decode\.json: file not what the manifest says"):
        make(small, drafts=drafts)


@pytest.mark.parametrize("lost", [None, b"{", b'{"files": {}}'])
def test_a_lost_manifest_wants_a_reason(small: Path, drafts: tuple[Draft, ...], lost: bytes | None) -> None:
    path = small / "manifest.json"
    path.unlink()
    if lost is not None:
        path.write_bytes(lost)
    with pytest.raises(OverwriteRefused, match=r"changed: manifest\.json: file "):
        make(small, drafts=drafts)


def test_an_interrupted_overwrite_keeps_its_log(
    small: Path, drafts: tuple[Draft, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is replaced before the first payload, and the manifest after the last; no file is ever half written."""
    path = small / "formats/e2m1/decode.json"
    path.write_bytes(path.read_bytes().replace(b"40c00000", b"40e00000"))
    spoilt, replaced, replace_file = path.read_bytes(), [], os.replace

    def failing(source: Path, target: Path) -> None:
        if target == path:
            raise OSError("no space left")
        replaced.append(Path(target).name)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="no space left"):
        make(small, drafts=drafts, overwrite=True, reason="repairs a touched file")
    assert replaced == ["CHANGES.jsonl"]
    assert json.loads((small / "CHANGES.jsonl").read_text().splitlines()[-1])["reason"] == "repairs a touched file"
    assert path.read_bytes() == spoilt
    assert not list(small.glob(".making-*"))
    assert {p.file for p in lint(small)} == {"CHANGES.jsonl", "formats/e2m1/decode.json"}
    monkeypatch.undo()
    make(small, drafts=drafts, overwrite=True, reason="again")
    assert lint(small) == []


# -- lint, beside the payloads


def test_lint_finds_links_and_a_log_that_is_none(small: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    path = small / "formats/e2m1/decode.json"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)
    with (small / "CHANGES.jsonl").open("a") as file:
        file.write('garbage\n[]\n{"date": "2026-01-01"}\n' + "[" * 200_000 + "\n")
    rehash(small)
    found = [str(problem) for problem in lint(small)]
    assert "formats/e2m1/decode.json: leads out of the folder, want a file of its own" in found
    for number in (2, 3, 4, 5):
        assert f"CHANGES.jsonl: line {number} is no JSON object with a date and a reason" in found
    assert len(found) == 5


@pytest.mark.parametrize("name", ["VECTORS.md", "schema.json", "CHANGES.jsonl"])
def test_files_beside_the_payloads_are_the_manifests(small: Path, name: str) -> None:
    path = small / "manifest.json"
    whole = json.loads(path.read_bytes())
    del whole["files"][name]
    path.write_bytes(render_plain({**whole, "sha256": manifests.own_hash(whole)}))
    assert [str(problem) for problem in lint(small)] == [f"{name}: not listed in the manifest"]
    assert vectors.verify(small) == (f"vectors: {name} is not in the manifest",)
