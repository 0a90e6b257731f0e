"""Single faults of a block quantiser, each made by hand where that is short, and all of them by their own guess."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowbit import packing, schemes
from lowbit.diagnose import diagnose
from lowbit.errors import LowbitError
from lowbit.formats import E2M1, E3M0
from lowbit.identify import probes
from lowbit.identify.candidates import trial_of
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding
from lowbit.schemes import Encoded, Scheme
from lowbit.suspects.blocks import suspects
from lowbit.suspects.dialects import ALL

MXFP4, MX4, NVFP4 = (schemes.get(name) for name in ("mxfp4_floor", "mx4_ceil_e2m1_g32", "nvfp4"))


def complete(x: np.ndarray, actual: Encoded, scheme: Scheme, **options) -> list[str]:
    """The names of what explains everything."""
    found = diagnose(x, actual, scheme, bits.quantize(x, scheme, **options), options)
    assert found is not None
    return [finding.name for finding in found.findings if finding.remaining == 0]


def block(*values: float, size: int = 32) -> np.ndarray:
    x = np.zeros((1, size), np.float32)
    x[0, : len(values)] = values
    return x


@pytest.mark.parametrize("name", ["mxfp4_floor", "mx4_ceil_e2m1_g32", "mx4_floor_e3m0_g16", "nvfp4", "rtn_nvfp4"])
def test_every_fault_is_found(name: str) -> None:
    """What each suspect of each group gives is explained, by it or by what is the same here."""
    scheme = schemes.get(name)
    x = probes.probes(scheme)[0].x
    trial = trial_of(x, scheme)
    names, tried = [], 0
    for _, group in zip(range(3), suspects(trial), strict=False):
        for suspect in group:
            names.append(suspect.name)
            try:
                guess = suspect.guess(trial)
            except LowbitError:
                continue  # a rule of another family
            if guess is None or not trial.wrong(guess):
                continue
            tried += 1
            shape = trial.x.shape
            assert guess.codes.shape == shape, suspect.name
            wide = guess._replace(codes=guess.codes.reshape(x.shape), scales=guess.scales.reshape(len(x), -1))
            found = complete(x, wide, scheme)
            if suspect.name not in found:  # one of a likelier group gives the same
                assert found, suspect.name
                assert not any("+ " in one for one in found), (suspect.name, found)
    assert len(set(names)) == len(names)
    assert tried > 40


@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name)
def test_dialects_of_nvfp4(known) -> None:
    """A library that orders its operations otherwise is told by its dialect, where no single rule gives the same."""
    told = []
    for probe in probes.probes(NVFP4)[:6]:
        x = probe.x
        made = known.quantize(x.reshape(-1, 16), np.float32(np.abs(x).max()), NanCode.POSITIVE_MAX)
        right = bits.quantize(x, NVFP4)
        actual = Encoded(made.codes.reshape(x.shape), made.scales.reshape(len(x), -1), right.tensor_scale)
        found = diagnose(x, actual, NVFP4, right)
        assert found is None or found.complete
        told.append(str(found))
    assert f"with the dialect {known.name}: scale {known.scale_text}" in " ".join(told)


def test_scale_of_the_floor_of_a_quotient() -> None:
    """triton#8413: amax 5 gives floor(log2(5 / 6)) = -1, so that 5 clips to 3."""
    x = block(5, 3)
    actual = Encoded(block(7, 7).astype(np.uint8), np.array([[126]], np.uint8))
    assert "floor_of_quotient" in complete(x, actual, MXFP4)


def test_codes_that_carry_into_the_sign() -> None:
    """7.5 under scale 1 would be 8: code 7 + 1 is -0, and of the negative ones 0xF + 1 is 0 in four bits."""
    x = block(7.5, -7.5, 6.5, -1)
    right = bits.quantize(x, MXFP4)
    assert right.codes[0, :4].tolist() == [7, 15, 7, 10]
    codes = right.codes.copy()
    codes[0, :2] = 8, 0
    assert complete(x, right._replace(codes=codes), MXFP4) == ["code_wraps"]


def test_another_element() -> None:
    x = probes.probes(MX4)[0].x
    assert complete(x, bits.quantize(x, replace(MX4, element=E3M0)), MX4) == ["e3m0"]
    mx4 = schemes.get("mx4_ceil_e3m0_g32")
    assert "e2m1" in complete(x, bits.quantize(x, replace(mx4, element=E2M1)), mx4)


