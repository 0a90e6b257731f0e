"""Judges the matmul of two quantised operands: bit for bit where one result is right, within a bound elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from lowbit import packing
from lowbit.cases.summable import Operands
from lowbit.compare import compare_values
from lowbit.compare.bounds import Worst, accumulation_bound, compare_within_bound, worst
from lowbit.errors import LowbitError
from lowbit.references import matmul, matmul_exact
from lowbit.schemes import Encoded, Quantized, Scheme
from lowbit.suite.convert import describe, host_array
from lowbit.suite.judge import DTYPES, Judge
from lowbit.suspects.matmul import Evidence

PRODUCTS_LIMIT = 1 << 25
"""Products up to which the NumPy reference votes on a GPU run; beyond, the same sums in torch alone, on the device."""

DIAGNOSED = 8
"""Wrong products of one check that the diagnosis looks at."""


@dataclass
class MatmulJudge(Judge):
    """One check of one implementation's matmul under one block-quantisation scheme."""

    scheme: Scheme
    evidence: Evidence = field(default_factory=Evidence)
    nearest: tuple[Worst, str] = (Worst(math.nan, math.nan, math.nan), "")
    undecided: int = 0

    def stored(self, operands: Operands, *, padding: int = 0) -> tuple[Quantized, Quantized]:
        """The operands as an implementation gets them, on the device: packed codes, swizzled scales.

        Args:
          padding: the byte in the places of the buffers that hold no scale.
        """
        first, second = (self._stored(side, padding) for side in operands)
        return first, second

    def _stored(self, side: Encoded, padding: int) -> Quantized:
        packed, buffer, g = packing.pack(side, self.scheme, swizzle=True)
        buffer[packing.swizzle_padding(*side.scales.shape)] = padding
        scale = None if g is None else self.tensor(np.asarray(g, dtype=np.float32).reshape(1))
        return Quantized(self.tensor(packed), self.tensor(buffer), scale)

    def multiply(self, operands: Operands, dtypes: Iterable[torch.dtype] = tuple(DTYPES), *, padding: int = 0) -> None:
        """Judges the product of exactly summable operands bit for bit, for every output dtype.

        Raises:
          Unsupported: as the implementation does.
          WitnessDisagreement: the references differ; nothing is said of the implementation.
          LowbitError: the operands are not exactly summable.
        """
        a, b = self.stored(operands, padding=padding)
        sums, r = self._sums(operands), matmul.factor(*operands)
        small = sums.value.numel() * sums.terms <= PRODUCTS_LIMIT or self.settings.device == "cpu"
        on_host = matmul.sums(*operands, self.scheme).value if small else None
        if not bool(sums.exact.all()):
            raise LowbitError("operands: got some whose sums float64 does not hold, want exactly summable ones")
        explained = False
        for dtype in dtypes:
            fmt = DTYPES[dtype]
            expected = matmul.finish(sums.value, r, fmt)
            self._vote(operands, on_host, expected, dtype)
            actual = self._product(a, b, dtype)
            if actual is None:
                continue
            comparison = compare_values(
                actual, expected, tensor=f"out, {fmt.name}", max_samples=self.settings.max_mismatches
            )
            if not self.add(comparison) and comparison.compared and not explained:
                self._diagnose(a, b, actual, expected, dtype)
                explained = True

    def multiply_bounded(self, operands: Operands, dtypes: Iterable[torch.dtype] = tuple(DTYPES)) -> None:
        """Judges the product of any operands: NaN by class, numbers within the bound that follows from the operands.

        The element that came nearest to its bound is noted for the record.
        """
        a, b = self.stored(operands)
        sums, r = self._sums(operands), matmul.factor(*operands)
        for dtype in dtypes:
            bound = accumulation_bound(sums, r, DTYPES[dtype])
            actual = self._product(a, b, dtype)
            if actual is None:
                continue
            comparison = compare_within_bound(
                actual, bound, tensor=f"out, {DTYPES[dtype].name}", max_samples=self.settings.max_mismatches
            )
            self.add(comparison)
            if comparison.compared:
                self._note(worst(actual, bound), int(bound.open.sum()), dtype)

    def _note(self, found: Worst, undecided: int, dtype: torch.dtype) -> None:
        """Keeps the nearest approach to a bound of all products, and how many sums may overflow, in one note."""
        self.undecided += undecided
        if not found.ratio <= self.nearest[0].ratio:
            self.nearest = found, ", ".join((*self.parts, DTYPES[dtype].name))
        text = f"; {self.undecided:,} sums may overflow binary32" if self.undecided else ""
        self.notes = [f"{self.nearest[0]} ({self.nearest[1]}){text}"]

    def _product(self, a: Quantized, b: Quantized, dtype: torch.dtype) -> torch.Tensor | None:
        """What the implementation returned; None where that is no tensor, which is kept as a fault."""
        actual = self.implementation.call("matmul", a, b, self.scheme, dtype)
        if isinstance(actual, torch.Tensor):
            return actual
        self.fault("dtype", "out", f"out: got {describe(actual)}, want a tensor of {dtype}")
        return None

    def _sums(self, operands: Operands) -> matmul.Sums:
        """The reference's sums, on the device."""
        a, b = (Encoded(self.tensor(side.codes), self.tensor(side.scales)) for side in operands)
        return matmul.sums(a, b, self.scheme)

    def _vote(self, operands: Operands, sums: np.ndarray | None, expected: torch.Tensor, dtype: torch.dtype) -> None:
        """Asks the references on the host for the same product: NumPy if it has the sums, and the scalar one."""
        fmt = DTYPES[dtype]
        if sums is not None:
            second = matmul.finish(sums, matmul.factor(*operands), fmt)
            self.agree(compare_values(second, expected.cpu(), format=fmt), "NumPy", "torch", "matmul")
        if expected.numel() <= self.exact_votes:
            self.exact_votes -= expected.numel()
            second = matmul_exact.matmul(*operands, self.scheme, fmt)
            self.agree(compare_values(second, expected.cpu(), format=fmt), "exact", "float64", "matmul")

    def _diagnose(
        self, a: Quantized, b: Quantized, actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype
    ) -> None:
        """Adds a wrong product to the evidence, if there is not enough, and says what explains all of it."""
        if self.evidence.products >= DIAGNOSED:
            return
        left, right = (Quantized(*map(host_array, side)) for side in (a, b))
        self.evidence.add(left, right, self.scheme, DTYPES[dtype], _patterns(actual), _patterns(expected))
        self.diagnosis = str(self.evidence.diagnosis)


def _patterns(values: torch.Tensor) -> np.ndarray:
    width = {2: torch.int16, 4: torch.int32}[values.element_size()]
    found = values.contiguous().view(width).cpu().numpy()
    return found.view(f"u{found.dtype.itemsize}")


def rows_of(operands: Operands, rows: int, columns: int) -> Operands:
    """The first rows of A and of B: those of exactly summable operands are exactly summable too."""
    parts: Sequence[tuple[Encoded, int]] = ((operands.a, rows), (operands.b, columns))
    return Operands(*(side._replace(codes=side.codes[:n], scales=side.scales[:n]) for side, n in parts))
