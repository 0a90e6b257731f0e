"""The PTX of `_bfloat16_pairs.py`: every bfloat16 under every factor, and the MX kernels with it, on any machine.

The interpreter takes the portable form and no PTX at all. Here the texts are emulated instruction by instruction; on a
GPU the kernels run them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from kernel_calls import DEVICE, RNG, check, expected, hard_values, on, quantize, same
from ptx_emulation import Words, run

from lowbit import schemes
from lowbit.formats import E2M1
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Scheme
from lowbit_kernels import _bfloat16_pairs, _launch, _pairs, _stochastic_pairs
from lowbit_kernels._codec import NAN_CODES, ROUNDINGS

_BFLOAT16 = tl.constexpr(_pairs.BFLOAT16)
ONES = np.uint32(0x10001)
VALUES = np.array([float(value) for value in E2M1.magnitudes])
TIES = (VALUES[1:] + VALUES[:-1]) / 2
EXPONENTS = range(-126, 128)
EDGES = (-126, -125, -64, -2, -1, 0, 1, 2, 7, 64, 126, 127)
TEXTS = {
    "even": (_bfloat16_pairs.EVEN.value, False, 4),
    "away": (_bfloat16_pairs.AWAY.value, True, 4),
    "away, one factor": (_bfloat16_pairs.AWAY_CHUNK.value, True, 1),
}
"""Text, whether ties go away from zero (NaN then keeps its sign), and how many factors it takes."""


def right_codes(x: Words, exponent: int, away: bool) -> Words:
    """Codes of bfloat16 patterns times 2**exponent: how many ties lie below; a tie counts itself where it goes up."""
    with np.errstate(invalid="ignore"):
        value = ((x & 0x7FFF) << np.uint32(16)).view(np.float32).astype(np.float64)
    code = np.searchsorted(TIES, value * 2.0**exponent, side="right" if away else "left")
    if not away:
        code += np.isin(value * 2.0**exponent, TIES[1::2])  # from an odd code to the even one above
    nan = np.isnan(value)
    sign = (x >> 15) & np.uint32(away | ~nan)
    return (np.where(nan, 7, code) | sign << 3).astype(np.uint32)


def wrong_words(text: str, away: bool, factors: int, exponents: Any) -> int:
    """How many of the results differ, of all bfloat16, two in any order in a word, under powers of two."""
    low, high = RNG.permutation(1 << 16).astype(np.uint32).reshape(2, 4, -1)
    words = low | high << 16
    wrong = 0
    for exponent in exponents:
        factor = np.array(2.0**exponent, np.float32).view(np.uint32)
        given = {f"${place}": word for place, word in enumerate(words, 1)}
        factor = factor if away else (factor >> 16) * ONES
        given |= {f"${place}": np.full_like(words[0], factor) for place in range(5, 5 + factors)}
        halves = (right_codes(words >> shift & 0xFFFF, exponent, away) for shift in (np.uint32(0), np.uint32(16)))
        low_codes, high_codes = halves
        expected = np.bitwise_or.reduce((low_codes | high_codes << 4) << np.array([[0], [8], [16], [24]], np.uint32))
        wrong += int((run(text, given)["$0"] != expected).sum())
    return wrong


@pytest.mark.parametrize(("name", "exponents"), [("even", EXPONENTS), ("away", EXPONENTS), ("away, one factor", EDGES)])
def test_every_bfloat16_under_every_factor(name: str, exponents: Any) -> None:
    """Ties, saturation, ±Inf, NaN of both signs, subnormal numbers and products, with any neighbour in the word."""
    assert wrong_words(*TEXTS[name], exponents) == 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param("even", "fma.rn.bf16x2 twos, v, half, from4", "fma.rn.bf16x2 twos, v, half, from2", id="a line"),
        pytest.param("even", "0x007f007f", "0x00800080", id="infinity without its sign"),
        pytest.param("even", "sign0, sign1, 0xfbd9", "sign0, sign1, 0xfdb9", id="signs exchanged"),
        pytest.param("even", "mov.b32 from7, 0x43074307", "mov.b32 from7, 0x43084308", id="no saturation"),
        pytest.param("away", "mov.b32 one, 0x3c013c01", "mov.b32 one, 0x3c003c00", id="a tie that is not passed"),
        pytest.param("away", "mov.b32 half, 0x38013801", "mov.b32 half, 0x38093809", id="more than ties passed"),
        pytest.param("away", "low, high, 0x7632", "low, high, 0x3276", id="bytes exchanged"),
    ],
)
def test_a_fault_in_a_text_is_found(name: str, old: str, new: str) -> None:
    text, *rest = TEXTS[name]
    assert old in text
    assert wrong_words(text.replace(old, new), *rest, (0,))


@pytest.mark.parametrize("ignored", [False, True])
def test_the_larger_of_any_two(ignored: bool) -> None:
    """Of magnitudes: NaN the largest of all, or none of them; the least it loses to are infinities."""
    kinds = np.array([0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF], np.uint32)
    first, second = (side.ravel() for side in np.meshgrid(kinds, kinds))
    text = (_bfloat16_pairs.LARGER_NUMBER if ignored else _bfloat16_pairs.LARGER_OR_NAN).value
    word = run(text, {"$1": first | second << 16, "$2": second | first << 16})["$0"]
    nan = ((first > 0x7F80) & (second > 0x7F80)) if ignored else ((first > 0x7F80) | (second > 0x7F80))
    kept = [np.where(side > 0x7F80, 0, side) for side in (first, second)]
    for half in (word & 0xFFFF, word >> 16):
        assert np.array_equal(half > 0x7F80, nan)
        assert np.array_equal(half[~nan], np.maximum(*kept)[~nan])


# In the kernels


@triton.jit
def encode_kernel(words_ptr, exponent_ptr, out_ptr, ROUNDING: tl.constexpr, NAN: tl.constexpr, ROWS: tl.constexpr):
    """Rows of 16 bfloat16 words, each with its factor's exponent: by `encode_pairs` with PTX and without."""
    row, word = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 16)[None, :]
    words = tl.load(words_ptr + row[:, None] * 16 + word)
    factor = ((tl.load(exponent_ptr + row) + 127) << 23).to(tl.float32, bitcast=True)[:, None]
    for PTX in tl.static_range(2):
        codes = _pairs.encode_pairs(words, factor, ROUNDING, NAN, 2, _BFLOAT16, False, PTX)
        tl.store(out_ptr + (row[:, None] * 2 + PTX) * 16 + word, codes.to(tl.uint8))


