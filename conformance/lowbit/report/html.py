"""index.html: one self-contained file, readable without script or network, light and dark.

The template escapes everything. Sizes are bounded, so that a run with thousands of records, or with names of any
length, still opens at once: what is left out is counted on the page and stands in the CSV files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from lowbit.formats import FORMATS
from lowbit.records import KINDS, Record, readable
from lowbit.report import text
from lowbit.report.outcome import Cell, axes, first_failures, judge, matrix

MATRIX_CELLS, MATRIX_COLUMNS = 8000, 60
SECTIONS, SECTION_RECORDS, SAMPLES = 120, 6, 2000
LISTED = 1000
NAME = 120
"""Bounds: cells and columns of the matrix; failed checks, records of each, mismatches; rows of a table; letters."""

TENSOR_COLUMNS = {
    "tensor": "tensor",
    "shape": "shape",
    "dtype": "dtype",
    "blocks": "blocks",
    "saturated": "saturated",
    "zero_blocks": "zero blocks",
    "scale_min": "scale min",
    "scale_max": "scale max",
    "sqnr_db": "SQNR dB",
}
"""Figures of a checkpoint's tensor that come first, with their headings; others follow under their own names."""

_ABOUT = ("run", "lowbit", "level", "seed", "started", "finished", "exit_status")
_SHORT = {
    "exhaustive": "exh",
    "breakpoints": "brk",
    "property": "prop",
    "sampled": "smp",
    "golden": "gold",
    "proved": "proof",
}


def render(about: Mapping[str, Any], records: Sequence[Record], problems: Sequence[str] = ()) -> str:
    """The page of a run.

    Args:
      about: run.json. problems: what could not be read of the records.
    """
    cells = matrix(records)
    failed = [cell for cell in cells.values() if cell.failed]
    environment = about.get("environment")
    environment = environment if isinstance(environment, Mapping) else {}
    judged = dict.fromkeys(r.implementation for r in records) or [str(about.get("implementation") or "nothing named")]
    versions = {r.implementation: r.version for r in records if r.version}
    devices = dict.fromkeys(r.device for r in records if r.device) or [str(environment.get("device") or "unknown")]
    shown = failed[:SECTIONS]
    return _template().render(
        about={**dict.fromkeys(_ABOUT), **about},
        outcome=judge(about, records, problems),
        judged=[f"{name} {versions.get(name, about.get('version') or '')}".strip() for name in judged],
        devices=list(devices),
        failures=first_failures(records, 4),
        matrix=_matrix(cells),
        sections=_sections(shown),
        sections_left=len(failed) - len(shown),
        tensors=_tensors(records),
        silent=_silent(records),
        records=_listed(records),
        environment=list(_pairs(environment)),
        command=about.get("command") if isinstance(about.get("command"), str) else _joined(about.get("command")),
        options=list(_pairs(about.get("options") or {})),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            text.clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        ),
    )
    environment.filters |= {
        "count": text.count,
        "number": text.number,
        "name": lambda value: text.line(value, NAME),
        "anchor": lambda record: text.anchor(record.implementation, record.scheme, record.check),
        "kinds": text.of_kinds,
        "diagnosis": text.diagnosis,
        "fields": _fields,
        "scheme": lambda value: "all schemes" if value == "*" else text.line(value, NAME),
    }
    return environment.get_template("index.html.j2")


def _matrix(cells: Mapping[tuple[str, str, str], Cell]) -> dict[str, Any]:
    rows, checks = axes(cells)
    columns = checks[:MATRIX_COLUMNS]
    limit = MATRIX_CELLS // max(len(columns), 1)
    failing = {(cell.implementation, cell.scheme) for cell in cells.values() if cell.failed}
    kept = sorted(rows, key=lambda row: row not in failing)[:limit]
    several = len({implementation for implementation, _ in rows}) > 1
    return {
        "columns": columns,
        "columns_left": len(checks) - len(columns),
        "rows": [
            {
                "implementation": implementation if several else "",
                "scheme": scheme,
                "cells": [_cell(cells.get((implementation, scheme, check))) for check in columns],
            }
            for implementation, scheme in kept
        ],
        "rows_left": len(rows) - len(kept),
    }


