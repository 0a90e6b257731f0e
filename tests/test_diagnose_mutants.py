"""Every mutant gets the right diagnosis: by the stable name of its finding, from the implementation's own results.

`test_mutants` has the suite judge the same mutants; here their operations are called directly, on inputs that show the
fault, and the finding that explains all mismatches is looked up in a table.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import packing, schemes, weights
from lowbit.cases import known_weight_bugs
from lowbit.cases import weights as weight_cases
from lowbit.cases.summable import exactly_summable
from lowbit.compare import arrays
from lowbit.diagnose import Diagnosis, diagnose, diagnose_bytes
from lowbit.formats import BFLOAT16, BINARY16, BINARY32, FloatFormat
from lowbit.identify import probes
from lowbit.implementation import Implementation
from lowbit.references import bits, matmul, weights_bits
from lowbit.schemes import Encoded, Quantized, Scheme
from lowbit.suspects.decoding import diagnose_values
from lowbit.suspects.matmul import Evidence
from lowbit.suspects.weights import diagnose_weight
from lowbit.weights import WeightScheme

MUTANTS = sorted((Path(__file__).parent / "mutants").glob("*.py"))
DTYPES = {BINARY32: torch.float32, BFLOAT16: torch.bfloat16, BINARY16: torch.float16}

FINDINGS: dict[str, str | None] = {
    "awq_order_omitted": "order_omitted",
    "awq_read_as_gptq": "order_omitted + v2_as_v1",
    "awq_zero_minus_one": "one_less",
    "awq_zero_plus_one": "v2_as_v1",
    "binary16_before_bfloat16": "through_scale_dtype",
    "columns_tail_left": "columns_tail_8",
    "decode_byte_zero": "byte_zero_is_zero",
    "eight_bit_zero_masked": "masked",
    "even_scale_nibbles_swapped": "even + nibbles_swapped",
    "fields_across_words": "cut_codes",
    "fp4_decimal": "fp4_decimal",
    "g_idx_ignored": "g_idx_ignored",
    "g_idx_unchecked": None,
    "group_minus_one": "minus_one_64",
    "group_of_tile_start": "tile_64",
    "group_off_by_one": "next_group",
    "int8_other_axis": "axis",
    "matmul_bf16_before_scale": "bfloat16_first",
    "matmul_k_tile_dropped": "k_tile_32",
    "matmul_m_tail_dropped": "m_tail_16",
    "matmul_n_tail_dropped": "n_tail_16",
    "matmul_nibbles_of_b": "nibbles_of_B",
    "matmul_one_scale_for_32": "coarse_of_A",
    "matmul_padding_used": "padding",
    "matmul_scales_exchanged": "scales_exchanged",
    "matmul_scales_row_major": "row_major_of_B",
    "matmul_swizzle_omitted": "swizzle_omitted",
    "matmul_swizzle_transposed": "swizzle_transposed",
    "matmul_tensor_scale_forgotten": "forgotten_of_B",
    "matmul_tensor_scale_inverted": "inverted",
    "matmul_tensor_scale_twice": "twice_of_A",
    "nan_sign_lost": "nan_positive_max",
    "nested_absmax_fused": "fma",
    "nf4_four_digit": "nf4_four_digit",
    "nf4_low_nibble_first": "nibbles_swapped",
    "nf4_rows_restarted": "rows_down",
    "nf4_tail_left": "elements_tail_64",
    "nibbles_sign_extended": "sign_extended",
    "nibbles_swapped": "nibbles_swapped",
    "overflow_saturated": "saturated",
    "scale_not_clamped": "unclamped",
    "scale_sign_ignored": "scale_sign_lost",
    "squeezellm_nine_entries": "entries_9",
    "swizzle_tiles_transposed": "tiles_transposed",
    "tensor_scale_doubled": "factor_returned",
    "tensor_scale_reciprocal": "reciprocal",
    "ties_away": "ties_away",
    "ties_away_nan_zero": "ties_away + nan_zero",
    "v2_read_as_v1": "v2_as_v1",
    "zero_after_scaling": "after_scaling_binary16",
    "zeros_carry": "carry",
}
"""Mutant -> the finding that explains it; None where it returns what it should have refused."""


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensor(value: Any) -> Any:
    """Arrays, and tuples of them, as tensors; uint16 is bfloat16."""
    if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
        return tuple(tensor(part) for part in value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.atleast_1d(value).copy()
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == np.uint16
        else torch.from_numpy(array)
    )


def patterns(values: torch.Tensor, fmt: FloatFormat) -> np.ndarray:
    return arrays.host(arrays.bits(values.contiguous())).view(f"u{fmt.bits // 8}")


def of_blocks(subject: Implementation, scheme: Scheme) -> Iterator[Diagnosis | None]:
    """What quantise, dequantise and swizzle of a mutant are told."""
    for probe in probes.probes(scheme):
        result = subject.call("quantize", torch.from_numpy(probe.x), scheme)
        stored = Quantized(*(None if part is None else part.numpy() for part in result))
        yield diagnose(probe.x, packing.unpack(stored, scheme), scheme, bits.quantize(probe.x, scheme))
    for encoded, fmt in of_decoding(scheme):
        stored = Quantized(*(tensor(part) for part in packing.pack(encoded, scheme)))
        values = patterns(subject.call("dequantize", stored, scheme, DTYPES[fmt]), fmt)
        yield diagnose_values(encoded, scheme, fmt, values, bits.dequantize(encoded, scheme, fmt))
    scales = (np.arange(300 * 10) % 251 + 1).astype(np.uint8).reshape(300, 10)
    buffer = subject.call("swizzle", torch.from_numpy(scales)).numpy()
    yield diagnose_bytes(buffer, packing.swizzle(scales), scales=scales)


def of_decoding(scheme: Scheme) -> Iterator[tuple[Encoded, FloatFormat]]:
    """Every code under every scale byte and several tensor scales, to each output format."""
    encoded = probes.decoded(scheme)
    for fmt in DTYPES:
        for factor in probes.factored(scheme):
            yield encoded._replace(tensor_scale=None if factor is None else np.float32(factor)), fmt


def of_products(subject: Implementation, scheme: Scheme, padding: int) -> Iterator[Diagnosis | None]:
    """What the matmul of a mutant is told, of several products together."""
    evidence = Evidence()
    for rows, columns, blocks in ((1, 8, 1), (130, 136, 6), (17, 40, 5), (257, 24, 21)):
        operands = exactly_summable(scheme, rows, columns, blocks * scheme.block, 1, tensor_scales=(8.0, 0.5))
        sides = []
        for side in operands:
            packed, buffer, g = packing.pack(side, scheme, swizzle=True)
            buffer[packing.swizzle_padding(*side.scales.shape)] = padding
            sides.append(Quantized(packed, buffer, None if g is None else np.asarray(g, np.float32).reshape(1)))
        a, b = (Quantized(*(tensor(part) for part in side)) for side in sides)
        actual = patterns(subject.call("matmul", a, b, scheme, torch.float32), BINARY32)
        evidence.add(*sides, scheme, BINARY32, actual, matmul.matmul(*operands, scheme, BINARY32))
    yield evidence.diagnosis


def of_weights(subject: Implementation, scheme: WeightScheme) -> Iterator[Diagnosis | None]:
    """What the dequantiser of a mutant is told, of one stored weight after another."""
    known = [case for case in known_weight_bugs.of_scheme(scheme) if case.patterns is not None]
    stored = [weight_cases.lanes(scheme), *(dict(case.tensors()) for case in known)]
    stored += [weight_cases.random(scheme, shape, 1) for shape in weight_cases.output_shapes(scheme)]
    stored.append(weight_cases.special(scheme, scheme.scale_formats[0], binade_step=8))
    for tensors in stored:
        for fmt in DTYPES:
            on_torch = {name: tensor(value) for name, value in tensors.items()}
            actual = patterns(subject.call("dequantize_weight", on_torch, scheme, DTYPES[fmt]), fmt)
            yield diagnose_weight(tensors, scheme, fmt, actual, weights_bits.dequantize(tensors, scheme, fmt))


def diagnoses(module: Any) -> Iterator[Diagnosis | None]:
    subject, name = module.IMPLEMENTATION, module.SCHEME
    if name.startswith(weights.families()):
        return of_weights(subject, weights.get(name))
    scheme = schemes.get(name)
    if subject.quantize is None:
        return of_products(subject, scheme, 0x7F if module.CAUGHT_BY == "matmul padding" else 0)
    return of_blocks(subject, scheme)


@pytest.mark.parametrize("path", MUTANTS, ids=lambda path: path.stem)
def test_the_finding_is_the_fault(path: Path) -> None:
    """The first mismatch that is explained wholly is explained by the fault that was made, in the mutant's words."""
    module, wanted = loaded(path), FINDINGS[path.stem]
    found = next((one for one in diagnoses(module) if one is not None and one.complete), None)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    assert wanted in [finding.name for finding in found.findings if finding.remaining == 0]
    assert module.DIAGNOSIS in str(found)


def test_every_mutant_is_in_the_table() -> None:
    assert sorted(FINDINGS) == [path.stem for path in MUTANTS]
