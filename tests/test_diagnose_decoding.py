"""A wrong decoding of blocks gets a diagnosis: each fault that is planted is named, alone and with another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowbit import schemes
from lowbit.compare.kinds import values_differ
from lowbit.diagnose import UNEXPLAINED
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.identify import probes
from lowbit.references import bits
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.decode_trial import DecodeTable, DecodeTrial
from lowbit.suspects.decoding import diagnose_values, readings, suspects, tables

FORMATS = (BINARY32, BFLOAT16, BINARY16)
NAMES = ("mxfp4_floor", "mx4_ceil_e3m0_g16", "nvfp4", "rtn_mxfp4_three_quarters", "rtn_nvfp4")


def encoded(scheme: Scheme, g: float | None = 0.7) -> Encoded:
    """Any codes and scale bytes, no two blocks alike."""
    generator = np.random.default_rng(1)
    codes = generator.integers(0, 16, (32, 8 * scheme.block)).astype(np.uint8)
    scales = generator.permutation(256).astype(np.uint8).reshape(32, 8)
    return Encoded(codes, scales, np.float32(g) if scheme.family == "nvfp4" and g else None)


def complete(given: Encoded, scheme: Scheme, fmt: FloatFormat, actual: np.ndarray) -> list[str]:
    found = diagnose_values(given, scheme, fmt, actual, bits.dequantize(given, scheme, fmt))
    assert found is not None
    return [finding.name for finding in found.findings if finding.remaining == 0]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("scheme", [s for s in schemes.select() if "+" not in s.name and s.block in (8, 16, 32)])
def test_the_table_is_the_reference(scheme: Scheme, fmt: FloatFormat) -> None:
    """The steps that faults are made of give the reference's bits, under every code, scale byte and some factors."""
    given = probes.decoded(scheme)
    for factor in probes.factored(scheme):
        given = given._replace(tensor_scale=None if factor is None else np.float32(factor))
        right = bits.dequantize(given, scheme, fmt).reshape(-1, scheme.block)
        table = DecodeTable.of(scheme, fmt, given.tensor_scale).expected
        made = table[given.scales.reshape(-1, 1).astype(int), given.codes.reshape(-1, scheme.block).astype(int)]
        assert not values_differ(fmt)(made, right).any()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_fault_is_named(name: str, fmt: FloatFormat) -> None:
    """By itself, unless another fault gives the same bits here."""
    scheme = schemes.get(name)
    given = encoded(scheme)
    right = bits.dequantize(given, scheme, fmt)
    trial = DecodeTrial.of(given, scheme, fmt, right ^ 1, right)
    assert trial is not None
    tried = 0
    for suspect in suspects(trial):
        guess = suspect.guess(trial)
        if guess is None or not values_differ(fmt)(guess, trial.expected).any():
            continue
        tried += 1
        found = complete(given, scheme, fmt, guess.reshape(right.shape).astype(right.dtype))
        assert suspect.name in found
        assert len(found) == 1 or set(found) == {"saturated", "truncated"}, found
    assert tried > 24


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nibbles_swapped", "neighbouring nibbles swapped"),
        ("byte_zero_is_zero", "scale byte 0 taken for zero"),
        ("byte_255_infinite", "scale byte 255 taken for Inf"),
        ("subnormal_normal", "subnormal codes read as normal: 0 as 0.5, 1 as 0.75"),
        ("scale_of_next", "each block read with the next block's scale"),
        ("swizzle_omitted", "scales read in plain order instead of SWIZZLE_32_4_4"),
        ("scale_shifted_+1", "block scales 2 times too large"),
        ("through_binary16", "results rounded to binary16 before binary32"),
    ],
)
def test_the_sentence(name: str, words: str) -> None:
    scheme = schemes.get("mxfp4_floor")
    given = encoded(scheme)
    right = bits.dequantize(given, scheme, BINARY32)
    trial = DecodeTrial.of(given, scheme, BINARY32, right ^ 1, right)
    assert trial is not None
    guess = next(suspect for suspect in suspects(trial) if suspect.name == name).guess(trial)
    wrong = int(values_differ(BINARY32)(guess, trial.expected).sum())
    found = diagnose_values(given, scheme, BINARY32, guess.reshape(right.shape).astype(np.uint32), right)
    assert str(found) == f"all {wrong:,} mismatches vanish with {words}"


def test_the_factor_left_out_and_the_nibbles_swapped() -> None:
    scheme = schemes.get("nvfp4")
    given = encoded(scheme)
    swapped = given._replace(codes=given.codes.reshape(-1, 2)[:, ::-1].reshape(given.codes.shape), tensor_scale=None)
    names = complete(given, scheme, BINARY16, bits.dequantize(swapped, scheme, BINARY16))
    assert names == ["nibbles_swapped + tensor_scale_forgotten"]


def test_faults_of_every_two_kinds_are_added() -> None:
    """A reading with the arithmetic, a reading with the last rounding, the arithmetic with the last rounding."""
    scheme = schemes.get("mxfp4_floor")
    given = encoded(scheme)
    right = bits.dequantize(given, scheme, BFLOAT16)
    trial = DecodeTrial.of(given, scheme, BFLOAT16, right ^ 1, right)
    assert trial is not None
    reading = next(one for one in readings(scheme) if one.name == "lanes_reversed")
    table = replace(trial.table, exact32=next(tables(trial.table)).guess(trial.table))
    flushed = np.where(table.expected & 0x7F80, table.expected, table.expected & 0x8000)
    plain = np.where(trial.table.expected & 0x7F80, trial.table.expected, trial.table.expected & 0x8000)
    for name, guess in {
        "lanes_reversed + e3m0": trial.read(table.expected, reading.guess(trial)),
        "lanes_reversed + flushed": trial.read(plain, reading.guess(trial)),
        "e3m0 + flushed": trial.read(flushed),
    }.items():
        assert name in complete(given, scheme, BFLOAT16, guess.reshape(right.shape).astype(np.uint16))


def test_nothing_to_say() -> None:
    scheme = schemes.get("mxfp4_floor")
    given = encoded(scheme)
    right = bits.dequantize(given, scheme, BFLOAT16)
    assert diagnose_values(given, scheme, BFLOAT16, right, right) is None
    assert diagnose_values(given, scheme, BFLOAT16, right[:1], right) is None
    noise = np.where(np.random.default_rng(0).random(right.shape) < 0.1, right ^ 1, right).astype(right.dtype)
    assert str(diagnose_values(given, scheme, BFLOAT16, noise, right)) == UNEXPLAINED
    signed = noise.view(np.int16)  # as torch gives them
    assert str(diagnose_values(given, scheme, BFLOAT16, signed, right.view(np.int16))) == UNEXPLAINED