@pytest.mark.parametrize("low", [-126, -127])
def test_exponents_clamped_elsewhere(low: int) -> None:
    x = np.concatenate([block(2.0**-127, 2.0**-128), block(3e38, 1e38)])
    wanted = (low, 125)
    changed = replace(schemes.get("mxfp4_ceil"), exponent_range=wanted)
    scheme = schemes.get("mxfp4_ceil")
    assert f"exponents_{low}_125" in complete(x, bits.quantize(x, changed), scheme)


def test_floors_of_an_e4m3_scale() -> None:
    """amax 0.05 gives a scale of 2^-7 under g = 1, below E4M3's least normal number."""
    x, g = block(0.05, -0.02, size=16), np.float32(1)
    actual = bits.quantize(x, replace(NVFP4, scale_floor=schemes.get("nvfp4").scale.magnitude_value(8)), tensor_scale=g)
    assert actual.scales[0, 0] == 8
    assert complete(x, actual, NVFP4, tensor_scale=g)[0] == "floor_2^-6"


@pytest.mark.parametrize("follow", [True, False])
def test_subnormal_scales_flushed(follow: bool) -> None:
    """Byte 5 stored as 0; the codes divided by the scale that stands for 0 in the encoder, or by the right one."""
    x, g = np.concatenate([block(0.05, -0.02, size=16), block(6, 1, size=16)]), np.float32(1)
    right = bits.quantize(x, NVFP4, tensor_scale=g)
    assert right.scales[0, 0] < 8 <= right.scales[1, 0]
    scales = right.scales.copy()
    scales[0] = 0
    codes = right.codes.copy()
    if follow:
        codes[0] = bits.encode(x[0], E2M1, Rounding.TIES_TO_EVEN)  # 0 counts as 1
    name = "scale_flushed" if follow else "scale_stored_flushed"
    assert name in complete(x, Encoded(codes, scales, g), NVFP4, tensor_scale=g)


def test_amax_in_another_format() -> None:
    """amax 7.99 is 8 in bfloat16, a power of two more, and 7.9 is not; 5.00001 / 2 is above a tie, as it stays."""
    x = np.concatenate([block(7.99, 5.00001), block(7.9, 1)])
    scales = np.array([[128], [127]], np.uint8)
    codes = bits.encode((x / [[2], [1]]).astype(np.float32), E2M1, Rounding.TIES_TO_EVEN)
    assert codes[0, 1] == 5
    assert complete(x, Encoded(codes, scales), MXFP4) == ["amax_bfloat16"]


def test_the_stream_in_another_order() -> None:
    x = probes.probes(MX4)[0].x[:16]
    right = bits.quantize(x, MX4)
    packed = packing.pack_nibbles(right.codes).reshape(len(x), -1, 16)
    scales = right.scales[..., None]
    first = np.concatenate([scales, packed], axis=2).reshape(len(x), -1)
    last = np.concatenate([packed.reshape(len(x), -1), right.scales], axis=1)
    for name, stream in {"scale_first": first, "scales_at_end": last}.items():
        half, stored = packing.deinterleave(stream, 32)
        assert complete(x, Encoded(packing.unpack_nibbles(half), stored), MX4) == [name]


def test_what_no_rule_gives_is_read_off() -> None:
    """Blocks of zeros with a byte of their own, those with NaN too, and a factor returned in another form."""
    x = np.concatenate([block(0), block(6, -0.75), block(-0.0), block(np.nan, 1)])
    right = bits.quantize(x, MXFP4)
    scales, codes = right.scales.copy(), right.codes.copy()
    scales[[0, 2]] = 0x7F
    assert complete(x, right._replace(scales=scales), MXFP4) == ["zeros_0x7f"]
    codes[[0, 2]] = 7
    assert complete(x, right._replace(scales=scales, codes=codes), MXFP4) == ["zeros_0x7f_0x7"]
    scales = right.scales.copy()
    scales[3] = 0xFE
    assert complete(x, right._replace(scales=scales), MXFP4) == ["nonfinite_0xfe"]
    tensor = block(6, -0.75, size=16)
    given = bits.quantize(tensor, NVFP4)
    found = diagnose(tensor, given._replace(tensor_scale=np.float32(1) / given.tensor_scale), NVFP4, given)
    text = "the reciprocal of the tensor scale returned, with the right codes and scales"
    assert str(found) == f"the one mismatch vanishes with {text}"
