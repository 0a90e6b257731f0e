"""Judges `dequantize_weight`: bit for bit, under one weight scheme."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from lowbit.compare import Comparison, arrays, compare_values
from lowbit.compare.weights import compare_weights
from lowbit.references import weights_bits, weights_exact, weights_tensors
from lowbit.suite.convert import describe, same_bits
from lowbit.suite.judge import BITS_LIMIT, DTYPES, Judge
from lowbit.suspects.weights import diagnose_weight
from lowbit.weights import WeightScheme

TORCH = {fmt: dtype for dtype, fmt in DTYPES.items()}
"""The dtypes of outputs, by their format."""

DIAGNOSIS_LIMIT = 1 << 24
"""Weights of a failing input up to which the diagnosis looks for a cause."""

DIAGNOSES = 4
"""Failing inputs of one check that the diagnosis looks at until one is explained."""

CHUNK = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Weights that the PyTorch reference works on together."""

Tensors = dict[str, Any]


@dataclass
class WeightJudge(Judge):
    """One check of one implementation under one weight scheme.

    Attributes:
      special: how many right results are ±Inf or NaN, by format and kind; told in a note.
      explained: whether the diagnosis accounts for all that it was tried on. explanations: how often it was tried.
    """

    of: ClassVar[type] = WeightScheme

    scheme: WeightScheme
    special: Counter[tuple[str, str]] = field(default_factory=Counter)
    explained: bool = False
    explanations: int = 0

    def stored(self, arrays: Mapping[str, Any]) -> Tensors:
        """NumPy arrays as tensors on the device; uint16 is bfloat16. Ints and tuples of ints stay."""
        return {name: self._stored(value) for name, value in arrays.items()}

    def _stored(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._stored(part) for part in value)
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == np.uint16:
            return self.tensor_of_patterns(value, torch.bfloat16)
        return self.tensor(value)

    def dequantize(
        self,
        tensors: Mapping[str, Any],
        dtype: torch.dtype = torch.float16,
        *,
        expected: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Judges the weight that stored tensors stand for.

        Args:
          tensors: as the implementation gets them, on the device, any strides.
          expected: what the references gave already, to save asking again.
          out: a buffer that the implementation is to write into.

        Returns:
          What the implementation returned; None where its form is wrong, which is kept as a fault.

        Raises:
          Unsupported: as the implementation does.
          WitnessDisagreement: the references differ; nothing is said of the implementation.
        """
        actual = self.implementation.call("dequantize_weight", tensors, self.scheme, dtype, out=out)
        if expected is None:
            expected = self.expected(tensors, dtype)
        name = f"values, {DTYPES[dtype].name}"
        self._count(expected, tensors, dtype)
        if not isinstance(actual, torch.Tensor):
            self.fault("dtype", name, f"{name}: got {describe(actual)}, want {describe(expected)}")
            return None
        if actual.device != expected.device:
            self.fault("dtype", name, f"{name}: got a tensor on {actual.device}, want {expected.device}")
            return None
        if actual.shape == expected.shape and actual.dtype == expected.dtype and same_bits(actual, expected):
            self.add(Comparison(name, expected.numel()))  # the usual case, at a fraction of the memory traffic
            return actual
        limit = self.settings.max_mismatches
        comparison = compare_weights(actual, expected, tensors, self.scheme, tensor=name, max_samples=limit)
        if not self.add(comparison) and comparison.compared:
            self._diagnose(tensors, actual, expected, dtype)
        return actual if comparison.compared else None

    def refuses_weight(self, tensors: Mapping[str, Any], what: str, dtype: torch.dtype = torch.float16) -> None:
        """Judges that stored tensors which are wrong in some way are refused, not read."""
        before = self.mismatched
        call = partial(self.implementation.call, "dequantize_weight", tensors, self.scheme, dtype)
        self.refuses(call, what)
        if self.mismatched > before and not self.explained:
            self.diagnosis, self.explained = f"not validated: {what}", True

    # -- truth

    def expected(self, tensors: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
        """The right weight, on which the references agree.

        The PyTorch reference runs on the device; the NumPy one votes up to `BITS_LIMIT` weights, always without a GPU;
        the scalar one where the check asked for it (`exact_votes`).
        """
        device = self.settings.device
        expected = weights_tensors.dequantize(tensors, self.scheme, dtype, chunk=CHUNK[device])
        fmt = DTYPES[dtype]
        if expected.numel() <= BITS_LIMIT or device == "cpu":
            host = on_host(tensors)
            second = weights_bits.dequantize(host, self.scheme, fmt)
            self.agree(compare_values(second, expected.cpu(), format=fmt), "bits", "tensors", "dequantize_weight")
            if self.exact_votes >= expected.numel():
                self.exact_votes -= expected.numel()
                third = weights_exact.dequantize(host, self.scheme, fmt)
                self.agree(compare_values(third, expected.cpu(), format=fmt), "exact", "tensors", "dequantize_weight")
        return expected

    # -- parts

    def _count(self, expected: torch.Tensor, tensors: Mapping[str, Any], dtype: torch.dtype) -> None:
        """Counts right results that are no numbers, and says so in one note a format."""
        largest = expected.abs().max() if expected.numel() else expected.new_zeros(())
        if bool(torch.isfinite(largest)):  # NaN is larger than all
            return
        name = DTYPES[dtype].name
        infinite = int(torch.isinf(expected).sum())
        overflown = infinite
        if infinite and dtype is not torch.float32:
            wide = weights_tensors.dequantize(tensors, self.scheme, torch.float32, chunk=CHUNK[self.settings.device])
            overflown = int((torch.isinf(expected) & torch.isfinite(wide)).sum())
        elif infinite:
            overflown = 0
        self.special[name, "overflow"] += overflown
        self.special[name, "infinite"] += infinite - overflown
        self.special[name, "nan"] += int(torch.isnan(expected).sum())
        self._tell(name)

    def _tell(self, name: str) -> None:
        told = (
            ("overflow", f"finite in binary32 overflow to ±Inf in {name}"),
            ("infinite", "are ±Inf in binary32 already"),
            ("nan", "are NaN"),
        )
        found = [f"{self.special[name, kind]:,} {text}" for kind, text in told if self.special[name, kind]]
        beginning = f"right results in {name}: "
        self.notes = [note for note in self.notes if not note.startswith(beginning)]
        self.notes.append(beginning + ", ".join(found))

    def _diagnose(
        self, tensors: Mapping[str, Any], actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype
    ) -> None:
        """Explains a mismatch; a later one only where an earlier one was not explained wholly."""
        if expected.numel() > DIAGNOSIS_LIMIT or self.explained or self.explanations == DIAGNOSES:
            return
        self.explanations += 1
        found = diagnose_weight(on_host(tensors), self.scheme, DTYPES[dtype], _patterns(actual), _patterns(expected))
        if found is None or not (found.complete or self.diagnosis is None):
            return
        self.explained = found.complete
        self.diagnosis = f"{found} ({', '.join(self.parts)})" if self.parts else str(found)


def on_host(tensors: Mapping[str, Any]) -> Tensors:
    """Tensors as NumPy arrays, those in tuples too; bfloat16 as uint16 patterns."""
    return {name: _on_host(value) for name, value in tensors.items()}


def _on_host(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_on_host(part) for part in value)
    return arrays.host(value.contiguous()) if isinstance(value, torch.Tensor) else value


def _patterns(values: torch.Tensor) -> np.ndarray:
    found = arrays.host(arrays.bits(values.contiguous()))
    return found.view(f"u{found.dtype.itemsize}")
