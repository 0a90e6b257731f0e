"""Whether files of vectors are in order: schema, layout, hashes, names, flags, and that tables leave no gap."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit import schemes
from lowbit.errors import ArgumentError, LowbitError
from lowbit.formats import FORMATS
from lowbit.vectors import manifest as manifests
from lowbit.vectors.case import Block, Exponent, Nibbles, Row, Swizzle, Thresholds
from lowbit.vectors.group import RANDOM_BYTES, Group
from lowbit.vectors.payload import flags_of, render, render_plain
from lowbit.vectors.read import CHANGES, DOCUMENT, MANIFEST, SCHEMA, group_of, payloads, read_json
from lowbit.vectors.schema import schema

NAMED = {"layout": ("nibbles", "swizzle_32_4_4"), "generator": ("philox4x32_10",)}
"""The layouts and generators there are; schemes and formats have registries."""


@dataclass(frozen=True)
class Problem:
    """Something wrong. `file`: relative to the folder; `text`: says the place and what is wanted."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def lint(root: Path) -> list[Problem]:
    """Everything that is wrong with a folder of vectors, without making any anew."""
    problems = [*_beside(root)]
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
            problems += [Problem(file, f"{group.name}: {text}") for text in _group(group)]
            held.append(group)
    if not problems:
        problems += _counted(root, held)
    return problems


# -- the folder


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
    if render_plain(manifest) != data:
        yield Problem(MANIFEST, "laid out otherwise than `lowbit vectors make` does")
    for text in _validator("manifest")(manifest):
        yield Problem(MANIFEST, text)
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


# -- one group


def _group(group: Group) -> Iterator[str]:
    yield from _subject(group)
    names: set[str] = set()
    for case in group.cases:
        if case.name in names:
            yield f"case {case.name!r} stands there twice"
        names.add(case.name)
    checks: dict[str, Callable[[Group], Iterator[str]]] = {
        "rows": _rows,
        "blocks": _blocks,
        "stream": _blocks,
        "exponents": _exponents,
        "thresholds": _thresholds,
        "nibbles": _bytes,
        "swizzle": _bytes,
    }
    try:
        yield from checks.get(group.form, lambda _: iter(()))(group)
    except (ValueError, KeyError, LowbitError) as error:
        yield f"cannot be read: {error}"


def _subject(group: Group) -> Iterator[str]:
    try:
        known = {
            "scheme": lambda: all(schemes.get(name) for name in group.schemes),
            "format": lambda: group.subject in FORMATS,
        }.get(group.subject_kind, lambda: group.subject in NAMED[group.subject_kind])()
    except LowbitError as error:
        yield str(error)
        return
    if not known:
        yield f"{group.subject_kind} {group.subject!r} is not known"
    if group.kind == "breakpoints" and (group.rounding is None) == (group.nan is None):
        yield "breakpoints want either a rounding or a rule for NaN"


def _rows(group: Group) -> Iterator[str]:
    """Ascending, apart, and without a gap where the table is complete."""
    rows = [case for case in group.cases if isinstance(case, Row)]
    for row in rows:
        if row.first > row.last:
            yield f"row {row.name}: first above last"
    for low, high in itertools.pairwise(rows):
        if high.first <= low.last:
            yield f"row {high.name}: begins before row {low.name} has ended"
    if "complete" not in group.group_flags:
        return
    domain = _domain(group)
    at = dict(domain)
    position = None
    for row in rows:
        if position is None:
            if row.first not in at:
                yield f"row {row.name}: the domain {_words(domain)} does not begin there"
                return
            position = row.first
        if row.first != position:
            yield f"row {row.name}: a gap from {position:08x} on"
            return
        end = next(last for first, last in domain if first <= row.first <= last)
        if row.last > end:
            yield f"row {row.name}: leaves the domain at {end:08x}"
            return
        position = None if row.last == end else row.last + 1
    if sum(row.decides for row in rows) != sum(last - first + 1 for first, last in domain):
        yield f"rows do not fill the domain {_words(domain)}"


def _domain(group: Group) -> list[tuple[int, int]]:
    """The patterns that a complete table decides, as ranges that rows do not cross."""
    if group.kind == "scale":
        return [(0, 0x7FFFFFFF)]
    if group.nan is not None:
        return [(0x7F800001, 0x7FFFFFFF), (0xFF800001, 0xFFFFFFFF)]
    has_nan = FORMATS[group.subject].nan_magnitude is not None
    last = 0x7FFFFFFF if has_nan else 0x7F800000
    return [(0, last), (0x80000000, 0x80000000 | last)]


def _words(domain: list[tuple[int, int]]) -> str:
    return ", ".join(f"{first:08x} to {last:08x}" for first, last in domain)


def _blocks(group: Group) -> Iterator[str]:
    """Lengths that fit one another; ranges of random bytes that fill 0 … 255."""
    scheme = schemes.get(group.subject)
    ranges: list[range] = []
    for case in group.cases:
        assert isinstance(case, Block)  # by the form, as below
        rows, columns = case.shape
        blocks = -(-columns // scheme.block)
        fields = case.fields
        lengths = {
            "x": (len(fields["x"].split()), rows * columns),
            "codes": (len(fields["codes"]), rows * blocks * scheme.block),
            "scales": (len(fields["scales"]), 2 * rows * blocks),
            "random_bits": (len(fields.get("random_bits", "")), 2 * rows * columns),
            "scale_random_bits": (len(fields.get("scale_random_bits", "").split()), rows * blocks),
        }
        for name, (got, want) in lengths.items():
            if name in fields and got != want:
                yield f"case {case.name!r}: {name} has {got} items, want {want} for shape {rows} x {columns}"
        if case.randoms is not None:
            ranges.append(case.randoms)
    if ranges and [r for one in ranges for r in one] != list(range(RANDOM_BYTES)):
        yield "ranges of random bytes do not fill 00 to ff"


def _exponents(group: Group) -> Iterator[str]:
    by_x: dict[int, list[Exponent]] = {}
    for case in group.cases:
        assert isinstance(case, Exponent)
        by_x.setdefault(case.x, []).append(case)
    element = schemes.get(group.subject).element
    end = 1 << (23 - element.mantissa_bits)
    for x, cases in by_x.items():
        starts = [0, *(case.last + 1 for case in cases)]
        if [case.first for case in cases] != starts[:-1] or starts[-1] != end:
            yield f"amax {x:08x}: random integers do not fill 0 to {end - 1:x}"


def _thresholds(group: Group) -> Iterator[str]:
    codes = [case.code for case in group.cases if isinstance(case, Thresholds)]
    if codes != list(range(1, FORMATS[group.subject].max_magnitude + 1)):
        yield "wants one line for each magnitude above 0"
    for case in group.cases:
        assert isinstance(case, Thresholds)
        if case.firsts.size != RANDOM_BYTES:
            yield f"case {case.name!r}: {case.firsts.size} thresholds, want {RANDOM_BYTES}"


def _bytes(group: Group) -> Iterator[str]:
    for case in group.cases:
        if isinstance(case, Nibbles) and case.codes.size != 2 * case.packed.size:
            yield f"case {case.name!r}: {case.codes.size} codes in {case.packed.size} bytes, want two a byte"
        if isinstance(case, Swizzle) and len(case.fields["scales"]) != 2 * case.shape[0] * case.shape[1]:
            yield f"case {case.name!r}: scales do not fill {case.shape[0]} x {case.shape[1]}"