def _cell(cell: Cell | None) -> dict[str, str] | None:
    if cell is None:
        return None
    compared = f"{cell.compared:,} compared"
    words = {
        "pass": (text.about(cell.compared), compared),
        "mismatch": (f"✗ {text.about(cell.mismatched)}", f"{cell.mismatched:,} of {compared}"),
        "error": ("error", "the check raised"),
        "waived": ("waived", "waived"),
        "not_run": ("not run", "not run"),
        "unsupported": ("n/a", "unsupported by the implementation"),
    }
    label, title = words[cell.status]
    kinds = dict.fromkeys(record.assurance.partition("(")[0].strip() for record in cell.records if record.assurance)
    return {
        "status": cell.status,
        "label": label,
        "title": f"{title}{' · ' if cell.assurance else ''}{text.line(cell.assurance, NAME)}",
        "assurance": "+".join(_SHORT.get(kind, text.line(kind, 6)) for kind in kinds)[:16],
        "anchor": cell.anchor if cell.failed else "",
    }


def _sections(failed: Sequence[Cell]) -> list[dict[str, Any]]:
    """The failed checks with their records; the mismatches shown are shared out evenly."""
    chosen = [(cell, [record for record in cell.records if record.failed]) for cell in failed]
    each = max(SAMPLES // max(sum(min(len(records), SECTION_RECORDS) for _, records in chosen), 1), 2)
    return [
        {
            "cell": cell,
            "left": max(len(records) - SECTION_RECORDS, 0),
            "records": [_failed(record, each) for record in records[:SECTION_RECORDS]],
        }
        for cell, records in chosen
    ]


def _failed(record: Record, limit: int) -> dict[str, Any]:
    chosen = _spread(record.samples, limit)
    return {
        "record": record,
        "kinds": [
            {"name": kind, "count": n, "share": 100 * n / max(record.mismatched, 1), "means": KINDS.get(kind, "")}
            for kind, n in record.kinds.items()
            if isinstance(n, int)
        ],
        "samples": [
            {**row, "reason": text.reason(row), "binary32": row["input"] in (None, "binary32")}
            for row in map(readable, chosen)
        ],
    }


def _spread(samples: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
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


def _tensors(records: Sequence[Record]) -> dict[str, Any]:
    """One row a record of a checkpoint's tensor."""
    found = [record for record in records if "tensor" in record.extra]
    names = list(dict.fromkeys(name for record in found for name in record.extra if name != "scheme"))
    ordered = [name for name in TENSOR_COLUMNS if name in names]
    ordered += [name for name in names if name not in TENSOR_COLUMNS][:12]
    return {
        "headings": [TENSOR_COLUMNS.get(name, name.replace("_", " ")) for name in ordered],
        "rows": [{"record": r, "figures": [_figure(r.extra.get(name)) for name in ordered]} for r in found[:LISTED]],
        "left": max(len(found) - LISTED, 0),
    }


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return text.line(" × ".join(map(str, value)), NAME)
    if isinstance(value, float):
        return f"{value:.2f}"
    return text.line(text.count(value) if isinstance(value, int) else value, NAME)


def _silent(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What compared nothing, one entry a status, check and reason, with the schemes concerned."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for record in records:
        if record.status in ("not_run", "unsupported", "waived"):
            key = record.status, record.implementation, record.check, record.message
            groups.setdefault(key, []).append(record.scheme)
    rows = []
    for (status, implementation, check, why), found in sorted(groups.items(), key=lambda item: item[0][0]):
        names = ["all schemes" if name == "*" else text.line(name, NAME) for name in dict.fromkeys(found)]
        more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
        rows.append(
            {
                "status": status,
                "implementation": implementation,
                "check": check,
                "reason": why or "no reason given",
                "schemes": ", ".join(names[:8]) + more,
            }
        )
    return rows[:LISTED]


def _listed(records: Sequence[Record]) -> dict[str, Any]:
    """The records in their order; where there are too many, those that fail stay."""
    kept = sorted(range(len(records)), key=lambda i: not records[i].failed)[:LISTED]
    return {"rows": [records[i] for i in sorted(kept)], "left": max(len(records) - LISTED, 0)}


def _fields(value: Any, format: Any) -> list[tuple[str, str]]:
    """The parts of ``s|ee|m`` with the class of each."""
    fmt = FORMATS.get(str(format))
    if not value or fmt is None:
        return []
    present = (fmt.signed, fmt.exponent_bits > 0, fmt.mantissa_bits > 0)
    names = [name for name, there in zip(("sign", "exponent", "mantissa"), present, strict=True) if there]
    return list(zip(names, str(value).split("|"), strict=False))


def _pairs(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """A nested mapping as flat rows."""
    for name, item in value.items() if isinstance(value, Mapping) else ():
        if isinstance(item, Mapping):
            yield from _pairs(item, f"{prefix}{name} · ")
        elif item not in (None, "", []):
            yield f"{prefix}{name}", _joined(item) if isinstance(item, list) else str(item)


def _joined(words: Any) -> str:
    return " ".join(map(str, words)) if isinstance(words, list) else ""
