"""Records as tables: the columns of summary.csv and mismatches.csv, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lowbit.formats import FORMATS

if TYPE_CHECKING:
    import pandas

    from lowbit.records import Record

SUMMARY_COLUMNS = (
    *("run", "implementation", "version", "scheme", "check", "device", "level", "assurance", "status"),
    *("compared", "mismatched", "kinds", "samples", "diagnosis", "seconds", "node", "message", "repeat", "extra"),
    "digest",
)
"""The columns of summary.csv. `kinds` reads ``tie=3 value=1``, `samples` is their number, `extra` is JSON,
`digest` is what a waiver states.

In the CSV files a text that a spreadsheet would take for a formula, because it begins with ``=``, ``+``, ``-``, ``@``,
a tab or a carriage return, has a ``'`` before it; numbers have none, ``-inf`` neither. Carriage returns read ``\\r``.
"""

MISMATCH_COLUMNS = (
    *("run", "implementation", "version", "scheme", "check", "node", "tensor", "coordinates", "index", "block", "lane"),
    *("input", "x_bits", "x", "scale_actual", "scale_expected", "format", "actual", "expected"),
    *("actual_fields", "expected_fields", "value_actual", "value_expected", "distance", "kind", "rule"),
)
"""The columns of mismatches.csv, one row a sample. Bits are hex; ``*_fields`` are the code's ``s|ee|m``.

Texts that look like formulas are kept from being such in mismatches.csv as in summary.csv: see `SUMMARY_COLUMNS`.
"""


def summary(records: Iterable[Record]) -> pandas.DataFrame:
    """One row a record; columns `SUMMARY_COLUMNS`."""
    rows = []
    for record in records:
        row = record.as_dict()
        row["kinds"] = " ".join(f"{kind}={count}" for kind, count in record.kinds.items())
        row["samples"], row["digest"] = len(record.samples), record.digest
        row["extra"] = json.dumps(row["extra"], sort_keys=True) if record.extra else ""
        rows.append(row)
    return _frame(rows, SUMMARY_COLUMNS)


def mismatches(records: Iterable[Record]) -> pandas.DataFrame:
    """One row a sample; columns `MISMATCH_COLUMNS`, bits as hex."""
    rows = [
        {**{name: getattr(record, name) for name in MISMATCH_COLUMNS[:6]}, **readable(sample)}
        for record in records
        for sample in record.samples
    ]
    return _frame(rows, MISMATCH_COLUMNS)


def readable(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample as people read it: bits as hex of their width, the fields of codes, coordinates in brackets."""
    shown = {name: sample.get(name) for name in MISMATCH_COLUMNS[6:]}
    fmt, source = FORMATS.get(str(sample.get("format"))), FORMATS.get(str(sample.get("input")))
    coordinates = sample.get("coordinates")
    if isinstance(coordinates, (list, tuple)):
        shown["coordinates"] = "[" + ",".join(str(c) for c in coordinates) + "]"
    shown["x_bits"] = hexadecimal(sample.get("x_bits"), source.bits if source else 32)
    if shown["x_bits"] is None:
        shown["input"] = None
    for name in ("scale_actual", "scale_expected"):
        shown[name] = hexadecimal(sample.get(name), 8)
    for name in ("actual", "expected"):
        code = sample.get(name)
        shown[name] = hexadecimal(code, fmt.bits if fmt else 8)
        fits = fmt is not None and isinstance(code, int) and 0 <= code < 1 << fmt.bits
        shown[f"{name}_fields"] = fmt.fields(code) if fmt is not None and isinstance(code, int) and fits else None
    return shown


def inert(frame: pandas.DataFrame) -> pandas.DataFrame:
    """A table whose texts no spreadsheet evaluates, see `SUMMARY_COLUMNS`; what is no text stays."""
    columns = tuple(map(str, frame.columns))
    rows = [dict(zip(columns, map(_inert, row), strict=True)) for row in frame.itertuples(index=False, name=None)]
    return _frame(rows, columns)


def _inert(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    formula = cell.startswith(("=", "+", "-", "@", "\t", "\r")) and cell != "-inf"
    # A carriage return would end the row: the writer quotes it only where it ends lines.
    return ("'" if formula else "") + cell.replace("\r", "\\r")


def hexadecimal(value: Any, bits: int) -> str | None:
    """Bits as hex of a width, ``0x07``; None for what is no integer."""
    return f"0x{value:0{-(-bits // 4)}x}" if isinstance(value, int) else None


def _frame(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pandas.DataFrame:
    import pandas

    # object: integers of any size stay integers, also beside a missing one
    return pandas.DataFrame([[row.get(name) for name in columns] for row in rows], columns=list(columns), dtype=object)
