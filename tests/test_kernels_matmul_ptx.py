"""The PTX that decodes operands, run in NumPy: every code in every place with every scale byte, in every text.

The interpreter takes the portable form and no PTX at all. Here the texts are emulated and compared with the formats, as
the portable form is; on a GPU its two forms are compared with each other as well.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
import triton
import triton.language as tl
from ptx_emulation import HALVES, Words, lop3, multiply_add, permute, run

from lowbit import packing
from lowbit.formats import BFLOAT16, BINARY16, E4M3
from lowbit.schemes import Scheme
from lowbit_kernels import _matmul_decode

from .matmul_checks import DEVICE, FAMILIES, MXFP4, NVFP4, assert_same, bits, on, patterns

RNG = np.random.default_rng(20240702)


class Text(NamedTuple):
    """A text that decodes a word of eight codes.

    Attributes:
      module, name: where it is, in lowbit_kernels.
      scheme: MXFP4's results are bfloat16, NVFP4's binary16.
      outputs, word, factor: registers.
      order: the elements in the results, low halves first.
      unit: result = value * scale * unit.
      scaled: the factor is scale * scaled, in the results' format.
      pairs: whether results and factor are 32 bits, two halves.
    """

    module: str
    name: str
    scheme: Scheme
    outputs: int
    order: tuple[int, ...]
    unit: float
    scaled: float = 1.0
    pairs: bool = False

    @property
    def word(self) -> str:
        return f"${self.outputs}"

    @property
    def factor(self) -> str:
        return f"${self.outputs + 1}"


SHIFTED, CONVERTED = (0, 4, 1, 5, 2, 6, 3, 7), (0, 2, 4, 6, 1, 3, 5, 7)
TEXTS = [
    Text("_matmul_decode", "TO_BINARY16", NVFP4, 8, SHIFTED, 2.0**-7, scaled=128.0),
    Text("_matmul_decode", "TO_BFLOAT16", MXFP4, 8, SHIFTED, 1.0),
    Text("_matmul_small", "CONVERTING", NVFP4, 8, CONVERTED, 2.0**-6),
    Text("_matmul_hopper_kernels", "_TO_BINARY16", NVFP4, 4, CONVERTED, 2.0**-6, pairs=True),
    Text("_matmul_hopper_kernels", "_TO_BFLOAT16", MXFP4, 4, SHIFTED, 1.0, pairs=True),
]
SCALES = {("_matmul_small", "TWO_SCALES"): 2, ("_matmul_hopper_kernels", "_FACTORS"): 2}
"""Texts that make pairs of binary16 of a word's E4M3 bytes: how many."""


@triton.jit
def factor_kernel(scales_ptr, out_ptr, MX: tl.constexpr):
    """The 16-bit factors of every byte, which the PTX takes. MX: (256, 1), else (128, 2)."""
    byte = tl.arange(0, 256)
    if MX:
        factors = _matmul_decode._e8m0_bits(tl.load(scales_ptr + byte)[:, None]).to(tl.int16)
    else:
        pair = tl.arange(0, 128)
        scales = tl.load(scales_ptr + 2 * pair) | (tl.load(scales_ptr + 2 * pair + 1) << 8)
        factors = _matmul_decode._e4m3_factors(scales[:, None]).to(tl.int16, bitcast=True)
    tl.store(out_ptr + byte, tl.reshape(factors, (256,)))


@triton.jit
def decode_kernel(words_ptr, scales_ptr, out_ptr, MX: tl.constexpr, PTX: tl.constexpr, ROWS: tl.constexpr):
    """Rows of four words, 32 elements, with a row's scale bytes each."""
    row, word, element = tl.arange(0, ROWS)[:, None], tl.arange(0, 4)[None, :], tl.arange(0, 32)[None, :]
    first = tl.program_id(0) * ROWS
    words = tl.load(words_ptr + (first + row) * 4 + word)
    scales = tl.load(scales_ptr + first + row)
    decoded = _matmul_decode.decode(words, scales, MX, PTX)
    tl.store(out_ptr + (first + row) * 32 + element, decoded.to(tl.float32))


@triton.jit
def row_kernel(row_ptr, out_ptr, tiles, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(out_ptr + index, _matmul_decode.scale_row(tl.load(row_ptr + index), tiles))


def module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"lowbit_kernels.{name}")
    except (ImportError, AttributeError):  # a Triton without Gluon
        pytest.skip(f"{name} needs Gluon")


