"""`identify`: which scheme or dialect an implementation follows, and an input that tells it from the next best."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowbit import packing, schemes, weights
from lowbit.adapters import reference as stock
from lowbit.cases import blocks as cases
from lowbit.cli import main
from lowbit.errors import ArgumentError, DeviceError, UnknownScheme
from lowbit.identify import choose_device, exit_code, identify, identity, probes
from lowbit.identify.identity import COLUMNS, Identity
from lowbit.implementation import Implementation, Quantized, Unsupported
from lowbit.references import bits
from lowbit.rules import NanCode, Rounding, ScaleRule
from lowbit.suspects.dialects import ALL, Dialect
from lowbit.suspects.trial import to_bfloat16

MXFP4, NVFP4 = schemes.get("mxfp4_floor"), schemes.get("nvfp4")


def one(implementation: Implementation, *globs: str, operation: str = "quantize") -> Identity:
    (found,) = [found for found in identify(implementation, globs) if found.operation == operation]
    return found


def changed(name: str = "changed", **rules: Any) -> Implementation:
    """The reference under other rules, whatever it is asked for."""
    return stock.reference(name, quantize=lambda x, scheme, **o: stock.quantize(x, replace(scheme, **rules), **o))


def dialect(found: Dialect) -> Implementation:
    def quantize(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        array = x.numpy()
        a = np.float32(np.abs(array).max())
        made = found.quantize(array.reshape(-1, 16), a, NanCode.POSITIVE_MAX)
        shaped = made._replace(codes=made.codes.reshape(array.shape), scales=made.scales.reshape(len(array), -1))
        packed = packing.pack(shaped, scheme)
        return Quantized(torch.from_numpy(packed.packed), torch.from_numpy(packed.scales), torch.tensor([a / 2688]))

    return Implementation(name=found.name, version="0", quantize=quantize)


@pytest.mark.parametrize("name", ["mxfp4_floor", "mx4_ceil_e3m0_g8", "nvfp4", "nvfp4_two_level", "rtn_mxfp4"])
def test_the_reference_is_itself(name: str) -> None:
    found = one(stock.IMPLEMENTATION, name)
    assert (found.follows, found.exact, found.agree) == (name, True, found.inputs)
    assert found.next_agree < found.inputs
    assert found.difference is not None
    assert found.difference.got == found.difference.expected != found.difference.other


@pytest.mark.parametrize(
    ("rules", "follows"),
    [
        ({"rounding": Rounding.TIES_AWAY}, "mxfp4_floor+ties_away"),
        ({"nan": NanCode.ZERO}, "mxfp4_floor+nan_zero"),
        ({"scale_rule": ScaleRule.EVEN}, "mxfp4_even"),
    ],
)
def test_another_scheme_is_found(rules: dict, follows: str) -> None:
    """Asked for one scheme, it follows another registered one exactly."""
    found = one(changed(**rules), "mxfp4_floor")
    assert (found.scheme, found.follows, found.exact) == ("mxfp4_floor", follows, True)


def test_a_change_that_no_scheme_has() -> None:
    found = one(changed(scale_rule=ScaleRule.NEAREST), "mxfp4_floor")
    assert (found.follows, found.agree, found.exact) == ("nearest", found.inputs, False)
    assert found.columns["scale rule"] == "nearest"
    assert "no registered scheme" in found.lines()[0]


def test_two_changes() -> None:
    found = one(changed(rounding=Rounding.TIES_AWAY, scale_rule=ScaleRule.RCEIL), "mxfp4_floor")
    assert (found.follows, found.agree) == ("ties_away + rceil", found.inputs)
    assert found.rules["rounding"] == "ties_away"
    assert found.rules["scale_rule"] == "rceil"


@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name)
def test_every_dialect_is_named(known: Dialect) -> None:
    """The factor may be returned as an implementation likes: here as p, that is wrong bits and no dialect."""
    found = one(dialect(known), "nvfp4")
    tensors = len(probes.probes(NVFP4))
    assert found.follows == known.name
    assert found.registered
    assert found.inputs - found.agree <= tensors
    assert "only the tensor scale that is returned is another" in found.note
    assert found.columns["order of operations"] == known.element_text
    assert found.columns["ties"] == "ties_to_even"


def test_what_the_spec_says_of_dialects() -> None:
    """SPEC.md 6: scale bytes of a block under a tensor's amax, and the bytes and codes of a block of zeros."""
    by_name = {known.name: known for known in ALL}

    def scale(name: str, tensor: float, block: float) -> int:
        x = np.zeros((1, 16), np.float32)
        x[0, 0] = block
        return int(by_name[name].quantize(x, np.float32(tensor), NanCode.POSITIVE_MAX).scales[0, 0])

    assert [scale(name, 6, 4.5) for name in ("transformer_engine", "torchao", "mslk")] == [0x7B, 0x7A, 0x7A]
    assert [scale(name, 7, 5.75) for name in ("torchao", "mslk")] == [0x7B, 0x7C]
    assert [scale(name, 7, 6.25) for name in ("mslk_imprecise", "mslk")] == [0x7D, 0x7C]

    def code(known: Dialect, x: float, s: float, a: float) -> int:
        quotient = known.element(*np.float32([[x], [s], [a]]))
        return int(bits.encode(quotient, NVFP4.element, NVFP4.rounding)[0])

    for witness, wanted in (((1.0, 128, 6), (5, 5, 5, 6, 6, 5)), ((2.34375, 240, 5.25), (7, 7, 6, 7, 7, 6))):
        assert tuple(code(known, *witness) for known in ALL) == wanted
    block = np.zeros((1, 16), np.float32)
    zeros = {known.name: known.quantize(block, np.float32(6), NanCode.POSITIVE_MAX) for known in ALL}
    assert {name: (int(made.scales[0, 0]), int(made.codes[0, 0])) for name, made in zeros.items()} == {
        "torchao": (0x08, 0),
        "transformer_engine": (0, 0),
        "fbgemm": (0, 7),
        "mslk": (1, 0),
        "mslk_imprecise": (1, 0),
        "modelopt": (0x38, 0),
    }


