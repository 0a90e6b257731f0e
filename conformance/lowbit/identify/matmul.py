"""Finds whether a matmul of quantised operands follows its scheme, or which single fault it has.

The operands are exactly summable, so that one result is right whatever the order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lowbit import packing
from lowbit.cases.summable import exactly_summable
from lowbit.compare import arrays
from lowbit.compare.kinds import values_differ
from lowbit.errors import LowbitError, Unsupported
from lowbit.formats import BFLOAT16, BINARY32, FloatFormat
from lowbit.identify.identity import Difference, Identity, declined, ranked, refusal
from lowbit.implementation import Implementation
from lowbit.references import matmul
from lowbit.schemes import Quantized, Scheme
from lowbit.suspects.matmul import suspects
from lowbit.suspects.matmul_trial import Product

FAMILIES = ("nvfp4", "mxfp4")
"""Families whose operands are multiplied."""

SHAPES = ((130, 136, 5), (20, 40, 21))
"""Rows of A and of B, and blocks a row: several tiles of each, K in no whole tiles."""

FACTORS = (8.0, 0.5)
"""Tensor scales of A and B."""

SEED = 1


class Asked(NamedTuple):
    """One call: in words, and some of its rows and columns with what came back and what is right."""

    operands: str
    fmt: FloatFormat
    product: Product


class Answer(NamedTuple):
    """What a candidate gives for every call; None where it cannot be told."""

    name: str
    text: str
    values: list[Any]


def identify_product(subject: Implementation, scheme: Scheme, device: str) -> Identity | None:
    """What `matmul` follows when it is asked for a scheme; None where it declines the scheme."""
    asked: dict[str, Any] = {"implementation": subject.name, "scheme": scheme.name, "operation": "matmul"}
    calls, notes = [], []
    for shape in SHAPES:
        for fmt in (BINARY32, BFLOAT16):
            try:
                calls.append(_asked(subject, scheme, shape, fmt, device))
            except Unsupported as reason:
                notes.append(f"{fmt.name}: {reason}")
            except Exception as reason:  # whatever it is: the implementation is not ours
                notes.append(refusal(f"{fmt.name}", reason))
    if not calls:
        return declined(asked, notes)
    found = list(_answers(calls, scheme))
    inputs = sum(call.product.actual.size for call in calls)
    counts = {answer.name: inputs - _wrong(calls, answer) for answer in found}
    return ranked(
        asked,
        found,
        counts,
        inputs,
        notes,
        registered=lambda one: one is found[0],
        same=partial(_same, calls),
        difference=partial(_difference, calls),
    )


def _asked(
    subject: Implementation, scheme: Scheme, shape: tuple[int, int, int], fmt: FloatFormat, device: str
) -> Asked:
    import torch

    rows, columns, blocks = shape
    terms = blocks * scheme.block
    operands = exactly_summable(scheme, rows, columns, terms, SEED, tensor_scales=FACTORS)
    sides, tensors = [], []
    for side in operands:
        packed, buffer, g = packing.pack(side, scheme, swizzle=True)
        stored = Quantized(packed, buffer, None if g is None else np.asarray(g, np.float32).reshape(1))
        sides.append(stored)
        parts = (None if part is None else torch.from_numpy(np.array(part)).to(device) for part in stored)
        tensors.append(Quantized(*parts))
    dtype = {"binary32": torch.float32, "bfloat16": torch.bfloat16}[fmt.name]
    result = subject.call("matmul", *tensors, scheme, dtype)
    right = matmul.matmul(*operands, scheme, fmt)
    if result.dtype is not dtype or tuple(result.shape) != right.shape:
        raise LowbitError(f"result: got {result.dtype} {tuple(result.shape)}, want {dtype} {right.shape}")
    actual = arrays.host(arrays.bits(result.contiguous())).view(right.dtype)
    wrong = values_differ(fmt)(actual, right)
    product = Product.of(sides[0], sides[1], scheme, fmt, actual if wrong.any() else right ^ 1, right)
    assert product is not None  # something differs, or is made to
    places = np.ix_(*(side.rows for side in product.sides))
    text = f"exactly_summable({scheme.name}, {rows}, {columns}, {terms}, {SEED}, tensor_scales={FACTORS})"
    return Asked(text, fmt, replace(product, actual=actual[places]))


def _answers(calls: Sequence[Asked], scheme: Scheme) -> Iterator[Answer]:
    yield Answer(scheme.name, f"the scheme {scheme.name}", [call.product.expected for call in calls])
    tables = [{one.name: (one.text, one.guess(call.product)) for one in suspects(call.product)} for call in calls]
    for name in dict.fromkeys(name for made in tables for name in made):
        found = [made.get(name, ("", None)) for made in tables]
        if any(value is not None for _, value in found):
            yield Answer(name, next(text for text, _ in found if text), [value for _, value in found])


def _wrong(calls: Sequence[Asked], answer: Answer) -> int:
    return sum(
        call.product.wrong(call.product.expected if value is None else value)
        for call, value in zip(calls, answer.values, strict=True)
    )


def _same(calls: Sequence[Asked], a: Answer, b: Answer) -> bool:
    return all(
        first is None or second is None or not values_differ(call.fmt)(first, second).any()
        for call, first, second in zip(calls, a.values, b.values, strict=True)
    )


def _difference(calls: Sequence[Asked], best: Answer, other: Answer) -> Difference | None:
    """The first place of the smallest product in which the two candidates differ."""
    for call, a, b in sorted(
        zip(calls, best.values, other.values, strict=True), key=lambda one: one[0].product.actual.size
    ):
        if a is None or b is None or not (wrong := values_differ(call.fmt)(a, b)).any():
            continue
        row, column = (int(i) for i in np.argwhere(wrong)[0])
        left, right = call.product.sides
        inputs = {
            "operands": call.operands,
            "place": f"[{int(left.rows[row])}, {int(right.rows[column])}]",
            "to": call.fmt.name,
        }
        width = 2 + call.fmt.bits // 4
        sides = [{"value": f"{int(side[row, column]):#0{width}x}"} for side in (a, b, call.product.actual)]
        return Difference(inputs=inputs, expected=sides[0], other=sides[1], got=sides[2])
    return None
