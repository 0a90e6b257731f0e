"""mismatches.parquet: every mismatch that has a place, on request (`--all-mismatches`).

A folder of parts, each a Parquet file by itself, with the columns of mismatches.csv; whatever reads Parquet reads the
folder as one table. A process writes its own parts and gives each its name when the check is over, or when the part
is full; so what stands there can be read at any moment, also after a crash. A file that was not finished begins with
``_``, which readers of folders pass over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from lowbit.errors import ReportError
from lowbit.formats import FORMATS
from lowbit.records import MISMATCH_COLUMNS
from lowbit.tables import hexadecimal

FOLDER = "mismatches.parquet"

GROUP = 1 << 15
"""Rows written together, as one row group: some tens of MB in memory."""

PART = 1 << 22
"""Rows of a part."""

NUMBERS = {
    **dict.fromkeys(("index", "block", "lane", "distance"), "int64"),
    **dict.fromkeys(("x", "value_actual", "value_expected"), "float64"),
}
"""The columns that are no texts, with their types."""


def require() -> None:
    """Raises ReportError where pyarrow is missing."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ReportError("--all-mismatches: needs pyarrow, got none; pip install 'lowbit[parquet]'") from error


class Parts:
    """The parts that one process writes.

    Args:
      folder: of the run. worker: "" for the process that owns the run; it leaves a part without rows, so that the
        folder is a table also where nothing differs.
    """

    def __init__(self, folder: Path, worker: str = ""):
        self.folder, self.worker = folder / FOLDER, worker
        self._number = self._rows = 0
        self._waiting: list[Any] = []
        self._writer: Any = None
        self.folder.mkdir(exist_ok=True)
        if not worker:
            self._open()
            self.close()

    def add(self, columns: Mapping[str, Any], names: Mapping[str, str]) -> None:
        """Takes mismatches.

        Args:
          columns: as `Rows.columns` gives them, at most some ten thousand.
          names: run, implementation, version, scheme, check and node, of all of them.
        """
        import pyarrow

        count = len(columns["index"])
        found = {**{name: _same(text, count) for name, text in names.items()}, **_texts(columns, count)}
        self._waiting.append(pyarrow.table([found[name] for name in MISMATCH_COLUMNS], schema=_schema()))
        while sum(table.num_rows for table in self._waiting) >= GROUP:
            self._write(GROUP)

    def close(self) -> None:
        """Writes what waits and gives the part its name."""
        if self._waiting:
            self._write(GROUP)
        if self._writer is not None:
            self._writer.close()
            self._path("_").replace(self._path())
            self._writer, self._rows, self._number = None, 0, self._number + 1

    def _write(self, most: int) -> None:
        """Writes one row group of what waits."""
        import pyarrow

        if self._writer is None:
            self._open()
        table = pyarrow.concat_tables(self._waiting)
        self._waiting = [table.slice(most)] if table.num_rows > most else []
        self._writer.write_table(table.slice(0, most), row_group_size=most)
        self._rows += min(most, table.num_rows)
        if self._rows >= PART:
            rest, self._waiting = self._waiting, []
            self.close()
            self._waiting = rest

    def _open(self) -> None:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(self._path("_"), _schema())

    def _path(self, beginning: str = "") -> Path:
        return self.folder / f"{beginning}{self.worker or 'main'}-{self._number:06d}.parquet"


def _schema() -> Any:
    import pyarrow

    kinds = {"int64": pyarrow.int64(), "float64": pyarrow.float64()}
    return pyarrow.schema([(name, kinds.get(NUMBERS.get(name, ""), pyarrow.string())) for name in MISMATCH_COLUMNS])


def _texts(columns: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The columns as mismatches.csv shows them, see `tables.readable`, as Arrow's; an empty text is null."""
    import pyarrow

    found: dict[str, Any] = {}
    for name, kind in NUMBERS.items():
        column = columns[name]
        found[name] = pyarrow.nulls(count, kind) if column is None else pyarrow.array(column, kind)
    for name in ("tensor", "format"):
        found[name] = _same(columns[name], count)
    found["kind"] = pyarrow.array(columns["kind"], pyarrow.string())
    found["rule"] = pyarrow.array([rule or None for rule in columns["rule"]], pyarrow.string())
    found["coordinates"] = _places(columns["coordinates"], count)
    found["x_bits"] = _coded(columns["x_bits"], columns["input"], 32, count)
    found["input"] = _where(found["x_bits"], columns["input"])
    for name in ("scale_actual", "scale_expected"):
        found[name] = _coded(columns[name], "", 8, count)
    for name in ("actual", "expected"):
        found[name] = _coded(columns[name], columns["format"], 8, count)
        found[f"{name}_fields"] = _coded(columns[name], columns["format"], 8, count, fields=True)
    return found


def _same(text: str, count: int) -> Any:
    """One text for all, null for an empty one; halves of surrogate pairs, which UTF-8 lacks, are written as escapes."""
    import pyarrow

    value = text.encode("utf-8", "backslashreplace").decode("utf-8") or None
    return pyarrow.repeat(pyarrow.scalar(value, pyarrow.string()), count)


def _where(texts: Any, name: str) -> Any:
    """A name wherever there is a text."""
    from pyarrow import compute

    return compute.if_else(compute.is_valid(texts), name, None)


def _places(axes: list[Any], count: int) -> Any:
    import pyarrow
    from pyarrow import compute

    if not axes:
        return _same("[]", count)
    numbers = [pyarrow.array(axis).cast(pyarrow.string()) for axis in axes]
    return compute.binary_join_element_wise("[", compute.binary_join_element_wise(*numbers, ","), "]", "")


def _coded(column: Any, name: str, otherwise: int, count: int, *, fields: bool = False) -> Any:
    """Bits of a format as hex of its width, of `otherwise` bits where the name is no format's; or their fields."""
    import pyarrow

    if column is None:
        return pyarrow.nulls(count, pyarrow.string())
    fmt = FORMATS.get(name)
    bits = fmt.bits if fmt else otherwise
    codes = pyarrow.array(column)
    if bits <= 8:
        return pyarrow.array(_table(name, bits, fields), pyarrow.string()).take(codes)
    show = fmt.fields if fmt and fields else partial(hexadecimal, bits=bits)
    return pyarrow.array([None if code is None else show(code) for code in codes.to_pylist()], pyarrow.string())


@cache
def _table(name: str, bits: int, fields: bool) -> list[str | None]:
    """What every byte shows as; codes may have bits that their format lacks."""
    fmt = FORMATS.get(name)
    if not fields:
        return [hexadecimal(code, bits) for code in range(256)]
    return [fmt.fields(code) if fmt and code < 1 << bits else None for code in range(256)]
