"""Faults that SqueezeLLM's weights can have: words, tables, the sparse term and the full rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.suspects.fields import NEIGHBOURS, Reader, misreadings
from lowbit.suspects.trial import Suspect
from lowbit.suspects.weight_trial import Ints, TableTrial, bits32, floats, narrowed, patterns, through


def suspects(trial: TableTrial) -> Iterator[Suspect]:
    """All of them, the likeliest first."""
    channels, entries = trial.tensors["lookup_table"].shape
    for name, text, read in misreadings(trial.scheme.packing):
        yield Suspect(name, text, partial(_misread, read=read))
    for count in (entries + 1, 2 * entries, entries // 2):
        text = f"{count} entries a channel in place of {entries}"
        yield Suspect(f"entries_{count}", text, partial(_at, channel=count, code=1))
    yield Suspect("transposed", "tables read column by column", partial(_at, channel=1, code=channels))
    for name, step in NEIGHBOURS:
        guess = partial(_at, channel=entries, code=1, offset=step * entries)
        yield Suspect(f"{name}_table", f"the table of the {name} channel", guess)
    guess = partial(_at, channel=entries, code=-1, offset=entries - 1)
    yield Suspect("table_reversed", "tables from their end", guess)
    for fmt in (BINARY16, BFLOAT16):
        if fmt is not trial.source:
            yield Suspect(f"table_{fmt.name}", f"tables rounded to {fmt.name}", partial(_table_through, fmt=fmt))
    yield from _terms(trial)


def _misread(trial: TableTrial, read: Reader) -> Ints:
    code = read(trial.tensors["qweight"], trial.scheme.packing, trial.row, trial.column)
    return _flat(trial, trial.column * trial.tensors["lookup_table"].shape[1] + code)


def _at(trial: TableTrial, channel: int, code: int, offset: int = 0) -> Ints:
    """The entries at channel * n + code * q + offset of the flattened tables."""
    return _flat(trial, channel * trial.column + code * trial.code() + offset)


def _flat(trial: TableTrial, index: Ints) -> Ints:
    """The entries at places of the flattened tables, which wrap around."""
    tables = patterns(trial.tensors["lookup_table"]).reshape(-1)
    return trial.result(entry=tables[index % tables.size])


def _table_through(trial: TableTrial, fmt: FloatFormat) -> Ints:
    return trial.result(entry=through(trial.entry(), fmt, trial.source))


def _terms(trial: TableTrial) -> Iterator[Suspect]:
    """The sparse term and the full rows."""
    if trial.scheme.sparse:
        yield Suspect("sparse_dropped", "the sparse term left out", lambda t: t.result(terms=(t.full,)))
        for name, step in NEIGHBOURS:
            text = f"the sparse entries of the {name} channel"
            yield Suspect(f"sparse_{name}_channel", text, partial(_sparse_moved, row=0, channel=step))
            text = f"the sparse entries of the {name} input"
            yield Suspect(f"sparse_{name}_row", text, partial(_sparse_moved, row=step, channel=0))
        yield Suspect("sparse_replaces", "sparse entries in place of the table's, not added", _sparse_replaces)
    if trial.scheme.full_rows:
        yield Suspect("full_dropped", "the full rows left out", lambda t: t.result(terms=(t.sparse,)))
    if trial.scheme.sparse and trial.scheme.full_rows:
        text = "the full rows added before the sparse term"
        yield Suspect("full_first", text, lambda t: t.result(terms=(t.full, t.sparse)))
        yield Suspect("terms_first", "the sparse term and the full rows added to each other first", _terms_first)
        yield Suspect("terms_dropped", "the sparse term and the full rows left out", lambda t: t.result(terms=()))
    if trial.scheme.sparse or trial.scheme.full_rows:
        yield Suspect("zeros_added", "+0 added where no term is stored: -0 becomes +0", _zeros_added)
        if trial.fmt is not BINARY32:
            text = f"sums in {trial.fmt.name}, each rounded"
            yield Suspect("narrow_sums", text, _narrow_sums)


def _sparse_moved(trial: TableTrial, row: int, channel: int) -> Ints:
    return trial.result(terms=(trial.sparse_at(trial.row + row, trial.column + channel), trial.full))


def _sparse_replaces(trial: TableTrial) -> Ints:
    term, there = trial.sparse
    entry = narrowed(bits32(term), trial.source)
    return trial.result(entry=np.where(there, entry, trial.entry()), terms=(trial.full,))


def _terms_first(trial: TableTrial) -> Ints:
    (sparse, here), (full, there) = trial.sparse, trial.full
    with np.errstate(all="ignore"):
        both = np.where(here & there, sparse + full, np.where(here, sparse, full))
    return trial.result(terms=((both, here | there),))


def _zeros_added(trial: TableTrial) -> Ints:
    everywhere = np.ones(len(trial.places), np.bool_)
    return trial.result(terms=tuple((term, everywhere) for term, _ in (trial.sparse, trial.full)))


def _narrow_sums(trial: TableTrial) -> Ints:
    total = floats(through(narrowed(trial.entry(), BINARY32, trial.source), trial.fmt))
    for term, there in (trial.sparse, trial.full):
        with np.errstate(all="ignore"):
            added = bits32(total + floats(through(bits32(term), trial.fmt)))
        total = np.where(there, floats(through(added, trial.fmt)), total)
    return narrowed(bits32(total), trial.fmt)
