"""Finds and reads the golden files. Reading judges nothing: `lint` does."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from lowbit.errors import ArgumentError, NothingCompared
from lowbit.vectors.case import CASES
from lowbit.vectors.group import Group
from lowbit.vectors.payload import SCHEMA_VERSION

PACKAGE = Path(__file__).resolve().parents[1]

MANIFEST, SCHEMA, DOCUMENT, CHANGES = "manifest.json", "schema.json", "VECTORS.md", "CHANGES.jsonl"
"""The files beside the payloads."""

SUBJECT_KINDS = ("scheme", "format", "layout", "generator")
"""The field of a group that says what decides it: one of these."""


def locate(root: Path | str | None = None) -> Path:
    """The folder of the golden files.

    Args:
      root: a folder given by the user; None looks beside the package (a wheel), then in the checkout.

    Raises:
      ArgumentError: there is none; says where was looked.
    """
    places = [Path(root)] if root is not None else [PACKAGE / "_vectors", PACKAGE.parents[1] / "vectors"]
    for place in places:
        if (place / MANIFEST).is_file():
            return place
    names = " or ".join(f"{place.parent.name}/{place.name}" for place in places)
    raise ArgumentError(f"vectors: found no {MANIFEST} in {names}, want the folder of golden files")


def payloads(root: Path) -> list[Path]:
    """The files of vectors under a folder, in order of their paths, whatever the file system's order is."""
    return sorted(root.glob("*/*/*.json"), key=lambda path: path.relative_to(root).as_posix())


def read_json(path: Path, name: str | None = None) -> Any:
    """A JSON file.

    Args:
      name: how messages call it; None takes its last part.

    Raises:
      ArgumentError: it cannot be read, is no JSON, or has a key twice.
    """
    try:
        return json.loads(path.read_text(encoding="ascii"), object_pairs_hook=_unique)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{name or path.name}: {error}, want a JSON file") from error
    except RecursionError as error:
        raise ArgumentError(f"{name or path.name}: nested too deeply, want a JSON file of vectors") from error


def read(path: Path | str, root: Path | str | None = None) -> tuple[Group, ...]:
    """The groups of one file.

    Args:
      path: of the file, or relative to the vectors' folder.
      root: as `locate` takes it.

    Raises:
      ArgumentError: no such file, or not one of ours.
    """
    folder = locate(root)
    place = Path(path) if Path(path).is_absolute() else folder / path
    votes = _votes(folder)
    return groups_of_file(place, folder, votes)


def groups(root: Path | str | None = None) -> tuple[Group, ...]:
    """Every group of every file, in order of file and place in it.

    Args:
      root: as `locate` takes it.

    Raises:
      ArgumentError: there is no folder of vectors, or a file is not one of ours.
      NothingCompared: the folder holds no vector.
    """
    folder = locate(root)
    return _all_groups(folder, tuple(path.stat().st_mtime_ns for path in payloads(folder)))


@functools.lru_cache(maxsize=2)
def _all_groups(folder: Path, _times: tuple[int, ...]) -> tuple[Group, ...]:
    votes = _votes(folder)
    found = tuple(group for path in payloads(folder) for group in groups_of_file(path, folder, votes))
    if not found:
        raise NothingCompared(f"vectors: {folder.name} holds no vector")
    return found


def _votes(folder: Path) -> dict[str, Any]:
    manifest = read_json(folder / MANIFEST)
    votes = manifest.get("groups") if isinstance(manifest, dict) else None
    if not isinstance(votes, dict) or not all(isinstance(row, dict) for row in votes.values()):
        raise ArgumentError(f"{MANIFEST}: got no table of groups, want what `lowbit vectors make` writes")
    return votes


def groups_of_file(path: Path, folder: Path, votes: dict[str, Any]) -> tuple[Group, ...]:
    """The groups of one file; `votes`: the manifest's groups, {} where they do not matter."""
    file = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name
    content = read_json(path, file)
    try:
        version = content["schema_version"]
        if type(version) is not int or version != SCHEMA_VERSION:
            raise ArgumentError(f"{file}: schema_version: got {version!r}, want {SCHEMA_VERSION}")
        return tuple(group_of(raw, content["flags"], file, votes) for raw in content["groups"])
    except ArgumentError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration) as error:
        raise ArgumentError(
            f"{file}: {type(error).__name__}: {error}, want the form of schema.json (see `lowbit vectors lint`)"
        ) from error


def group_of(raw: dict[str, Any], flags: dict[str, str], file: str, votes: dict[str, Any]) -> Group:
    """A group out of its JSON object."""
    subject_kind = next(kind for kind in SUBJECT_KINDS if kind in raw)
    case = CASES[raw["form"]]
    cases = tuple(case(fields) for fields in raw["cases"])
    used = {*raw["flags"], *(flag for c in cases for flag in c.flags)}
    tensor_scale = raw.get("tensor_scale")
    return Group(
        name=raw["name"],
        kind=raw["kind"],
        form=raw["form"],
        subject=raw[subject_kind],
        subject_kind=subject_kind,
        source=raw["source"],
        flags={flag: text for flag, text in flags.items() if flag in used},
        group_flags=tuple(raw["flags"]),
        cases=cases,
        file=file,
        also=tuple(raw.get("also", ())),
        rounding=raw.get("rounding"),
        nan=raw.get("nan"),
        tensor_scale=None if tensor_scale is None else int(tensor_scale, 16),
        votes=votes.get(raw["name"], {}).get("votes", {}),
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return found
