"""Finds which scheme, dialect or change of a rule a block quantiser follows, and which input says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.compare import arrays
from lowbit.errors import LowbitError, Unsupported
from lowbit.identify import probes
from lowbit.identify.candidates import Candidate, alike, candidates, guessed, trial_of
from lowbit.identify.identity import FAILED, Difference, Identity, refusal
from lowbit.identify.probes import Probe
from lowbit.implementation import Implementation
from lowbit.schemes import Encoded, Quantized, Scheme
from lowbit.suspects.blocks import ROUNDINGS
from lowbit.suspects.trial import Trial

SMALLEST = 6
"""Inputs on which two candidates differ that are tried for the smallest."""

DIVISIONS = {
    "reciprocal": "(x · g) · (1 / s)",
    "scale_ratio": "x · (g / s)",
    "divided_ratio": "x / (s / g)",
}
"""Orders of operations by the names of the changes that have them."""

RULES = ("scale_rule", "rounding", "nan", "zero_block", "nonfinite", "tensor_scale")

Call = Callable[[np.ndarray], Encoded]


def identify_quantizer(subject: Implementation, scheme: Scheme, device: str) -> Identity | None:
    """What `quantize` follows when it is asked for a scheme; None where it declines the scheme."""
    asked: dict[str, Any] = {"implementation": subject.name, "scheme": scheme.name, "operation": "quantize"}
    error, notes = "", []
    for narrow in (False, True):
        call = _caller(subject, scheme, device, narrow)
        tensors = [_narrowed(probe) if narrow else probe for probe in probes.probes(scheme)]
        try:
            first = call(tensors[0].x)
        except Unsupported as reason:
            error = error or str(reason)
            continue
        except Exception as reason:  # whatever it is: the implementation is not ours
            error = f"{type(reason).__name__}: {reason}"
            continue
        if narrow:
            notes.append(f"asked in bfloat16: float32 is refused ({error})")
        return _identified(asked, scheme, call, tensors, first, notes)
    return None if not error or _declined(subject, scheme, device) else Identity(**asked, note=f"refused: {error}")


def _declined(subject: Implementation, scheme: Scheme, device: str) -> bool:
    """Whether the scheme itself is declined, and not the input."""
    try:
        _caller(subject, scheme, device, False)(np.ones((1, scheme.block), np.float32))
    except Unsupported:
        return True
    except Exception:  # as with any input that it raises for: the scheme itself was not declined
        return False
    return False


def _identified(
    asked: dict[str, Any], scheme: Scheme, call: Call, tensors: Sequence[Probe], first: Encoded, notes: list[str]
) -> Identity:
    kept, trials = [], []
    for probe in tensors:
        try:
            actual = first if probe is tensors[0] else call(probe.x)
            trials.append(trial_of(probe.x, scheme, actual))
            kept.append(probe)
        except Exception as reason:  # whatever it is: the implementation is not ours
            notes.append(refusal(f"a tensor for {probe.purposes[-1]}", reason))
    found = candidates(trials)
    best = max(found, key=lambda one: (one.count, one is found[0], one.registered, -len(one.name)))
    others = [one for one in found if one is not best]
    same = [one for one in others if one.same_as(best)]
    told = [one for one in others if not one.same_as(best)]
    following = max(told, key=lambda one: (one.count, one.registered), default=None)
    blocks = sum(len(trial.x) for trial in trials)
    if best.agrees[:blocks].all() and not best.agrees.all():
        notes.append("codes and scales agree in every block; only the tensor scale that is returned is another")
    return Identity(
        **asked,
        follows=best.name,
        text=best.text,
        registered=best.registered,
        agree=best.count,
        inputs=int(best.agrees.size),
        alike=tuple(one.name for one in same if one.registered),
        next=following.name if following else None,
        next_text=following.text if following else "",
        next_agree=following.count if following else 0,
        difference=None if following is None else _difference(best, following, trials, call),
        rules=_rules(best),
        columns=_columns(best, found, kept, trials),
        refused=sum(note.startswith(FAILED) for note in notes),
        note="; ".join(notes),
    )


def _caller(subject: Implementation, scheme: Scheme, device: str, narrow: bool) -> Call:
    """x (rows, columns) float32 -> what the implementation makes of it, on the host.

    The call raises what the implementation raises, and an error of lowbit where the result has a wrong form.
    """
    import torch

    def call(x: np.ndarray) -> Encoded:
        tensor = torch.from_numpy(np.array(x, np.float32, order="C"))
        if narrow:  # by the bits: a cast may change NaN
            tensor = (tensor.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
        result = Quantized(*subject.call("quantize", tensor.to(device), scheme))
        parts = [None if part is None else arrays.host(part) for part in result]
        found = packing.unpack(Quantized(*parts), scheme, shape=x.shape)
        codes, scales = np.asarray(found.codes), np.asarray(found.scales)
        if codes.shape != x.shape or scales.size * scheme.block != codes.size:
            raise LowbitError(f"result: got codes {codes.shape} and scales {scales.shape} for x {x.shape}")
        factor = found.tensor_scale
        if factor is not None:  # an error here is one of this call
            factor = np.asarray(factor, np.float32).reshape(-1)[:1]
            if not factor.size:
                raise LowbitError("result: got a tensor scale without an element")
        return Encoded(codes.astype(np.uint8), scales.astype(np.uint8), factor)

    return call


def _narrowed(probe: Probe) -> Probe:
    """The probe with every value cut to a bfloat16, NaN and the sign of zero kept."""
    return Probe(cases.floats(cases.patterns(probe.x) & np.uint32(0xFFFF0000)), probe.purposes)


def _rules(best: Candidate) -> dict[str, str]:
    """What a candidate pins, by the names of a scheme's fields."""
    if best.dialect is not None:
        dialect = best.dialect
        texts = {"scale": dialect.scale_text, "element": dialect.element_text, "zero_block": dialect.zero_text}
        return {**texts, "rounding": "ties_to_even"}
    return {name: getattr(best.scheme, name).value for name in RULES}


