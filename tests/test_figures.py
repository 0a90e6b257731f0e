"""The figures of real weights, by hand and over chunks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from lowbit import schemes
from lowbit.checkpoints import files as checkpoint
from lowbit.checkpoints.figures import Figures
from lowbit.errors import ShapeError
from lowbit.references import bits
from lowbit.schemes import Encoded


def figures_of(x: np.ndarray, name: str, *, dtype: str = "F32") -> Figures:
    scheme = schemes.get(name)
    figures = Figures("x", dtype, x.shape, scheme)
    encoded = bits.quantize(checkpoint.pad_columns(x, scheme.block), scheme)
    figures.add(x, encoded, bits.dequantize(encoded, scheme))
    return figures


def test_figures_by_hand() -> None:
    x = np.zeros((2, 33), np.float32)
    # FLOOR: scale 1; 7 saturates to 6, 5.5 is rounded to 6, 6 and 1 are exact, 0.25 is a tie and goes to 0.
    x[0, :5] = 7.0, 5.5, 6.0, 1.0, 0.25
    x[1, 32] = 2.0**-140  # below every scale: byte 0, decodes to 0
    figures = figures_of(x, "mxfp4_floor")
    assert figures.as_dict() == {
        "tensor": "x",
        "scheme": "mxfp4_floor",
        "dtype": "F32",
        "shape": [2, 33],
        "padded_columns": 31,
        "elements": 66,
        "blocks": 4,
        "saturated": 1,
        "zero_blocks": 3,
        "scale_min": 0,
        "scale_max": 127,
        "nonfinite_inputs": 0,
        "nonfinite_outputs": 0,
        "sqnr_db": round(10 * math.log10((49 + 30.25 + 36 + 1 + 0.0625) / (1 + 0.25 + 0.0625)), 6),
    }


def test_a_scale_that_underflows_makes_a_zero_block() -> None:
    x = np.ones((1, 32), np.float32)
    x[0, 16:] = 1e-6  # under two_level its scale rounds to 0: codes are not 0, values are
    assert (bits.quantize(x, schemes.get("nvfp4_two_level")).codes[0, 16:] == 3).all()
    figures = figures_of(x, "nvfp4_two_level")
    assert (figures.zero_blocks, figures.scale_min) == (1, 0)


def test_figures_of_unclean_values() -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 0], x[0, 1] = np.nan, np.inf
    figures = figures_of(x, "mxfp4_floor")
    assert figures.nonfinite_inputs == 2
    assert figures.nonfinite_outputs == 30  # the marked block decodes to NaN
    assert figures.scale_max == 0xFF
    assert figures.signal == 32  # the other block
    assert figures.sqnr_db is None  # and it is exact
    assert json.dumps(figures.as_dict(), allow_nan=False)


def test_finite_values_that_decode_to_infinity_are_counted() -> None:
    x = np.full((1, 32), np.finfo(np.float32).max, np.float32)
    figures = figures_of(x, "mxfp4_rceil")  # 4 * 2^126 is beyond binary32
    assert figures.scale_max == 253
    assert figures.nonfinite_outputs == 32


def test_figures_add_up_over_chunks_and_devices() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 80)).astype(np.float32)
    for name in ("mxfp4_even", "nvfp4_one_level"):
        scheme = schemes.get(name)
        whole, parts, tensors = (Figures("x", "F32", x.shape, scheme) for _ in range(3))
        for rows, figures in ((12, whole), (5, parts), (5, tensors)):
            for row in range(0, 12, rows):
                piece = x[row : row + rows]
                encoded = bits.quantize(checkpoint.pad_columns(piece, scheme.block), scheme)
                values = bits.dequantize(encoded, scheme)
                if figures is tensors:
                    encoded = Encoded(torch.from_numpy(encoded.codes), torch.from_numpy(encoded.scales))
                    values, piece = torch.from_numpy(values.view(np.float32)), torch.from_numpy(piece)
                figures.add(piece, encoded, values)
        assert whole.as_dict() == parts.as_dict() == tensors.as_dict()
        assert whole.saturated > 0
        assert 15 < whole.sqnr_db < 25


def test_figures_refuse_values_of_another_shape() -> None:
    scheme = schemes.get("mxfp4_floor")
    encoded = Encoded(np.zeros((2, 32), np.uint8), np.zeros((2, 1), np.uint8))
    with pytest.raises(ShapeError, match=r"got \(2, 16\)"):
        Figures("x", "F32", (2, 32), scheme).add(np.zeros((2, 32), np.float32), encoded, np.zeros((2, 16), np.float32))


def test_names_with_markup_reach_the_figures_verbatim() -> None:
    markup = 'layer.0 <script>alert("&")</script>\n|`x`'
    figures = Figures(markup, "F32", (1, 32), schemes.get("mxfp4_floor"))
    assert json.loads(json.dumps(figures.as_dict()))["tensor"] == markup
