"""Whether a group is in order in itself: tables without a gap, lengths that fit, nothing twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from lowbit import schemes, weights
from lowbit.errors import LowbitError
from lowbit.formats import FORMATS
from lowbit.vectors.case import Block, Exponent, Nibbles, Row, Swizzle, Thresholds, Weight
from lowbit.vectors.group import RANDOM_BYTES, Group
from lowbit.vectors.weight_text import fields_of

NAMED = {"layout": ("nibbles", "swizzle_32_4_4"), "generator": ("philox4x32_10",)}
"""The layouts and generators there are; schemes and formats have registries."""


def disorders(group: Group) -> Iterator[str]:
    """What is wrong with a group, each with its case."""
    try:
        yield from _disorders(group)
    except (AssertionError, AttributeError, TypeError, ValueError, KeyError, IndexError, LowbitError) as error:
        yield f"cannot be read: {type(error).__name__}: {error}"


def _disorders(group: Group) -> Iterator[str]:
    yield from _subject(group)
    names: set[str] = set()
    for case in group.cases:
        if case.name in names:
            yield f"case {case.name!r} stands there twice"
        names.add(case.name)
    checks: dict[str, Callable[[Group], Iterator[str]]] = {
        "rows": _rows,
        "blocks": _blocks,
        "stream": _blocks,
        "exponents": _exponents,
        "thresholds": _thresholds,
        "nibbles": _bytes,
        "swizzle": _bytes,
        "weights": _weights,
    }
    yield from checks.get(group.form, lambda _: iter(()))(group)


def _subject(group: Group) -> Iterator[str]:
    find = weights.get if group.form == "weights" else schemes.get
    try:
        known = {
            "scheme": lambda: all(find(name) for name in group.schemes),
            "format": lambda: group.subject in FORMATS,
        }.get(group.subject_kind, lambda: group.subject in NAMED[group.subject_kind])()
    except LowbitError as error:
        yield str(error)
        return
    if not known:
        yield f"{group.subject_kind} {group.subject!r} is not known"
    if group.kind == "breakpoints" and (group.rounding is None) == (group.nan is None):
        yield "breakpoints want either a rounding or a rule for NaN"


def _rows(group: Group) -> Iterator[str]:
    """Ascending, apart, and without a gap where the table is complete."""
    rows = [case for case in group.cases if isinstance(case, Row)]
    for row in rows:
        if row.first > row.last:
            yield f"row {row.name}: first above last"
    for low, high in itertools.pairwise(rows):
        if high.first <= low.last:
            yield f"row {high.name}: begins before row {low.name} has ended"
    yield from _falling(group, rows)
    if "complete" not in group.group_flags:
        return
    domain = _domain(group)
    at = dict(domain)
    position = None
    for row in rows:
        if position is None:
            if row.first not in at:
                yield f"row {row.name}: the domain {_words(domain)} does not begin there"
                return
            position = row.first
        if row.first != position:
            yield f"row {row.name}: a gap from {position:08x} on"
            return
        end = next(last for first, last in domain if first <= row.first <= last)
        if row.last > end:
            yield f"row {row.name}: leaves the domain at {end:08x}"
            return
        position = None if row.last == end else row.last + 1
    if sum(row.decides for row in rows) != sum(last - first + 1 for first, last in domain):
        yield f"rows do not fill the domain {_words(domain)}"


def _falling(group: Group, rows: list[Row]) -> Iterator[str]:
    """Codes that do not grow with the magnitude, sign by sign; what NaN becomes has no order."""
    if group.nan is not None:
        return
    if group.kind == "scale":
        rows = [row for row in rows if row.last <= 0x7F800000]
    sign = FORMATS[group.subject].sign_mask if group.kind == "breakpoints" else 0
    for low, high in itertools.pairwise(rows):
        if low.first >> 31 == high.first >> 31 and high.code & ~sign < low.code & ~sign:
            yield f"row {high.name}: code {high.code:02x} is below that of the row before it"


def _domain(group: Group) -> list[tuple[int, int]]:
    """The patterns that a complete table decides, as ranges that rows do not cross."""
    if group.kind == "scale":
        return [(0, 0x7FFFFFFF)]
    if group.nan is not None:
        return [(0x7F800001, 0x7FFFFFFF), (0xFF800001, 0xFFFFFFFF)]
    has_nan = FORMATS[group.subject].nan_magnitude is not None
    last = 0x7FFFFFFF if has_nan else 0x7F800000
    return [(0, last), (0x80000000, 0x80000000 | last)]


def _words(domain: list[tuple[int, int]]) -> str:
    return ", ".join(f"{first:08x} to {last:08x}" for first, last in domain)


def _blocks(group: Group) -> Iterator[str]:
    """Lengths that fit one another; ranges of random bytes that fill 0 … 255."""
    scheme = schemes.get(group.subject)
    ranges: list[range] = []
    for case in group.cases:
        assert isinstance(case, Block)  # by the form, as below
        rows, columns = case.shape
        blocks = -(-columns // scheme.block)
        fields = case.fields
        lengths = {
            "x": (len(fields["x"].split()), rows * columns),
            "codes": (len(fields["codes"]), rows * blocks * scheme.block),
            "scales": (len(fields["scales"]), 2 * rows * blocks),
            "random_bits": (len(fields.get("random_bits", "")), 2 * rows * columns),
            "scale_random_bits": (len(fields.get("scale_random_bits", "").split()), rows * blocks),
        }
        for name, (got, want) in lengths.items():
            if name in fields and got != want:
                yield f"case {case.name!r}: {name} has {got} items, want {want} for shape {rows} x {columns}"
        if case.randoms is not None:
            ranges.append(case.randoms)
    if ranges and [r for one in ranges for r in one] != list(range(RANDOM_BYTES)):
        yield "ranges of random bytes do not fill 00 to ff"


def _exponents(group: Group) -> Iterator[str]:
    by_x: dict[int, list[Exponent]] = {}
    for case in group.cases:
        assert isinstance(case, Exponent)
        by_x.setdefault(case.x, []).append(case)
    element = schemes.get(group.subject).element
    end = 1 << (23 - element.mantissa_bits)
    for x, cases in by_x.items():
        starts = [0, *(case.last + 1 for case in cases)]
        if [case.first for case in cases] != starts[:-1] or starts[-1] != end:
            yield f"amax {x:08x}: random integers do not fill 0 to {end - 1:x}"


def _thresholds(group: Group) -> Iterator[str]:
    codes = [case.code for case in group.cases if isinstance(case, Thresholds)]
    if codes != list(range(1, FORMATS[group.subject].max_magnitude + 1)):
        yield "wants one line for each magnitude above 0"
    for case in group.cases:
        assert isinstance(case, Thresholds)
        if case.firsts.size != RANDOM_BYTES:
            yield f"case {case.name!r}: {case.firsts.size} thresholds, want {RANDOM_BYTES}"


def _bytes(group: Group) -> Iterator[str]:
    for case in group.cases:
        if isinstance(case, Nibbles) and case.codes.size != 2 * case.packed.size:
            yield f"case {case.name!r}: {case.codes.size} codes in {case.packed.size} bytes, want two a byte"
        if isinstance(case, Swizzle) and len(case.fields["scales"]) != 2 * case.shape[0] * case.shape[1]:
            yield f"case {case.name!r}: scales do not fill {case.shape[0]} x {case.shape[1]}"


def _weights(group: Group) -> Iterator[str]:
    """Fields that belong to the scheme, and lengths that fit the shape; answers, or a reason to refuse."""
    scheme = weights.get(group.subject)
    held = {field.name for field in fields_of(scheme)} | {"scale_format"}
    if scheme.nested:
        held = held - {"scale_format"} | {"block_size2"}
    common = {"name", "shape", "flags", "source", "seen", "refused"}
    for case in group.cases:
        assert isinstance(case, Weight)
        if foreign := sorted(case.fields.keys() - held - common - set(case.formats)):
            yield f"case {case.name!r}: {foreign[0]} is no entry of {scheme.name}"
        if bool(case.formats) == bool(case.refused):
            yield f"case {case.name!r}: wants either answers or a reason to refuse"
        try:
            case.tensors(scheme)
            for name in case.formats:
                case.expected(name)
        except (KeyError, TypeError, ValueError) as error:  # lowbit's own errors of arguments are ValueErrors
            yield f"case {case.name!r}: {error}"