def _columns(
    best: Candidate, found: Sequence[Candidate], kept: Sequence[Probe], trials: Sequence[Trial]
) -> dict[str, str]:
    """What was seen of each choice, whatever is followed as a whole."""
    purposes = np.array([purpose for probe in kept for purpose in probe.purposes])
    scheme = trials[0].scheme
    ties = [one for one in found if one.registered or one.name in {rule.value for rule in ROUNDINGS}] + [best]
    divided = [one for one in found if one.registered or one.name in DIVISIONS] + [best]
    scaled = [one for one in found if not one.last and " + " not in one.name]
    divides = scheme.family == "nvfp4"
    return {
        "ties": _seen(ties, "codes", purposes == probes.TIES, _rounding),
        "scale rule": _seen(scaled, "scales", purposes == probes.SCALE, _scale_rule),
        "zero block": _observed(kept, trials, probes.ZEROS, None),
        "NaN": _observed(kept, trials, probes.NONFINITE, 1),
        "-0": _sign(kept, trials),
        "order of operations": (
            _seen(divided, "codes", np.isin(purposes, (probes.DIVISION, probes.FACTOR)), _division)
            if divides
            else "x · 2^-E, exact"
            if scheme.exponent_range
            else "x / s"
        ),
    }


def _seen(found: Sequence[Candidate], part: str, where: Any, value: Callable[[Candidate], str]) -> str:
    """The choice of the candidate that agrees best in codes or scales of some blocks, and how many, if not all."""
    if not where.any():
        return ""
    best = max(found, key=lambda one: (one.same(part, where), one.count))
    agree, of = best.same(part, where)
    return value(best) if agree == of else f"{value(best)} ({agree} of {of} {part})"


def _rounding(one: Candidate) -> str:
    return "ties_to_even" if one.dialect else one.scheme.rounding.value


def _scale_rule(one: Candidate) -> str:
    if one.dialect:
        return one.dialect.scale_text
    own = one.trials[0].scheme
    changed = one.scheme is not own or one.name == own.name
    return one.scheme.scale_rule.value if changed else f"{one.scheme.scale_rule.value}, {one.text}"


def _division(one: Candidate) -> str:
    if one.dialect:
        return one.dialect.element_text
    return DIVISIONS.get(one.name, "(x · g) / s" if one.scheme.family == "nvfp4" else "x / s")


def _observed(kept: Sequence[Probe], trials: Sequence[Trial], purpose: str, lane: int | None) -> str:
    """The scale byte of the first block of a purpose, and its codes or the code in a lane."""
    for probe, trial in zip(kept, trials, strict=True):
        if purpose in probe.purposes:
            at = probe.purposes.index(purpose)
            codes = trial.actual.codes[at] if lane is None else trial.actual.codes[at][[lane]]
            values = sorted({int(code) for code in codes})
            words = "code" if lane is not None else "codes"
            return f"byte {int(trial.actual.scales[at, 0]):#04x}, {words} {' '.join(f'{v:#x}' for v in values)}"
    return ""


