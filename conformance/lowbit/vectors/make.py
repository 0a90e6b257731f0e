"""Makes the files of vectors, and checks them: the only code that writes there.

Nothing is written unless independent witnesses agree on every case, and an existing value changes only on purpose.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from lowbit.errors import ArgumentError, LowbitError
from lowbit.vectors import content, manifest
from lowbit.vectors import votes as voting
from lowbit.vectors.diff import Change, Difference, compare
from lowbit.vectors.group import Group
from lowbit.vectors.lint import Problem, lint
from lowbit.vectors.payload import Draft, Raw, files_of, render, render_plain
from lowbit.vectors.read import CHANGES, DOCUMENT, MANIFEST, PACKAGE, SCHEMA, group_of, locate, payloads, read_json
from lowbit.vectors.schema import schema
from lowbit.vectors.votes import Witness


class OverwriteRefused(ArgumentError):
    """An existing value would change, and nobody said that it may. `difference` holds all changes."""

    def __init__(self, difference: Difference):
        shown = "\n  ".join(difference.lines())
        super().__init__(
            f"overwrite: existing vectors would change, want --overwrite --reason TEXT to allow it\n  {shown}"
        )
        self.difference = difference


def make(
    root: Path | str | None = None,
    *,
    overwrite: bool = False,
    reason: str = "",
    witnesses: Sequence[Witness] | None = None,
    drafts: Iterable[Draft] | None = None,
) -> Difference:
    """Makes every file anew, has it voted on, and writes it.

    Args:
      root: the folder; None takes the one that is there, or the checkout's `vectors/`.
      overwrite: allows that existing values change or go away.
      reason: why; wanted with `overwrite`, and kept in the list of changes.
      witnesses: those to ask; None asks all that are installed.
      drafts: other groups than the project's, for tests.

    Returns:
      What changed.

    Raises:
      WitnessDisagreement: a witness differs, or a case has too few; nothing is written.
      OverwriteRefused: an existing value would change, or was deleted or damaged, without `overwrite`; nothing is
        written.
      ArgumentError: `overwrite` without a reason.
    """
    if overwrite and not reason.strip():
        raise ArgumentError("reason: got none, want a text that says why existing vectors change")
    folder = Path(root) if root is not None else _own_folder()
    made = files_of(content.build() if drafts is None else drafts)
    groups = groups_of(made)
    asked = [w for w in (voting.witnesses() if witnesses is None else witnesses) if w.available]
    votes = voting.vote(groups, asked)
    votes.require()
    standing, damage = _standing(folder)
    difference = compare(standing, made)
    difference.changes[:0] = damage
    if difference.overwrites and not overwrite:
        raise OverwriteRefused(difference)
    rendered = {file: render(raw) for file, raw in made.items()}
    log = _logged(folder, difference, reason)
    document = folder / DOCUMENT
    beside = {CHANGES: log, SCHEMA: render_plain(schema())}
    if document.is_file():
        beside[DOCUMENT] = document.read_bytes()
    whole = render_plain(manifest.build(rendered, beside, groups, votes, asked))
    # The log first, so that no value changes without a trace; the manifest last, so that a making that was cut short
    # is seen: what it left behind does not fit the manifest, and making again wants a reason.
    _write(folder, {CHANGES: log, **rendered, SCHEMA: beside[SCHEMA], MANIFEST: whole})
    return difference


def groups_of(files: dict[str, Raw]) -> list[Group]:
    """The groups of unwritten files, read from the bytes that would be written."""
    found = []
    for file, raw in files.items():
        text = json.loads(render(raw))
        found += [group_of(group, text["flags"], file, {}) for group in text["groups"]]
    return found


@dataclass
class Checked:
    """What `check` found.

    Attributes:
      problems: everything wrong; nothing is wrong if it is empty.
      missing: witnesses that voted when the files were made, and are not installed here.
      voted: witness → cases on which it agreed.
      groups, cases, decides: what was checked.
      notes: true, and no fault.
      seconds: how long it took.
    """

    problems: list[Problem] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    voted: dict[str, int] = field(default_factory=dict)
    groups: int = 0
    cases: int = 0
    decides: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """For a person."""
        found = [f"problem: {problem}" for problem in self.problems]
        found += [f"witness not installed here: {name}" for name in self.missing]
        found += [f"note: {note}" for note in self.notes]
        found += [f"{name} agrees on {count:,} cases" for name, count in self.voted.items()]
        verdict = "as made" if self.ok else f"{len(self.problems)} problems"
        found.append(
            f"{self.cases:,} vectors in {self.groups:,} groups, which decide {self.decides:,} inputs: {verdict} "
            f"({self.seconds:.0f} s)"
        )
        return found


def check(
    root: Path | str | None = None,
    *,
    witnesses: Sequence[Witness] | None = None,
    drafts: Iterable[Draft] | None = None,
) -> Checked:
    """Lints the files, makes them again in a temporary folder, compares the bytes, and has the witnesses vote again.

    Args:
      root: as `locate` takes it.
      witnesses: those to ask; None asks all that are installed.
      drafts: other groups than the project's, for tests.

    Raises:
      ArgumentError: there is no folder of vectors.
    """
    started = time.monotonic()
    folder = locate(root)
    found = Checked(problems=lint(folder))
    made = files_of(content.build() if drafts is None else drafts)
    with tempfile.TemporaryDirectory() as temporary:
        again = Path(temporary)
        for file, raw in made.items():
            (again / file).parent.mkdir(parents=True, exist_ok=True)
            (again / file).write_bytes(render(raw))
        found.problems += _unequal(folder, again)
    groups = groups_of(made)
    found.groups, found.cases = len(groups), sum(len(group.cases) for group in groups)
    found.decides = sum(group.decides for group in groups)
    every = voting.witnesses() if witnesses is None else witnesses
    votes = voting.vote(groups, every)
    found.problems += [Problem(d.group.file, str(d)) for d in votes.disagreements]
    found.problems += [Problem(g, f"case {case!r} has too few witnesses here") for g, case in votes.short.items()]
    for counts in votes.counts.values():
        for name, count in counts.items():
            found.voted[name] = found.voted.get(name, 0) + count
    provenance = _provenance(folder)
    here = {witness.name for witness in every if witness.available}
    found.missing = sorted(set(provenance.get("witnesses", {})) - here)
    if provenance and provenance.get("sources_sha256") != manifest.sources_hash():
        found.notes.append("the sources differ from those that made the files")
    found.seconds = time.monotonic() - started
    return found


def _unequal(folder: Path, again: Path) -> list[Problem]:
    """The files that are not what is made anew, each with its first changes."""
    problems = []
    names = {path.relative_to(root).as_posix() for root in (folder, again) for path in payloads(root)}
    for name in sorted(names):
        there, made = folder / name, again / name
        if not there.is_file() or not made.is_file():
            problems.append(Problem(name, "not there" if made.is_file() else "nothing makes this file"))
        elif there.read_bytes() != made.read_bytes():
            try:
                changes = compare({name: read_json(made)}, {name: read_json(there)}).lines(3)
            except (LowbitError, KeyError, TypeError, ValueError):
                changes = ["cannot be read"]
            problems.append(Problem(name, "differs from what is made anew: " + "; ".join(changes)))
    return problems


def _provenance(folder: Path) -> Raw:
    """The manifest's provenance, {} where it cannot be read: `lint` has said so then."""
    try:
        found = read_json(folder / MANIFEST)["provenance"]
    except (LowbitError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _own_folder() -> Path:
    """The folder that is there, or the checkout's that is to be made."""
    try:
        return locate()
    except ArgumentError:
        return PACKAGE.parents[1] / "vectors"


def _standing(folder: Path) -> tuple[dict[str, Raw], list[Change]]:
    """The payloads that can be read, and a change for each file that is not what the manifest says.

    A payload that was deleted, touched or cannot be read is a value that stood there, whatever is made now.
    """
    standing: dict[str, Raw] = {}
    damage: dict[str, str] = {}
    present = {path.relative_to(folder).as_posix(): path for path in payloads(folder)}
    for file, path in present.items():
        try:
            content = read_json(path, file)
            compare({file: content}, {file: content})
        except (LowbitError, AttributeError, KeyError, TypeError, ValueError):
            damage[file] = "unreadable"
        else:
            standing[file] = content
    listed, why = _listed(folder)
    if why and present:
        damage[MANIFEST] = why
    for file, row in listed.items():
        if file in (SCHEMA, DOCUMENT):  # these are not values, and each version of lowbit has its own
            continue
        path = folder / file
        if not path.is_file():
            damage[file] = "deleted"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != row["sha256"]:
            damage.setdefault(file, "not what the manifest says")
    return standing, [Change("changed", file, "", "file", text, "made anew") for file, text in sorted(damage.items())]


def _listed(folder: Path) -> tuple[dict[str, Raw], str]:
    """The manifest's files, and what is wrong with it: "" if nothing is."""
    if not (folder / MANIFEST).is_file():
        return {}, "deleted"
    try:
        whole = read_json(folder / MANIFEST)
        files = {str(file): {"sha256": str(row["sha256"])} for file, row in whole["files"].items()}
        return files, "" if manifest.own_hash(whole) == whole["sha256"] else "its sha256 is not its own"
    except (LowbitError, AttributeError, KeyError, TypeError, ValueError):
        return {}, "unreadable"


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Puts files in the place of those that differ, in that order and each at once.

    Nothing is replaced before all are written elsewhere. Payloads that nothing makes go away before the last file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as temporary:
        staged: list[tuple[Path, Path]] = []
        for file, data in files.items():
            path, new = folder / file, Path(temporary) / f"{len(staged)}"
            if not path.is_file() or path.read_bytes() != data:
                new.write_bytes(data)
                staged.append((new, path))
        for new, path in staged:
            if path == folder / MANIFEST:
                _remove(folder, files)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(new, path)


def _remove(folder: Path, kept: dict[str, bytes]) -> None:
    for path in payloads(folder):
        if path.relative_to(folder).as_posix() not in kept:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()


def _logged(folder: Path, difference: Difference, reason: str) -> bytes:
    """The list of changes, with one line more if anything changed."""
    path = folder / CHANGES
    before = path.read_bytes() if path.is_file() else b""
    if not difference.changes:
        return before
    entry = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "reason": reason.strip() or "new vectors",
        **{action: len(difference.of(action)) for action in ("added", "changed", "removed", "described")},
        "groups": sorted({change.group for change in difference.of("changed", "removed")}),
        "first": [str(change) for change in difference.of("changed", "removed")[:20]],
    }
    line = json.dumps(entry, sort_keys=True, ensure_ascii=True).encode("ascii") + b"\n"
    return before + (b"" if before.endswith(b"\n") or not before else b"\n") + line
