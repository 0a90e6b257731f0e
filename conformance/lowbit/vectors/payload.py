"""Payload files: what stands in them, and the one way in which they are laid out.

Keys are sorted (a group's cases come last), a case is one line, and nothing depends on the machine, so that equal
content has equal bytes and a difference reads well line by line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lowbit.vectors.flags import FLAGS

SCHEMA_VERSION = 1
"""Grows when a reader must change."""

Raw = dict[str, Any]
"""A case, a group or a file as JSON has it."""


@dataclass(frozen=True)
class Draft:
    """A group before it is written.

    Attributes:
      file: the path it goes to, relative to the vectors' folder: ``formats/e2m1/decode.json``.
      raw: the group.
    """

    file: str
    raw: Raw


def draft(
    file: str,
    name: str,
    kind: str,
    form: str,
    cases: Iterable[Raw],
    *,
    source: str,
    flags: Sequence[str],
    **fields: Any,
) -> Draft:
    """A group to be written.

    Args:
      fields: exactly one of scheme, format, layout and generator; also, rounding, nan, tensor_scale where they apply.
        Those that are None are left out.
    """
    raw: Raw = {"name": name, "kind": kind, "form": form, "source": source, "flags": list(flags)}
    raw |= {key: value for key, value in fields.items() if value is not None}
    raw["cases"] = list(cases)
    return Draft(file, raw)


def flags_of(groups: Iterable[Raw]) -> list[str]:
    """Every flag that groups and their cases carry, sorted."""
    found: set[str] = set()
    for group in groups:
        found.update(group["flags"])
        for case in group["cases"]:
            found.update(case.get("flags", ()))
    return sorted(found)


def files_of(drafts: Iterable[Draft]) -> dict[str, Raw]:
    """The content of every file, by its path.

    Raises:
      KeyError: a flag that `flags.FLAGS` does not explain.
    """
    groups: dict[str, list[Raw]] = {}
    for item in drafts:
        groups.setdefault(item.file, []).append(item.raw)
    return {
        file: {
            "flags": {flag: FLAGS[flag] for flag in flags_of(found)},
            "groups": found,
            "schema_version": SCHEMA_VERSION,
        }
        for file, found in sorted(groups.items())
    }


def render(content: Raw) -> bytes:
    """A payload file's bytes."""
    lines = ["{", ' "flags": {', *_last_without_comma([_pair(2, *item) for item in sorted(content["flags"].items())])]
    lines += [" },", ' "groups": [']
    blocks: list[list[str]] = []
    for group in content["groups"]:
        block = ["  {", *(_pair(3, *item) for item in sorted(group.items()) if item[0] != "cases"), '   "cases": [']
        block += _last_without_comma([f"    {_compact(case)}," for case in group["cases"]])
        blocks.append([*block, "   ]", "  },"])
    if blocks:
        blocks[-1][-1] = "  }"
    lines += [line for block in blocks for line in block]
    lines += [" ],", f' "schema_version": {content["schema_version"]}', "}"]
    return ("\n".join(lines) + "\n").encode("ascii")


def render_plain(content: Any) -> bytes:
    """The bytes of the other JSON files: indented, keys sorted."""
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n").encode("ascii")


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False)


def _pair(depth: int, key: str, value: Any) -> str:
    return f"{' ' * depth}{_compact(key)}: {_compact(value)},"


def _last_without_comma(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1].removesuffix(",")] if lines else lines
