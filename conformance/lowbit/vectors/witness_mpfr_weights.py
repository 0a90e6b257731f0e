"""Stored weights in MPFR's arithmetic: every rounding is done by that library.

The storage conventions of SPEC.md 5 are written once more here, from its words and in its order, on the text of a case:
a line of words is one large integer, of which a code is some bits. Nothing of `lowbit.weights` is asked but the rules
that a scheme's name stands for; the permutation and the factor are this module's own, tables are those printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lowbit import weights as registry
from lowbit.formats import BINARY32, FORMATS, FloatFormat
from lowbit.rules import OutputRounding
from lowbit.vectors.case import Weight
from lowbit.vectors.group import Group
from lowbit.vectors.published import FP4_TWELFTHS, NF4, NF4_FOUR_DIGITS
from lowbit.vectors.votes import Answer
from lowbit.vectors.witness_mpfr_arithmetic import context, gmp, number, pattern_text
from lowbit.weights import WeightScheme

Fields = dict[str, Any]

Place = tuple[int, ...]

OUTPUTS = ("binary16", "bfloat16", "binary32")

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, from 8c on, that bits 4i..4i+3 of word c hold."""


def weights(group: Group) -> Iterator[Answer]:
    """Every value of every case; of one that must be refused, whether an index is that of no group."""
    scheme = registry.get(group.subject)
    for case in group.cases:
        assert isinstance(case, Weight)  # by the form
        if case.refused and "g_idx" in case.fields:
            groups = -(-case.shape[0] // (case.shape[0] if scheme.group == -1 else scheme.group))
            wrong = any(not 0 <= index < groups for index in case.fields["g_idx"])
            yield Answer(case.name, "g_idx", "refused" if wrong else "accepted", "refused")
        for name in case.formats:
            weight = _weight(dict(case.fields), scheme, FORMATS[name])
            texts = [pattern_text(weight(place), FORMATS[name]) for place in _places(case.shape)]
            yield Answer(case.name, name, " ".join(texts), case.fields[name])


def _weight(fields: Fields, scheme: WeightScheme, fmt: FloatFormat) -> Callable[[Place], Any]:
    """From a place of the weight to its value, which the format holds."""
    if scheme.family in ("awq", "gptq"):
        return _grouped(fields, scheme, fmt)
    if scheme.family in ("nf4", "fp4"):
        return _blocks(fields, scheme, fmt)
    return _channels(fields, scheme, fmt) if scheme.family == "int8" else _tables(fields, scheme, fmt)


def _grouped(fields: Fields, scheme: WeightScheme, fmt: FloatFormat) -> Callable[[Place], Any]:
    rows, columns = fields["shape"]
    bits, size = scheme.bits, rows if scheme.group == -1 else scheme.group
    words, zero_words = _words(fields["qweight"]), _words(fields["qzeros"])
    source = FORMATS[fields["scale_format"]]
    scales = _values(fields["scales"], source)
    wide = columns * bits // 32
    zeros = [_line(zero_words[start : start + wide]) for start in range(0, len(zero_words), wide)]
    if scheme.family == "awq":
        lines = [_line(words[start : start + wide]) for start in range(0, len(words), wide)]
    else:
        lines = [_line(words[column::columns]) for column in range(columns)]
    through = scheme.output_rounding is OutputRounding.THROUGH_SCALE_DTYPE

    def weight(place: Place) -> Any:
        k, n = place
        group = fields["g_idx"][k] if "g_idx" in fields else k // size
        if scheme.family == "awq":
            field = n // 8 * 8 + AWQ_COLUMNS.index(n % 8)
            q, zero = _bits(lines[k], field, 4), _bits(zeros[group], field, 4)
        else:
            q, zero = _bits(lines[n], k, bits), _bits(zeros[group], n, bits)
            if "_v1" in scheme.name:
                zero = (zero + 1) & ((1 << bits) - 1)
        difference, scale = gmp().mpfr(q - zero), scales[group * columns + n]
        if through:
            return context(fmt).plus(context(source).mul(difference, scale))
        return context(fmt).mul(difference, scale)

    return weight


def _blocks(fields: Fields, scheme: WeightScheme, fmt: FloatFormat) -> Callable[[Place], Any]:
    single = context(BINARY32)
    if scheme.family == "fp4":
        magnitudes = [single.div(gmp().mpfr(text), gmp().mpfr(12)) for text in FP4_TWELFTHS]
        table = [*magnitudes, *(-value for value in magnitudes)]
    else:
        texts = NF4_FOUR_DIGITS if scheme.name == "nf4_four_digit" else NF4
        table = [single.plus(gmp().mpfr(text, 200)) for text in texts]
    stored = bytes.fromhex(fields["packed"])
    if scheme.nested:
        code2, absmax2 = _values(fields["code2"], BINARY32), _values(fields["absmax2"], BINARY32)
        code2 += [gmp().mpfr(0)] * (256 - len(code2))
        offset = number(int(fields["offset"], 16))
        absmax = [
            single.add(single.mul(code2[code], absmax2[block // fields["block_size2"]]), offset)
            for block, code in enumerate(bytes.fromhex(fields["absmax"]))
        ]
    else:
        absmax = _values(fields["absmax"], BINARY32)

    def weight(place: Place) -> Any:
        flat = 0
        for index, length in zip(place, fields["shape"], strict=True):
            flat = flat * length + index
        high, low = divmod(stored[flat // 2], 16)
        product = single.mul(table[low if flat % 2 else high], absmax[flat // scheme.group])
        return context(fmt).plus(product)

    return weight


def _channels(fields: Fields, scheme: WeightScheme, fmt: FloatFormat) -> Callable[[Place], Any]:
    single = context(BINARY32)
    source = FORMATS[fields["scale_format"]]
    scales, stored = _values(fields["scale"], source), bytes.fromhex(fields["weight"])

    def weight(place: Place) -> Any:
        n, k = place
        byte = stored[n * fields["shape"][1] + k]
        q = gmp().mpfr(byte - 256 if byte > 127 else byte)
        if scheme.name == "int8_torch":
            return context(fmt).plus(context(source).mul(q, scales[n]))
        product = single.mul(q, scales[n])
        if scheme.name == "int8_scb":
            product = single.mul(product, single.div(gmp().mpfr(1), gmp().mpfr(127)))
        return context(fmt).plus(product)

    return weight


def _tables(fields: Fields, scheme: WeightScheme, fmt: FloatFormat) -> Callable[[Place], Any]:
    rows, columns = fields["shape"]
    single, bits = context(BINARY32), scheme.bits
    words = _words(fields["qweight"])
    lines = [_line(words[column::columns]) for column in range(columns)]
    table = _values(fields["lookup_table"], FORMATS[fields["scale_format"]])
    terms: list[dict[Place, Any]] = []
    if "sparse_values" in fields:
        starts, values = fields["sparse_crow_indices"], _values(fields["sparse_values"], BINARY32)
        entries = {(k, n): i for n in range(columns) for i, k in _entries(fields["sparse_col_indices"], starts, n)}
        terms.append({place: values[i] for place, i in entries.items()})
    if "full_rows_values" in fields:
        channels, values = fields["full_rows_indices"], _values(fields["full_rows_values"], BINARY32)
        count = len(channels)
        terms.append({(k, n): values[k * count + r] for r, n in enumerate(channels) for k in range(rows)})

    def weight(place: Place) -> Any:
        k, n = place
        total = table[(n << bits) + _bits(lines[n], k, bits)]
        for term in terms:
            if place in term:
                total = single.add(total, term[place])
        return context(fmt).plus(total)

    return weight


def _entries(columns: Sequence[int], starts: Sequence[int], n: int) -> Iterator[tuple[int, int]]:
    return ((i, columns[i]) for i in range(starts[n], starts[n + 1]))


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def _line(words: Sequence[int]) -> int:
    """The words of one line as one integer, the first one least significant."""
    return sum(word << 32 * place for place, word in enumerate(words))


def _bits(line: int, field: int, bits: int) -> int:
    return line >> field * bits & ((1 << bits) - 1)


def _values(text: str, fmt: FloatFormat) -> list[Any]:
    """The values of patterns; MPFR has NaN, Inf and -0 itself."""
    found = []
    for pattern in _words(text):
        value = fmt.value(pattern)
        found.append(gmp().mpfr(value) if isinstance(value, float) else gmp().mpfr(gmp().mpq(value), 53))
    return found


def _places(shape: tuple[int, ...]) -> Iterator[Place]:
    if not shape:
        yield ()
        return
    for index in range(shape[0]):
        for rest in _places(shape[1:]):
            yield (index, *rest)
