"""Applies waivers: which mismatches are waived, and which waivers are themselves a failure.

A waiver fails a run if it has expired, meets nothing, is no longer needed, or is met by something wrong in a new way.
The first three are judged only where everything that it could mean was selected and ran.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lowbit.records import Record
from lowbit.waivers import Waiver, architectures, matches

CHECK = "waivers"
"""The check under which waivers that fail are reported."""

SHOWN = 3
"""Digests, or names of checks, in one message."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What of a run decides whether a waiver holds in it at all.

    Attributes:
      device: the device line. level, seed: of the run. weights: the checkpoint's file name, or "".
      implementations: those judged. today: the day in UTC.
    """

    device: str
    level: str
    seed: int | None
    weights: str
    implementations: tuple[str, ...]
    today: datetime.date

    def foreign(self, waiver: Waiver) -> str:
        """Why a waiver says nothing about this run; "" if it does."""
        names = [name.lower() for name in architectures(self.device)]
        if not any(matches(name, waiver.architecture.lower()) for name in (*names, "")):
            return f"architecture {waiver.architecture}"
        if not matches(self.level, waiver.level):
            return f"level {waiver.level}"
        if waiver.seed is not None and waiver.seed != self.seed:
            return f"seed {waiver.seed}"
        if not matches(self.weights, waiver.weights):
            return f"weights {waiver.weights}"
        if not any(matches(name, waiver.implementation) for name in self.implementations):
            return f"implementation {waiver.implementation}"
        return ""

    def expired(self, waiver: Waiver) -> bool:
        return waiver.expires < self.today


@dataclass(frozen=True)
class Findings:
    """What became of the waivers of a run.

    Attributes:
      failures: a record a waiver that fails the run.
      unjudged: place and reason of the waivers of which this run says nothing.
    """

    failures: list[Record]
    unjudged: list[tuple[str, str]]


def _covers(waiver: Waiver, record: Record) -> bool:
    return waiver.covers(record.implementation, record.scheme, record.check, record.node)


def waive(record: Record, waivers: Sequence[Waiver], setting: Setting) -> Record:
    """The record, as waived if a waiver expects exactly this; else with what keeps a waiver from holding.

    A waived record keeps its counts, samples, diagnosis and message.
    """
    if record.status != "mismatch":
        return record
    near = [waiver for waiver in waivers if _covers(waiver, record)]
    told = []
    for waiver in near:
        elsewhere = setting.foreign(waiver)
        fits = record.digest in waiver.digests
        if fits and not elsewhere and not setting.expired(waiver):
            extra = {**record.extra, "waiver": waiver.place}
            message = "; ".join(filter(None, [waiver.why, record.message]))
            return replace(record, status="waived", message=message, extra=extra)
        if elsewhere:
            told.append(f"not waived: {waiver.place} is for {elsewhere}")
        elif setting.expired(waiver):
            told.append(f"not waived: {waiver.place} expired on {waiver.expires} ({waiver.issue})")
        else:
            told.append(
                f"wrong in a new way: {waiver.place} waives {_listed(waiver.digests)}, this is {record.digest} "
                f"({waiver.issue})"
            )
    return replace(record, message="; ".join(filter(None, [*told, record.message]))) if told else record


def judge(
    waivers: Iterable[Waiver],
    records: Sequence[Record],
    setting: Setting,
    left_out: Callable[[Waiver], str],
) -> Findings:
    """Judges the waivers themselves, at the end of a run.

    Args:
      records: of the whole run, waived where waivers hold.
      left_out: why not everything that a waiver could mean was selected and ran; "" if everything did.
    """
    failures: list[Record] = []
    unjudged: list[tuple[str, str]] = []
    for waiver in waivers:
        elsewhere = setting.foreign(waiver)
        if elsewhere:
            unjudged.append((waiver.place, f"it is for {elsewhere}"))
            continue
        met = [r for r in records if r.status != "not_run" and _covers(waiver, r)]
        why_not = left_out(waiver)
        if met and not any(letter in waiver.node for letter in "*?"):
            why_not = ""
        sentence = _fault(waiver, met, setting, complete=not why_not)
        if sentence:
            failures.append(_failure(waiver, met, sentence, setting))
        elif why_not and not set(waiver.digests) <= {r.digest for r in met if r.status == "waived"}:
            unjudged.append((waiver.place, why_not))
    return Findings(failures, unjudged)


def _fault(waiver: Waiver, met: Sequence[Record], setting: Setting, *, complete: bool) -> str:
    """What is wrong with a waiver, in a sentence; "" if nothing, or if this run cannot tell."""
    if setting.expired(waiver):
        if met or complete:
            return f"expired on {waiver.expires}: settle {waiver.issue}, or give it a new day and say why"
        return ""
    if not complete:
        return ""
    if not met:
        return f"unmatched: no check ran that it could mean ({_meant(waiver)}); correct it or remove it"
    if any(record.failed for record in met):
        return ""  # that record says so
    unused = [d for d in waiver.digests if d not in {r.digest for r in met if r.status == "waived"}]
    if not unused:
        return ""
    statuses = dict.fromkeys(r.status for r in met if r.status != "waived")
    now = {"pass": "passes", "unsupported": "is declined by the implementation"}
    checks = dict.fromkeys(f"{r.scheme} × {r.check}" for r in met if r.status != "waived")
    said = f"; {_listed(checks)} {' or '.join(now.get(s, s) for s in statuses)}" if checks else ""
    return f"no longer needed: nothing is wrong with the digest {_listed(unused)} any more{said}; remove it"


def _failure(waiver: Waiver, met: Sequence[Record], sentence: str, setting: Setting) -> Record:
    judged = [name for name in setting.implementations if matches(name, waiver.implementation)]
    schemes = dict.fromkeys(record.scheme for record in met)
    return Record(
        implementation=", ".join(judged),
        scheme=next(iter(schemes)) if len(schemes) == 1 else "*",
        check=CHECK,
        status="error",
        device=setting.device,
        level=setting.level,
        message=f"{waiver.place}: {sentence}. It says: {waiver.why}",
        node=waiver.place,
    )


def _meant(waiver: Waiver) -> str:
    fields = ("node", "scheme", "check", "implementation")
    return ", ".join(f"{name} {value}" for name in fields if (value := getattr(waiver, name)) != "*")


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
