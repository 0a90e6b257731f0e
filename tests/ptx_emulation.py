"""Inline PTX run in NumPy, instruction by instruction, over arrays of inputs; what is not known here fails.

    run(text, inputs) -> registers      by name: $0, $1, …, each (...) uint32
    interpret(monkeypatch) -> texts     has kernels in the interpreter take PTX and run it so; collects what is run

Known are the instructions of the matmul kernels (moves, shifts, logic, bytes, products of pairs of halves, E4M3), those
that choose between pairs of halves, and the conversions of two binary32 to E2M1 and to 16 bits, to nearest or cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import triton.language as tl

from lowbit.formats import BFLOAT16, BINARY16, E2M1, E4M3, FloatFormat

Words = npt.NDArray[np.uint32]

MINUS_ZERO = np.uint32(0x8000)
CANONICAL_NAN = 0x7FFF
"""What the hardware makes of an E4M3 NaN in binary16."""

HALVES = np.array(
    [
        CANONICAL_NAN if E4M3.is_nan(byte) else int(np.float16(E4M3.value(byte)).view(np.uint16)) | (byte & 0x80) << 8
        for byte in range(256)
    ],
    np.uint32,
)
"""By E4M3 byte: the same number in binary16, -0 too."""


def run(text: str, inputs: Mapping[str, Words]) -> dict[str, Words]:
    """The registers after the last instruction.

    Args:
      text: PTX, in braces or not.
      inputs: by name, of one shape.
    """
    shape = next(iter(inputs.values())).shape
    registers: dict[str, Words] = dict(inputs)
    declared: set[str] = set()

    def value(name: str) -> Words:
        if name in registers:
            return registers[name]
        return np.broadcast_to(np.uint32(int(name, 0) & 0xFFFFFFFF), shape)

    for line in filter(None, (line.strip() for line in text.strip()[1:-1].split(";"))):
        name, _, rest = line.partition(" ")
        operands = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
        if name == ".reg":
            assert operands[0] in (".b8", ".b16", ".b32", ".f32"), line
            declared |= set(operands[1:])
            continue
        target, *sources = operands
        parts = re.findall(r"[$\w]+", target) if target.startswith("{") else [target]
        assert all(part in declared or part.startswith("$") for part in parts), line
        assert not set(parts) & set(inputs), line
        result = calculate(name, sources, value)
        if len(parts) == 2:
            registers[parts[0]], registers[parts[1]] = result & 0xFFFF, result >> 16
        else:
            registers[parts[0]] = result
    return registers


def interpret(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has kernels in the interpreter take PTX, emulated here, where they know no other; the texts that were run.

    On a GPU they run it themselves, and nothing is collected; on one that runs no PTX the test is skipped.
    """
    if torch.cuda.is_available():
        if torch.version.hip is not None:
            pytest.skip("needs a GPU that runs PTX: this one has none, and its text is NOT judged here")
        return []
    from triton.runtime import interpreter

    from lowbit_kernels import _launch

    texts: list[str] = []

    def emulate(text: str, constraints: str, values: list[Any], types: Any, pure: bool, pack: int) -> Any:
        assert len(constraints.split(",")) == len(values) * pack + 1
        shape, size = values[0].data.shape, values[0].data.size
        # Triton leaves open which elements a text gets together: in some layouts they are no neighbours
        order = np.arange(size) if pack == 1 else np.random.default_rng(size).permutation(size)
        parts = [value.data.view(np.uint32).reshape(-1)[order].reshape(-1, pack).T for value in values]
        given = {f"${place}": part for place, part in enumerate((p for part in parts for p in part), 1)}
        result = run(text, given)["$0"]
        if pack == 1:
            kind = types[0].scalar
            assert kind in (tl.int32, tl.float32)
            number = np.float32 if kind == tl.float32 else np.int32
            handle = type(values[0])(result.view(number).reshape(shape), kind)
        else:
            found = np.empty(size, np.uint8)
            found[order] = np.ascontiguousarray(result).view(np.uint8).reshape(-1)
            handle = type(values[0])(found.reshape(shape), tl.uint8)
        texts.append(text)
        return SimpleNamespace(get_result=lambda place: handle)

    monkeypatch.setattr(interpreter.interpreter_builder, "create_inline_asm", emulate, raising=False)
    monkeypatch.setattr(_launch, "takes_ptx", lambda tensor: True)
    return texts


