"""lowbit's own witnesses of numbers: the scalar reference and the NumPy reference.

Each reads the cases from the files and answers them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowbit import packing, schemes, weights
from lowbit.errors import LowbitError
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FORMATS, FloatFormat
from lowbit.references import bits, exact, exact_arithmetic, exact_random, philox, weights_bits, weights_exact
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Encoded, Scheme
from lowbit.vectors.case import (
    Block,
    Code,
    Decoded,
    Draws,
    Exponent,
    Philox,
    Row,
    ScaledCodes,
    Thresholds,
    Weight,
)
from lowbit.vectors.group import Group
from lowbit.vectors.hextext import patterns, word, write_digits, write_octets, write_words
from lowbit.vectors.votes import Answer, Witness
from lowbit.vectors.weight_text import write_answer

OUTPUTS: dict[str, FloatFormat] = {f.name: f for f in (BINARY32, BINARY16, BFLOAT16)}
QUIET = 0x7FC00000


@dataclass(frozen=True)
class Reference:
    """One of the two references under the same names.

    Attributes:
      encode: (patterns, element, rounding, nan, random bytes or None) -> codes, all flat lists.
      quantize, dequantize: as `references` have them.
      philox: (key, counter) -> four words. draws: (seed, stream, start, count) -> integers.
      exponent_code: (amax, scheme, r) -> scale code.
      value: (code, format) -> binary32 pattern.
      weights: (tensors, weight scheme, format) -> patterns.
      thorough: asks about every random byte of a range, and about every scheme of a scale table or of weights; else
        about the range's two ends, and about the scheme that decides.
    """

    encode: Callable[[list[int], FloatFormat, Rounding, NanCode | None, list[int] | None], list[int]]
    quantize: Callable[..., Encoded]
    dequantize: Callable[..., Any]
    philox: Callable[[Any, Any], Any]
    draws: Callable[[int, int, int, int], Any]
    exponent_code: Callable[[np.float32, Scheme, int], int]
    value: Callable[[int, FloatFormat], int]
    weights: Callable[..., Any]
    thorough: bool

    def ask(self, group: Group) -> Iterator[Answer]:
        """Answers a group of any form that the references know."""
        answers = {
            "codes": self._codes,
            "scaled_codes": self._scaled_codes,
            "decoded": self._decoded,
            "rows": self._rows,
            "blocks": self._blocks,
            "stream": self._blocks,
            "thresholds": self._thresholds,
            "exponents": self._exponents,
            "philox": self._philox,
            "draws": self._draws,
            "weights": self._weights,
        }.get(group.form)
        if answers is not None:
            yield from answers(group)

    def _codes(self, group: Group) -> Iterator[Answer]:
        for case in group.cases:
            assert isinstance(case, Code)  # by the form, as in the methods below
            pattern = self.value(case.code, FORMATS[group.subject])
            yield Answer(case.name, "value", word(quiet(pattern, BINARY32)), word(case.binary32))

    def _scaled_codes(self, group: Group) -> Iterator[Answer]:
        scheme = schemes.get(group.subject)
        codes = np.arange(1 << scheme.element.bits, dtype=np.uint8)
        narrow = replace(scheme, block=codes.size)
        scales = np.array([[case.scale] for case in group.cases if isinstance(case, ScaledCodes)], np.uint8)
        g = None if group.tensor_scale is None else np.uint32(group.tensor_scale).view(np.float32)
        encoded = Encoded(np.tile(codes, (scales.size, 1)), scales, g)
        for name, fmt in OUTPUTS.items():
            values = self.dequantize(encoded, narrow, fmt).tolist()
            for case, row in zip(group.cases, values, strict=True):
                text = " ".join(f"{quiet(v, fmt):0{fmt.bits // 4}x}" for v in row)
                yield Answer(case.name, f"values in {name}", text, case.fields[name])

    def _decoded(self, group: Group) -> Iterator[Answer]:
        narrow = replace(schemes.get(group.subject), block=1)
        for case in group.cases:
            assert isinstance(case, Decoded)
            encoded = Encoded(np.array([[case.code]], np.uint8), np.array([[case.scale]], np.uint8), None)
            pattern = int(self.dequantize(encoded, narrow, BINARY32)[0, 0])
            yield Answer(case.name, "value", word(quiet(pattern, BINARY32)), word(case.binary32))

    def _rows(self, group: Group) -> Iterator[Answer]:
        rows = [case for case in group.cases if isinstance(case, Row)]
        ends = [(row, end) for row in rows for end in dict.fromkeys((row.first, row.last))]
        if group.kind == "breakpoints":
            rounding = Rounding(group.rounding or Rounding.TIES_TO_EVEN.value)
            nan = NanCode(group.nan) if group.nan else None
            found = {"code": self.encode([end for _, end in ends], FORMATS[group.subject], rounding, nan, None)}
            digits = -(-FORMATS[group.subject].bits // 4)
        else:
            names = group.schemes if self.thorough else group.schemes[:1]
            found = {f"{name}: scale": self._scale_codes([end for _, end in ends], name, group) for name in names}
            digits = 2
        for question, codes in found.items():
            for (row, end), code in zip(ends, codes, strict=True):
                yield Answer(row.name, f"{question} of {word(end)}", f"{code:0{digits}x}", row.fields["code"])

    def _scale_codes(self, ends: list[int], name: str, group: Group) -> list[int]:
        narrow = replace(schemes.get(name), block=2)
        x = np.zeros((len(ends), 2), np.uint32)
        x[:, 0] = ends
        options: dict[str, Any] = {}
        if group.tensor_scale is not None:
            options["tensor_scale"] = np.uint32(group.tensor_scale).view(np.float32)
        if narrow.rounding is Rounding.STOCHASTIC:
            options["random_bits"] = np.zeros(x.shape, np.uint8)
        codes: list[int] = self.quantize(x.view(np.float32), narrow, **options).scales[:, 0].tolist()
        return codes

    def _blocks(self, group: Group) -> Iterator[Answer]:
        scheme = schemes.get(group.subject)
        for case in group.cases:
            assert isinstance(case, Block)
            randoms: list[int | None] = [None]
            if case.randoms is not None:
                ends = (case.randoms[0], case.randoms[-1])
                randoms = list(case.randoms if self.thorough else dict.fromkeys(ends))
            for r in randoms:
                options = case.options
                if r is not None:
                    options["random_bits"] = np.full(case.x.shape, r, np.uint8)
                encoded = self.quantize(case.x, scheme, **options)
                at = "" if r is None else f", random byte {r:02x}"
                yield from compared(case, encoded, at)
                if case.packed is not None:
                    packed = packing.pack(encoded, scheme).packed
                    yield Answer(case.name, "bytes", write_octets(packed.ravel()), case.fields["packed"])

    def _thresholds(self, group: Group) -> Iterator[Answer]:
        element = FORMATS[group.subject]
        for case in group.cases:
            assert isinstance(case, Thresholds)
            firsts, randoms = case.firsts.tolist(), list(range(256))
            for sign in (0, 0x80000000):
                for step, code in ((0, case.code), (1, case.code - 1)):
                    at = [sign | (first - step) for first in firsts]
                    found = self.encode(at, element, Rounding.STOCHASTIC, None, randoms)
                    right = code | (element.sign_mask if sign else 0)
                    question = f"{'below' if step else 'at'} the thresholds, sign {sign >> 31}, 256 random bytes"
                    yield Answer(case.name, question, write_digits(found), write_digits([right] * 256))

    def _exponents(self, group: Group) -> Iterator[Answer]:
        scheme = schemes.get(group.subject)
        for case in group.cases:
            assert isinstance(case, Exponent)
            for r in dict.fromkeys((case.first, case.last)):
                code = self.exponent_code(np.uint32(case.x).view(np.float32), scheme, r)
                yield Answer(case.name, f"scale with random integer {word(r)}", f"{code:02x}", case.fields["code"])

    def _philox(self, group: Group) -> Iterator[Answer]:
        for case in group.cases:
            assert isinstance(case, Philox)
            yield Answer(case.name, "words", write_words(self.philox(case.key, case.counter)), case.fields["words"])

    def _draws(self, group: Group) -> Iterator[Answer]:
        for case in group.cases:
            assert isinstance(case, Draws)
            found = self.draws(case.seed, case.stream, case.start, len(case.values))
            text = write_octets(found) if case.stream == 0 else write_words(found)
            yield Answer(case.name, "draws", text, case.fields["values"])

    def _weights(self, group: Group) -> Iterator[Answer]:
        """A weight that must be refused is one too; what is checked of its tensors, both references share."""
        for name in group.schemes if self.thorough else group.schemes[:1]:
            scheme = weights.get(name)
            for case in group.cases:
                assert isinstance(case, Weight)
                tensors = case.tensors(scheme)
                for fmt in case.formats:
                    found = self.weights(tensors, scheme, FORMATS[fmt])
                    yield Answer(case.name, f"{name}: {fmt}", write_answer(found, FORMATS[fmt]), case.fields[fmt])
                if case.refused:
                    try:
                        self.weights(tensors, scheme, BINARY16)
                    except LowbitError:
                        yield Answer(case.name, name, "refused", "refused")
                    else:
                        yield Answer(case.name, name, "accepted", "refused")


def quiet(pattern: int, fmt: FloatFormat) -> int:
    """A pattern, every NaN as the files write it."""
    return fmt.max_magnitude + 1 | 1 << (fmt.mantissa_bits - 1) if fmt.is_nan(pattern) else pattern


def compared(case: Block, encoded: Encoded, at: str = "") -> Iterator[Answer]:
    """Scales, tensor scale and codes of a quantised block beside those of the file."""
    yield Answer(case.name, f"scales{at}", write_octets(np.asarray(encoded.scales).ravel()), case.fields["scales"])
    if encoded.tensor_scale is not None or "tensor_scale" in case.fields:
        pattern = patterns(np.array([encoded.tensor_scale], np.float32))[0]
        yield Answer(case.name, "tensor scale", word(quiet(pattern, BINARY32)), case.fields.get("tensor_scale", ""))
    yield Answer(case.name, f"codes{at}", write_digits(np.asarray(encoded.codes).ravel()), case.fields["codes"])


# -- the two references


def _exact_encode(
    at: list[int], element: FloatFormat, rounding: Rounding, nan: NanCode | None, randoms: list[int] | None
) -> list[int]:
    return [
        exact.encode(exact.pattern_float(pattern), element, rounding, nan, random=None if randoms is None else r)
        for pattern, r in zip(at, randoms or [0] * len(at), strict=True)
    ]


def _bits_encode(
    at: list[int], element: FloatFormat, rounding: Rounding, nan: NanCode | None, randoms: list[int] | None
) -> list[int]:
    x = np.array(at, np.uint32).view(np.float32)
    random = None if randoms is None else np.array(randoms, np.uint8)
    codes: list[int] = bits.encode(x, element, rounding, nan, random_bits=random).tolist()
    return codes


def _exact_draws(seed: int, stream: int, start: int, count: int) -> list[int]:
    draw = exact_random.scale_word if stream else exact_random.element_byte
    return [draw(seed, start + i) for i in range(count)]


def _bits_draws(seed: int, stream: int, start: int, count: int) -> list[int]:
    draw = philox.scale_words if stream else philox.element_bytes
    values: list[int] = draw(seed, count, start).tolist()
    return values


def _bits_exponent(amax: np.float32, scheme: Scheme, r: int) -> int:
    return int(bits.scale_codes(np.array([amax]), scheme, random_bits=np.array([r], np.int32))[0])


def _bits_value(code: int, fmt: FloatFormat) -> int:
    return patterns(bits.decode(np.array([code], np.uint8), fmt).astype(np.float32))[0]


EXACT = Reference(
    encode=_exact_encode,
    quantize=exact.quantize,
    dequantize=exact.dequantize,
    philox=exact_random.philox4x32,
    draws=_exact_draws,
    exponent_code=lambda amax, scheme, r: exact.scale_exponent(float(amax), scheme, random=r) + scheme.scale.bias,
    value=lambda code, fmt: exact_arithmetic.convert(code, fmt, BINARY32),
    weights=weights_exact.dequantize,
    thorough=False,
)

BITS = Reference(
    encode=_bits_encode,
    quantize=bits.quantize,
    dequantize=bits.dequantize,
    philox=lambda key, counter: philox.philox4x32(key, counter).tolist(),
    draws=_bits_draws,
    exponent_code=_bits_exponent,
    value=_bits_value,
    weights=weights_bits.dequantize,
    thorough=True,
)


WITNESSES = (
    Witness("exact", "lowbit, exact", "integers and Fractions, one number at a time", EXACT.ask),
    Witness("bits", "lowbit, bits", "NumPy on integer bit patterns", BITS.ask),
)