@pytest.mark.parametrize(
    ("rounding", "nan"), [(Rounding.TIES_TO_EVEN, NanCode.POSITIVE_MAX), (Rounding.TIES_AWAY, NanCode.SIGNED_MAX)]
)
def test_both_forms_agree(rounding: Rounding, nan: NanCode, ptx: list[str]) -> None:
    """All bfloat16 twice under factors at the edges, those of a row in the same order as its bytes."""
    values = np.concatenate([np.arange(1 << 16), RNG.permutation(1 << 16)]).astype(np.uint32)
    words = on((values[0::2] | values[1::2] << 16).view(np.int32))
    rows = words.numel() // 16
    exponents = on(np.resize(np.array(EDGES, np.int32), rows))
    out = torch.empty(rows, 2, 16, dtype=torch.uint8, device=DEVICE)
    block = rows if DEVICE.type == "cpu" else 32
    with np.errstate(all="ignore"):
        options = {"ROUNDING": ROUNDINGS[rounding.value], "NAN": NAN_CODES[nan.value], "ROWS": block}
        _launch.launch(encode_kernel, (rows // block,), out, words, exponents, out, **options)
    assert torch.equal(out[:, 0], out[:, 1])
    assert DEVICE.type == "cuda" or ptx == [TEXTS["even" if rounding is Rounding.TIES_TO_EVEN else "away"][0]]


SCHEMES = [schemes.get("mxfp4_floor"), schemes.get("mxfp4_rceil")]
SCHEMES += [
    schemes.get(f"mx4_{rule}_e2m1_g{size}") for rule, size in (("ceil", 32), ("even_exclusive", 32), ("floor", 16))
]
SCHEMES += [schemes.get("mx4_stochastic_e2m1_g32")]
SCHEMES += [schemes.get(f"{name}+stochastic") for name in ("mxfp4_floor", "mx4_ceil_e2m1_g32")]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: s.name)
def test_the_kernels_with_ptx(scheme: Scheme, ptx: list[str]) -> None:
    """Blocks of every kind; NaN and infinities among others, NaN in all low or high halves, or all; MX4 either way."""
    x = hard_values(2, 128)
    x[:2, :64:9], x[1:3, 3:64:10] = np.nan, -np.inf
    x[4, ::2] = x[5, 1::2] = x[6, :64] = np.nan
    seed = {"seed": 7} if scheme.stochastic else {}
    if scheme.rounding is Rounding.STOCHASTIC:
        for dtype in (torch.float16, torch.float32):
            check(on(x).to(dtype), scheme, **seed)
    x = on(x).bfloat16()
    check(x, scheme, **seed)
    if scheme.rounding is Rounding.STOCHASTIC:
        text = _stochastic_pairs.SCALED if scheme.family == "mxfp4" else _stochastic_pairs.WORDS
        assert DEVICE.type == "cuda" or text.value in ptx
    if scheme.family == "mx4":
        check(x[:3, :96], scheme)
    elif scheme.scale_rule.value == "floor":
        options = {"swizzle": True, **seed}
        same(quantize(x[:3, :96], scheme, **options), expected(x[:3, :96], scheme, **options))
    assert DEVICE.type == "cuda" or len(ptx) > 100
