"""index.html: one self-contained file, readable without script or network, light and dark.

The template escapes everything. Sizes are bounded, so that a run with thousands of records, or with names of any
length, still opens at once: what is left out is counted on the page and stands in the CSV files.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from lowbit import waivers
from lowbit.formats import FORMATS
from lowbit.records import FAILING, Record
from lowbit.report import text
from lowbit.report.html_failures import sections, told_in_full
from lowbit.report.outcome import Cell, axes, first_failures, judge, matrix

MATRIX_CELLS, MATRIX_COLUMNS = 8000, 60
FAILURES, SECTIONS = 4, 120
LISTED, LOUD = 1000, 12
NAME = 120
"""Bounds: cells and columns of the matrix; findings on top; failed checks; rows of a table, and of the one on top;
letters."""

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
_SILENT = ("waived", "not_run", "unsupported")
_SHORT = {
    "exhaustive": "exh",
    "breakpoints": "brk",
    "property": "prop",
    "sampled": "smp",
    "golden": "gold",
    "proved": "proof",
}


def render(
    about: Mapping[str, Any], records: Sequence[Record], problems: Sequence[str] = (), *, difference: str = ""
) -> str:
    """The page of a run.

    Args:
      about: run.json. problems: what could not be read of the records.
      difference: a section, as HTML, on what is new since an earlier run.
    """
    cells = matrix(records)
    failed = [cell for cell in cells.values() if cell.failed]
    environment = about.get("environment")
    environment = environment if isinstance(environment, Mapping) else {}
    judged = dict.fromkeys(r.implementation for r in records) or [str(about.get("implementation") or "nothing named")]
    versions = {r.implementation: r.version for r in records if r.version}
    devices = dict.fromkeys(r.device for r in records if r.device) or [str(environment.get("device") or "unknown")]
    waived = [cell for cell in cells.values() if not cell.failed and told_in_full(cell)]
    failures = first_failures(records, len(records))
    shown = (failed + waived)[:SECTIONS]
    silent = _silent(records)
    script = _environment().get_template("filter.js.j2").render()
    return (
        _environment()
        .get_template("index.html.j2")
        .render(
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            about={**dict.fromkeys(_ABOUT), **about},
            outcome=judge(about, records, problems),
            judged=[f"{name} {versions.get(name, about.get('version') or '')}".strip() for name in judged],
            devices=list(devices),
            failures=failures[:FAILURES],
            failures_left=len(failures[FAILURES:]),
            matrix=_matrix(cells),
            sections=sections(shown),
            difference=difference,
            to_waive={cell.anchor: "\n\n".join(waivers.entries(cell.records, about)) for cell in shown},
            sections_left=len(failed) + len(waived) - len(shown),
            tensors=_tensors(records),
            silent=silent[:LISTED],
            silent_left=max(len(silent) - LISTED, 0),
            loud=_loud(silent),
            loud_shown=LOUD,
            records=_listed(records),
            environment=list(_pairs(environment)),
            command=about.get("command") if isinstance(about.get("command"), str) else _joined(about.get("command")),
            options=list(_pairs(about.get("options") or {})),
        )
    )


def prepare() -> None:
    """Compiles the templates."""
    for name in _environment().list_templates():
        _environment().get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
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
        "linked": _linked,
        "state": lambda status: "bad" if status in FAILING else "silent" if status in _SILENT else "good",
        "scheme": lambda value: "all schemes" if value == "*" else text.line(value, NAME),
    }
    return environment


def _matrix(cells: Mapping[tuple[str, str, str], Cell]) -> dict[str, Any]:
    rows, checks = axes(cells)
    wrong = {cell.check for cell in cells.values() if cell.failed}
    columns = sorted(checks, key=lambda check: check not in wrong)[:MATRIX_COLUMNS]
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
                "state": "bad" if (implementation, scheme) in failing else "good",
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
        "anchor": cell.anchor if cell.failed or told_in_full(cell) else "",
    }


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
    """What does not count, one entry a status, check and reason, with the schemes concerned; waived ones first."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        if record.status in _SILENT:
            key = record.status, record.implementation, record.check, record.message
            groups.setdefault(key, []).append(record)
    rows = []
    for (status, implementation, check, why), found in sorted(groups.items(), key=lambda i: _SILENT.index(i[0][0])):
        names = ["all schemes" if r.scheme == "*" else text.line(r.scheme, NAME) for r in found]
        names = list(dict.fromkeys(names))
        more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
        rows.append(
            {
                "status": status,
                "implementation": implementation,
                "check": check,
                "reason": why or "no reason given",
                "schemes": ", ".join(names[:8]) + more,
                "records": len(found),
                "mismatched": sum(record.mismatched for record in found),
                "kinds": text.of_kinds(_added(record.kinds for record in found)),
                "diagnosis": next((text.diagnosis(record) for record in found if record.diagnosis), ""),
                "waivers": list(
                    dict.fromkeys(text.line(r.extra["waiver"], NAME) for r in found if "waiver" in r.extra)
                ),
            }
        )
    return rows


def _loud(silent: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each waived check, then what did not run, one entry a reason."""
    rows = [row for row in silent if row["status"] == "waived"]
    reasons: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in silent:
        if row["status"] == "not_run":
            reasons.setdefault((row["reason"], row["schemes"]), []).append(row)
    for group in reasons.values():
        names = list(dict.fromkeys(text.line(row["check"], NAME) for row in group))
        more = f" and {len(names) - 12:,} more" if len(names) > 12 else ""
        rows.append({**group[0], "check": ", ".join(names[:12]) + more})
    return rows


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for found in counts:
        for kind, n in found.items():
            total[kind] = total.get(kind, 0) + n
    return total


def _linked(value: Any) -> list[tuple[str, str]]:
    """A text cut into (words, "") and (address, address) of the web, which a reader may follow."""
    parts = re.split(r"(https?://[^\s<>\"'()\\]{1,500})", text.clean(value))
    return [(part, part if i % 2 else "") for i, part in enumerate(parts) if part]


def _listed(records: Sequence[Record]) -> dict[str, Any]:
    """The records in their order; where there are too many, those that fail stay."""
    kept = sorted(range(len(records)), key=lambda i: not records[i].failed)[:LISTED]
    return {"rows": [records[i] for i in sorted(kept)], "left": max(len(records) - LISTED, 0)}


def _fields(value: Any, other: Any, format: Any) -> list[tuple[str, list[tuple[str, bool]]]]:
    """The parts of ``s|ee|m`` with the class of each, and of each digit whether it differs from the other code's."""
    fmt = FORMATS.get(str(format))
    if not value or fmt is None:
        return []
    present = (fmt.signed, fmt.exponent_bits > 0, fmt.mantissa_bits > 0)
    names = [name for name, there in zip(("sign", "exponent", "mantissa"), present, strict=True) if there]
    digits = [(digit, digit != wanted) for digit, wanted in zip(str(value), str(other or value), strict=False)]
    parts: list[list[tuple[str, bool]]] = [[]]
    for digit, differs in digits:
        if digit == "|":
            parts.append([])
        else:
            parts[-1].append((digit, differs))
    return list(zip(names, parts, strict=False))


def _pairs(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """A nested mapping as flat rows."""
    for name, item in value.items() if isinstance(value, Mapping) else ():
        if isinstance(item, Mapping):
            yield from _pairs(item, f"{prefix}{name} · ")
        elif item not in (None, "", []):
            yield f"{prefix}{name}", _joined(item) if isinstance(item, list) else str(item)


def _joined(words: Any) -> str:
    return " ".join(map(str, words)) if isinstance(words, list) else ""
