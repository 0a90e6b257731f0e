"""Python that repeats a mismatch: input, scale and right bits as hex literals, so that it can be sent to somebody.

Where a mismatch can be rebuilt from its sample, the program builds one block: the input in its lane, and, beside it, an
element that gives the block its scale. Otherwise it runs the check and looks at the one place. Either ends in an
assertion that fails as long as the fault is there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from lowbit.errors import LowbitError
from lowbit.formats import BINARY32, FORMATS, FloatFormat
from lowbit.records import Record
from lowbit.report import text
from lowbit.rules import TensorScaleRule
from lowbit.schemes import Scheme, get

_DTYPES = {"bfloat16": "torch.bfloat16", "binary16": "torch.float16", "binary32": "torch.float32"}

_HEAD = """\
# {title}
# Needs lowbit, torch and the implementation; fails as long as the mismatch is there.
import os

{environment}import torch

from lowbit import implementation, packing, schemes
{imports}
scheme = schemes.get({scheme!r})
kernel = implementation.load({target!r})
"""

_QUANTIZE = """\
pattern = torch.zeros(1, {block}, dtype=torch.int64)
{filler}pattern[0, {lane}] = 0x{x:08x}  # {value}, the input
x = pattern.to(torch.int32).view(torch.float32){cast}.to({device!r})
found = packing.unpack(kernel.call("quantize", x, scheme), scheme)
"""

_FILLER = "pattern[0, {lane}] = 0x{bits:08x}  # {value}: the block's scale is {scale}\n"

_CODES = """\
got = int(found.scales.cpu()[0, 0]), int(found.codes.cpu()[0, {lane}])
want = 0x{scale:02x}, 0x{code:x}
assert got == want, f"scale and code: got {{got[0]:#04x}}, {{got[1]:#x}}, want {{want[0]:#04x}}, {{want[1]:#x}}"
"""

_SCALE = """\
got, want = int(found.scales.cpu()[0, 0]), 0x{scale:02x}
assert got == want, f"scale: got {{got:#04x}}, want {{want:#04x}}"
"""

_VALUES = """\
codes = torch.zeros(1, {block}, dtype=torch.uint8)
codes[0, {lane}] = 0x{code:x}
scales = torch.tensor([[0x{scale:02x}]], dtype=torch.uint8)
stored = packing.pack(Encoded(codes, scales), scheme)
stored = Quantized(*(part if part is None else part.to({device!r}) for part in stored))
value = kernel.call("dequantize", stored, scheme, {dtype}).cpu()[0, {lane}]
got, want = int(value.view(torch.int{bits})) & 0x{mask:x}, 0x{expected:0{digits}x}
assert got == want, f"value: got {{got:#x}}, want {{want:#x}}"
"""

_ALONE = 'print("equal here: this mismatch needs its surroundings; run the command of the check")\n'

_RUN = """\
# {title}
# Runs the check, and looks at this place; fails as long as the mismatch is there.
import shlex
import subprocess
import tempfile
from pathlib import Path

from lowbit.records import read_records

command = shlex.split({command!r})
place = {{"tensor": {tensor!r}, "index": {index}}}
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([*command, "--no-html", "--report-dir", folder], check=False)
    (run,) = Path(folder).iterdir()
    records = read_records(run)
assert any(record.compared for record in records), "the check did not run"
samples = [sample for record in records for sample in record.samples]
found = [s for s in samples if all(s.get(name) == value for name, value in place.items())]
wrong = [f"got {{s['actual']:#x}}, want {{s['expected']:#x}}" for s in found]
assert not wrong, f"{{wrong[0]}} (the report: got 0x{actual:x}, want 0x{expected:x})"
left = sum(record.mismatched for record in records)
assert not left, f"not among the samples of this run, but {{left}} mismatches are"
"""


def of_kinds(record: Record, samples: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One program for each kind of some of a record's samples, the first; none where it says no command."""
    words = _words(record.repeat)
    made: dict[str, dict[str, str]] = {}
    for sample in samples if words else ():
        kind = text.line(sample.get("kind"), 30)
        if kind not in made:
            source = source_of(record, sample, words)
            if source:
                made[kind] = {"kind": kind, "source": source}
    return list(made.values())


def source_of(record: Record, sample: Mapping[str, Any], words: list[str]) -> str:
    """A program that repeats one mismatch, "" where its sample says too little.

    Args:
      words: the command that repeats the check.
    """
    if any(_code(sample.get(name), 64) is None for name in ("actual", "expected")):
        return ""
    try:
        scheme = get(record.scheme)
    except LowbitError:
        scheme = None
    place = sample.get("coordinates")
    at = "[" + ",".join(map(str, place)) + "]" if isinstance(place, (list, tuple)) else ""
    title = text.line(
        f"{sample.get('kind')}: {sample.get('tensor')} {at}, {record.implementation} under {record.scheme}", 160
    )
    block = None if scheme is None else _block(record, sample, words, scheme, title)
    if block:
        return block
    if words[0] != "pytest" or _code(sample.get("index"), 63) is None:
        return ""
    return _RUN.format(
        title=title,
        command=shlex.join(words),
        tensor=text.clean(sample.get("tensor")),
        index=sample["index"],
        actual=sample["actual"],
        expected=sample["expected"],
    )