def raising(error: BaseException) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", [SystemExit(0), pytest.skip.Exception("no"), GeneratorExit()])
def test_an_implementation_ends_nothing(error: BaseException) -> None:
    """`sys.exit(0)` in a kernel must not end `lowbit identify` with the status of a kernel that follows its scheme."""
    call = raising(error)
    given = Implementation(name="leaves", version="1", quantize=call, dequantize=call, matmul=call)
    found = identify(given, ["mxfp4_floor"])
    assert [(one.operation, one.follows) for one in found] == [
        ("quantize", None),
        ("dequantize", None),
        ("matmul", None),
    ]
    assert all(type(error).__name__ in one.note for one in found)
    assert exit_code(found) == 1


def test_an_interrupt_is_one() -> None:
    given = Implementation(name="stopped", version="1", quantize=raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        identify(given, ["mxfp4_floor"])


@pytest.mark.parametrize("factor", [torch.empty(0), "x", object()])
def test_a_tensor_scale_that_is_none(factor: Any) -> None:
    def quantize(x: torch.Tensor, scheme: schemes.Scheme, **options: Any) -> Quantized:
        return stock.quantize(x, scheme, **options)._replace(tensor_scale=factor)

    found = one(Implementation(name="x", version="1", quantize=quantize), "nvfp4")
    assert (found.follows, found.exact) == (None, False)
    assert found.note.startswith("refused: ")


def test_values_of_another_shape_follow_nothing() -> None:
    """The suite fails such a decoder: it must not be told to follow the scheme exactly."""
    given = Implementation(name="flat", version="1", dequantize=lambda *a: stock.dequantize(*a).flatten())
    found = one(given, "mxfp4_floor", operation="dequantize")
    assert (found.follows, found.exact) == (None, False)
    assert "failed at binary32" in found.note


def test_what_an_implementation_says_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.py"
    path.write_text(
        "from lowbit.implementation import Implementation\n"
        "def quantize(x, scheme):\n    raise ValueError('\\x1b[31m\\n::error::x' + 'y' * 100000)\n"
        "IMPLEMENTATION = Implementation(name='hostile', version='1', quantize=quantize)\n"
    )
    assert main(["identify", f"{path}:IMPLEMENTATION", "--scheme", "mxfp4_floor"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("mxfp4_floor · quantize: refused: ValueError: \\u001b[31m ::error::xy")
    assert (told.count("\n"), "\x1b" in told, len(told) < 8000) == (1, False, True)


def test_the_difference_is_one() -> None:
    """The input told, run again: the two candidates give what is told of them, and no element can be left out."""
    found = one(changed(rounding=Rounding.TIES_AWAY), "mxfp4_floor")
    assert found.difference is not None
    x = np.zeros((1, 32), np.float32)
    values = cases.floats([int(text, 16) for text in found.difference.inputs["x"]])
    x[0, : len(values)] = values
    for name, told in ((found.follows, found.difference.expected), (found.next, found.difference.other)):
        right = bits.quantize(x, schemes.get(f"mxfp4_floor+{name}" if name not in schemes.names() else name))
        assert told["codes"] == [f"{code:x}" for code in right.codes[0, : len(values)]]
        assert told["scales"] == [f"{right.scales[0, 0]:#04x}"]


def test_what_was_seen() -> None:
    """A first draft: ties toward zero, the sign of zero lost, NaN not marked."""

    def quantize(x: torch.Tensor, scheme: schemes.Scheme, **options: Any) -> Quantized:
        if scheme.name != "mxfp4_floor" or options:
            raise Unsupported("only mxfp4_floor")
        blocks = x.float().unflatten(-1, (-1, 32))
        exponent = (blocks.abs().amax(-1, keepdim=True).view(torch.int32) >> 23) - 127 - 2
        thresholds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
        y = torch.ldexp(blocks, -exponent)
        codes = (torch.bucketize(y.abs(), thresholds) | (y < 0).int() << 3).flatten(-2).to(torch.uint8)
        return Quantized(codes[..., 0::2] | codes[..., 1::2] << 4, (exponent + 127).squeeze(-1).to(torch.uint8))

    found = one(Implementation(name="draft", version="0", quantize=quantize))
    assert not found.exact
    assert exit_code([found]) == 1
    assert found.columns["ties"].startswith("ties_toward_zero")
    assert found.columns["-0"] == "lost"
    assert found.columns["scale rule"].startswith("floor")
    assert "0xff" not in found.columns["NaN"]
    (row,) = identity.table([found])
    assert set(COLUMNS) < set(row)
    assert row["implementation"] == "draft"


def test_the_division_is_seen() -> None:
    def quantize(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        array = x.numpy()
        right = bits.quantize(array, scheme)
        s = bits.decode(right.scales, scheme.scale).astype(np.float32).repeat(16, axis=1)
        with np.errstate(all="ignore"):
            quotient = (array * right.tensor_scale) * (np.float32(1) / s)
        codes = bits.encode(quotient, scheme.element, scheme.rounding, scheme.nan)
        usable = np.isfinite(array) & (s > 0) & np.isfinite(s)
        return stock.stored(right._replace(codes=np.where(usable, codes, right.codes)), scheme, x.device)

    found = one(Implementation(name="reciprocal", version="0", quantize=quantize), "nvfp4")
    assert found.follows == "reciprocal"
    assert found.columns["order of operations"].startswith("(x · g) · (1 / s)")


def test_an_implementation_that_takes_bfloat16_alone() -> None:
    def quantize(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        if x.dtype is not torch.bfloat16:
            raise TypeError("x: want bfloat16")
        return stock.quantize(x, scheme)

    found = one(Implementation(name="narrow", version="0", quantize=quantize), "mxfp4_floor")
    assert found.exact
    assert "asked in bfloat16" in found.note


def test_calls_that_raise_keep_a_kernel_from_being_exact() -> None:
    """What came back is right everywhere, and still nothing is said to be followed."""

    def quantize(x: torch.Tensor, scheme: schemes.Scheme, **options: Any) -> Quantized:
        if not bool(torch.isfinite(x).all()):
            raise RuntimeError("not for Inf")
        return stock.IMPLEMENTATION.call("quantize", x, scheme, **options)

    found = one(replace(stock.IMPLEMENTATION, quantize=quantize, dequantize=None), "nvfp4")
    assert found.agree == found.inputs > 0
    assert found.refused >= 1
    assert not found.exact
    assert exit_code([found]) == 1
    assert "calls raised" in found.lines()[0]


def test_what_declines_and_what_fails() -> None:
    def declines(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        raise Unsupported("nothing")

    def fails(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        raise ZeroDivisionError("oh")

    def misshapen(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        return stock.quantize(x[:1], scheme)

    def picky(x: torch.Tensor, scheme: schemes.Scheme) -> Quantized:
        if not torch.isfinite(x).all():
            raise ValueError("x: NaN")
        return stock.quantize(x, scheme)

    assert identify(Implementation(name="none", version="0", quantize=declines)) == []
    assert "ZeroDivisionError: oh" in one(Implementation(name="fails", version="0", quantize=fails), "nvfp4").note
    found = one(Implementation(name="misshapen", version="0", quantize=misshapen), "mxfp4_floor")
    assert found.follows is None
    assert "want" in found.note
    found = one(Implementation(name="picky", version="0", quantize=picky), "nvfp4")
    assert found.exact
    assert "refused a tensor for NaN and Inf" in found.note


def test_decoding() -> None:
    found = one(stock.IMPLEMENTATION, "nvfp4", operation="dequantize")
    assert (found.follows, found.exact) == ("nvfp4", True)

    def inverts(quantized: Quantized, scheme: schemes.Scheme, dtype: torch.dtype) -> torch.Tensor:
        g = quantized.tensor_scale
        values = stock.dequantize(quantized._replace(tensor_scale=None), scheme, torch.float32)
        return (values if g is None else values * g).to(dtype)

    subject = Implementation(name="inverts", version="0", dequantize=inverts)
    found = one(subject, "nvfp4", operation="dequantize")
    assert (found.follows, found.agree, found.exact) == ("tensor_scale_inverted", found.inputs, False)
    assert found.difference is not None
    assert found.difference.got == found.difference.expected


def test_products() -> None:
    found = one(stock.IMPLEMENTATION, "nvfp4", operation="matmul")
    assert (found.follows, found.exact) == ("nvfp4", True)
    assert found.difference is not None
    assert found.difference.got == found.difference.expected != found.difference.other

    def forgets(a: Quantized, b: Quantized, scheme: schemes.Scheme, dtype: torch.dtype) -> torch.Tensor:
        plain = Quantized(a.packed, a.scales), Quantized(b.packed, b.scales, b.tensor_scale)
        return stock.matmul(*plain, scheme, dtype)

    subject = Implementation(name="forgets", version="0", matmul=forgets)
    found = one(subject, "nvfp4", operation="matmul")
    assert (found.follows, found.agree, found.exact) == ("forgotten_of_A", found.inputs, False)


def test_schemes_that_decode_alike_are_asked_once() -> None:
    found = identify(Implementation(name="d", version="0", dequantize=stock.dequantize), ("mxfp4_*",))
    assert [one.scheme for one in found] == ["mxfp4_floor"]


def test_weights() -> None:
    found = one(stock.IMPLEMENTATION, "awq_g32", operation="dequantize_weight")
    assert (found.follows, found.exact) == ("awq_g32", True)

    def off(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        if scheme.name != "awq_g32":
            raise Unsupported("awq_g32 alone")
        return stock.dequantize_weight(tensors, replace(scheme, packing=replace(scheme.packing, order=(0,))), dtype)

    subject = Implementation(name="off", version="0", dequantize_weight=off)
    (found,) = identify(subject, ("awq_*",))
    assert (found.follows, found.agree, found.exact) == ("order_omitted_codes", found.inputs, False)


@pytest.mark.parametrize("name", [scheme.name for scheme in weights.select()])
def test_every_weight_scheme_can_be_asked(name: str) -> None:
    seen = []

    def recorded(tensors: Any, scheme: Any, dtype: Any) -> torch.Tensor:
        seen.append(dtype)
        raise Unsupported("only looked at")

    assert identify(Implementation(name="r", version="0", dequantize_weight=recorded), (name,)) == []
    assert len(seen) == 2


def test_probes_hold_what_they_say() -> None:
    """Each purpose has a block; where a factor is computed, the first tensor's is 1, and no NaN stands in it."""
    for scheme in (MXFP4, NVFP4, schemes.get("mx4_ceil_e2m1_g64")):
        found = probes.probes(scheme)
        for probe in found:
            assert len(probe.purposes) * scheme.block == probe.x.size
        every = {purpose for probe in found for purpose in probe.purposes}
        assert every >= {probes.TIES, probes.SCALE, probes.ZEROS, probes.NONFINITE, probes.SIGNED, probes.ORDER}
    first = probes.probes(NVFP4)[0]
    assert np.isfinite(first.x).all()
    assert bits.quantize(first.x, NVFP4).tensor_scale == 1
    cut = to_bfloat16(first.x)
    assert (cut != first.x).any()


def test_globs() -> None:
    nothing = Implementation(name="n", version="0")
    with pytest.raises(UnknownScheme):
        identify(nothing, ("nosuch",))
    with pytest.raises(UnknownScheme):
        identify(nothing, ("awq_nosuch",))
    with pytest.raises(ArgumentError, match="not stochastic"):
        identify(nothing, ("nvfp4+stochastic",))


def test_the_device() -> None:
    assert choose_device("cpu") == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="finds no GPU"):
            choose_device("cuda")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    target = "lowbit.adapters.reference:IMPLEMENTATION"
    assert main(["identify", target, "--scheme", "mxfp4_floor", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "mxfp4_floor · quantize: follows the scheme mxfp4_floor" in text
    assert "told apart by x 0x" in text
    assert main(["identify", target, "--scheme", "mxfp4_floor", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["operation"] for one in found["identities"]] == ["quantize", "dequantize", "matmul"]
    assert found["table"][0]["ties"] == "ties_to_even"
    mutant = "tests/mutants/scale_not_clamped.py:IMPLEMENTATION"
    assert main(["identify", mutant, "--scheme", "nosuch"]) == 2


def test_lines_count_runs() -> None:
    given = Identity(
        implementation="i",
        scheme="s",
        operation="quantize",
        follows="s",
        text="the scheme s",
        registered=True,
        agree=3,
        inputs=3,
        next="t",
        next_text="t",
        next_agree=2,
        difference=identity.Difference(inputs={"x": ["0x0"] * 9 + ["0x1"]}, expected={"codes": ["0"]}, other={}),
    )
    assert "told apart by x 0x0 ×9 0x1" in "\n".join(given.lines())
    assert json.dumps(given.as_dict())
