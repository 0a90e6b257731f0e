"""The failed checks of a page: mismatches by kind, pictures, and programs that repeat them, all within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowbit.records import KINDS, Record, readable
from lowbit.report import drawings, snippet, text
from lowbit.report.outcome import Cell

SECTION_RECORDS, SAMPLES = 6, 2000
"""Records of each failed check; mismatches of the page."""

PICTURES, SNIPPETS = 1_200_000, 400_000
"""Characters of the page that pictures, and that programs, may take; the failures that come first have them."""


def told_in_full(cell: Cell) -> bool:
    """Whether a check has something to show: it failed, or differs and is waived."""
    return any(map(_shown, cell.records))


def _shown(record: Record) -> bool:
    return record.failed or (record.status == "waived" and bool(record.mismatched or record.samples))


def sections(failed: Sequence[Cell]) -> list[dict[str, Any]]:
    """Failed and waived checks with their records; the mismatches shown are shared out evenly."""
    chosen = [(cell, list(filter(_shown, cell.records))) for cell in failed]
    each = max(SAMPLES // max(sum(min(len(records), SECTION_RECORDS) for _, records in chosen), 1), 2)
    room = {"pictures": PICTURES, "snippets": SNIPPETS}
    return [
        {
            "cell": cell,
            "left": max(len(records) - SECTION_RECORDS, 0),
            "records": [_failed(record, each, room) for record in records[:SECTION_RECORDS]],
        }
        for cell, records in chosen
    ]


def _failed(record: Record, limit: int, room: dict[str, int]) -> dict[str, Any]:
    found = drawings.drawn(record.pictures) if room["pictures"] > 0 else {}
    takes = sum(map(drawings.size, found.values()))
    room["pictures"] -= takes
    fits = room["pictures"] > 0
    programs = []
    samples = _spread(record.samples, limit)
    for program in snippet.of_kinds(record, samples) if room["snippets"] > 0 else ():
        room["snippets"] -= len(program["source"])
        programs.append(program)
    return {
        "record": record,
        "strata": _strata(record, samples),
        "shown": len(samples),
        "pictures": found if fits else {},
        "pictures_left": bool(record.pictures) and not fits,
        "programs": programs,
    }


def _strata(record: Record, samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kinds of mismatch with their exact counts, gravest first, and the samples shown of each."""
    rows: dict[str, list[dict[str, Any]]] = {str(kind): [] for kind in record.kinds}
    for row in map(readable, samples):
        kind = str(row["kind"])
        rows.setdefault(kind, []).append(
            {**row, "reason": text.reason(row), "binary32": row["input"] in (None, "binary32")}
        )
    return [
        {
            "name": kind,
            "count": record.kinds.get(kind),
            "share": 100 * record.kinds.get(kind, 0) / max(record.mismatched, 1),
            "means": KINDS.get(kind, ""),
            "samples": found,
        }
        for kind, found in rows.items()
    ]


def _spread(samples: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """At most `limit` samples, some of every kind, in their order."""
    if len(samples) <= limit:
        return list(samples)
    seen: dict[str, int] = {}
    ranked = []
    for i, sample in enumerate(samples):
        kind = str(sample.get("kind"))
        seen[kind] = seen.get(kind, 0) + 1
        ranked.append((seen[kind], i))
    return [samples[i] for i in sorted(i for _, i in sorted(ranked)[:limit])]