def hard_codes() -> npt.NDArray[np.uint8]:
    """(rows, 8): each code at each place among zeros, among ones, and anything."""
    place, code = (index.ravel() for index in np.indices((8, 16)))
    alone, full = np.zeros((128, 8), np.uint8), np.full((128, 8), 15, np.uint8)
    alone[np.arange(128), place] = full[np.arange(128), place] = code
    return np.concatenate([alone, full, RNG.integers(0, 16, (256, 8), dtype=np.uint8)])


def words_of(codes: npt.NDArray[np.uint8]) -> Words:
    """(..., 8) codes to words."""
    return packing.pack_nibbles(codes).view(np.uint32)[..., 0]


def truth(codes: Any, byte: Any, scheme: Scheme, unit: float) -> npt.NDArray[np.uint32]:
    """value * scale * unit as binary32 patterns; beyond bfloat16 infinity."""
    values = np.array([float(scheme.element.value(code)) for code in range(16)])
    scales = np.array([float(scheme.scale.value(number)) for number in range(256)])
    right = values[codes] * scales[byte] * unit
    right[abs(right) >= 2.0**128] *= np.inf
    return patterns(right)


def factors(scheme: Scheme) -> Words:
    """(256,) the half that stands for each scale byte in the kernels of `_matmul_decode`."""
    out = torch.empty(256, dtype=torch.int16, device=DEVICE)
    factor_kernel[(1,)](on(np.arange(256, dtype=np.int32)), out, MX=scheme is MXFP4)
    return bits(out.view(torch.float16)).astype(np.uint32)


def as_binary32(halves: Words, scheme: Scheme) -> Words:
    if scheme is MXFP4:
        return halves << 16
    return halves.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: f"{text.module}.{text.name}")
def test_every_text_is_exact(text: Text) -> None:
    """512 words with each of 256 scale bytes: the value of the formats, -0, NaN and, beyond bfloat16, Inf too."""
    codes = hard_codes()
    word, byte = (index.ravel() for index in np.indices((len(codes), 256)))
    factor = factors(text.scheme) if text.scaled != 1.0 or text.scheme is MXFP4 else HALVES
    given = factor[byte] | factor[byte] << 16 if text.pairs or text.name == "CONVERTING" else factor[byte]
    source = getattr(module(text.module), text.name).value
    registers = run(source, {text.word: words_of(codes)[word], text.factor: given})
    results = [registers[f"${index}"] for index in range(text.outputs)]
    if text.pairs:
        results = [half for pair in results for half in (pair & 0xFFFF, pair >> 16)]
    assert len(results) == 8
    for element, actual in zip(text.order, results, strict=True):
        right = truth(codes[word, element], byte, text.scheme, text.unit)
        assert_same(as_binary32(actual, text.scheme), right)


@pytest.mark.parametrize(("place", "count"), SCALES.items(), ids=lambda part: str(part))
def test_the_texts_of_scales(place: tuple[str, str], count: int) -> None:
    """Each byte of a word as a pair of the same half."""
    word = np.concatenate([RNG.integers(0, 2**32, 4096, dtype=np.uint32), np.arange(256, dtype=np.uint32) * 0x01010101])
    registers = run(getattr(module(place[0]), place[1]).value, {f"${count}": word})
    for index in range(count):
        byte = word >> 8 * index & 0xFF
        assert np.array_equal(registers[f"${index}"], HALVES[byte] * np.uint32(0x10001))


def test_no_text_is_left_out() -> None:
    """Every constant of the matmul modules that looks like PTX is one of those above."""
    known = {(text.module, text.name) for text in TEXTS} | set(SCALES)
    names = sorted({text.module for text in TEXTS} | {"_matmul_kernels", "_matmul_launch"})
    found = {
        (name, attribute)
        for name in names
        for attribute, constant in vars(module(name)).items()
        if isinstance(constant, tl.constexpr) and isinstance(constant.value, str) and ";" in constant.value
    }
    assert found == known


