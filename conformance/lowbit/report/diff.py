"""Two runs beside each other: which mismatches are new, fixed, changed or the same, and what is no longer judged.

A check is a row: implementation, scheme, check, and tensor of a checkpoint. Mismatches of a kind are the same if their
number and their digest are; a digest stands for every wrong code, whatever samples were kept. Nothing can be said of
mismatches that a later run no longer looks for: that is a regression and never "fixed".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lowbit.records import Record, miscount, plain
from lowbit.report.text import count, line

NEW = ("new", "changed", "no longer judged")
"""What a release is stopped by. Changed mismatches may hide new ones."""

ORDER = ("new", "changed", "no longer judged", "judged less", "new, waived", "not selected", "same", "fixed", "judged")
"""What can be said of a kind or of a check, the one that matters most first."""

MEANS = {
    "new": "mismatches of this kind where there were none",
    "changed": "another number of mismatches of this kind, or others",
    "no longer judged": "compared before, and not now: nothing is known of it",
    "judged less": "fewer elements compared than before",
    "new, waived": "new or changed, and waived in the later run",
    "not selected": "compared before, and left out by this command line",
    "same": "the very same mismatches",
    "fixed": "mismatches of this kind before, none now",
    "judged": "compared now, and not before",
}

COLUMNS = ("what", "implementation", "scheme", "check", "tensor", "kind", "before", "after", "note")
"""The columns of the table, and the fields of a `Change`. For ``judged less`` before and after count what was compared,
elsewhere mismatches."""

JUDGED = ("pass", "mismatch", "error", "waived")

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Change:
    """What became of one kind of mismatch of a check, or of the check.

    Attributes:
      what: one of `ORDER`. kind: of the mismatches, "" where the check is meant. before, after: how many.
      note: why it is not judged, or what else a reader wants to know.
    """

    what: str
    implementation: str
    scheme: str
    check: str
    tensor: str
    kind: str = ""
    before: int = 0
    after: int = 0
    note: str = ""


@dataclass(frozen=True)
class Difference:
    """The outcome of comparing two runs.

    Attributes:
      before, after: ids of the runs.
      changes: those that matter most first.
      warnings: what makes the two hard to compare.
      stopped: reasons beside the changes for which nothing good can be said of the later run.
      equal: checks without a mismatch in either run.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    stopped: tuple[str, ...]
    equal: int

    @property
    def exit_code(self) -> int:
        """0: nothing new · 1: something is new, changed or no longer judged, or the later run shows nothing."""
        return int(bool(self.stopped) or any(change.what in NEW for change in self.changes))

    @property
    def counts(self) -> dict[str, int]:
        """What → number of changes, those that matter most first."""
        return {what: n for what in ORDER if (n := sum(change.what == what for change in self.changes))}

    def as_dict(self) -> dict[str, Any]:
        """The difference in JSON's own types."""
        return plain({**asdict(self), "exit_code": self.exit_code, "counts": self.counts})

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Difference:
        """What `as_dict` gave.

        Raises:
          KeyError, TypeError, ValueError: it is something else.
        """
        changes = tuple(Change(**change) for change in told["changes"])
        for change in changes:
            for name in COLUMNS:
                wanted = int if name in ("before", "after") else str
                if not isinstance(getattr(change, name), wanted):
                    raise TypeError(f"{name} is a {type(getattr(change, name)).__name__}")
            ORDER.index(change.what)
        warnings, stopped = (tuple(map(str, told[name])) for name in ("warnings", "stopped"))
        return cls(str(told["before"]), str(told["after"]), changes, warnings, stopped, int(told["equal"]))

    def lines(self, limit: int = 40) -> list[str]:
        """The difference as text.

        Args:
          limit: changes listed of each sort; those that stop a release are listed all.
        """
        lines = [f"{line(self.before)} → {line(self.after)}"]
        lines += [f"warning: {line(warning)}" for warning in self.warnings]
        for what, n in self.counts.items():
            lines.append(f"{what}: {n:,} ({MEANS[what]})")
            shown = [change for change in self.changes if change.what == what]
            if what not in NEW:
                shown = shown[:limit]
            lines += [f"  {told(change)}" for change in shown]
            lines += [f"  … and {n - len(shown):,} more"] if n > len(shown) else []
        lines.append(f"{self.equal:,} checks without a mismatch in either run")
        lines += [f"stopped: {line(reason)}" for reason in self.stopped]
        lines.append("SOMETHING NEW" if self.exit_code else "NOTHING NEW")
        return lines


