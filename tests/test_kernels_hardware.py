"""Conversion to E2M1 by the device's instruction: its manual against the references, then the kernels that use it.

Without a GPU Triton's interpreter runs the same kernels, with the PTX emulated as its manual says; on a GPU that has
the instruction they run there. On other GPUs only the emulation is compared.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hardware_emulation import converted
from kernel_calls import DEVICE, DTYPES, RNG, bfloat16_values, boundaries, expected, hard_values, host, on
from ptx_emulation import Words, run, to_e2m1

import lowbit_kernels
from lowbit import proofs, schemes
from lowbit.errors import ArgumentError, DeviceError, DtypeError
from lowbit.formats import E2M1
from lowbit.proofs import sources
from lowbit.proofs.sources import Edit
from lowbit.references import bits, exact
from lowbit.rules import NanCode, Rounding
from lowbit_kernels import _e2m1_hardware, _launch, quantize_mxfp4, quantize_nvfp4
from lowbit_kernels._e4m3 import nearest_e2m1

from .nvfp4_checks import assert_same_bits, reference

__all__ = ["converted"]

EVEN = Rounding.TIES_TO_EVEN
INFINITY = 0x7F800000


# The manual


@functools.lru_cache(maxsize=1)
def inputs() -> Words:
    """Patterns 0 .. Inf and NaN: around each change of code and each power of two, all of bfloat16, and any."""
    edges = np.abs(boundaries(E2M1, EVEN)).view(np.uint32)
    sixteen = np.arange(1 << 16, dtype=np.uint32) << 16
    sixteen = sixteen[(sixteen <= INFINITY) | (sixteen & 0x7FFFFFFF > INFINITY)]
    some = RNG.integers(0, INFINITY + 1, 1 << 22, dtype=np.uint32)
    near = RNG.integers(0x3E000000, 0x41000000, 1 << 20, dtype=np.uint32)  # 1/8 .. 8
    nans = RNG.integers(INFINITY + 1, 0x80000000, 1 << 12, dtype=np.uint32)
    return np.concatenate([edges, sixteen, some, near, nans, nans | 0x80000000])


def right_codes(patterns: Words) -> np.ndarray:
    return bits.encode(patterns.view(np.float32), E2M1, EVEN, NanCode.POSITIVE_MAX)


def pairs_of(low: Words, text: str = _e2m1_hardware.PAIR.value) -> tuple[Words, Words]:
    """The bytes that a text gives for each pattern beside another one, and the right ones."""
    high = np.roll(low, len(low) // 3)
    codes = right_codes(low).astype(np.uint32)
    return run(text, {"$1": low, "$2": high})["$0"], codes | np.roll(codes, len(low) // 3) << 4


def test_the_manual_is_the_reference() -> None:
    """5.4 M pairs: the byte has the codes of TIES_TO_EVEN, the first element's low; NaN of either sign is 7."""
    actual, right = pairs_of(inputs())
    assert np.array_equal(actual, right)


def test_the_manual_changes_its_mind_where_the_specification_does() -> None:
    """Codes do not fall where |x| grows, so that the last pattern of each code and the first of the next decide all."""
    rows = exact.breakpoints(E2M1, EVEN, False)
    assert [code for _, code in rows] == list(range(8))
    for (first, code), (following, _) in zip(rows, [*rows[1:], (INFINITY + 1, 7)], strict=True):
        ends = np.array([first, following - 1], np.uint32)
        assert to_e2m1(ends).tolist() == [code, code], code


def test_no_negative_input_has_an_answer() -> None:
    for pattern in (0x80000000, 0xBF800000, 0x80000001):
        with pytest.raises(AssertionError, match="the manual leaves open"):
            to_e2m1(np.array([pattern], np.uint32))


def test_an_exchange_of_the_operands_is_seen() -> None:
    text = _e2m1_hardware.PAIR.value
    exchanged = text.replace("$2, $1", "$1, $2")
    assert exchanged != text
    actual, right = pairs_of(inputs()[::1021], exchanged)
    assert not np.array_equal(actual, right)
    assert np.array_equal(actual >> 4 | (actual & 15) << 4, right)


def test_another_rounding_has_no_emulation() -> None:
    with pytest.raises(AssertionError, match="not emulated"):
        pairs_of(inputs()[:2], _e2m1_hardware.PAIR.value.replace(".rn.", ".rna."))


