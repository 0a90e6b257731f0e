"""A failed comparison cut down to some of its blocks, on which suspected rule changes are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.compare import kinds
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.references import bits, philox
from lowbit.rules import NanCode, Rounding, ScaleRule, TensorScaleRule
from lowbit.schemes import Encoded, Scheme

LIMIT = 1 << 15
"""Elements tried: half of them in blocks that are wrong, half in blocks that are right and must stay so."""

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
COMPUTED = (TensorScaleRule.ONE_ROUNDING, TensorScaleRule.TWO_ROUNDINGS)
"""Tensor scales that follow from the whole tensor."""

_RANGE = 2.0**100


@dataclass(frozen=True)
class Suspect:
    """A fault.

    Attributes:
      name: stable, for records and tests. text: completes "all mismatches vanish with …".
      guess: what an implementation with that fault would give, made from a `Trial`, or from an input or the right
        result where there are no blocks; None where the fault cannot occur.
      becomes: where the fault is another rule, input or factor for the whole reference: the trial that has it, None
        where the fault cannot occur. Other faults can be added to such a one.
      last: the guess is made of the right result alone, so that the fault can be added to any other.
    """

    name: str
    text: str
    guess: Callable[[Any], Any]
    becomes: Callable[[Any], Any] | None = None
    last: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Blocks of a comparison. Blocks are independent once the tensor scale is given, so any of them may be left out.

    Attributes:
      x: (B, block) float32, padded with +0.
      actual, expected: codes (B, block), scales (B, 1).
      options: of `bits.quantize` on x.
      grid: the shape (rows, blocks a row) if no block was left out, else None: then what moves between blocks
        cannot be tried.
      given: whether the tensor scale was an argument, not computed.
    """

    scheme: Scheme
    x: Floats
    actual: Encoded
    expected: Encoded
    options: Mapping[str, Any]
    grid: tuple[int, int] | None
    given: bool

    @classmethod
    def of(cls, x: Any, actual: Encoded, scheme: Scheme, expected: Encoded, options: Mapping[str, Any]) -> Trial | None:
        """The trial of a comparison; None where shapes do not fit or nothing differs.

        Args:
          x: (..., K) float32. actual, expected: NumPy. options: those that the reference took.
        """
        x = np.asarray(x, dtype=np.float32)
        block = scheme.block
        columns = x.shape[-1]
        width = -(-columns // block) * block
        rows = x.size // max(columns, 1)
        shapes = (rows * width // block, block), (rows * width // block, 1)
        codes, scales = (
            [np.asarray(getattr(side, part)) for side in (actual, expected)] for part in ("codes", "scales")
        )
        if any(
            part.size != np.prod(shape) for part, shape in zip((*codes, *scales), np.repeat(shapes, 2, 0), strict=True)
        ):
            return None
        codes, scales = [c.reshape(shapes[0]) for c in codes], [s.reshape(shapes[1]) for s in scales]
        if codes[0].dtype != np.uint8 or scales[0].dtype != np.uint8:
            return None
        keep = chosen_blocks((codes[0] != codes[1]).any(axis=1) | (scales[0] != scales[1])[:, 0], LIMIT // block)
        whole = keep is None or keep.size == shapes[0][0]
        picked = slice(None) if whole else keep
        kept: dict[str, Any] = {}
        if "random_bits" in options or ("seed" in options and scheme.rounding is Rounding.STOCHASTIC):
            random = options.get("random_bits")
            if random is None:
                random = philox.element_bytes(int(options["seed"]), x.size)
            kept["random_bits"] = _padded(np.asarray(random, dtype=np.uint8).reshape(rows, columns), width)
            kept["random_bits"] = kept["random_bits"].reshape(-1, block)[picked]
        if "scale_random_bits" in options or ("seed" in options and scheme.scale_rule is ScaleRule.STOCHASTIC):
            random = options.get("scale_random_bits")
            if random is None:
                random = philox.scale_words(int(options["seed"]), shapes[1][0])
            kept["scale_random_bits"] = np.asarray(random, dtype=np.int32).reshape(-1, 1)[picked]
        given = options.get("tensor_scale") is not None
        if given:
            kept["tensor_scale"] = options["tensor_scale"]
        elif not whole and scheme.tensor_scale in COMPUTED:
            factor = scalar(expected.tensor_scale)
            if factor is None or not (np.isfinite(factor) and factor > 0):
                return None  # such a factor follows from the whole tensor only
            kept["tensor_scale"] = factor
        trial = cls(
            scheme=scheme,
            x=_padded(x.reshape(rows, columns), width).reshape(-1, block)[picked],
            actual=Encoded(codes[0][picked], scales[0][picked], scalar(actual.tensor_scale)),
            expected=Encoded(codes[1][picked], scales[1][picked], scalar(expected.tensor_scale)),
            options=kept,
            grid=(rows, width // block) if whole else None,
            given=given or not whole,
        )
        return trial if trial.wrong(trial.expected) else None

    def assuming(self, suspect: Suspect, guess: Encoded) -> Trial:
        """The trial in which a fault is none, so that another one may be looked for.

        Args:
          guess: what the suspect gives.
        """
        changed = suspect.becomes(self) if suspect.becomes else self
        return replace(changed, expected=guess)

    def sampled(self, limit: int) -> Trial | None:
        """The trial cut down to so many blocks, half of them wrong; None where none is, or the factor is not known."""
        places = chosen_blocks(self.wrong_blocks(self.expected), limit)
        if places is None:
            return None
        if places.size == len(self.x):
            return self
        kept = {
            name: value if name == "tensor_scale" else np.asarray(value)[places] for name, value in self.options.items()
        }
        if self.scheme.tensor_scale in COMPUTED and not self.given:
            factor = self.expected.tensor_scale
            if factor is None or not (np.isfinite(factor) and factor > 0):
                return None
            kept["tensor_scale"] = factor
        return replace(
            self,
            x=self.x[places],
            actual=self.actual._replace(codes=self.actual.codes[places], scales=self.actual.scales[places]),
            expected=self.expected._replace(codes=self.expected.codes[places], scales=self.expected.scales[places]),
            options=kept,
            grid=None,
            given=True,
        )

    def wrong_blocks(self, guess: Encoded) -> npt.NDArray[np.bool_]:
        """(B,) bool. The blocks in which a guess differs from what the implementation gave."""
        scales = (guess.scales != self.actual.scales).any(axis=1)
        return np.asarray((guess.codes != self.actual.codes).any(axis=1) | scales)

    def quantize(self, *, x: Floats | None = None, g: Any = None, **rules: Any) -> Encoded:
        """The reference's result with the input, the tensor scale's value or rules changed."""
        options = dict(self.options)
        if g is not None:
            options["tensor_scale"] = g
        scheme = replace(self.scheme, **rules) if rules else self.scheme
        if scheme.rounding is not Rounding.STOCHASTIC:
            options.pop("random_bits", None)
        if scheme.scale_rule is not ScaleRule.STOCHASTIC:
            options.pop("scale_random_bits", None)
        return bits.quantize(self.x if x is None else x, scheme, **options)

    def operands(
        self, scales: Bytes, x: Floats | None = None
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(y, s), each (B, block) float64: what is divided, and by what, under scale codes (B, 1)."""
        source = self.x if x is None else x
        spread = np.broadcast_to(scales, source.shape).reshape(-1)
        y, s = kinds.operands(source.reshape(-1), spread, self.scheme, _float(self.expected.tensor_scale))
        return y.reshape(source.shape), s.reshape(source.shape)

    def encode(self, quotient: npt.NDArray[Any], *, rounding: Rounding | None = None) -> Bytes:
        """Codes of quotients, (B, block) float32 or exact float64, by the scheme's element rule."""
        # Far outside the grid only sign and order matter, so that binary32 holds what is exact in binary64.
        with np.errstate(invalid="ignore", over="ignore"):
            magnitude = np.clip(np.abs(quotient), 1 / _RANGE, _RANGE)
            near = np.where(np.isnan(quotient) | (quotient == 0), quotient, np.copysign(magnitude, quotient))
        rule = rounding or self.scheme.rounding
        random = self.options.get("random_bits") if rule is Rounding.STOCHASTIC else None
        return encode(near.astype(np.float32), self.scheme.element, rule, self.scheme.nan, random)

    def codes_for(self, scales: Bytes, x: Floats | None = None) -> Bytes:
        """(B, block) codes as the scheme encodes them under other scale codes."""
        y, s = self.operands(scales, x)
        return self.encode(self.quotient(y, s))

    def quotient(self, y: npt.NDArray[np.float64], s: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """y / s with the scheme's rounding: none for powers of two."""
        with np.errstate(all="ignore"):
            exact = y / s
            return exact.astype(np.float32) if self.scheme.family == "nvfp4" else exact

    @cached_property
    def separable(self) -> bool:
        """Whether encoding under the expected scales gives the expected codes: then scales can be changed alone."""
        return bool((self.codes_for(self.expected.scales) == self.expected.codes).all())

    @cached_property
    def amax(self) -> npt.NDArray[np.float64]:
        """(B, 1) float64. The largest magnitude of what is quantised; NaN if there is one."""
        ones = np.full(self.expected.scales.shape, _one(self.scheme), dtype=np.uint8)
        return np.abs(self.operands(ones)[0]).max(axis=1, keepdims=True)

    def wrong(self, guess: Encoded) -> int:
        """In how many places a guess differs from what the implementation gave."""
        differ = int((guess.codes != self.actual.codes).sum()) + int((guess.scales != self.actual.scales).sum())
        if self.scheme.tensor_scale in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE):
            return differ
        return differ + (_bits(guess.tensor_scale) != _bits(self.actual.tensor_scale))

    def missed(self, guess: Encoded) -> float:
        """The part of the codes and scales that a guess changes to something else than what the implementation gave."""
        changed = missed = 0
        for got, right, guessed in zip(self.actual[:2], self.expected[:2], guess[:2], strict=True):
            changed += int((guessed != right).sum())
            missed += int(((guessed != right) & (guessed != got)).sum())
        return missed / max(changed, 1)


def encode(
    x: Floats, element: FloatFormat, rounding: Rounding, nan: NanCode | None, random: Bytes | None = None
) -> Bytes:
    """Codes of an array of any shape, whatever warnings the arithmetic gives."""
    with np.errstate(all="ignore"):
        codes = bits.encode(
            x.reshape(-1), element, rounding, nan, random_bits=None if random is None else random.reshape(-1)
        )
    return codes.reshape(x.shape)


def through(fmt: FloatFormat, x: Floats) -> Floats:
    """x rounded to binary16 or bfloat16, ties to even, and widened again; NaN stays."""
    with np.errstate(over="ignore"):
        if fmt is BINARY16:
            return x.astype(np.float16).astype(np.float32)
    pattern = x.view(np.uint32).astype(np.uint64)
    shift = np.uint64(BINARY32.mantissa_bits - fmt.mantissa_bits)
    even = (pattern >> shift) & np.uint64(1)
    rounded = (pattern + even + np.uint64((1 << (int(shift) - 1)) - 1)) >> shift << shift
    return np.where(np.isnan(x), x, rounded.astype(np.uint32).view(np.float32))


def flushed(x: Floats) -> Floats:
    """x with binary32's subnormals replaced by zeros of their sign."""
    return np.where(np.abs(x) < np.float32(2.0**BINARY32.emin), np.copysign(np.float32(0), x), x)


def to_bfloat16(x: Floats) -> Floats:
    return through(BFLOAT16, x)


def to_binary16(x: Floats) -> Floats:
    return through(BINARY16, x)


def _one(scheme: Scheme) -> int:
    """The scale code of 1."""
    return int(np.flatnonzero(kinds.value_table(scheme.scale) == 1)[0])


def chosen_blocks(wrong: npt.NDArray[np.bool_], limit: int) -> npt.NDArray[np.int64] | None:
    """Blocks to try, in their order; None if none is wrong."""
    if not wrong.any():
        return None
    if wrong.size <= limit:
        return np.arange(wrong.size)
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    share = max(limit // 2, limit - good.size)
    parts = _spread(bad, share), _spread(good, limit - min(share, bad.size))
    return np.sort(np.concatenate(parts))


def _spread(places: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    if places.size <= limit:
        return places
    return places[np.arange(limit) * (places.size - 1) // max(limit - 1, 1)]


def _padded(rows: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def scalar(value: Any) -> np.float32 | None:
    return None if value is None else np.float32(np.asarray(value, dtype=np.float32).reshape(-1)[0])


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _bits(value: Any) -> int | None:
    """The bits of a tensor scale, one pattern for every NaN."""
    found = scalar(value)
    if found is None or np.isnan(found):
        return None if found is None else BINARY32.nan_magnitude
    return int(found.view(np.uint32))
