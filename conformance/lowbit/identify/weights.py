"""Finds which weight scheme, or which change of a rule, a dequantiser of stored weights follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lowbit.cases import weights as weight_cases
from lowbit.compare import arrays
from lowbit.compare.comparison import spread
from lowbit.compare.kinds import values_differ
from lowbit.compare.weights import origin
from lowbit.errors import LowbitError, Unsupported
from lowbit.formats import BFLOAT16, BINARY16, FloatFormat
from lowbit.identify.identity import Difference, Identity, declined, ranked, refusal
from lowbit.implementation import Implementation
from lowbit.references import weights_bits
from lowbit.suspects.weight_trial import Ints, WeightTrial
from lowbit.suspects.weights import roundings, suspects
from lowbit.weights import WeightScheme

SHAPES = {"awq": (2, 40), "gptq": (2, 32), "nf4": (37, 97), "fp4": (37, 97), "int8": (24, 40), "squeezellm": (1, 24)}
"""Shapes of random weights; rows of those that have groups count in groups and a bit."""


PLACES = 1 << 11
"""Weights of one call that are compared: half of them wrong ones, if there are so many."""


class Asked(NamedTuple):
    """One call: the stored tensors, and the trial that has what came back and what is right."""

    tensors: Mapping[str, Any]
    trial: WeightTrial


class Answer(NamedTuple):
    """What a candidate gives for every call; None where it cannot be told."""

    name: str
    text: str
    values: list[Ints | None]


def identify_weight(subject: Implementation, scheme: WeightScheme, device: str) -> Identity | None:
    """What `dequantize_weight` follows when it is asked for a scheme; None where it declines the scheme."""
    asked: dict[str, Any] = {"implementation": subject.name, "scheme": scheme.name, "operation": "dequantize_weight"}
    calls, notes = [], []
    stored = ((weight_cases.lanes(scheme), BINARY16), (weight_cases.random(scheme, _shape(scheme), 4), BFLOAT16))
    for tensors, fmt in stored:
        try:
            actual = _call(subject, tensors, scheme, fmt, device)
            right = weights_bits.dequantize(tensors, scheme, fmt)
            if actual.shape != right.shape:
                raise LowbitError(f"result: got shape {actual.shape}, want {right.shape}")
        except Unsupported as reason:
            notes.append(f"{fmt.name}: {reason}")
            continue
        except Exception as reason:  # whatever it is: the implementation is not ours
            notes.append(refusal(f"{fmt.name}", reason))
            continue
        calls.append(Asked(tensors, _trial(tensors, scheme, fmt, actual, right)))
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
        registered=lambda one: one is found[0],
        same=partial(_same, calls),
        difference=partial(_difference, calls, scheme),
    )


def _shape(scheme: WeightScheme) -> tuple[int, int]:
    """A small weight of more than one group, of whole words, the last group short where it may be."""
    rows, columns = SHAPES[scheme.family]
    if scheme.family in ("nf4", "fp4", "int8"):
        return rows, columns
    period, zero_period = weight_cases.periods(scheme)
    group = max(scheme.group, 32)
    whole = rows * group
    return -(-whole // period) * period, -(-columns // zero_period) * zero_period


def _call(
    subject: Implementation, tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, device: str
) -> np.ndarray:
    """The weight as patterns, on the host."""
    import torch

    def on_device(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if value.dtype == np.uint16:  # bfloat16
                return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16).to(device)
            return torch.from_numpy(value.copy()).to(device)
        if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
            return tuple(on_device(part) for part in value)
        return value

    dtype = {"bfloat16": torch.bfloat16, "binary16": torch.float16}[fmt.name]
    stored = {name: on_device(value) for name, value in tensors.items()}
    result = subject.call("dequantize_weight", stored, scheme, dtype)
    if result.dtype is not dtype:
        raise LowbitError(f"result: got {result.dtype}, want {dtype}")
    return arrays.host(arrays.bits(result.contiguous())).view(np.uint16)


def _trial(tensors: Mapping[str, Any], scheme: WeightScheme, fmt: FloatFormat, actual: Any, right: Any) -> WeightTrial:
    """The places that a diagnosis would try, or as many of a weight with no mismatch."""
    pretended = np.where(np.arange(right.size).reshape(right.shape) % 2, right ^ 1, right).astype(right.dtype)
    trial = WeightTrial.of(tensors, scheme, fmt, actual, right)
    if trial is None:
        trial = WeightTrial.of(tensors, scheme, fmt, pretended, right)
    assert trial is not None  # every second place differs
    got = actual.reshape(-1)[trial.places].astype(np.int64)
    wrong = values_differ(fmt)(got, trial.expected)
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    few = bad[spread(bad.size, PLACES // 2)]
    kept = np.sort(np.concatenate([few, good[spread(good.size, PLACES - few.size)]]))
    return replace(trial, places=trial.places[kept], actual=got[kept], expected=trial.expected[kept])


def _answers(calls: Sequence[Asked], scheme: WeightScheme) -> Iterator[Answer]:
    yield Answer(scheme.name, f"the scheme {scheme.name}", [call.trial.expected for call in calls])
    tables = []
    for call in calls:
        both = [*suspects(call.trial), *roundings(call.trial)]
        tables.append({suspect.name: (suspect.text, suspect.guess(call.trial)) for suspect in both})
    for name in dict.fromkeys(name for made in tables for name in made):
        found = [made.get(name, ("", None)) for made in tables]
        if any(value is not None for _, value in found):
            yield Answer(name, next(text for text, _ in found if text), [value for _, value in found])


def _wrong(calls: Sequence[Asked], answer: Answer) -> Iterator[int]:
    for call, value in zip(calls, answer.values, strict=True):
        yield call.trial.wrong(call.trial.expected if value is None else value)


def _same(calls: Sequence[Asked], a: Answer, b: Answer) -> bool:
    return all(
        first is None or second is None or not values_differ(call.trial.fmt)(first, second).any()
        for call, first, second in zip(calls, a.values, b.values, strict=True)
    )


def _difference(calls: Sequence[Asked], scheme: WeightScheme, best: Answer, other: Answer) -> Difference | None:
    """The first place at which the two candidates differ, and what is stored for it."""
    for call, a, b in zip(calls, best.values, other.values, strict=True):
        if a is None or b is None or not (wrong := values_differ(call.trial.fmt)(a, b)).any():
            continue
        at = int(np.flatnonzero(wrong)[0])
        place = tuple(int(i) for i in np.unravel_index(int(call.trial.places[at]), call.trial.shape))
        made = origin(call.tensors, scheme, place)
        inputs = {"place": str(list(place)), "code": f"{made['x_bits']:#x}", "scale": f"{made['scale_expected']:#x}"}
        if made.get("rule"):
            inputs["with"] = made["rule"]
        inputs["to"] = call.trial.fmt.name
        sides = [{"value": f"{int(side[at]):#06x}"} for side in (a, b, call.trial.actual)]
        return Difference(inputs=inputs, expected=sides[0], other=sides[1], got=sides[2])
    return None