@triton.jit
def nearest_kernel(x_ptr, codes_ptr, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(codes_ptr + index, nearest_e2m1(tl.load(x_ptr + index), True).to(tl.int32, bitcast=True) & 15)


def test_what_it_stands_for_gives_the_same() -> None:
    """`nearest_e2m1`, which the kernels use without it, on the same patterns."""
    patterns = inputs()
    block = 1 << 20 if DEVICE.type == "cpu" else 4096
    patterns = patterns[len(patterns) % block :]
    out = torch.empty(len(patterns), dtype=torch.int32, device=DEVICE)
    with np.errstate(all="ignore"):
        nearest_kernel[(len(patterns) // block,)](on(patterns.view(np.float32)), out, BLOCK=block)
    assert np.array_equal(host(out), right_codes(patterns))


# The proofs

IMPORT = "from lowbit_kernels._e2m1_hardware import convert_pair\n"
BY_THE_MANUAL = """def convert_pair(low, high):
    both = (nearest_e2m1(low, True) & 15) | ((nearest_e2m1(high, True) & 15) << 4)
    return both.to(tl.int32, bitcast=True)
"""
"""What the instruction does with numbers that are not negative, in words that the lemmas know."""


def with_hardware(stand_in: str) -> sources.Kernels:
    """The kernels' sources with the constexpr on."""
    on_ = ("HARDWARE: tl.constexpr = False", "HARDWARE: tl.constexpr = True")
    return sources.load([Edit(m, *edit) for m in ("_pairs", "_nvfp4_kernels") for edit in ((IMPORT, stand_in), on_)])


@pytest.mark.parametrize("word", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("lemma", ["pairs/e2m1/ties_to_even", "nvfp4_pairs"])
def test_the_bytes_are_proved(lemma: str, word: str) -> None:
    """The lemmas about stored bytes hold of the kernels with the constexpr, for all inputs, given the manual."""
    assert proofs.prove(proofs.lemmas()[f"{lemma}/{word}"], with_hardware(BY_THE_MANUAL)).proved


@pytest.mark.parametrize("lemma", ["pairs/e2m1/ties_to_even/bfloat16", "nvfp4_pairs/bfloat16"])
def test_exchanged_nibbles_are_refuted(lemma: str) -> None:
    exchanged = BY_THE_MANUAL.replace("(low, high):", "(high, low):")
    assert proofs.prove(proofs.lemmas()[lemma], with_hardware(exchanged)).counterexample


# The kernels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("swizzle", [False, True])
def test_mxfp4(converted: list[int], dtype: torch.dtype, swizzle: bool) -> None:
    """Subnormals, zeros of both signs, ±Inf, NaN of both signs, ties, saturation: the reference's bytes."""
    values = np.concatenate([hard_values(20, 64).ravel(), boundaries(E2M1, EVEN), bfloat16_values()])
    x = on(values[: len(values) // 64 * 64].reshape(-1, 64)).to(dtype)
    for rule in ("floor", "rceil"):
        actual = quantize_mxfp4(x, scale_rule=rule, swizzle=swizzle, hardware=True)
        right = expected(x, schemes.get(f"mxfp4_{rule}"), swizzle)
        for got, want in zip(actual, right, strict=True):
            np.testing.assert_array_equal(host(got), want)
    if DEVICE.type == "cpu":
        assert sum(converted) >= x.numel()  # a byte for two, twice


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("g", [None, 1.0, 3e38])
def test_nvfp4(converted: list[int], dtype: torch.dtype, g: float | None) -> None:
    """The same; a g under which finite x overflow, too."""
    values = np.concatenate([hard_values(20, 64).ravel(), boundaries(E2M1, EVEN), bfloat16_values()])
    x = on(values[: len(values) // 64 * 64].reshape(-1, 64)).to(dtype)
    actual = quantize_nvfp4(x, tensor_scale=g, hardware=True, swizzle=g is None)
    _, right = reference(x, "nvfp4", swizzle=g is None, **({} if g is None else {"tensor_scale": np.float32(g)}))
    assert_same_bits(actual[0], right.packed, "packed")
    assert_same_bits(actual[1], right.scales, "scales")
    if DEVICE.type == "cpu":
        assert sum(converted) >= x.numel() // 2


def test_elements_without_pairs_are_encoded_in_integers(converted: list[int]) -> None:
    x = on(RNG.standard_normal(64 * 33 + 1).astype(np.float32)).bfloat16()[1:].view(33, 64)
    for actual, right in (
        (quantize_mxfp4(x, hardware=True), quantize_mxfp4(x)),
        (quantize_nvfp4(x, hardware=True), quantize_nvfp4(x)),
    ):
        for got, want in zip(actual, right, strict=True):
            np.testing.assert_array_equal(host(got), host(want))
    assert not converted


def test_out_and_an_empty_tensor(converted: list[int]) -> None:
    x = on(RNG.standard_normal((3, 64)).astype(np.float32))
    packed, scales = (torch.empty(3, n, dtype=torch.uint8, device=DEVICE) for n in (32, 2))
    quantize_mxfp4(x, hardware=True, out=(packed, scales))
    assert np.array_equal(host(packed), host(quantize_mxfp4(x)[0]))
    assert quantize_mxfp4(x[:0], hardware=True)[0].shape == (0, 32)


# Refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"hardware": 1}, DtypeError, "hardware: got int, want True or False"),
        (
            {"hardware": True, "rounding": "ties_away"},
            ArgumentError,
            "hardware: got True with rounding ties_away, want ties_to_even or False",
        ),
        ({"hardware": True, "rounding": "stochastic", "seed": 3}, ArgumentError, "rounding stochastic"),
        ({"hardware": True, "rounding": "even"}, ArgumentError, "rounding: got 'even'"),
    ],
)
@pytest.mark.parametrize("quantize", [quantize_mxfp4, quantize_nvfp4])
def test_arguments_that_it_cannot_have(quantize: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        quantize(torch.zeros(2, 64, device=DEVICE), **options)


@pytest.mark.parametrize("scheme", ["nvfp4_two_level", "nvfp4_one_level"])
def test_schemes_that_do_not_have_it(scheme: str) -> None:
    x = torch.zeros(2, 64, device=DEVICE)
    for given in ({}, {"rounding": "ties_to_even"}):  # their own rounding is another
        with pytest.raises(ArgumentError, match=f"hardware: got True with scheme {scheme}, want nvfp4 or False"):
            quantize_nvfp4(x, scheme=scheme, hardware=True, **given)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a GPU")
@pytest.mark.parametrize("quantize", [quantize_mxfp4, quantize_nvfp4])
@pytest.mark.parametrize("rows", [0, 2])
def test_the_interpreter_refuses(quantize: Any, rows: int) -> None:
    with pytest.raises(DeviceError, match=r"hardware: got True for a tensor on cpu, want an NVIDIA GPU .* 10\.0"):
        quantize(torch.zeros(rows, 64), hardware=True)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (10, 3), (12, 1)])
def test_older_gpus_refuse(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    x: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda:1"))
    if capability >= (10, 0):
        assert _e2m1_hardware.kernel_options(x, _e2m1_hardware.HARDWARE_EVEN) == {"ROUNDING": 0, "HARDWARE": True}
        return
    found = f"capability {capability[0]}\\.{capability[1]}, want an NVIDIA GPU .*; hardware=False gives the same bits"
    with pytest.raises(DeviceError, match=found):
        _e2m1_hardware.kernel_options(x, _e2m1_hardware.HARDWARE_EVEN)


def test_gpus_of_another_maker_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose capability can be 12.0 as well."""
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
    x: Any = SimpleNamespace(is_cuda=True, device=torch.device("cuda:0"))
    with pytest.raises(DeviceError, match=r"hardware: got True for a GPU of HIP 7\.0"):
        _e2m1_hardware.require_device(x)


@pytest.mark.usefixtures("unplanned")
def test_it_is_off_by_default() -> None:
    """Every launch of every quantiser without the keyword has the constexpr off, or does not have it."""
    found: list[Any] = []
    launch = _launch.launch

    def record(kernel: Any, grid: Any, tensor: Any, *args: Any, **options: Any) -> None:
        found.append(options.get("HARDWARE", False))
        launch(kernel, grid, tensor, *args, **options)

    x = torch.zeros(2, 64, device=DEVICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_launch, "launch", record)
        for call in (quantize_mxfp4, quantize_nvfp4, lowbit_kernels.quantize_mx4):
            call(x)
    assert len(found) >= 3
    assert not any(found)