def told(change: Change) -> str:
    """A change in one line."""
    where = " × ".join(line(part) for part in (change.scheme, change.check, change.tensor) if part)
    numbers = f"{count(change.before)} → {count(change.after)}"
    kind = f" {line(change.kind)}" if change.kind else ""
    note = f" · {line(change.note)}" if change.note else ""
    return f"{line(change.implementation)}: {where}:{kind} {numbers}{note}"


@dataclass
class _Side:
    """All records of one check in one run."""

    records: list[Record] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """Whether anything was compared; a call that raised counts only if it had compared something."""
        return any(r.status in JUDGED and (r.compared or r.mismatched) for r in self.records)

    @property
    def compared(self) -> int:
        return sum(r.compared for r in self.records if r.status in JUDGED)

    @property
    def waived(self) -> bool:
        return not any(r.failed for r in self.records)

    def kinds(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """kind → number of mismatches, and the digests of all records, sorted.

        A call that raised is a kind of its own; the type of what it raised stands for a digest.
        """
        found: dict[str, tuple[int, tuple[str, ...]]] = {}
        for record in self.records:
            kinds = dict(record.kinds) if record.status in JUDGED else {}
            if record.status == "error":
                kinds["error"] = kinds.get("error", 0) + 1
            for kind, n in kinds.items():
                total, digests = found.get(kind, (0, ()))
                own = record.message.partition(":")[0] if kind == "error" else record.digests.get(kind, "")
                found[kind] = total + n, tuple(sorted((*digests, str(own))))
        return found

    def reason(self) -> str:
        """Why nothing was compared."""
        told = dict.fromkeys(f"{r.status.replace('_', ' ')}: {r.message or 'no reason given'}" for r in self.records)
        return "; ".join(list(told)[:3]) or "there is no record of it"


def compare(
    about_before: Mapping[str, Any],
    before: Sequence[Record],
    about_after: Mapping[str, Any],
    after: Sequence[Record],
    *,
    partial: bool = False,
    running: bool = False,
    problems: Sequence[str] = (),
) -> Difference:
    """Compares a run with an earlier one.

    Args:
      about_before, about_after: run.json of each. before, after: the records of each.
      partial: the later run was told to leave something out: what is missing there is not selected, no regression.
      running: the later run is the one that asks, and so not at its end.
      problems: what could not be read of the earlier run's records.
    """
    warnings = [f"the earlier run's records are damaged: {line('; '.join(problems), 200)}"] if problems else []
    warnings += [f"the earlier run's {told}"] if (told := miscount(about_before, before)) else []
    warnings += _warnings(about_before, about_after)
    old, new = _names(before), _names(after)
    if len(old) == len(new) == 1 and old != new:
        warnings.append(f"implementation: {old[0]} → {new[0]}, compared with each other")
        before = [replace(record, implementation=new[0]) for record in before]
    sides = _sides(before), _sides(after)
    absent = {(r.implementation, r.check): r.message for r in after if r.status == "not_run" and r.scheme == "*"}
    changes: list[Change] = []
    equal = 0
    for key in dict.fromkeys((*sides[1], *sides[0])):
        a, b = (side.get(key, _Side()) for side in sides)
        reason = absent.get((key[0], key[2]), "") if not b.records else ""
        found = _changes(key, a, b, selected=not partial or bool(b.records), reason=reason)
        changes += found
        equal += a.judged and b.judged and not (a.kinds() or b.kinds())
    stopped = []
    if not any(side.judged for side in sides[1].values()):
        stopped.append("the later run compared nothing")
    if not running and (_incomplete(about_after) or miscount(about_after, after)):
        stopped.append("the later run is incomplete")
    changes.sort(key=lambda change: ORDER.index(change.what))
    first, second = (str(about.get("run") or "a run") for about in (about_before, about_after))
    return Difference(first, second, tuple(changes), tuple(warnings), tuple(stopped), equal)


def _names(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(record.implementation for record in records))


def _sides(records: Iterable[Record]) -> dict[Key, _Side]:
    sides: dict[Key, _Side] = {}
    for record in records:
        if record.scheme != "*" or record.status != "not_run":  # such a one is told where the check is missed
            key = record.implementation, record.scheme, record.check, str(record.extra.get("tensor", ""))
            sides.setdefault(key, _Side()).records.append(record)
    return sides


def _incomplete(about: Mapping[str, Any]) -> bool:
    return not about.get("finished") or bool(about.get("problems")) or about.get("exit_status") in (2, 3)


def _changes(key: Key, a: _Side, b: _Side, *, selected: bool, reason: str) -> list[Change]:
    before, after = a.kinds(), b.kinds()
    if a.judged and not b.judged:
        what = "no longer judged" if selected else "not selected"
        note = f"not run: {reason}" if reason and selected else b.reason()
        lost = Change(what, *key, "", sum(n for n, _ in before.values()), 0, note)
        return [lost, *(Change("new", *key, kind, 0, n) for kind, (n, _) in after.items() if kind not in before)]
    found = []
    for kind in dict.fromkeys((*after, *before)):
        (n, old), (m, new) = before.get(kind, (0, ())), after.get(kind, (0, ()))
        known = all(old) and all(new)
        same = n == m and (old == new or not known)
        what = "same" if same else "new" if not n else "fixed" if not m else "changed"
        note = "" if (known and kind != "error") or not same else "by their number: there is no digest"
        if what in NEW and b.waived:
            what, note = "new, waived", next((r.message for r in b.records if r.status == "waived"), "")
        elif what == "changed" and n == m:
            note = "as many, and others"
        found.append(Change(what, *key, kind, n, m, note))
    if b.judged and not a.judged:
        found.append(Change("judged", *key, "", 0, sum(n for n, _ in after.values()), ""))
    elif b.compared < a.compared:
        found.append(Change("judged less", *key, "", a.compared, b.compared, _assurances(a, b)))
    return found


def _assurances(a: _Side, b: _Side) -> str:
    said = [" + ".join(dict.fromkeys(r.assurance for r in side.records if r.assurance)) for side in (a, b)]
    return " → ".join(said) if said[0] != said[1] else ""


_FIELDS = ("lowbit", "level", "seed", "implementation", "version")
_LEFT_OUT = ("command", "report_dir", "impl", "require_gpu", "all_mismatches")


def _warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The fields of run.json in which two runs differ and that bear on what they found."""
    found = ["the earlier run is incomplete"] if _incomplete(a) else []
    first, second = (str(about.get("started") or "") for about in (a, b))
    if first > second > "":
        found.append(f"B began before A, {line(second, 80)} and {line(first, 80)}: are they exchanged?")
    if first and first == second and a.get("run") == b.get("run"):
        found.append("a run is compared with itself")
    values = [{name: about.get(name) for name in _FIELDS} for about in (a, b)]
    for about, flat in zip((a, b), values, strict=True):
        flat["checks deselected"] = about.get("deselected") or 0
        for part in ("options", "environment"):
            flat |= dict(_flat(about.get(part), f"{part} · "))
    for name in dict.fromkeys((*values[0], *values[1])):
        if name.rpartition(" · ")[2] in _LEFT_OUT or name == "options · level":
            continue
        old, new = (flat.get(name) for flat in values)
        if old != new:
            found.append(f"{name} differs: {_shown(old)} → {_shown(new)}")
    return found


def _flat(value: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    for name, item in value.items() if isinstance(value, Mapping) else ():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name} · ")
        else:
            yield f"{prefix}{name}", item


def _shown(value: Any) -> str:
    return "none" if value in (None, "", []) else line(value, 80)