def _block(record: Record, sample: Mapping[str, Any], words: list[str], scheme: Scheme, title: str) -> str:
    """The program of one block, "" where random bits, a tensor scale or a place beyond the block decide."""
    tensor = str(sample.get("tensor") or "")
    what = tensor.rpartition(": ")[2]
    lane, x, scale = sample.get("lane"), _code(sample.get("x_bits"), 32), _code(sample.get("scale_expected"), 8)
    targets = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--impl"]
    alone = scheme.tensor_scale in (TensorScaleRule.NONE, TensorScaleRule.GLOBAL_SCALE)
    if scheme.stochastic or not alone or not targets or not isinstance(lane, int) or not 0 <= lane < scheme.block:
        return ""
    if x is None or scale is None:
        return ""
    interpreted = "interpreter" in record.device
    given = {
        "title": title,
        "environment": 'os.environ["TRITON_INTERPRET"] = "1"\n' if interpreted else "",
        "scheme": scheme.name,
        "target": targets[0],
        "device": "cuda" if record.device.startswith("cuda") else "cpu",
        "block": scheme.block,
        "lane": lane,
        "imports": "",
    }
    parts = tensor.replace(",", ":").split(": ")
    named = next((name for part in parts if (name := part.split(" ")[0]) in _DTYPES), BINARY32.name)
    if what in ("codes", "scales") and sample.get("input") == BINARY32.name:
        if what == "codes" and sample.get("format") != scheme.element.name:
            return ""
        filler = ""
        if what == "codes":
            bits = amax_of(scheme, scale)
            if bits is not None and (x & 0x7FFFFFFF) < bits:
                filler = _FILLER.format(
                    lane=int(lane == 0), bits=bits, value=_shown(bits, BINARY32), scale=f"0x{scale:02x}"
                )
        body = _QUANTIZE.format(
            **given,
            filler=filler,
            x=x,
            value=_shown(x, BINARY32),
            cast="" if named == BINARY32.name else f".to({_DTYPES[named]})",
        )
        check = _CODES if what == "codes" else _SCALE
        wanted = {"scale": scale, "code": sample["expected"], "lane": lane}
        return _HEAD.format(**given) + body + check.format(**wanted) + _ALONE
    dtype = what.removeprefix("values, ")
    if what.startswith("values, ") and dtype in _DTYPES and x < 1 << scheme.element.bits:
        width = FORMATS[dtype].bits
        given["imports"] = "from lowbit.schemes import Encoded, Quantized\n"
        body = _VALUES.format(
            **given,
            code=x,
            scale=scale,
            dtype=_DTYPES[dtype],
            bits=width,
            mask=(1 << width) - 1,
            digits=width // 4,
            expected=sample["expected"],
        )
        return _HEAD.format(**given) + body + _ALONE
    return ""


def amax_of(scheme: Scheme, scale: int) -> int | None:
    """The binary32 bits of an element that gives its block that scale.

    A power of two, at which rules for exponents agree; else the product that the rule divides by a constant.

    Returns:
      None for a scale of zero, which nothing has to give. A NaN for a scale of NaN.
    """
    if scheme.scale.is_nan(scale):
        return 0x7FC00000
    factor = scheme.element.max_value
    if scheme.exponent_range is not None:
        factor = Fraction(2) ** (scheme.element.exponent_bits if scheme.family == "mx4" else scheme.element.emax)
    if scheme.scale_scale is not None and scheme.global_scale is not None:
        factor = scheme.scale_scale * scheme.global_scale
    value = Fraction(scheme.scale.value(scale)) * factor
    if value <= 0:
        return None
    return _nearest(min(value, BINARY32.max_value))


def _nearest(value: Fraction) -> int:
    """The bits of the largest positive binary32 number that is at most the value."""
    low, high = 0, BINARY32.max_magnitude
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if BINARY32.magnitude_value(middle) <= value else (low, middle - 1)
    return low


def _shown(bits: int, fmt: FloatFormat) -> str:
    return text.number(float(fmt.value(bits)))


def _code(value: Any, bits: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits else None


def _words(command: str) -> list[str]:
    """A command as words, none where it is no line of a shell or has what a file cannot hold."""
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if words and text.clean(command, len(command)) == command and "\n" not in command else []