def calculate(name: str, sources: list[str], value: Callable[[str], Words]) -> Words:
    """The result of one instruction."""
    if name == "mov.b32":
        if sources[0].startswith("{"):
            low, high = (value(part) for part in re.findall(r"[$\w]+", sources[0]))
            return (low & 0xFFFF) | high << 16
        return value(sources[0])
    if name in ("shl.b32", "shr.b32", "shr.u32"):  # logical
        shift = int(sources[1])
        assert 0 <= shift < 32, "32 and more give 0, which NumPy does not"
        return value(sources[0]) << shift if name == "shl.b32" else value(sources[0]) >> shift
    if name == "and.b32":
        return value(sources[0]) & value(sources[1])
    if name == "or.b32":
        return value(sources[0]) | value(sources[1])
    if name == "add.u32":
        return value(sources[0]) + value(sources[1])
    if name == "mad.lo.u32":
        return value(sources[0]) * value(sources[1]) + value(sources[2])
    if name == "abs.f32":
        return value(sources[0]) & 0x7FFFFFFF
    if name == "mul.f32":
        x, y = (np.ascontiguousarray(value(source)).view(np.float32) for source in sources)
        with np.errstate(all="ignore"):
            return (x * y).view(np.uint32)
    if name in ("mul.rp.f32", "mul.rn.f32", "mul.rz.f32"):
        return multiply(*map(value, sources), name[4:6])
    if name == "lop3.b32":
        return lop3(*(value(source) for source in sources[:3]), int(sources[3], 0))
    if name == "prmt.b32":
        return permute(*map(value, sources))
    if name == "cvt.rn.f16x2.e4m3x2":
        return HALVES[value(sources[0]) & 0xFF] | HALVES[value(sources[0]) >> 8 & 0xFF] << 16
    if name == "cvt.rn.satfinite.e2m1x2.f32":
        high, low = (to_e2m1(value(source)) for source in sources)
        return high << 4 | low
    if name in ("cvt.rn.f16x2.f32", "cvt.rn.bf16x2.f32"):
        high, low = (np.ascontiguousarray(value(source)).view(np.float32).astype(np.float64) for source in sources)
        fmt = BINARY16 if "f16x2" in name and "bf16x2" not in name else BFLOAT16
        return nearest(high, fmt) << 16 | nearest(low, fmt)
    if name == "cvt.rz.f16x2.f32":
        high, low = (cut_off(value(source)) for source in sources)
        return high << 16 | low
    if name == "abs.f16x2":
        return value(sources[0]) & 0x7FFF7FFF
    if name == "cvt.u32.u8":
        return value(sources[0]) & 0xFF
    if name == "mul.rn.f16x2":
        x, y = map(value, sources)
        return in_halves(lambda x, y: multiply_add(x, y, np.full_like(x, MINUS_ZERO), BINARY16), x, y)
    if name in ("fma.rn.bf16x2", "fma.rn.f16x2"):
        fmt = BFLOAT16 if "bf16x2" in name else BINARY16
        return in_halves(lambda x, y, z: multiply_add(x, y, z, fmt), *map(value, sources))
    if name in ("min.f16x2", "min.bf16x2", "max.bf16x2", "max.NaN.bf16x2"):
        fmt = BFLOAT16 if "bf16x2" in name else BINARY16
        return in_halves(lambda x, y: choose(x, y, fmt, name), *map(value, sources))
    raise AssertionError(f"an instruction that is not emulated: {name}")


def multiply_add(x: Words, y: Words, addend: Words, fmt: FloatFormat) -> Words:
    """x * y + addend of 16-bit patterns, rounded once, ties to even, where float64 holds the sum."""

    def number(pattern: Words) -> npt.NDArray[np.float64]:
        if fmt is BINARY16:
            return pattern.astype(np.uint16).view(np.float16).astype(np.float64)
        return (pattern.astype(np.uint32) << 16).view(np.float32).astype(np.float64)

    with np.errstate(all="ignore"):
        return nearest(number(x) * number(y) + number(addend), fmt)


def multiply(x: Words, y: Words, direction: str) -> Words:
    """x * y of binary32 patterns, rounded upward (rp), to nearest (rn) or toward zero (rz); subnormals are kept."""
    with np.errstate(all="ignore"):
        exact = np.multiply(*(np.ascontiguousarray(w).view(np.float32).astype(np.float64) for w in (x, y)))
        rounded = exact.astype(np.float32)
        if direction == "rp":
            rounded = np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
        elif direction == "rz":
            rounded = np.where(abs(rounded) > abs(exact), np.nextafter(rounded, np.float32(0)), rounded)
    return np.where(np.isnan(exact), np.uint32(0x7FFFFFFF), rounded.astype(np.float32).view(np.uint32))


