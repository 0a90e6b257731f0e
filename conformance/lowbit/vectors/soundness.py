"""Whether the golden files are those that were made, asked before anything is judged by them: fast, without jsonschema.

`lint` says more, and `make.check` makes everything again; this finds files that were touched, lost or added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lowbit import schemes
from lowbit.errors import LowbitError
from lowbit.vectors import manifest as manifests
from lowbit.vectors.diff import around
from lowbit.vectors.disorder import disorders
from lowbit.vectors.group import Group
from lowbit.vectors.payload import SCHEMA_VERSION
from lowbit.vectors.read import MANIFEST, groups, groups_of_file, locate, payloads, read_json
from lowbit.vectors.witness_layouts import WITNESSES as OF_LAYOUTS
from lowbit.vectors.witness_own import BITS


def verify(root: Path | str | None = None) -> tuple[str, ...]:
    """What is wrong with the golden files, each problem a line that begins with ``vectors:`` and the file.

    Hashes of all files and of the manifest, files missing or not listed, and within each file the order of its tables.

    Args:
      root: as `locate` takes it.

    Returns:
      The problems; none of a sound folder.

    Raises:
      ArgumentError: there is no folder of vectors.
    """
    folder = locate(root)
    try:
        manifest = read_json(folder / MANIFEST)
    except LowbitError as error:
        return (f"vectors: {error}",)
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(row, dict) for row in listed.values()):
        return (f"vectors: {MANIFEST} lists no files, want what `lowbit vectors make` writes",)
    problems = [*_of_manifest(manifest), *_of_files(folder, listed)]
    if not problems:
        with suppress(LowbitError):  # read once for this and for what is judged
            return tuple(f"vectors: {g.file}: {g.name}: {text}" for g in groups(folder) for text in disorders(g))
    for path in payloads(folder):
        try:
            problems += [
                f"{g.file}: {g.name}: {text}" for g in groups_of_file(path, folder, {}) for text in disorders(g)
            ]
        except LowbitError as error:
            problems.append(str(error))
    return tuple(f"vectors: {problem}" for problem in problems)


def _of_manifest(manifest: dict[str, Any]) -> Iterator[str]:
    version = manifest.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        yield f"{MANIFEST}: schema_version: got {version!r}, want {SCHEMA_VERSION}"
    got, want = manifest.get("sha256"), manifests.own_hash(manifest)
    if got != want:
        yield f"{MANIFEST} is not what was made (its own sha256): got {got}, want {want}"


def _of_files(folder: Path, listed: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Files that are missing, not listed, or other than listed."""
    held = {path.relative_to(folder).as_posix(): path for path in (*folder.rglob("*"), *payloads(folder))}
    present = {file: path for file, path in held.items() if path.is_file() and file != MANIFEST}
    for file in sorted(listed.keys() | present.keys()):
        if file not in present:
            yield f"{file} is missing, the manifest lists it"
        elif file not in listed:
            yield f"{file} is not in the manifest"
        else:
            try:
                got = hashlib.sha256(present[file].read_bytes()).hexdigest()
            except OSError as error:
                yield f"{file} cannot be read ({error.strerror})"
                continue
            if got != (want := listed[file].get("sha256")):
                yield f"{file} is not what the manifest says (sha256): got {got}, want {want}"


def check_against_references(groups: Iterable[Group], *, every: bool = False) -> tuple[str, ...]:
    """Judges by lowbit's references what no implementation is asked about.

    These are the values of codes, the tables of every format under every rule, the scale and decoding tables of
    rtn_xxfp4, layouts, and the generator. The other groups are the implementation's to answer.

    Args:
      groups: any; those of other forms are passed over.
      every: asks about the other forms too, to find the case in a file that is known to be damaged.

    Returns:
      The problems, each with file, group and case; also of a case that the references left unanswered.
    """
    problems: list[str] = []
    for group in groups:
        numbers = _of_numbers(group) or (every and not _of_bytes(group))
        ask = [*([BITS.ask] if numbers else []), *([w.ask for w in OF_LAYOUTS] if _of_bytes(group) else [])]
        place = f"vectors: {group.file}: {group.name}"
        unanswered = {case.name for case in group.cases} if ask else set()
        try:
            for answer in (answer for one in ask for answer in one(group)):
                unanswered.discard(answer.case)
                if answer.given != answer.expected:
                    given, expected = around(answer.given, answer.expected)
                    problems.append(
                        f"{place}, case {answer.case!r}: {answer.question}: references say {given}, the file {expected}"
                    )
        except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError, LowbitError) as error:
            problems.append(f"{place}: cannot be judged: {type(error).__name__}: {error}")
            continue
        problems += [f"{place}, case {name!r}: the references have no answer" for name in sorted(unanswered)]
    return tuple(problems)


def _of_numbers(group: Group) -> bool:
    if group.form in ("codes", "philox", "draws"):
        return True
    if group.form == "rows" and group.kind == "breakpoints":
        return True
    return group.form in ("rows", "scaled_codes") and schemes.get(group.subject).family == "rtn_xxfp4"


def _of_bytes(group: Group) -> bool:
    return group.form in ("nibbles", "stream", "swizzle")