def _sign(kept: Sequence[Probe], trials: Sequence[Trial]) -> str:
    at = kept[0].purposes.index(probes.SIGNED)
    code = int(trials[0].actual.codes[at, 1])
    return {trials[0].scheme.element.sign_mask: "kept", 0: "lost"}.get(code, f"code {code:#x}")


# -- the input that tells two candidates apart


def _difference(best: Candidate, other: Candidate, trials: Sequence[Trial], call: Call) -> Difference | None:
    """The smallest input on which two candidates differ, of some that are tried."""
    found: list[tuple[int, np.ndarray]] = []
    for trial, a, b in zip(trials, best.guesses, other.guesses, strict=True):
        if a is None or b is None or len(found) >= SMALLEST:
            continue
        wrong = ~trial.wrong_blocks(a) & trial.wrong_blocks(b)  # where it is the first that was given
        sizes = np.count_nonzero(cases.patterns(trial.x), axis=1)
        for at in sorted(np.flatnonzero(wrong), key=lambda i: (sizes[i], i))[: SMALLEST - len(found)]:
            x = _isolated(trial, int(at), best, other)
            if x is not None:
                x = _shrunk(x, trial.scheme, best, other)
                found.append((int(np.count_nonzero(cases.patterns(x))), x))
    if not found:
        return None
    x = min(found, key=lambda pair: pair[0])[1]
    scheme = trials[0].scheme
    trial = trial_of(x, scheme)
    outputs = [guessed(one.make, trial) for one in (best, other)]
    got: Encoded | None = None
    try:
        got = call(x)
    except Exception:  # it took larger tensors; this one says enough by what is expected
        got = None
    shown = [side for side in (*outputs, got) if side is not None]
    flat = cases.patterns(x).reshape(-1)
    places = [int(at) for at in np.flatnonzero(flat)]
    for one in shown[1:]:
        places += [int(at) for at in np.flatnonzero(shown[0].codes.reshape(-1) != one.codes.reshape(-1))]
    length = max(places, default=0) + 1
    length = min(length + -length % scheme.block if x.size > scheme.block else length, x.size)
    factors = not alike(*(side._replace(tensor_scale=None) for side in shown[:2]))
    sides = [_told(side, length, scheme, scale=not factors) for side in shown]
    inputs = {"x": [f"{int(p):#010x}" for p in flat[:length]]}
    return Difference(inputs=inputs, expected=sides[0], other=sides[1], got=sides[2] if got is not None else None)


def _told(side: Encoded, length: int, scheme: Scheme, *, scale: bool) -> dict[str, Any]:
    """Codes and scales of so many elements, as hex."""
    blocks = -(-length // scheme.block)
    found: dict[str, Any] = {
        "scales": [f"{int(s):#04x}" for s in side.scales.reshape(-1)[:blocks]],
        "codes": [f"{int(c):x}" for c in side.codes.reshape(-1)[:length]],
    }
    if scale and side.tensor_scale is not None:
        found["tensor_scale"] = f"{int(np.float32(np.asarray(side.tensor_scale).reshape(-1)[0]).view(np.uint32)):#010x}"
    return found


def _differ(x: np.ndarray, scheme: Scheme, best: Candidate, other: Candidate) -> bool:
    trial = trial_of(x, scheme)
    outputs = [guessed(one.make, trial) for one in (best, other)]
    return None not in outputs and not alike(*outputs)


def _isolated(trial: Trial, at: int, best: Candidate, other: Candidate) -> np.ndarray | None:
    """A small tensor with one block of a trial, on which the candidates still differ; None if there is none."""
    scheme, block = trial.scheme, trial.x[[at]]
    tries = [block]
    if scheme.tensor_scale in cases.GIVEN:
        with np.errstate(invalid="ignore"):
            anchor = np.zeros_like(block)
            anchor[0, 0] = np.abs(np.where(np.isfinite(trial.x), trial.x, 0)).max()
        tries.append(np.concatenate([anchor, block], axis=1))
    if at + 1 < len(trial.x):
        tries.append(trial.x[[at, at + 1]].reshape(1, -1))
    tries.append(np.concatenate([trial.x[[at - 1]], block], axis=1))
    return next((x for x in tries if _differ(x, scheme, best, other)), None)


def _shrunk(x: np.ndarray, scheme: Scheme, best: Candidate, other: Candidate) -> np.ndarray:
    """The tensor with as many elements as can be set to +0 while the candidates differ."""
    x = x.copy()
    for place in np.flatnonzero(cases.patterns(x).reshape(-1))[::-1]:
        kept = x.reshape(-1)[place]
        x.reshape(-1)[place] = 0
        if not _differ(x, scheme, best, other):
            x.reshape(-1)[place] = kept
    return x