def choose(x: Words, y: Words, fmt: FloatFormat, name: str) -> Words:
    """The least or largest of 16-bit patterns without signs; of a NaN and a number the latter, but with .NaN a NaN."""
    assert not ((x | y) & fmt.sign_mask).any(), "a sign, by which patterns do not order"
    infinity = fmt.max_magnitude + 1
    chosen = np.minimum(x, y) if name.startswith("min") else np.maximum(x, y)
    either = np.where(x > infinity, y, np.where(y > infinity, x, chosen))
    none = (x > infinity) | (y > infinity) if ".NaN" in name else (x > infinity) & (y > infinity)
    return np.where(none, CANONICAL_NAN, either).astype(np.uint32)


def nearest(exact: Any, fmt: FloatFormat) -> Words:
    """The 16-bit patterns nearest to float64 numbers, ties to even, subnormals kept."""
    with np.errstate(all="ignore"):
        if fmt is BINARY16:
            return exact.astype(np.float16).view(np.uint16).astype(np.uint32)
        place = np.exp2(np.maximum(np.frexp(exact)[1] - 1, fmt.emin) - fmt.mantissa_bits)
        rounded = np.where(np.isfinite(exact), np.rint(exact / place) * place, exact)
        return rounded.astype(np.float32).view(np.uint32) >> 16


def cut_off(pattern: Words) -> Words:
    """The binary16 patterns of binary32 ones, cut off: no finite number becomes Inf, subnormal ones are kept."""
    x = np.ascontiguousarray(pattern).view(np.float32)
    with np.errstate(all="ignore"):
        rounded = x.astype(np.float16)
        rounded = np.where(abs(rounded.astype(np.float32)) > abs(x), np.nextafter(rounded, np.float16(0)), rounded)
    return np.where(np.isnan(x), CANONICAL_NAN, rounded.view(np.uint16)).astype(np.uint32)


def to_e2m1(pattern: Words) -> Words:
    """Codes of binary32 patterns, not negative or NaN, as the manual of PTX defines them; of -0 it says nothing.

    To nearest, ties to even: E2M1's values are 2 ** -1 apart below 2, 1 below 4 and 2 above, and in each range the even
    multiples are those with an even code. NaN becomes the positive largest, what is too large the largest.
    """
    with np.errstate(invalid="ignore"):
        x = np.ascontiguousarray(pattern, np.uint32).view(np.float32).astype(np.float64)
    assert not np.signbit(x[~np.isnan(x)]).any(), "a sign, whose zero the manual leaves open"
    step = np.select([x < 2, x < 4], [0.5, 1.0], 2.0)
    values = np.array([float(value) for value in E2M1.magnitudes])
    with np.errstate(invalid="ignore"):
        rounded = np.minimum(np.rint(x / step) * step, values[-1])
    return np.searchsorted(values, np.where(np.isnan(x), values[-1], rounded)).astype(np.uint32)


def in_halves(operation: Callable[..., Words], *registers: Words) -> Words:
    low = operation(*(register & 0xFFFF for register in registers))
    return low | operation(*(register >> 16 for register in registers)) << 16


def lop3(a: Words, b: Words, c: Words, table: int) -> Words:
    """Bit by bit the entry 4a + 2b + c of the table."""
    result = np.zeros_like(a & b & c)
    for entry in range(8):
        if table >> entry & 1:
            result |= (a if entry & 4 else ~a) & (b if entry & 2 else ~b) & (c if entry & 1 else ~c)
    return result


def permute(a: Words, b: Words, selector: int | Words) -> Words:
    """Each byte of the result is one of those of a (0 … 3) and b (4 … 7), as the selector's nibbles say; from 8 on the
    byte's sign in all of its bits."""
    result = np.zeros_like(a)
    for place in range(4):
        choice = np.asarray(selector, np.uint32) >> np.uint32(4 * place) & 0xF
        byte = np.where(choice & 4, b, a) >> 8 * (choice & 3) & 0xFF
        result |= np.where(choice & 8, (byte >> 7) * 0xFF, byte) << 8 * place
    return result
