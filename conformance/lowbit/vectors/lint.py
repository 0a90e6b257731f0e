"""Whether files of vectors are in order: schema, layout, hashes, names, flags, and that tables leave no gap."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit.errors import ArgumentError, LowbitError
from lowbit.vectors import manifest as manifests
from lowbit.vectors.disorder import disorders
from lowbit.vectors.group import Group
from lowbit.vectors.payload import SCHEMA_VERSION, flags_of, render, render_plain
from lowbit.vectors.read import CHANGES, DOCUMENT, MANIFEST, SCHEMA, group_of, payloads, read_json
from lowbit.vectors.schema import schema


@dataclass(frozen=True)
class Problem:
    """Something wrong. `file`: relative to the folder; `text`: says the place and what is wanted."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def lint(root: Path) -> list[Problem]:
    """Everything that is wrong with a folder of vectors, without making any anew."""
    problems = [*_links(root), *_beside(root)]
    names: dict[str, str] = {}
    validate = _validator("")
    held: list[Group] = []
    for path in payloads(root):
        file = path.relative_to(root).as_posix()
        found = [Problem(file, text) for text in _payload(path, validate)]
        problems += found
        if found:
            continue
        for group in _groups(path, file):
            if group.name in names:
                problems.append(Problem(file, f"group {group.name!r} stands in {names[group.name]} too"))
            names[group.name] = file
            problems += [Problem(file, f"{group.name}: {text}") for text in disorders(group)]
            held.append(group)
    if not problems:
        problems += _counted(root, held)
    return problems


# -- the folder


def _links(root: Path) -> Iterator[Problem]:
    """What lies in the folder by name only."""
    whole = root.resolve()
    for path in sorted(root.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(whole):
            yield Problem(path.relative_to(root).as_posix(), "leads out of the folder, want a file of its own")


def _beside(root: Path) -> Iterator[Problem]:
    try:
        manifest = read_json(root / MANIFEST)
    except LowbitError as error:
        yield Problem(MANIFEST, str(error))
        return
    data = (root / MANIFEST).read_bytes()
    if not isinstance(manifest, dict) or manifests.own_hash(manifest) != manifest.get("sha256"):
        yield Problem(MANIFEST, "sha256 is not that of its content; only `lowbit vectors make` writes it")
        return
    if type(manifest.get("schema_version")) is not int:  # JSON Schema takes 1.0 for an integer
        yield Problem(MANIFEST, f"schema_version: got {manifest.get('schema_version')!r}, want {SCHEMA_VERSION}")
    if render_plain(manifest) != data:
        yield Problem(MANIFEST, "laid out otherwise than `lowbit vectors make` does")
    wrong = list(_validator("manifest")(manifest))
    yield from (Problem(MANIFEST, text) for text in wrong)
    if wrong:
        return
    listed = manifest.get("files", {})
    present = {p.relative_to(root).as_posix(): p for p in sorted(root.rglob("*")) if p.is_file() and p.name != MANIFEST}
    for file in sorted(listed.keys() - present.keys()):
        yield Problem(file, "listed in the manifest, but not there")
    for file in sorted(present.keys() - listed.keys()):
        yield Problem(file, "not listed in the manifest")
    for file in sorted(present.keys() & listed.keys()):
        if hashlib.sha256(present[file].read_bytes()).hexdigest() != listed[file]["sha256"]:
            yield Problem(file, "sha256 is not the manifest's; only `lowbit vectors make` changes files")
    if (root / SCHEMA).is_file() and (root / SCHEMA).read_bytes() != render_plain(schema()):
        yield Problem(SCHEMA, "is not the schema of this version of lowbit")
    for name in (SCHEMA, DOCUMENT, CHANGES):
        if not (root / name).is_file():
            yield Problem(name, "not there")
    yield from _log(root / CHANGES)


def _log(path: Path) -> Iterator[Problem]:
    """Lines of the list of changes that are none."""
    for number, line in enumerate(path.read_bytes().splitlines() if path.is_file() else (), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(k), str) and entry[k] for k in ("date", "reason")
        ):
            yield Problem(CHANGES, f"line {number} is no JSON object with a date and a reason")


def _counted(root: Path, groups: list[Group]) -> Iterator[Problem]:
    """The manifest's figures against the files'."""
    manifest = read_json(root / MANIFEST)
    for group in groups:
        row = manifest["groups"].get(group.name)
        if row is None:
            yield Problem(MANIFEST, f"does not list group {group.name!r} of {group.file}")
        elif (row["file"], row["cases"], row["decides"]) != (group.file, len(group.cases), group.decides):
            yield Problem(MANIFEST, f"group {group.name!r}: file, cases or decides differ from {group.file}")
    for name in sorted(manifest["groups"].keys() - {group.name for group in groups}):
        yield Problem(MANIFEST, f"lists group {name!r}, which no file holds")


# -- one file


def _payload(path: Path, validate: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    try:
        content = read_json(path)
    except ArgumentError as error:
        yield str(error)
        return
    wrong = list(validate(content))
    yield from wrong
    if wrong:
        return
    if type(content["schema_version"]) is not int:  # JSON Schema takes 1.0 for an integer
        yield f"schema_version: got {content['schema_version']!r}, want {SCHEMA_VERSION}"
    if render(content) != path.read_bytes():
        yield "laid out otherwise than `lowbit vectors make` does"
    used = set(flags_of(content["groups"]))
    for flag in sorted(used - content["flags"].keys()):
        yield f"flag {flag!r} has no explanation"
    for flag in sorted(content["flags"].keys() - used):
        yield f"flag {flag!r} is explained, but nothing carries it"


def _validator(definition: str) -> Callable[[Any], Iterator[str]]:
    """A function that yields what the schema says against a content; the most telling error of each place."""
    jsonschema = importlib.import_module("jsonschema")  # only here: reading needs no validator
    whole = schema()
    part = {"$ref": f"#/$defs/{definition}", "$defs": whole["$defs"]} if definition else whole
    validator = jsonschema.Draft202012Validator(part)

    def validate(content: Any) -> Iterator[str]:
        for error in validator.iter_errors(content):
            place = "/".join(str(step) for step in error.absolute_path)
            text = error.message
            yield f"{place or 'the file'}: {text if len(text) <= 300 else f'{text[:60]} … {text[-200:]}'}"

    return validate


def _groups(path: Path, file: str) -> list[Group]:
    content = json.loads(path.read_bytes())
    return [group_of(raw, content["flags"], file, {}) for raw in content["groups"]]
