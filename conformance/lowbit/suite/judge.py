"""Runs one operation of an implementation, asks the references for the right bits, and keeps the comparison.

A check never asserts by itself: it hands inputs to a `Judge`, and the plugin turns what the judge has seen into
the outcome of the test and into a record. A judge that compared nothing fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from lowbit import cases, packing
from lowbit.compare import (
    Comparison,
    compare_bytes,
    compare_codes,
    compare_encoded,
    compare_values,
    failure,
)
from lowbit.diagnose import diagnose
from lowbit.errors import LowbitError, Unsupported, WitnessDisagreement
from lowbit.figures import Figures
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.implementation import Implementation
from lowbit.references import bits, exact, tensors
from lowbit.rules import Rounding
from lowbit.schemes import Encoded, Quantized, Scheme
from lowbit.suite.convert import as_bytes, describe, host, host_array, padding_mask, widen
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

DIAGNOSIS_LIMIT = 1 << 18
"""Elements of a failing input that the diagnosis looks at."""


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


@dataclass
class TensorOutcome:
    """What became of one tensor of a checkpoint: a record of its own."""

    figures: Figures
    comparisons: list[Comparison] = field(default_factory=list)
    not_run: str | None = None
    seconds: float = 0.0


@dataclass
class Judge:
    """One check of one implementation under one scheme."""

    subject: Implementation
    scheme: Scheme
    settings: Settings
    check: str
    comparisons: list[Comparison] = field(default_factory=list)
    assurance: str = ""
    diagnosis: str | None = None
    not_run: str | None = None
    exact_votes: int = 0
    parts: list[str] = field(default_factory=list)
    tensors: list[TensorOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.implementation = Watched(self.subject, self._changed)

    def _changed(self, operation: str, name: str) -> None:
        self.fault("changed_input", name, f"{operation} changed its {name}")

    @property
    def compared(self) -> int:
        return sum(c.compared for c in self.comparisons)

    @property
    def mismatched(self) -> int:
        return sum(c.mismatched for c in self.comparisons)

    def add(self, comparison: Comparison) -> bool:
        """Keeps a comparison; True if it found no mismatch."""
        self.comparisons.append(comparison)
        return comparison.ok

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

    def random_options(self, shape: tuple[int, ...], *, salt: int = 0) -> Options:
        """The random bits that a stochastic scheme needs for an input of that shape; empty for the others."""
        options: Options = {}
        seed = self.settings.seed + salt
        large = math.prod(shape) > BITS_LIMIT  # too many for the host: drawn on the device
        if self.scheme.rounding is Rounding.STOCHASTIC:
            options["random_bits"] = (
                self._drawn(shape, 1 << 8, torch.uint8, seed) if large else self.tensor(cases.random_bits(shape, seed))
            )
        if cases.needs_scale_bits(self.scheme):
            groups = (*shape[:-1], -(-shape[-1] // self.scheme.block))
            options["scale_random_bits"] = (
                self._drawn(groups, 1 << 31, torch.int32, seed)
                if large
                else self.tensor(cases.scale_random_bits(groups, seed))
            )
        return options

    def _drawn(self, shape: tuple[int, ...], limit: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
        generator = torch.Generator(device=self.settings.device).manual_seed(seed)
        return torch.randint(limit, shape, dtype=dtype, generator=generator, device=self.settings.device)

    # -- operations

    def quantize(self, x: torch.Tensor, *, expected: Encoded | None = None, **options: Any) -> Quantized:
        """Judges `quantize` on x, codes, scales and tensor scale bit for bit.

        Args:
          x: (..., K) float32, bfloat16 or float16 on the device.
          expected: what the references gave already, to save asking again.
          options: passed to the implementation and to the references; random bits are added where needed.

        Returns:
          What the implementation returned.

        Raises:
          Unsupported: as the implementation does.
          WitnessDisagreement: the references differ; nothing is said of the implementation.
        """
        if "seed" not in options:
            options = {**self.random_options(tuple(x.shape)), **options}
        result = self.implementation.call("quantize", x, self.scheme, **options)
        swizzle = bool(options.pop("swizzle", False))
        options.pop("out", None)
        if expected is None:
            expected = self.expected(x, **options)
        self.compare_quantized(x, result, expected, swizzle=swizzle, **options)
        return result

    def compare_quantized(
        self, x: torch.Tensor, result: Any, expected: Encoded, *, swizzle: bool = False, **options: Any
    ) -> bool:
        """Compares what `quantize` returned with the expected codes and scales; diagnoses the first mismatch."""
        actual = self._unpacked(result, tuple(x.shape), expected, swizzle)
        if actual is None:
            return False
        wide = widen(x)
        comparison = compare_encoded(wide, actual, expected, self.scheme, max_samples=self.settings.max_mismatches)
        if not self.add(comparison) and self.diagnosis is None:
            self.diagnosis = self._diagnose(wide, actual, expected, options)
        return comparison.ok

    def dequantize(self, quantized: Quantized, encoded: Encoded, dtype: torch.dtype) -> None:
        """Judges `dequantize` of those bytes to that dtype."""
        actual = self.implementation.call("dequantize", quantized, self.scheme, dtype)
        expected = tensors.dequantize(encoded, self.scheme, dtype)
        if actual.numel() <= BITS_LIMIT:
            second = bits.dequantize(host(encoded), self.scheme, DTYPES[dtype])
            width = torch.int32 if dtype is torch.float32 else torch.int16
            self._agree(
                compare_values(torch.from_numpy(second.view(f"i{width.itemsize}").copy()).view(dtype), expected.cpu()),
                "bits",
                "tensors",
                "dequantize",
            )
        self.add(
            compare_values(
                actual,
                expected,
                tensor=f"values, {DTYPES[dtype].name}",
                max_samples=self.settings.max_mismatches,
                codes=encoded.codes,
                scales=encoded.scales,
                scheme=self.scheme,
            )
        )

    def encode(self, x: torch.Tensor, element: FloatFormat, rounding: Rounding, **options: Any) -> None:
        """Judges the scalar stage alone: x (N,) float32 to one code a byte."""
        actual = self.implementation.call("encode", x, element, rounding, **options)
        expected = tensors.encode(x, element, rounding, self.scheme.nan, **options)
        if x.numel() <= BITS_LIMIT:
            second = bits.encode(
                x.cpu().numpy(), element, rounding, self.scheme.nan, **{k: v.cpu().numpy() for k, v in options.items()}
            )
            self._agree(
                compare_codes(x.cpu(), torch.from_numpy(second), expected.cpu(), element), "bits", "tensors", "encode"
            )
        self.add(compare_codes(x, as_bytes(actual), expected, element, max_samples=self.settings.max_mismatches))

    def same_bytes(self, actual: Any, expected: Any, *, tensor: str, kind: str = "byte", padding: Any = None) -> None:
        """Judges bytes that were asked for; `kind` says what a difference means."""
        self.add(
            compare_bytes(
                as_bytes(actual),
                as_bytes(expected),
                tensor=tensor,
                kind=kind,
                padding=padding,
                max_samples=self.settings.max_mismatches,
            )
        )

    def quantize_sparse(self, x: torch.Tensor, **options: Any) -> None:
        """Judges `quantize` on blocks of which only element 0 is not +0, at the cost of two elements a block.

        A reference over the first two elements of each block gives the scale, the code of element 0 and the code that
        every other element must have.

        Args:
          x: (rows, block) float32.
        """
        options = {**self.random_options(tuple(x.shape)), **options}
        result = self.implementation.call("quantize", x, self.scheme, **options)
        narrow = replace(self.scheme, block=2)
        cut = {**options}
        if "random_bits" in cut:
            cut["random_bits"] = cut["random_bits"][:, :2]
        expected = tensors.quantize(x[:, :2].contiguous(), narrow, **cut)
        zeros = expected.codes[:, 1:2]
        filled = Encoded(zeros.expand(x.shape), expected.scales, expected.tensor_scale)
        actual = self._unpacked(result, tuple(x.shape), filled, False)
        if actual is None:
            return
        few = Encoded(actual.codes[:, :2].contiguous(), actual.scales, actual.tensor_scale)
        limit = self.settings.max_mismatches
        self.add(compare_encoded(x[:, :2].contiguous(), few, expected, narrow, max_samples=limit))
        rest = actual.codes[:, 2:]
        if bool((rest == zeros).all()):
            self.add(Comparison(tensor="codes of zeros", compared=rest.numel()))
        else:
            self.add(compare_bytes(rest.contiguous(), zeros.expand(rest.shape).contiguous(), tensor="codes of zeros"))

    def refuses(self, call: Callable[[], Any], what: str) -> None:
        """Judges that a call of the implementation raises, whatever it raises, rather than return a result."""
        try:
            result = call()
        except Unsupported:
            raise
        except Exception:  # whatever its type, the input was refused and nothing was misread
            self.add(Comparison(tensor=what, compared=1))
        else:
            self.fault("shape", what, f"{what}: accepted, returned {describe(result)}, want an error")

    # -- truth

    def expected(self, x: torch.Tensor, **options: Any) -> Encoded:
        """The right codes and scales of x on which the references agree.

        The PyTorch reference runs on the device; the NumPy one votes up to `BITS_LIMIT` elements, always without
        a GPU; the scalar one where the check asked for it (`exact_votes`).
        """
        wide = widen(x)
        expected = tensors.quantize(wide, self.scheme, **options)
        small = x.numel() <= BITS_LIMIT
        if small or self.settings.device == "cpu":
            on_host = {name: host_array(value) for name, value in options.items()}
            array = np.ascontiguousarray(wide.cpu().numpy())
            self._same(bits.quantize(array, self.scheme, **on_host), expected, wide, "bits", "tensors")
            if self.exact_votes >= x.numel():
                self.exact_votes -= x.numel()
                self._same(exact.quantize(array, self.scheme, **on_host), expected, wide, "exact", "tensors")
        return expected

    def _same(self, actual: Encoded, expected: Encoded, x: torch.Tensor, first: str, second: str) -> None:
        comparison = compare_encoded(
            x.cpu().numpy(), actual, host(expected), self.scheme, max_samples=self.settings.max_mismatches
        )
        self._agree(comparison, first, second, "quantize")

    def _agree(self, comparison: Comparison, first: str, second: str, operation: str) -> None:
        if not comparison.ok:
            raise WitnessDisagreement(
                f"{operation} {self.scheme.name}: references {first} and {second} differ in "
                f"{comparison.mismatched} of {comparison.compared}: {comparison.samples[:3]}"
            )

    # -- parts

    def _unpacked(self, result: Any, shape: tuple[int, ...], expected: Encoded, swizzle: bool) -> Encoded | None:
        """The result's codes and scales, or None where its form is wrong, which is kept as a fault."""
        try:
            quantized = Quantized(*result)
        except TypeError:
            self.fault("shape", "result", f"quantize returned {type(result).__name__}, want a Quantized of three")
            return None
        want = packing.pack(expected, self.scheme, swizzle=swizzle)
        parts: list[torch.Tensor | None] = []
        for name, got, right in zip(("packed", "scales"), quantized[:2], want[:2], strict=True):
            if (got is None) != (right is None):
                self.fault("shape", name, f"{name}: got {describe(got)}, want {describe(right)}")
                return None
            if got is None:
                parts.append(None)
                continue
            if not isinstance(got, torch.Tensor) or got.element_size() != 1:
                self.fault("dtype", name, f"{name}: got {describe(got)}, want one byte an element")
                return None
            got = as_bytes(got)
            if tuple(got.shape) != tuple(right.shape):
                self.fault("shape", name, f"{name}: got shape {tuple(got.shape)}, want {tuple(right.shape)}")
                return None
            if got.device != right.device:
                self.fault("dtype", name, f"{name}: got a tensor on {got.device}, want {right.device}")
                return None
            parts.append(got)
        if swizzle and parts[1] is not None and want.scales is not None:
            padding = padding_mask(want.scales.numel(), expected.scales.shape, want.scales.device)
            limit = self.settings.max_mismatches
            self.add(
                compare_bytes(
                    parts[1][padding], want.scales[padding], tensor="padding", kind="padding", max_samples=limit
                )
            )
        try:
            return packing.unpack(
                Quantized(parts[0], parts[1], quantized.tensor_scale), self.scheme, shape=shape if swizzle else None
            )
        except LowbitError as error:
            self.fault("shape", "packed", str(error))
            return None

    def _diagnose(self, x: torch.Tensor, actual: Encoded, expected: Encoded, options: dict[str, Any]) -> str | None:
        if x.numel() > DIAGNOSIS_LIMIT:
            return None
        found = diagnose(
            x.cpu().numpy(),
            host(actual),
            self.scheme,
            host(expected),
            {name: host_array(value) for name, value in options.items()},
        )
        if found is None:
            return None
        return f"{found} ({', '.join(self.parts)})" if self.parts else str(found)

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