@FAMILIES
def test_the_portable_form_is_exact(scheme: Scheme) -> None:
    """The kernels' function without PTX, and on a GPU of NVIDIA with it: the same numbers."""
    codes = np.concatenate([hard_codes()] * 4).reshape(4, -1, 8).transpose(1, 0, 2)  # (512, 4, 8): four words a row
    codes = codes ^ np.arange(0, 16, 4, dtype=np.uint8)[:, None]
    row, byte = (index.ravel() for index in np.indices((len(codes), 256)))
    words = words_of(codes)[row]
    second = byte if scheme is MXFP4 else (byte * 7 + 3) % 256  # NVFP4: two blocks of two words
    scales = byte if scheme is MXFP4 else byte | second << 8
    unit = 1.0 if scheme is MXFP4 else 2.0**-7
    right = np.stack(
        [
            truth(codes[row, i, element], (byte, byte, second, second)[i], scheme, unit)
            for i in range(4)
            for element in SHIFTED
        ],
        axis=1,
    )
    rows = 1 << 14 if DEVICE.type == "cpu" else 16
    for ptx in (False, True) if DEVICE.type == "cuda" and torch.version.hip is None else (False,):
        out = torch.empty(len(words), 32, device=DEVICE)
        arguments = (on(words.view(np.int32)), on(scales.astype(np.int32)), out)
        with np.errstate(all="ignore"):
            decode_kernel[(len(words) // rows,)](*arguments, MX=scheme is MXFP4, PTX=ptx, ROWS=rows)
        assert_same(bits(out), right)


@FAMILIES
def test_the_factors(scheme: Scheme) -> None:
    """E4M3 times 2**7 in binary16, E8M0 in bfloat16, its byte 0 the subnormal 2**-127: every byte exact, NaN as NaN."""
    right = np.array([float(scheme.scale.value(byte)) for byte in range(256)])
    assert_same(as_binary32(factors(scheme), scheme), patterns(right * (1 if scheme is MXFP4 else 128)))


def test_the_emulation_knows_its_instructions() -> None:
    """Rounding, underflow and the tables, each where another reading would give another bit."""

    def half(value: float) -> Words:
        return np.array([value], np.float16).view(np.uint16).astype(np.uint32)

    def word(pattern: int) -> Words:
        return np.array([pattern], np.uint32)

    minus_zero = word(0x8000)
    assert multiply_add(half(2.0**-24), half(0.5), minus_zero, BINARY16) == 0, "a tie to even 0"
    assert multiply_add(half(3 * 2.0**-24), half(0.5), minus_zero, BINARY16) == 2, "a tie to even 2"
    assert multiply_add(half(-0.0), half(1.0), minus_zero, BINARY16) == 0x8000
    assert multiply_add(half(0.0), half(1.0), minus_zero, BINARY16) == 0
    assert multiply_add(word(1), word(0x3F80), minus_zero, BFLOAT16) == 1, "the least subnormal of bfloat16"
    assert multiply_add(word(1), word(0x3F00), minus_zero, BFLOAT16) == 0, "half of it, a tie"
    assert multiply_add(word(3), word(0x3F00), minus_zero, BFLOAT16) == 2, "a tie to even 2"
    assert multiply_add(word(0x3F81), word(0x3F81), minus_zero, BFLOAT16) == 0x3F82
    assert multiply_add(word(0x7F00), word(0x4000), minus_zero, BFLOAT16) == 0x7F80
    a, b, c = word(0xF0F0F0F0), word(0xCCCCCCCC), word(0xAAAAAAAA)
    assert lop3(a, b, c, 0xEA) == (a & b) | c
    assert permute(word(0x44332211), word(0x88776655), 0x7230) == 0x88334411
    assert HALVES[E4M3.max_magnitude] == half(448.0)
    assert HALVES[0x81] == half(-(2.0**-9))
    with pytest.raises(AssertionError, match="not emulated"):
        run("{\n.reg .b32 t;\nxor.b32 t, $8, 1;\n}", {"$8": a})
    with pytest.raises(AssertionError):
        run("{ mov.b32 t, $8; }", {"$8": a})


@pytest.mark.parametrize("blocks", [1, 4, 33])
def test_where_the_scales_of_a_row_begin(blocks: int) -> None:
    """In words of four, up to rows whose offset passes 31 bits; the next four columns are 128 words further."""
    rows = np.array([*range(0, 400, 3), 127, 128, 2**31 + 77, 2**33 + 5] + [0] * 118, np.int64)
    assert rows.size == 256
    out = torch.empty(256, dtype=torch.int64, device=DEVICE)
    row_kernel[(1,)](on(rows), out, -(-blocks // 4), BLOCK=256)
    for column in range(blocks):
        there = out.cpu().numpy() * 4 + column // 4 * 512 + column % 4
        assert np.array_equal(there, packing.swizzle_offset(rows, column, blocks))
