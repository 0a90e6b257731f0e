"""What the references of weight schemes refuse: each error names the argument, what it got and what it wants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowbit import weights
from lowbit.errors import ArgumentError, DtypeError, ShapeError
from lowbit.formats import BINARY16, E4M3
from lowbit.references import weights_bits, weights_exact, weights_tensors
from lowbit.references.weights_arguments import output_shape

from .weight_builders import csr, f32, four_bits, halves, int8, integer_scheme, nested, squeezed, words
from .weight_checks import REFERENCES, dequantize

pytestmark = pytest.mark.parametrize("reference", REFERENCES)


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        (
            "gptq4_v1_gk",
            {"g_idx": np.array([5] + [0] * 7, np.int32)},
            ArgumentError,
            "g_idx: got 5 at position 0, want",
        ),
        ("gptq4_v1_gk", {"g_idx": np.array([0] * 7 + [-1], np.int32)}, ArgumentError, "g_idx: got -1 at position 7"),
        ("gptq4_v1_gk", {"g_idx": np.zeros(7, np.int32)}, ShapeError, "g_idx: got shape (7,), want (8,)"),
        ("gptq4_v1_gk", {"g_idx": np.zeros(8, np.int64)}, DtypeError, "g_idx: got int64, want int32"),
        ("gptq4_v1_gk+act_order", {}, ArgumentError, "g_idx: got none, want int32 of shape (K,)"),
        ("gptq4_v1_gk", {"scales": np.ones((1, 8), np.float32)}, DtypeError, "scales: got float32, want float16 or bf"),
        ("gptq4_v1_gk", {"scales": np.ones((2, 8), np.float16)}, ShapeError, "scales: got shape (2, 8), want (1, 8)"),
        ("gptq4_v1_gk", {"scales": np.ones(8, np.float16)}, ShapeError, "scales: got shape (8,), want (ceil(K / G)"),
        ("gptq4_v1_gk", {"qweight": np.zeros((1, 8), np.float16)}, DtypeError, "qweight: got float16, want int32"),
        ("gptq4_v1_gk", {"qzeros": None}, ArgumentError, "qzeros: got none, want int32 of shape"),
        ("gptq4_v1_gk", {"bias": np.zeros(8, np.float16)}, ArgumentError, "bias: got a tensor of that name, want only"),
        ("gptq4_v1_gk", {"qweight": [[0] * 8]}, DtypeError, "qweight: got list, want a NumPy array or a torch tensor"),
        ("gptq3_v1_gk", {}, ShapeError, "qweight: got shape (1, 8), want dimension 0 a multiple of 3"),
        ("awq_g3", {}, ShapeError, "K: got 1, want a multiple of 3"),
        ("awq_g3", {"g_idx": np.zeros(1, np.int32)}, ArgumentError, "g_idx: got a tensor of that name"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_is_refused(reference: str, name: str, changes: dict[str, Any], error: type, message: str) -> None:
    scheme = weights.get(name)
    tensors = {"qweight": np.zeros((1, 8), np.int32), "qzeros": np.zeros((1, 1), np.int32), "scales": halves(1, 8)}
    with pytest.raises(error) as caught:
        dequantize(reference, {**tensors, **changes}, scheme, BINARY16)
    assert message in str(caught.value)


def test_other_arguments_that_are_refused(reference: str) -> None:
    """A table of 9 entries (SqueezeLLM in vllm); duplicates; indices out of range; nested and flat mixed up."""
    codes, table = np.zeros((8, 2), int), np.zeros((2, 16), np.float32)
    full = np.zeros((8, 2), np.float32)
    none, one = ((np.zeros(n, np.int32), np.zeros(n, np.float32)) for n in (0, 1))
    refused = [
        (
            squeezed("squeezellm3", np.zeros((32, 2), int), np.zeros((2, 9), np.float32)),
            "got shape (2, 9), want (2, 8)",
        ),
        (squeezed("squeezellm4+sparse", codes, table, sparse=csr((1, 3, 1), (1, 3, 2))), "column 3 twice in channel 1"),
        (squeezed("squeezellm4+sparse", codes, table, sparse=csr((0, 8, 1))), "got 8 at position 0, want 0..7"),
        (squeezed("squeezellm4+sparse", codes, table, sparse=(words(0, 2, 1), *none)), "got 0..1, want offsets from 0"),
        (squeezed("squeezellm4+sparse", codes, table, sparse=(words(0, 0), *none)), "crow_indices: got shape (2,)"),
        (squeezed("squeezellm4+sparse", codes, table, sparse=(words(0, 2, 1), *one)), "to 1 that never fall"),
        (squeezed("squeezellm4+sparse", codes, table, sparse=None), "want a tuple (crow_indices, col_indices, values)"),
        (squeezed("squeezellm4", codes, table, sparse=csr()), "sparse: got a tensor of that name"),
        (squeezed("squeezellm4+full_rows", codes, table, full_rows=(words(1, 1), full)), "got channel 1 twice"),
        (squeezed("squeezellm4+full_rows", codes, table, full_rows=(words(0, 2), full)), "got 2 at position 1"),
        (squeezed("squeezellm4+full_rows", codes, table, full_rows=(words(0), full)), "got shape (8, 2), want (8, 1)"),
        (four_bits("nf4_b64", [0] * 65, [1], (65,)), "absmax: got shape (1,), want (2,)"),
        (four_bits("nf4_b64", [0] * 65, [1, 1], (66, 2)), "packed: got shape (33,), want (66,)"),
        (four_bits("nf4_b64", [0], [1], (-1,)), "shape: got (-1,), want a tuple of ints"),
        (four_bits("nf4_b64+nested", [0], [1], (1,)), "code2: got none, want float32 of shape (256,)"),
        (nested(f32(0, 0)), "offset: got shape (2,), want one element"),
        (int8("int8_channel", [[1]], halves(1)), "scale: got float16, want float32"),
        (int8("int8_channel", [[1, 2]], np.ones(2, np.float32)), "scale: got shape (2,), want (1,)"),
    ]
    for case, message in refused:
        with pytest.raises((ArgumentError, DtypeError)) as caught:
            dequantize(reference, *case, BINARY16)
        assert message in str(caught.value)


def test_other_outputs_are_refused(reference: str) -> None:
    tensors, scheme = integer_scheme("awq_gk", [[0] * 8], [[0] * 8], halves(1, 8))
    assert output_shape(tensors, scheme) == (1, 8)
    if reference == "tensors":
        with pytest.raises(DtypeError, match=r"dtype: got torch\.float64"):
            weights_tensors.dequantize(tensors, scheme, torch.float64)
    else:
        module = {"exact": weights_exact, "bits": weights_bits}[reference]
        with pytest.raises(ArgumentError, match="fmt: got e4m3"):
            module.dequantize(tensors, scheme, E4M3)


@pytest.mark.parametrize("name", ["awq_gk", "gptq4_v1_g128", "nf4_b64", "int8_channel", "squeezellm4"])
def test_nothing_dequantises_to_nothing(reference: str, name: str) -> None:
    scheme = weights.get(name)
    for shape in ((0, 8), (8, 0)):
        codes = np.zeros(shape, int)
        tensors: dict[str, Any]
        match scheme.family:
            case "int8":
                tensors = {"weight": codes.astype(np.int8), "scale": np.ones(shape[0], np.float32)}
            case "nf4":
                tensors = {"packed": np.zeros(0, np.uint8), "absmax": np.zeros(0, np.float32), "shape": shape}
            case "squeezellm":
                tensors = squeezed(name, codes, np.zeros((shape[1], 16), np.float32))[0]
            case _:
                groups = scheme.groups(shape[0])
                zeros = np.zeros((groups, shape[1]), int)
                tensors = integer_scheme(name, codes, zeros, halves(groups, shape[1]))[0]
        assert dequantize(reference, tensors, scheme, BINARY16).shape == shape
