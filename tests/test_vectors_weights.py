"""Golden vectors of stored weights: what they hold, and that text and tensors are one."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_vectors import VECTORS

from lowbit import vectors, weights
from lowbit.cases import weights as weight_cases
from lowbit.cases.known_weight_bugs import KNOWN_WEIGHTS
from lowbit.errors import ArgumentError
from lowbit.formats import BINARY16, FORMATS
from lowbit.references import weights_bits
from lowbit.vectors import Group, Weight
from lowbit.vectors.weight_text import read_weight, write_answer, write_weight
from lowbit.weight_tensors import entries


def weight_groups() -> list[Group]:
    return [group for group in vectors.groups() if group.form == "weights"]


def cases_of(name: str) -> list[Weight]:
    (group,) = (group for group in weight_groups() if group.name == name)
    return [case for case in group.cases if isinstance(case, Weight)]


# -- what the files hold


def test_every_scheme_has_weights_and_every_report_is_there() -> None:
    groups = weight_groups()
    assert {name for group in groups for name in group.schemes} == set(weights.names())
    reported = {(g.subject, c.name) for g in groups if g.kind == "known_bug" for c in g.cases}
    assert reported == {(bug.scheme, bug.name) for bug in KNOWN_WEIGHTS}
    assert sum(len(group.cases) for group in groups) > 400
    assert sum(path.stat().st_size for path in {VECTORS / group.file for group in groups}) < 900_000


def test_awq_is_complete() -> None:
    """Every code with every zero point in every lane, under a scale that says its column."""
    seen = set()
    scheme = weights.get("awq_gk")
    for case in cases_of("awq_gk/lanes"):
        tensors = case.tensors(scheme)
        for word, points in zip(tensors["qweight"][:, 0].tolist(), itertools.repeat(int(tensors["qzeros"][0, 0]))):
            seen |= {(lane, word >> 4 * lane & 15, points >> 4 * lane & 15) for lane in range(8)}
    assert len(seen) == 8 * 16 * 16


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_gptq_is_complete(bits: int) -> None:
    """Every code and every zero point in every place of the period of words, those that cross words too."""
    scheme, period = weights.get(f"gptq{bits}_v1_g128"), {2: 16, 3: 32, 4: 8}[bits]
    codes, points = set(), set()
    for case in cases_of(f"{scheme.name}/lanes"):
        tensors = case.tensors(scheme)
        for column in range(case.shape[1]):
            stream = sum((int(w) & 0xFFFFFFFF) << 32 * i for i, w in enumerate(tensors["qweight"][:, column]))
            codes |= {(k, stream >> bits * k & ((1 << bits) - 1)) for k in range(case.shape[0])}
        stream = sum((int(w) & 0xFFFFFFFF) << 32 * i for i, w in enumerate(tensors["qzeros"][0]))
        points |= {(n, stream >> bits * n & ((1 << bits) - 1)) for n in range(case.shape[1])}
    assert len(codes) == len(points) == period << bits


def test_scales_of_every_kind_are_there() -> None:
    """Zero, negative, subnormal, greatest, Inf and NaN, in each format that a family's scales may have."""
    wanted = {"scale_zero", "scale_negative", "scale_subnormal", "scale_not_finite", "overflow"}
    for name in ("awq_gk", "gptq4_v1_g128", "nf4_b64", "fp4_b64", "int8_channel", "int8_scb", "int8_torch"):
        formats: dict[Any, set[str]] = {}
        for case in cases_of(f"{name}/scales"):
            formats.setdefault(case.fields["scale_format"], set()).update(case.flags)
        assert set(formats) == {fmt.name for fmt in weights.get(name).scale_formats}
        assert all(wanted <= flags for flags in formats.values()), name


