"""Judges the operations of a block-quantisation scheme: quantise, dequantise and the scalar stage alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lowbit import packing
from lowbit.cases import blocks as cases
from lowbit.compare import Comparison, arrays, compare_bytes, compare_codes, compare_encoded, compare_values
from lowbit.diagnose import diagnose, diagnose_codes
from lowbit.errors import LowbitError
from lowbit.formats import FloatFormat
from lowbit.references import bits, exact, tensors
from lowbit.rules import Rounding
from lowbit.schemes import Encoded, Quantized, Scheme
from lowbit.suite.convert import as_bytes, describe, host, host_array, padding_mask, widen
from lowbit.suite.judge import BITS_LIMIT, DTYPES, Judge, Options
from lowbit.suspects.decoding import diagnose_values

DIAGNOSIS_LIMIT = 1 << 18
"""Elements of a failing input that the diagnosis looks at."""


@dataclass
class BlockJudge(Judge):
    """One check of one implementation under one block-quantisation scheme."""

    scheme: Scheme

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
        if not self.add(comparison) and self.explains(x):
            on_host = {name: host_array(value) for name, value in options.items()}
            self.explain(diagnose, wide.cpu().numpy(), host(actual), self.scheme, host(expected), on_host)
        return comparison.ok

    def dequantize(self, quantized: Quantized, encoded: Encoded, dtype: torch.dtype) -> torch.Tensor:
        """Judges `dequantize` of those bytes to that dtype; returns what the implementation did."""
        actual: torch.Tensor = self.implementation.call("dequantize", quantized, self.scheme, dtype)
        expected = tensors.dequantize(encoded, self.scheme, dtype)
        if actual.numel() <= BITS_LIMIT:
            second = bits.dequantize(host(encoded), self.scheme, DTYPES[dtype])
            width = torch.int32 if dtype is torch.float32 else torch.int16
            self.agree(
                compare_values(torch.from_numpy(second.view(f"i{width.itemsize}").copy()).view(dtype), expected.cpu()),
                "bits",
                "tensors",
                "dequantize",
            )
        comparison = compare_values(
            actual,
            expected,
            tensor=f"values, {DTYPES[dtype].name}",
            max_samples=self.settings.max_mismatches,
            codes=encoded.codes,
            scales=encoded.scales,
            scheme=self.scheme,
        )
        if not self.add(comparison) and comparison.compared and self.explains(actual):
            patterns = (host_array(arrays.bits(values.contiguous())) for values in (actual, expected))
            self.explain(diagnose_values, host(encoded), self.scheme, DTYPES[dtype], *patterns)
        return actual

    def encode(self, x: torch.Tensor, element: FloatFormat, rounding: Rounding, **options: Any) -> None:
        """Judges the scalar stage alone: x (N,) float32 to one code a byte."""
        actual = self.implementation.call("encode", x, element, rounding, **options)
        expected = tensors.encode(x, element, rounding, self.scheme.nan, **options)
        if x.numel() <= BITS_LIMIT:
            second = bits.encode(
                x.cpu().numpy(), element, rounding, self.scheme.nan, **{k: v.cpu().numpy() for k, v in options.items()}
            )
            self.agree(
                compare_codes(x.cpu(), torch.from_numpy(second), expected.cpu(), element), "bits", "tensors", "encode"
            )
        codes = as_bytes(actual)
        comparison = compare_codes(x, codes, expected, element, max_samples=self.settings.max_mismatches)
        if not self.add(comparison) and comparison.compared and self.explains(x):
            parts = [host_array(part) for part in (x, codes, expected)]
            random = {name: host_array(value) for name, value in options.items()}
            self.explain(partial(diagnose_codes, **random), *parts, element, rounding, self.scheme.nan)

    def quantize_sparse(self, x: torch.Tensor, **options: Any) -> None:
        """Judges `quantize` on blocks of which only element 0 is not +0, at the cost of two elements a block.

        A reference over the first two elements of each block gives the scale, the code of element 0 and the code that
        every other element must have.

        Args:
          x: (rows, block) float32.
        """
        options = {**self.random_options(tuple(x.shape)), **options}
        result = self.implementation.call("quantize", x, self.scheme, **options)
        first, narrow = x[:, :2].contiguous(), replace(self.scheme, block=2)
        cut = {**options}
        if "random_bits" in cut:
            cut["random_bits"] = cut["random_bits"][:, :2]
        expected = tensors.quantize(first, narrow, **cut)
        zeros = expected.codes[:, 1:2]
        row = packing.pack(Encoded(zeros[:1].expand(1, x.shape[1]), expected.scales[:1], None), self.scheme)
        scales = None if row.scales is None else expected.scales
        stored = self._stored(result, Quantized(row.packed.expand(len(x), row.packed.shape[1]), scales, None))
        if stored is None:
            return
        right = self._right_bytes(stored, expected)  # unpacked they would be many more, of which few are ever wrong
        actual = expected if right else packing.unpack(stored, self.scheme)
        few = Encoded(actual.codes[:, :2].contiguous(), actual.scales, stored.tensor_scale)
        limit = self.settings.max_mismatches
        self.add(compare_encoded(first, few, expected, narrow, max_samples=limit))
        if right:
            self.add(Comparison(tensor="codes of zeros", compared=x.numel() - first.numel()))
        else:
            rest = actual.codes[:, 2:].contiguous()
            alike = zeros.expand(rest.shape).contiguous()
            self.add(compare_bytes(rest, alike, tensor="codes of zeros", max_samples=limit))

    def _right_bytes(self, stored: Quantized, expected: Encoded) -> bool:
        """Whether codes and scales are stored as expected, every block going on as its second code.

        Args:
          stored: of (rows, block) elements.
          expected: codes (rows, 2), scales (rows, 1).
        """
        zeros = expected.codes[:, 1:]
        codes = torch.cat([expected.codes, zeros, zeros], dim=1)
        four = replace(self.scheme, block=4)
        right, right_scales = packing.split(packing.pack(Encoded(codes, expected.scales, None), four), four)
        packed, scales = packing.split(stored, self.scheme)
        start = right.shape[1] // 2
        return (
            torch.equal(scales, right_scales)
            and torch.equal(packed[:, :start], right[:, :start])
            and bool((packed[:, start:] == right[:, -1:]).all())
        )

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
        self.agree(comparison, first, second, "quantize")

    # -- parts

    def explains(self, values: torch.Tensor) -> bool:
        """Whether a mismatch in so many values is to be explained: the first of the check, if they are few enough."""
        return self.diagnosis is None and values.numel() <= DIAGNOSIS_LIMIT

    def _unpacked(self, result: Any, shape: tuple[int, ...], expected: Encoded, swizzle: bool) -> Encoded | None:
        """The result's codes and scales, or None where its form is wrong, which is kept as a fault."""
        want = packing.pack(expected, self.scheme, swizzle=swizzle)
        stored = self._stored(result, want)
        if stored is None:
            return None
        if swizzle and stored.scales is not None and want.scales is not None:
            padding = padding_mask(want.scales.numel(), expected.scales.shape, want.scales.device)
            limit = self.settings.max_mismatches
            self.add(
                compare_bytes(
                    stored.scales[padding], want.scales[padding], tensor="padding", kind="padding", max_samples=limit
                )
            )
        try:
            return packing.unpack(stored, self.scheme, shape=shape if swizzle else None)
        except LowbitError as error:
            self.fault("shape", "packed", str(error))
            return None

    def _stored(self, result: Any, want: Quantized) -> Quantized | None:
        """The result as bytes, or None where its form is not that of `want`, which is kept as a fault."""
        try:
            quantized = Quantized(*result)
        except TypeError:
            self.fault("shape", "result", f"quantize returned {type(result).__name__}, want a Quantized of three")
            return None
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
        return Quantized(parts[0], parts[1], quantized.tensor_scale)
