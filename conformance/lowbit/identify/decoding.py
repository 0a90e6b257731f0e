"""Finds which scheme, or which change of a rule, a block decoder follows: every code under every scale byte."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lowbit import packing, schemes
from lowbit.compare import arrays
from lowbit.compare.kinds import values_differ
from lowbit.errors import LowbitError, Unsupported
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.identify import probes
from lowbit.identify.identity import Difference, Identity, declined, ranked, refusal
from lowbit.implementation import Implementation
from lowbit.references import bits
from lowbit.schemes import Encoded, Quantized, Scheme
from lowbit.suspects.decode_trial import DecodeTable, DecodeTrial
from lowbit.suspects.decoding import suspects
from lowbit.suspects.weight_trial import Ints

FORMATS = (BINARY32, BFLOAT16, BINARY16)


class Asked(NamedTuple):
    """One call: what was decoded, to what, and what came back; `trial` holds the right answer as well."""

    encoded: Encoded
    fmt: FloatFormat
    trial: DecodeTrial


class Answer(NamedTuple):
    """What a candidate gives for every call; None where it cannot be told."""

    name: str
    text: str
    registered: bool
    values: list[Ints | None]


def decoding_class(scheme: Scheme) -> tuple[Any, ...]:
    """Schemes of one class decode alike."""
    parts = scheme.family, scheme.element.name, scheme.scale.name, scheme.block, scheme.global_scale, scheme.high.name
    return (*parts, scheme.tensor_scale.value == "none")


def identify_decoder(subject: Implementation, scheme: Scheme, device: str) -> Identity | None:
    """What `dequantize` follows when it is asked for a scheme; None where it declines the scheme."""
    asked: dict[str, Any] = {"implementation": subject.name, "scheme": scheme.name, "operation": "dequantize"}
    encoded, calls, notes = probes.decoded(scheme), [], []
    for fmt in FORMATS:
        for factor in probes.factored(scheme):
            given = encoded._replace(tensor_scale=None if factor is None else np.float32(factor))
            try:
                actual = _call(subject, given, scheme, fmt, device)
            except Unsupported as reason:
                notes.append(f"{fmt.name}: {reason}")
                continue
            except Exception as reason:  # whatever it is: the implementation is not ours
                notes.append(refusal(f"{fmt.name}, tensor scale {factor}", reason))
                continue
            calls.append(Asked(given, fmt, _trial(given, scheme, fmt, actual)))
    if not calls:
        return declined(asked, notes)
    found = list(_answers(calls, scheme))
    inputs = sum(call.trial.actual.size for call in calls)
    counts = {answer.name: inputs - sum(_wrong(calls, answer)) for answer in found}
    return ranked(
        asked,
        found,
        counts,
        inputs,
        notes,
        registered=lambda one: one.registered,
        same=partial(_same, calls),
        difference=partial(_difference, calls),
    )


def _call(subject: Implementation, encoded: Encoded, scheme: Scheme, fmt: FloatFormat, device: str) -> np.ndarray:
    """The values as patterns, on the host."""
    import torch

    parts = [
        None if part is None else torch.from_numpy(np.atleast_1d(np.asarray(part)).copy()).to(device)
        for part in packing.pack(encoded, scheme)
    ]
    dtype = {"binary32": torch.float32, "bfloat16": torch.bfloat16, "binary16": torch.float16}[fmt.name]
    result = subject.call("dequantize", Quantized(*parts), scheme, dtype)
    if result.dtype is not dtype or tuple(result.shape) != encoded.codes.shape:
        raise LowbitError(f"result: got {result.dtype} {tuple(result.shape)} for codes {encoded.codes.shape}")
    return arrays.host(arrays.bits(result.contiguous()))


def _trial(encoded: Encoded, scheme: Scheme, fmt: FloatFormat, actual: np.ndarray) -> DecodeTrial:
    expected = bits.dequantize(encoded, scheme, fmt)
    shape = (encoded.scales.size, scheme.block)
    unsigned = actual.view(f"u{fmt.bits // 8}").reshape(shape).astype(np.int64)
    return DecodeTrial(
        table=DecodeTable.of(scheme, fmt, encoded.tensor_scale),
        codes=encoded.codes.reshape(shape),
        scales=encoded.scales.reshape(-1, 1),
        actual=unsigned,
        expected=expected.reshape(shape).astype(np.int64),
        grid=encoded.scales.shape,
    )


def _answers(calls: Sequence[Asked], scheme: Scheme) -> Iterator[Answer]:
    """The scheme itself, the other decodings of its element, block and scale, and every single fault."""
    yield Answer(scheme.name, f"the scheme {scheme.name}", True, [call.trial.expected for call in calls])
    known = {decoding_class(scheme)}
    for other in schemes.select():
        alike = (other.element, other.scale, other.block) == (scheme.element, scheme.scale, scheme.block)
        if alike and decoding_class(other) not in known:
            known.add(decoding_class(other))
            tables = [DecodeTable.of(other, call.fmt, call.encoded.tensor_scale) for call in calls]
            read: list[Ints | None] = [c.trial.read(table.expected) for c, table in zip(calls, tables, strict=True)]
            yield Answer(other.name, f"the scheme {other.name}", True, read)
    names = {suspect.name: suspect.text for call in calls for suspect in suspects(call.trial)}
    guesses = [{suspect.name: suspect.guess for suspect in suspects(call.trial)} for call in calls]
    for name, text in names.items():
        values = [made.get(name, _right)(call.trial) for made, call in zip(guesses, calls, strict=True)]
        if any(value is not None for value in values):
            yield Answer(name, text, False, values)


def _right(trial: DecodeTrial) -> Ints:
    """What a fault of the factor gives where there is no factor."""
    return trial.expected


def _wrong(calls: Sequence[Asked], answer: Answer) -> Iterator[int]:
    for call, value in zip(calls, answer.values, strict=True):
        yield call.trial.actual.size if value is None else call.trial.wrong(value)


def _same(calls: Sequence[Asked], a: Answer, b: Answer) -> bool:
    return all(
        first is not None and second is not None and not values_differ(call.fmt)(first, second).any()
        for call, first, second in zip(calls, a.values, b.values, strict=True)
    )


def _difference(calls: Sequence[Asked], best: Answer, other: Answer) -> Difference | None:
    """The first code and scale byte of which the two candidates make different values."""
    for call, a, b in zip(calls, best.values, other.values, strict=True):
        if a is None or b is None or not (wrong := values_differ(call.fmt)(a, b)).any():
            continue
        block, lane = np.argwhere(wrong)[0]
        inputs = {
            "code": f"{int(call.trial.codes[block, lane]):#x}",
            "scale": f"{int(call.trial.scales[block, 0]):#04x}",
            "lane": int(lane),
            "to": call.fmt.name,
        }
        if call.encoded.tensor_scale is not None:
            inputs["tensor_scale"] = f"{int(np.float32(call.encoded.tensor_scale).view(np.uint32)):#010x}"
        width = 2 + call.fmt.bits // 4
        sides = [{"value": f"{int(side[block, lane]):#0{width}x}"} for side in (a, b, call.trial.actual)]
        return Difference(inputs=inputs, expected=sides[0], other=sides[1], got=sides[2])
    return None