def test_a_reader_of_the_document_reads() -> None:
    """Written from VECTORS.md alone: the packing, zero points and arithmetic of AWQ, GPTQ and NF4, by `struct`."""

    def half(value: float) -> str:
        return f"{struct.unpack('<H', struct.pack('<e', value))[0]:04x}"

    def values(text: str, kind: str) -> list[float]:
        size = {"<e": 2, "<f": 4}[kind]
        return [struct.unpack(kind, int(word, 16).to_bytes(size, "little"))[0] for word in text.split()]

    for case in (
        json_case for name in ("awq_gk", "gptq3_v1_g128", "gptq4_v2_g128") for json_case in raw(name, "lanes")
    ):
        (rows, columns), name = case["shape"], case["group"]
        words, zeros = ([int(w, 16) for w in case[field].split()] for field in ("qweight", "qzeros"))
        scales = values(case["scales"], "<e")
        found = []
        for k, n in itertools.product(range(rows), range(columns)):
            if name.startswith("awq"):
                i = n // 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7].index(n % 8)
                code, zero = words[k * columns // 8 + i // 8] >> 4 * (i % 8) & 15, zeros[i // 8] >> 4 * (i % 8) & 15
            else:
                bits = int(name[4])
                code = sum(w << 32 * j for j, w in enumerate(words[n::columns])) >> bits * k & (1 << bits) - 1
                zero = sum(w << 32 * j for j, w in enumerate(zeros)) >> bits * n & (1 << bits) - 1
                zero = (zero + ("_v1" in name)) % (1 << bits)
            found.append(half(scales[n] * (code - zero)))
        assert " ".join(found) == case["binary16"], (name, case["name"])
    table = values(next(c for c in raw("nf4_b64", "codebook") if c["absmax"] == "3f800000")["binary32"], "<f")
    (case,) = raw("nf4_b64", "nibbles")
    absmax = values(case["absmax"], "<f")
    codes = [int(digit, 16) for digit in case["packed"]]  # the high nibble comes first in text too
    single = [struct.unpack("<f", struct.pack("<f", table[q] * absmax[i // 64]))[0] for i, q in enumerate(codes)]
    assert [half(value) for value in single] == case["binary16"].split()


def raw(scheme: str, topic: str) -> Iterator[dict[str, Any]]:
    for group in json.loads((VECTORS / f"schemes/{scheme}/weights.json").read_text())["groups"]:
        if group["name"] == f"{scheme}/{topic}":
            yield from ({**case, "group": scheme} for case in group["cases"])


# -- text and tensors


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and a and isinstance(a[0], np.ndarray):
        return all(map(same, a, b))
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", ["awq_g48", "gptq3_v2_g128", "gptq4_v1_g32+act_order", "nf4_b64", "fp4_b64+nested"])
def test_text_is_read_back(name: str) -> None:
    read_back(name)


@pytest.mark.parametrize("name", ["int8_channel", "int8_torch", "squeezellm4", "squeezellm3+sparse+full_rows"])
def test_text_with_terms_is_read_back(name: str) -> None:
    read_back(name)


def read_back(name: str) -> None:
    scheme = weights.get(name)
    shape = weight_cases.output_shapes(scheme)[1]
    for source in scheme.scale_formats:
        arrays = weight_cases.random(scheme, shape, 5, source=source)
        fields = json.loads(json.dumps(write_weight(arrays, scheme, shape)))
        back = read_weight(fields, scheme)
        assert back.keys() == arrays.keys()
        assert all(same(back[key], arrays[key]) for key in arrays), name


def test_a_field_too_short_is_named() -> None:
    scheme = weights.get("awq_gk")
    fields = dict(cases_of("awq_gk/lanes")[0].fields)
    fields["scales"] = fields["scales"][5:]
    with pytest.raises(ArgumentError, match=r"scales: got 7 items, want 8 for shape \(16, 8\)"):
        read_weight(fields, scheme)
    del fields["scales"]
    with pytest.raises(ArgumentError, match="scales: got none, want it for awq_gk"):
        read_weight(fields, scheme)


def test_batches_say_what_cases_say() -> None:
    """A reference, called as the suite calls a kernel, gives every batch's answer; no case is lost."""
    for group in weight_groups():
        for name in group.schemes:
            scheme = weights.get(name)
            batches = list(vectors.weight_batches(group, scheme))
            assert sorted(n for batch in batches for n in batch.names) == sorted(case.name for case in group.cases)
            for batch in batches:
                assert {entry.name for entry in entries(scheme)} >= batch.tensors.keys()
                for fmt, right in batch.expected.items():
                    found = weights_bits.dequantize(batch.tensors, scheme, FORMATS[fmt])
                    texts = (write_answer(part, FORMATS[fmt]) for part in (found, right))
                    assert len(set(texts)) == 1, (group.name, batch.names, fmt)
    group = next(g for g in weight_groups() if g.name == "nf4_b64/scales")
    (batch,) = vectors.weight_batches(group, weights.get("nf4_b64"))
    assert [batch.case_at((place,)) for place in (0, 63, 64, 129)] == ["absmax 0", "absmax 0", *batch.names[1:3]]


def test_answers_of_nan_are_written_alike() -> None:
    assert write_answer(np.array([0x7C01, 0xFE00, 0x7C00, 0x8000], np.uint16), BINARY16) == "7e00 7e00 7c00 8000"
