"""Runs operations of an implementation, asks the references for the right bits, and keeps the comparisons.

A check never asserts by itself: it hands inputs to a `Judge`, and the plugin turns what the judge has seen into
the outcome of the test and into a record. A judge that compared nothing fails. What is common to all checks is here;
each kind of scheme has its judge (`BlockJudge` …).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from lowbit.compare import Comparison, compare_bytes, failure
from lowbit.diagnose import Diagnosis, diagnose_bytes
from lowbit.errors import Unsupported, WitnessDisagreement
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.implementation import Implementation
from lowbit.schemes import Scheme
from lowbit.suite.convert import as_bytes, describe, host_array
from lowbit.suite.escapes import Escaped, WrongForm, is_of_device
from lowbit.suite.watched import Watched

DTYPES: dict[torch.dtype, FloatFormat] = {
    torch.float32: BINARY32,
    torch.bfloat16: BFLOAT16,
    torch.float16: BINARY16,
}

Options = dict[str, Any]
"""Keyword arguments of an operation, as implementation and references take them."""

EXACT_LIMIT = 1 << 10
"""Elements of one check on which the scalar reference votes too, where the check asks for it."""

BITS_LIMIT = 1 << 22
"""Elements up to which the NumPy reference votes on a GPU run; beyond, the PyTorch one alone, on the device."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line decided for the whole run.

    Attributes:
      device: "cpu" or "cuda".
      level: "quick", "full" or "exhaustive".
      seed: of every random input.
      max_mismatches: samples kept of one comparison.
      weights: a checkpoint, or None.
      vectors: a folder of golden files, None for lowbit's own.
      interpreted: whether kernels run in Triton's interpreter.
    """

    device: str
    level: str
    seed: int
    max_mismatches: int = 20
    weights: str | None = None
    vectors: str | None = None
    interpreted: bool = False

    def at_least(self, level: str) -> bool:
        order = ("quick", "full", "exhaustive")
        return order.index(self.level) >= order.index(level)


class Described(Protocol):
    """What is told of a tensor of a checkpoint beside the comparisons."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, for `Record.extra`."""


@dataclass
class TensorOutcome:
    """What became of one tensor of a checkpoint: a record of its own."""

    figures: Described
    comparisons: list[Comparison] = field(default_factory=list)
    not_run: str | None = None
    seconds: float = 0.0


@dataclass
class Judge:
    """One check of one implementation under one scheme.

    Attributes:
      of: the kind of scheme that checks with this judge are for.
      listen: is given each comparison whose mismatches are to be listed, before its tensors are let go.
    """

    of: ClassVar[type] = Scheme

    subject: Implementation
    scheme: Any
    settings: Settings
    check: str
    comparisons: list[Comparison] = field(default_factory=list)
    assurance: str = ""
    diagnosis: str | None = None
    not_run: str | None = None
    waived: bool = False
    exact_votes: int = 0
    parts: list[str] = field(default_factory=list)
    tensors: list[TensorOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    listen: Callable[[Comparison], None] | None = None
    _repeated: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.implementation = Watched(self.subject, self.fault, self.note)

    @property
    def compared(self) -> int:
        return sum(c.compared for c in self.comparisons)

    @property
    def mismatched(self) -> int:
        return sum(c.mismatched for c in self.comparisons)

    def add(self, comparison: Comparison) -> bool:
        """Keeps a comparison; True if it found no mismatch."""
        if comparison.rows is not None:
            if self.listen is not None:
                self.listen(comparison)
            comparison = replace(comparison, rows=None)
        self.comparisons.append(comparison)
        if not comparison.ok and not self._repeated:
            self._repeat(comparison.tensor)
        return comparison.ok

    def _repeat(self, tensor: str) -> None:
        """Makes the call that the first mismatch of a check came from once more: it may have been by chance."""
        text = self.implementation.differs_again()
        self._repeated = text is not None
        if text:
            self.fault("nondeterministic", tensor, text)

    def note(self, text: str) -> None:
        """Keeps what is to be told beside the comparisons, once."""
        if text not in self.notes:
            self.notes.append(text)

    def fault(self, kind: str, tensor: str, text: str) -> None:
        """Keeps a fault that is no difference of two arrays, such as a wrong shape or a changed input."""
        self.add(failure(kind, tensor=tensor, message=text))

    # -- inputs

    def tensor(self, values: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Float32 values on the device under judgement, NaN payloads kept."""
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(np.array(values, order="C"))
        return values.to(self.settings.device)

    def tensor_of_patterns(self, pattern16: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """Binary16 or bfloat16 patterns as a tensor of that dtype on the device."""
        return torch.from_numpy(pattern16.view(np.int16).copy()).view(dtype).to(self.settings.device)

    # -- judgement

    def same_bytes(
        self, actual: Any, expected: Any, *, tensor: str, kind: str = "byte", padding: Any = None, scales: Any = None
    ) -> None:
        """Judges bytes that were asked for; `kind` says what a difference means.

        Args:
          scales: what a swizzled buffer is made of: a wrong one is explained.
        """
        limit = self.settings.max_mismatches
        sides = as_bytes(actual), as_bytes(expected)
        comparison = compare_bytes(*sides, tensor=tensor, kind=kind, padding=padding, max_samples=limit)
        if not self.add(comparison) and comparison.compared and scales is not None and self.diagnosis is None:
            flat = scales.reshape(-1, scales.shape[-1])
            self.explain(diagnose_bytes, *map(host_array, sides), scales=host_array(flat))

    def explain(self, diagnose: Callable[..., Diagnosis | None], *args: Any, **options: Any) -> None:
        """Says why the first mismatch of the check is one; later ones are left as they are."""
        if self.diagnosis is None and (found := diagnose(*args, **options)) is not None:
            self.diagnosis = f"{found} ({', '.join(self.parts)})" if self.parts else str(found)

    def refuses(self, call: Callable[[], Any], what: str) -> None:
        """Judges that a call of the implementation raises, whatever it raises, rather than return a result."""
        try:
            result = call()
        except (Unsupported, Escaped, WrongForm):
            raise
        except Exception as error:  # whatever its type, the input was refused and nothing was misread
            if is_of_device(error):
                raise
            self.add(Comparison(tensor=what, compared=1))
        else:
            self.fault("shape", what, f"{what}: accepted, returned {describe(result)}, want an error")

    def agree(self, comparison: Comparison, first: str, second: str, operation: str) -> None:
        if not comparison.ok:
            raise WitnessDisagreement(
                f"{operation} {self.scheme.name}: references {first} and {second} differ in "
                f"{comparison.mismatched} of {comparison.compared}: {comparison.samples[:3]}"
            )

    @contextmanager
    def may_refuse(self, what: str) -> Iterator[None]:
        """Notes that the implementation refused an input with a ValueError or TypeError.

        The same error from a reference or from the judge is no refusal and goes on.
        """
        try:
            yield
        except (ValueError, TypeError) as error:
            if error is not self.implementation.raised:
                raise
            self.notes.append(f"refused {what}: {error}")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Names the tensor of every comparison made inside: reports say which part of a check failed."""
        before = len(self.comparisons)
        self.parts.append(name)
        yield
        self.parts.pop()
        for i in range(before, len(self.comparisons)):
            c = self.comparisons[i]
            self.comparisons[i] = replace(
                c,
                tensor=f"{name}: {c.tensor}",
                samples=tuple(replace(s, tensor=f"{name}: {s.tensor}") for s in c.samples),
            )
