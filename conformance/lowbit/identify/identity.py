"""What an implementation was found to follow: data, and the lines that tell it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

RUN = 3
"""Equal values in a row that are written out."""

COLUMNS = ("ties", "scale rule", "zero block", "NaN", "-0", "order of operations")
"""What a table over implementations compares."""


FAILED, REFUSALS = "failed at", ("refused", "failed at")
"""How the notes on calls that raised begin: in some way, and those that were refused among them."""


def refusal(what: str, reason: BaseException) -> str:
    """A note: a clear refusal is a ValueError or a TypeError, anything else a call that failed."""
    verb = "refused" if isinstance(reason, (ValueError, TypeError)) else FAILED
    return f"{verb} {what}: {type(reason).__name__}: {reason}"[:200]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An input on which two candidates differ, made as small as it can be.

    Attributes:
      inputs: what goes in, as hex. expected: by the candidate that is followed. other: by the next best. got: from the
        implementation, None where it was not asked again.
    """

    inputs: dict[str, Any]
    expected: dict[str, Any]
    other: dict[str, Any]
    got: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What one operation follows, asked for one scheme.

    Attributes:
      scheme: that was asked for. operation: quantize, dequantize, matmul or dequantize_weight.
      follows: the scheme, dialect or change of a rule that agrees best; None where nothing came back. text: in words.
      registered: whether that is a scheme or a dialect, not a change of one.
      agree, inputs: how many inputs agree, of how many.
      alike: registered schemes and dialects that no input tells from it.
      next, next_text, next_agree: the best of the candidates that some input tells from it.
      rules: by name, of what is followed. columns: what was seen of each of `COLUMNS`.
      refused: calls that raised something else than `Unsupported`, ValueError or TypeError.
      note: why nothing came back, or what is to be known of the result.
    """

    implementation: str
    scheme: str
    operation: str
    follows: str | None = None
    text: str = ""
    registered: bool = False
    agree: int = 0
    inputs: int = 0
    alike: tuple[str, ...] = ()
    next: str | None = None
    next_text: str = ""
    next_agree: int = 0
    difference: Difference | None = None
    rules: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    refused: int = 0
    note: str = ""

    @property
    def exact(self) -> bool:
        """Whether every input agrees with a registered scheme or a dialect, and no call raised."""
        return self.registered and self.agree == self.inputs > 0 and not self.refused

    def as_dict(self) -> dict[str, Any]:
        """JSON's own types."""
        return {**asdict(self), "alike": list(self.alike), "exact": self.exact}

    def lines(self) -> list[str]:
        """For a terminal."""
        head = f"{self.scheme} · {self.operation}: "
        if self.follows is None:
            return [head + self.note]
        rank = "follows" if self.exact else "nothing registered; nearest is"
        if self.agree == self.inputs > 0 and not self.registered:
            rank = "no registered scheme, but one with"
        elif self.agree == self.inputs > 0 and self.refused:
            rank = f"would follow, but {self.refused} calls raised,"
        found = [f"{head}{rank} {self.text} · {self.agree:,} of {self.inputs:,} inputs agree"]
        if self.alike:
            found.append(f"  not told from: {', '.join(self.alike)}")
        if self.rules:
            found.append("  rules: " + " · ".join(f"{name} {value}" for name, value in self.rules.items()))
        if self.columns:
            found.append("  seen: " + " · ".join(f"{name} {value}" for name, value in self.columns.items()))
        if self.next is not None:
            found.append(f"  next best: {self.next_text} · {self.next_agree:,} of {self.inputs:,}")
        if self.difference is not None:
            found += self._telling(self.difference)
        if self.note:
            found.append(f"  note: {self.note}")
        return found

    def _telling(self, difference: Difference) -> list[str]:
        sides = [("followed", difference.expected), ("next", difference.other)]
        if difference.got is not None:
            sides.append(("got", difference.got))
        return [
            f"  told apart by {_pairs(difference.inputs)}",
            *(f"    {name}: {_pairs(values)}" for name, values in sides),
        ]


def _pairs(values: Mapping[str, Any]) -> str:
    return " · ".join(f"{name} {_runs(v) if isinstance(v, list) else v}" for name, v in values.items())


def _runs(values: Iterable[str]) -> str:
    """Values with a space between, long runs of one value counted."""
    found = []
    for value, run in itertools.groupby(values):
        count = len(list(run))
        found += [f"{value} ×{count}"] if count > RUN else [value] * count
    return " ".join(found)


def declined(asked: Mapping[str, Any], notes: Iterable[str]) -> Identity | None:
    """What is to be said where no call came back; None where the scheme itself was declined."""
    refused = [note for note in notes if note.startswith(REFUSALS)]
    return Identity(**asked, note="; ".join(dict.fromkeys(refused))) if refused else None


def ranked(
    asked: Mapping[str, Any],
    found: Sequence[Any],
    counts: Mapping[str, int],
    inputs: int,
    notes: Sequence[str],
    *,
    registered: Callable[[Any], bool],
    same: Callable[[Any, Any], bool],
    difference: Callable[[Any, Any], Difference | None],
) -> Identity:
    """The identity of an operation: the candidate that agrees best, and the next that some input tells from it.

    Args:
      asked: implementation, scheme and operation.
      found: candidates with a name and a text; the first is the scheme that was asked for, and wins a draw.
      counts: by name, how many of `inputs` agree.
      registered: whether a candidate is a scheme or a dialect. same: whether no input tells two apart.
      difference: of the best and the next, if one can be made.
    """
    best = max(found, key=lambda one: (counts[one.name], one is found[0], registered(one)))
    others = [one for one in found if one is not best]
    told = [one for one in others if not same(best, one)]
    following = max(told, key=lambda one: (counts[one.name], registered(one)), default=None)
    return Identity(
        **asked,
        follows=best.name,
        text=best.text,
        registered=registered(best),
        agree=counts[best.name],
        inputs=inputs,
        alike=tuple(one.name for one in others if registered(one) and one not in told),
        next=following.name if following else None,
        next_text=following.text if following else "",
        next_agree=counts[following.name] if following else 0,
        difference=None if following is None else difference(best, following),
        refused=sum(note.startswith(FAILED) for note in notes),
        note="; ".join(dict.fromkeys(notes)),
    )


def table(identities: Iterable[Identity]) -> list[dict[str, str]]:
    """Rows for a table over implementations: what each quantiser does, seen by its results.

    Returns:
      One row an identity of `quantize`: implementation, scheme, follows, agree, and `COLUMNS`.
    """
    return [
        {
            "implementation": one.implementation,
            "scheme": one.scheme,
            "follows": one.follows or one.note,
            "agree": f"{one.agree} of {one.inputs}",
            **{name: one.columns.get(name, "") for name in COLUMNS},
        }
        for one in identities
        if one.operation == "quantize"
    ]
