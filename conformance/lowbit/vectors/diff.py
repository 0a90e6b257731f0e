"""What changed between two sets of vectors, by group and case, not by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowbit.vectors.case import CASES
from lowbit.vectors.read import payloads, read_json

DESCRIBING = frozenset(("flags", "source", "seen"))
"""The fields of a case that describe it; all others are values."""


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
      action: added, removed, changed (a value), or described (flags, sources, explanations).
      group, case: names; case is "" where the whole group is meant.
      field, old, new: what differs; "" where nothing is compared.
    """

    action: str
    group: str
    case: str = ""
    field: str = ""
    old: str = ""
    new: str = ""

    def __str__(self) -> str:
        place = f"{self.group}, case {self.case!r}" if self.case else self.group
        if not self.field:
            return f"{self.action}: {place}"
        old, new = around(self.old, self.new)
        return f"{self.action}: {place}: {self.field} {old} -> {new}"


@dataclass
class Difference:
    """All changes from one set to another."""

    changes: list[Change] = field(default_factory=list)

    def of(self, *actions: str) -> list[Change]:
        """Those of some actions."""
        return [change for change in self.changes if change.action in actions]

    @property
    def overwrites(self) -> bool:
        """Whether something that stood there changes or goes away."""
        return bool(self.of("changed", "removed"))

    def lines(self, limit: int = 40) -> list[str]:
        """For a person: values first, at most `limit` lines, then the counts."""
        order = ("changed", "removed", "added", "described")
        ranked = sorted(self.changes, key=lambda change: order.index(change.action))
        shown = [str(change) for change in ranked[:limit]]
        if len(ranked) > limit:
            shown.append(f"… and {len(ranked) - limit} more")
        counts = {action: len(self.of(action)) for action in order}
        shown.append(", ".join(f"{count} {action}" for action, count in counts.items() if count) or "no difference")
        return shown


def contents(root: Path) -> dict[str, dict[str, Any]]:
    """Every payload of a folder, by path."""
    files = {path.relative_to(root).as_posix(): path for path in payloads(root)}
    return {file: read_json(path, file) for file, path in files.items()}


def compare(old: Mapping[str, dict[str, Any]], new: Mapping[str, dict[str, Any]]) -> Difference:
    """The changes from one set of payloads, by path, to another."""
    found = Difference()
    before, after = _groups(old), _groups(new)
    for name in before.keys() - after.keys():
        found.changes.append(Change("removed", name))
    for name, group in after.items():
        if name not in before:
            found.changes.append(Change("added", name, "", "cases", "", str(len(group["cases"]))))
        else:
            found.changes += _of_group(name, before[name], group)
    flags_before, flags_after = _flags(old), _flags(new)
    for flag in sorted(flags_before.keys() | flags_after.keys()):
        texts = flags_before.get(flag, ""), flags_after.get(flag, "")
        if texts[0] != texts[1]:
            found.changes.append(Change("described", f"flag {flag}", "", "text", *texts))
    found.changes.sort(key=lambda change: (change.group, change.case, change.field))
    return found


def _of_group(name: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    for key in sorted((old.keys() | new.keys()) - {"cases"}):
        if old.get(key) != new.get(key):
            more = key == "also" and set(old.get(key, ())) <= set(new.get(key, ()))
            action = "described" if more or key in ("source", "flags") else "changed"
            yield Change(action, name, "", key, str(old.get(key, "")), str(new.get(key, "")))
    before, after = _cases(old), _cases(new)
    for case in before.keys() - after.keys():
        yield Change("removed", name, case)
    for case, fields in after.items():
        if case not in before:
            yield Change("added", name, case)
            continue
        for key in sorted(before[case].keys() | fields.keys()):
            if before[case].get(key) != fields.get(key):
                action = "described" if key in DESCRIBING else "changed"
                yield Change(action, name, case, key, str(before[case].get(key, "")), str(fields.get(key, "")))


def _groups(files: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for content in files.values() for group in content["groups"]}


def _flags(files: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    return {flag: text for content in files.values() for flag, text in content["flags"].items()}


def _cases(group: dict[str, Any]) -> dict[str, dict[str, Any]]:
    kind = CASES[group["form"]]
    return {kind(fields).name: fields for fields in group["cases"]}


def around(old: str, new: str) -> tuple[str, str]:
    """Two long texts around the first place where they differ."""
    if max(len(old), len(new)) <= 32:
        return old or "(none)", new or "(none)"
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(at - 8, 0)
    cut = [f"{'…' if start else ''}{text[start : at + 16]}{'…' if len(text) > at + 16 else ''}" for text in (old, new)]
    return cut[0] or "(none)", cut[1] or "(none)"
