"""How the weight kernels are called: refusals, buffers, torch, the adapter, and agreement with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lowbit import weights
from lowbit.errors import ArgumentError, DeviceError, DtypeError, LowbitError, ShapeError, Unsupported
from lowbit.formats import BFLOAT16, BINARY16, BINARY32
from lowbit.references import weights_bits
from lowbit_kernels import (
    _launch,
    _plans,
    adapter,
    dequantize_awq,
    dequantize_fp4,
    dequantize_gptq,
    dequantize_int8,
    dequantize_nf4,
    dequantize_squeezellm,
)
from lowbit_kernels._weight_adapter import dequantize_weight

from .weight_checks import any_tensors, to_torch
from .weight_kernel_checks import BFLOAT, DEVICE, HALF, SINGLE, assert_bits, assert_same, on, raw, zeros

RNG = np.random.default_rng(20240706)
BYTES = torch.uint8
OPS = torch.ops.lowbit_kernels
FORMATS = {HALF: BINARY16, BFLOAT: BFLOAT16, SINGLE: BINARY32}


def awq_parts() -> tuple[torch.Tensor, ...]:
    return zeros(32, 2), zeros(2, 2), zeros(2, 16, dtype=HALF)


def gptq_parts(bits: int = 4) -> tuple[torch.Tensor, ...]:
    return zeros(bits, 32), zeros(2, bits), zeros(2, 32, dtype=HALF)


AWQ, GPTQ = awq_parts(), gptq_parts()
PACKED, ABSMAX = zeros(65, dtype=BYTES), zeros(3, dtype=SINGLE)
NESTED = (zeros(256, dtype=SINGLE), zeros(1, dtype=SINGLE), zeros(1, dtype=SINGLE), 256)
INT8 = zeros(3, 8, dtype=torch.int8), zeros(3, dtype=SINGLE)
TABLE = zeros(2, 8), zeros(8, 16, dtype=SINGLE)
CSR = zeros(9), zeros(0), zeros(0, dtype=SINGLE)
FULL = zeros(1), zeros(16, 1, dtype=SINGLE)


def awq(**changes: Any) -> Any:
    given = dict(zip(("qweight", "qzeros", "scales"), AWQ, strict=True)) | {"group_size": 16} | changes
    return dequantize_awq(**given)


def gptq(**changes: Any) -> Any:
    given = dict(zip(("qweight", "qzeros", "scales"), GPTQ, strict=True)) | {"group_size": 16} | changes
    return dequantize_gptq(**given)


def nf4(**changes: Any) -> Any:
    return dequantize_nf4(**({"packed": PACKED, "absmax": ABSMAX, "shape": (10, 13)} | changes))


def int8(**changes: Any) -> Any:
    return dequantize_int8(**({"weight": INT8[0], "scale": INT8[1]} | changes))


def table(**changes: Any) -> Any:
    return dequantize_squeezellm(**({"qweight": TABLE[0], "lookup_table": TABLE[1]} | changes))


REFUSALS = [
    # A model cast turns packed words into floats; float32 scales would need two roundings.
    (lambda: awq(qweight=AWQ[0].half()), DtypeError, r"qweight: got torch\.float16, want torch\.int32; a model cast"),
    (lambda: awq(qzeros=AWQ[1].long()), DtypeError, r"qzeros: got torch\.int64, want torch\.int32"),
    (lambda: awq(scales=AWQ[2].float()), DtypeError, r"scales: got torch\.float32, want .*rounded twice"),
    (lambda: awq(scales=AWQ[2].int()), DtypeError, r"scales: got torch\.int32, want torch\.float16 or torch\.bfloat16"),
    (lambda: awq(qweight=[1]), DtypeError, r"qweight: got list, want a torch\.Tensor"),
    (lambda: awq(qweight=zeros(32)), ShapeError, r"qweight: got shape \(32,\), want \(K, N / 8\)"),
    (lambda: awq(group_size=24), ShapeError, r"qweight: got 32 rows, want a multiple of group_size, 24"),
    (lambda: awq(group_size=32), ShapeError, r"qzeros: got shape \(2, 2\), want \(1, 2\), for 32 rows"),
    (lambda: awq(qzeros=zeros(2, 3)), ShapeError, r"qzeros: got shape \(2, 3\), want \(2, 2\)"),
    (lambda: awq(scales=zeros(2, 15, dtype=HALF)), ShapeError, r"scales: got shape \(2, 15\), want \(2, 16\)"),
    (lambda: awq(group_size=0), ArgumentError, r"group_size: got 0, want at least 1, or -1"),
    (lambda: awq(group_size=-2), ArgumentError, r"group_size: got -2"),
    (lambda: awq(group_size=16.0), DtypeError, r"group_size: got float, want an integer"),
    (lambda: awq(dtype=torch.float64), DtypeError, r"dtype: got torch\.float64, want"),
    (lambda: awq(qzeros=AWQ[1].to("meta")), DeviceError, r"qzeros: got a tensor on meta"),
    (lambda: awq(qweight=AWQ[0].to_sparse()), ArgumentError, r"qweight: got layout torch\.sparse_coo"),
    (lambda: awq(out=zeros(32, 15, dtype=HALF)), ShapeError, r"out: got shape \(32, 15\), want \(32, 16\)"),
    (lambda: awq(out=zeros(32, 16, dtype=BFLOAT)), DtypeError, r"out: got torch\.bfloat16, want torch\.float16"),
    (lambda: awq(out=zeros(16, 32, dtype=HALF).t()), ArgumentError, r"out: got strides"),
    (lambda: gptq(bits=5), ArgumentError, r"bits: got 5, want 2, 3, 4 or 8"),
    (lambda: gptq(bits=True), DtypeError, r"bits: got bool"),
    (lambda: gptq(zeros="v3"), ArgumentError, r"zeros: got 'v3', want v1 or v2"),
    (lambda: gptq(validate=1), DtypeError, r"validate: got int, want True or False"),
    (lambda: gptq(qweight=GPTQ[0].bfloat16()), DtypeError, r"qweight: got torch\.bfloat16, .*load them again"),
    (lambda: gptq(scales=GPTQ[2].float()), DtypeError, r"scales: got torch\.float32"),
    (lambda: gptq(bits=3), ShapeError, r"qweight: got 4 rows of words, want a multiple of 3"),
    (lambda: gptq(bits=3, qweight=zeros(3, 24)), ShapeError, r"qweight: got 24 columns, want a multiple of 32"),
    (lambda: gptq(qweight=zeros(4, 12)), ShapeError, r"qweight: got 12 columns, want a multiple of 8"),
    (lambda: gptq(bits=8, qweight=zeros(4, 6)), ShapeError, r"qweight: got 6 columns, want a multiple of 4"),
    (lambda: gptq(group_size=12), ShapeError, r"qzeros: got shape \(2, 4\), want \(3, 4\)"),
    (lambda: gptq(scales=zeros(3, 32, dtype=HALF)), ShapeError, r"scales: got shape \(3, 32\), want \(2, 32\)"),
    (lambda: gptq(g_idx=zeros(31)), ShapeError, r"g_idx: got shape \(31,\), want \(32,\)"),
    (lambda: gptq(g_idx=zeros(32).long()), DtypeError, r"g_idx: got torch\.int64, want torch\.int32"),
    (lambda: gptq(g_idx=zeros(32) + 2), ArgumentError, r"g_idx: got 2 at row 0, want 0\.\.1: 2 groups"),
    (lambda: nf4(packed=PACKED.int()), DtypeError, r"packed: got torch\.int32, want torch\.uint8"),
    (lambda: nf4(shape=(10, 12)), ShapeError, r"packed: got shape \(65,\), want \(60,\), two of 120 elements a byte"),
    (lambda: nf4(packed=zeros(5, 13, dtype=BYTES)), ShapeError, r"packed: got shape \(5, 13\), want \(65,\)"),
    (lambda: nf4(shape=(10, -13)), ArgumentError, r"shape: got \(10, -13\), want lengths of 0 or more"),
    (lambda: nf4(shape=130), DtypeError, r"shape: got int, want a tuple"),
    (lambda: nf4(shape=(10, 13.0)), DtypeError, r"shape: got float, want an integer"),
    (lambda: nf4(block_size=0), ArgumentError, r"block_size: got 0, want at least 1"),
    (lambda: nf4(block_size=32), ShapeError, r"absmax: got shape \(3,\), want \(5,\), one for 32 of 130"),
    (lambda: nf4(absmax=ABSMAX.half()), DtypeError, r"absmax: got torch\.float16, want torch\.float32"),
    (lambda: nf4(absmax=ABSMAX.to(BYTES)), DtypeError, r"absmax: got torch\.uint8, want torch\.float32"),
    (lambda: nf4(nested=NESTED), DtypeError, r"absmax: got torch\.float32, want torch\.uint8"),
    (lambda: nf4(absmax=ABSMAX.to(BYTES), nested=NESTED[:3]), ArgumentError, r"nested: got 3 entries, want \(code2"),
    (lambda: nf4(absmax=ABSMAX.to(BYTES), nested=1), DtypeError, r"nested: got int, want \(code2"),
    (
        lambda: nf4(absmax=ABSMAX.to(BYTES), nested=(NESTED[0][:16], *NESTED[1:])),
        ShapeError,
        r"code2: got shape \(16,\), want \(256,\)",
    ),
    (
        lambda: nf4(absmax=ABSMAX.to(BYTES), nested=(*NESTED[:3], 2)),
        ShapeError,
        r"absmax2: got shape \(1,\), want \(2,\), one for 2 of 3 blocks",
    ),
    (
        lambda: nf4(absmax=ABSMAX.to(BYTES), nested=(*NESTED[:2], ABSMAX, 256)),
        ShapeError,
        r"offset: got shape \(3,\), want one element",
    ),
    (lambda: int8(weight=INT8[0].to(BYTES)), DtypeError, r"weight: got torch\.uint8, want torch\.int8"),
    (lambda: int8(scale=INT8[1].half()), DtypeError, r"scale: got torch\.float16, want torch\.float32"),
    (lambda: int8(scale=INT8[1][:2]), ShapeError, r"scale: got shape \(2,\), want \(3,\), one for each row"),
    (lambda: int8(weight=INT8[0][0]), ShapeError, r"weight: got shape \(8,\), want \(N, K\)"),
    (lambda: table(bits=2), ArgumentError, r"bits: got 2, want 3 or 4"),
    (lambda: table(bits=3), ShapeError, r"qweight: got 2 rows of words, want a multiple of 3"),
    (lambda: table(lookup_table=zeros(8, 9)), DtypeError, r"lookup_table: got torch\.int32"),
    (
        lambda: table(lookup_table=zeros(8, 9, dtype=HALF)),
        ShapeError,
        r"lookup_table: got shape \(8, 9\), want \(8, 16\)",
    ),
    (lambda: table(lookup_table=TABLE[1].bfloat16()), DtypeError, r"lookup_table: got torch\.bfloat16, want"),
    (
        lambda: table(sparse=CSR[:2]),
        ArgumentError,
        r"sparse: got 2 entries, want \(crow_indices, col_indices, values\)",
    ),
    (lambda: table(sparse=3), DtypeError, r"sparse: got int, want"),
    (lambda: table(sparse=(CSR[0][:8], *CSR[1:])), ShapeError, r"sparse\.crow_indices: got shape \(8,\), want \(9,\)"),
    (lambda: table(sparse=(CSR[0].float(), *CSR[1:])), DtypeError, r"sparse\.crow_indices: got torch\.float32"),
    (lambda: table(sparse=(*CSR[:2], zeros(1, dtype=SINGLE))), ShapeError, r"sparse\.values: got shape \(1,\), want"),
    (lambda: table(sparse=(*CSR[:2], zeros(0, dtype=HALF))), DtypeError, r"sparse\.values: got torch\.float16"),
    (
        lambda: table(full_rows=(FULL[0], FULL[1][:3])),
        ShapeError,
        r"full_rows\.values: got shape \(3, 1\), want \(16, 1",
    ),
    (lambda: table(full_rows=(FULL[0][None], FULL[1])), ShapeError, r"full_rows\.indices: got shape \(1, 1\)"),
    (lambda: table(full_rows=FULL[0]), DtypeError, r"full_rows: got Tensor, want \(indices, values\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS, ids=[m for _, _, m in REFUSALS])
def test_refusals_name_the_argument(call: Any, error: type[LowbitError], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert isinstance(raised.value, ValueError | TypeError)


# Buffers


def integers(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return on(RNG.integers(0, 256, (*shape, dtype.itemsize)).astype(np.uint8)).view(dtype).squeeze(-1)


def normal(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return on(RNG.normal(size=shape), dtype)


ORDER = on(RNG.permutation(32).astype(np.int32) // 16)
QUANTISED = (normal(256), normal(1), normal(1), 256)
SPARSE = on(np.arange(0, 18, 2, dtype=np.int32)), on(np.tile([1, 9], 8).astype(np.int32)), normal(16)
ROWS = on(np.array([3, 5], dtype=np.int32)), normal(16, 2)

CALLS: dict[str, tuple[Any, tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "awq": (
        dequantize_awq,
        (integers(32, 2), integers(2, 2), normal(2, 16, dtype=HALF)),
        {"group_size": 16, "dtype": BFLOAT},
    ),
    "gptq": (
        dequantize_gptq,
        (integers(4, 32), integers(2, 4), normal(2, 32, dtype=HALF), ORDER),
        {"group_size": 16},
    ),
    "gptq8": (
        dequantize_gptq,
        (integers(8, 20), integers(2, 5), normal(2, 20, dtype=BFLOAT)),
        {"bits": 8, "group_size": 16, "dtype": SINGLE},
    ),
    "nf4": (dequantize_nf4, (integers(72, dtype=BYTES), normal(3)), {"shape": (13, 11), "dtype": BFLOAT}),
    "fp4": (
        dequantize_fp4,
        (integers(72, dtype=BYTES), integers(3, dtype=BYTES)),
        {"shape": (11, 13), "nested": QUANTISED},
    ),
    "int8": (dequantize_int8, (integers(5, 12, dtype=torch.int8), normal(5)), {"dtype": SINGLE}),
    "squeezellm": (dequantize_squeezellm, (integers(2, 8), normal(8, 16)), {"sparse": SPARSE, "full_rows": ROWS}),
}
"""A call of each function: the function, its tensors, its options."""

EVERY = pytest.mark.parametrize("name", CALLS)


def call(name: str, **changes: Any) -> torch.Tensor:
    function, tensors, options = CALLS[name]
    return function(*tensors, **options | changes)


@EVERY
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_given_buffers(name: str, shift: int) -> None:
    """Every byte is written, whatever it held, and none beside it, at any alignment of an element."""
    right = call(name)
    for fill in (0x00, 0xA5):
        margin = 64 + shift * right.element_size()
        store = zeros(margin + right.nbytes + 64, dtype=BYTES) + fill
        out = store[margin:-64].view(right.dtype).view(right.shape)
        assert call(name, out=out) is out
        assert_same(out, right)
        assert (store[:margin] == fill).all()
        assert (store[-64:] == fill).all()


@EVERY
def test_results_that_overlap_what_is_read_are_refused(name: str) -> None:
    function, tensors, options = CALLS[name]
    right = call(name)
    for position, tensor in enumerate(tensors):
        block = zeros(right.nbytes + tensor.nbytes + 128, dtype=BYTES)
        start = right.nbytes // 64 * 64
        view = block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        view.copy_(tensor)
        out = block[: right.nbytes].view(right.dtype).view(right.shape)
        if right.nbytes > start:
            given = [*tensors[:position], view, *tensors[position + 1 :]]
            with pytest.raises(ArgumentError, match=r"out: got memory that overlaps"):
                function(*given, **options, out=out)


@EVERY
def test_twice_gives_the_same(name: str) -> None:
    assert_same(call(name), call(name))


@EVERY
def test_inputs_are_left_alone(name: str) -> None:
    before = [tensor.clone() for tensor in CALLS[name][1]]
    call(name)
    for tensor, kept in zip(CALLS[name][1], before, strict=True):
        assert np.array_equal(raw(tensor), raw(kept))


# torch


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_graph_of_torch_compile_is_whole(dynamic: bool) -> None:
    """Decoded inside a graph, and into a buffer."""

    def every(tensors: dict[str, tuple[torch.Tensor, ...]], outs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        found = []
        for name, (function, _, options) in CALLS.items():
            function(*tensors[name], **options, out=outs[name])
            found.append(function(*tensors[name], **options) + outs[name])
        return found

    outs = {name: torch.empty_like(call(name)) for name in CALLS}
    compiled = torch.compile(every, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    sums = compiled({name: tensors for name, (_, tensors, _) in CALLS.items()}, outs)
    for name, actual in zip(CALLS, sums, strict=True):
        right = call(name)
        assert_same(outs[name], right)
        assert_same(torch.nan_to_num(actual), torch.nan_to_num(right + right))


def test_ops_pass_opcheck() -> None:
    flags = zeros(8)
    flat = (None, None, None, 1, 64, 0)
    packed, absmax = CALLS["nf4"][1]
    sums = (*SPARSE, *ROWS)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (OPS.dequantize_awq.default, (*CALLS["awq"][1], 16, HALF)),
        (OPS.dequantize_awq_out.default, (*CALLS["awq"][1], 16, zeros(32, 16, dtype=HALF))),
        (OPS.dequantize_gptq.default, (*CALLS["gptq"][1], 4, 16, 1, BFLOAT)),
        (OPS.dequantize_gptq_out.default, (*CALLS["gptq"][1], 4, 16, 0, zeros(32, 32, dtype=HALF))),
        (OPS.dequantize_4bit.default, (packed, absmax, *flat, (13, 11), HALF)),
        (OPS.dequantize_4bit_out.default, (packed, absmax, *flat, zeros(13, 11, dtype=SINGLE))),
        (OPS.dequantize_int8.default, (*CALLS["int8"][1], HALF)),
        (OPS.dequantize_int8_out.default, (*CALLS["int8"][1], zeros(5, 12, dtype=HALF))),
        (OPS.check_squeezellm.default, (CALLS["squeezellm"][1][0], *SPARSE[:2], ROWS[0], 16)),
        (OPS.dequantize_squeezellm.default, (*CALLS["squeezellm"][1], 4, *sums, flags, zeros(8) - 1, HALF)),
        (
            OPS.dequantize_squeezellm_out.default,
            (*CALLS["squeezellm"][1], 4, *[None] * 7, zeros(16, 8, dtype=HALF)),
        ),
    ]
    for op, args in calls:
        torch.library.opcheck(op, args)


@EVERY
def test_fake_tensors(name: str) -> None:
    function, tensors, options = CALLS[name]
    right = call(name)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        actual = function(*(mode.from_tensor(tensor) for tensor in tensors), **options)
    assert (actual.shape, actual.dtype, actual.device.type) == (right.shape, right.dtype, right.device.type)


@EVERY
def test_autograd_learns_of_what_is_written_and_no_gradient_is_pretended(name: str) -> None:
    right = call(name)
    out = torch.empty_like(right)
    before = out._version
    call(name, out=out)
    assert out._version > before
    with torch.inference_mode():
        call(name)
    with pytest.raises(ArgumentError, match=r"out.*requires grad"):
        call(name, out=torch.empty_like(right).requires_grad_())
    assert not right.requires_grad


@pytest.mark.usefixtures("unplanned")
@EVERY
def test_offsets_in_64_bits_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wide, launch = call(name), [], _plans.launch

    def watch(plan: _plans.Plan, *args: Any, **options: Any) -> None:
        wide.append(plan.options["WIDE"])
        launch(plan, *args, **options)

    monkeypatch.setattr(_plans, "launch", watch)
    monkeypatch.setattr(_launch, "INT32_MAX", 0)
    assert_same(call(name), right)
    assert wide == [True]


# The adapter


def agree(scheme: weights.WeightScheme, shape: tuple[int, ...], dtype: torch.dtype, choice: int = 0) -> None:
    tensors = any_tensors(scheme, shape, RNG, choice=choice)
    actual = dequantize_weight(to_torch(tensors, DEVICE.type), scheme, dtype)
    assert_bits(actual, weights_bits.dequantize(tensors, scheme, FORMATS[dtype]), (scheme.name, shape, dtype))


def declined(scheme: weights.WeightScheme) -> bool:
    return scheme.name in ("nf4_four_digit", "int8_scb", "int8_torch") or "through_scale_dtype" in scheme.flags


@pytest.mark.parametrize("scheme", weights.select(), ids=lambda s: s.name)
def test_every_scheme_agrees_with_the_reference(scheme: weights.WeightScheme) -> None:
    """Stored tensors of any bits; or the scheme is a dialect, and declined."""
    rows = 96 if scheme.group in (48, 96) else 128
    shape = (40, 37) if scheme.family in ("nf4", "fp4", "int8") else (rows, 32)
    if declined(scheme):
        with pytest.raises(Unsupported):
            agree(scheme, shape, HALF)
        return
    for choice, dtype in enumerate(FORMATS):
        agree(scheme, shape, dtype, choice % len(scheme.scale_formats))


def test_the_adapter_takes_buffers_and_is_declared() -> None:
    scheme = weights.get("int8_channel")
    tensors = {"weight": CALLS["int8"][1][0], "scale": CALLS["int8"][1][1]}
    out = zeros(5, 12, dtype=SINGLE)
    assert dequantize_weight(tensors, scheme, SINGLE, out=out) is out
    assert_same(adapter.IMPLEMENTATION.call("dequantize_weight", tensors, scheme, SINGLE), out)
