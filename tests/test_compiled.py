"""The key of a kernel that is started without Triton's search: never coarser than what Triton itself goes by."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from lowbit_kernels import _compiled

INTEGERS = (
    *(0, 1, 2, 15, 16, 17, 32, -1, -16),
    *(2**31 - 16, 2**31 - 1, 2**31, 2**31 + 16, 2**32, 2**32 + 1, -(2**31), -(2**31) - 1, -(2**31) - 16),
    *(2**63 - 1, 2**63 - 16, 2**63, 2**63 + 1, 2**64 - 16, 2**64 - 1, -(2**63)),
)
STORAGE = torch.zeros(256, dtype=torch.uint8)
DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2)
TENSORS = tuple(STORAGE[start:240].view(dtype)[:1] for dtype in (*DTYPES, *FLOATS) for start in (0, 8, 16))
ARGUMENTS: tuple[Any, ...] = (*INTEGERS, *TENSORS, True, False, None)
OPTIONS: tuple[Any, ...] = (0, 1, 2, 16, True, False, None, "tf32", "ieee")


def body(a, b, SIZE: tl.constexpr, RULE: tl.constexpr, LAST: tl.constexpr = 3):
    """Of a kernel that is never compiled."""


def annotated(a, b: tl.int64, SIZE: tl.constexpr, RULE: tl.constexpr, LAST: tl.constexpr = 3):
    """The same, with a type of its own for an integer."""


KERNELS: Any = tuple(
    JITFunction(function, **options)
    for function in (body, annotated)
    for options in ({}, {"do_not_specialize": ["b"]}, {"do_not_specialize_on_alignment": ["a"]})
)


def specialisation(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """What Triton looks a compiled kernel up by, on the CPU: its own binder for a GPU, and the options in writing."""
    backend: Any = make_backend(GPUTarget("cuda", 90, 32))
    _, found, rest = create_function_from_signature(kernel.signature, kernel.params, backend)(*args, **options)
    return repr(found), str(rest)


def calls() -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every argument in either place, every option; and pairs at random."""
    usual = {"SIZE": 16, "RULE": 2, "num_warps": 4}
    for a in ARGUMENTS:
        if not isinstance(a, int) or isinstance(a, bool) or a >= -(2**63):
            yield (a, 3), usual
    for b in INTEGERS:
        yield (TENSORS[0], b), usual
    for name, value in itertools.product(usual, OPTIONS):
        yield (TENSORS[0], 3), usual | {name: value}
    yield (TENSORS[0], 3), {"RULE": 16, "SIZE": 2, "num_warps": 4}
    yield (TENSORS[0], 3), usual | {"LAST": 3}
    yield (TENSORS[0], 3), usual | {"LAST": 4}
    yield (TENSORS[0], 3), usual | {"num_stages": 4}
    chosen = random.Random(1)
    for _ in range(300):
        yield (chosen.choice(ARGUMENTS), chosen.choice(INTEGERS)), usual | {"SIZE": chosen.choice(OPTIONS)}


def collisions(kernel: Any, key_of: Callable[..., Any]) -> list[tuple[Any, Any]]:
    """Calls that have one key and not one kernel."""
    met: dict[Any, tuple[Any, Any]] = {}
    wrong = []
    for args, options in calls():
        found = specialisation(kernel, args, options)
        before, call = met.setdefault(key_of(kernel, 0, args, options), (found, (args, options)))
        if before != found:
            wrong.append((call, (args, options)))
    return wrong


@pytest.mark.parametrize("kernel", KERNELS, ids=range(len(KERNELS)))
def test_what_triton_tells_apart_has_another_key(kernel: Any) -> None:
    assert not collisions(kernel, _compiled.key_of)


def coarser(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The key of arguments that are changed first."""
    return lambda kernel, device, args, options: _compiled.key_of(kernel, device, tuple(map(change, args)), options)


def integers(change: Callable[[int], int]) -> Callable[..., Any]:
    return coarser(lambda a: change(a) if type(a) is int else a)


COARSE: dict[str, Callable[..., Any]] = {
    "no alignment": coarser(lambda a: STORAGE.view(a.dtype) if isinstance(a, torch.Tensor) else a),
    "no dtype": coarser(lambda a: a.view(torch.uint8) if isinstance(a, torch.Tensor) else a),
    "no 1": integers(lambda a: 3 if a == 1 else a),
    "no 16": integers(lambda a: a if a == 1 else a | 2),
    "no int64": integers(lambda a: a if a == 1 else a % 2**31 | (a & 15) or 16),
    "no uint64": integers(lambda a: a - 2**33 if a >= 2**63 else a),
    "no bool": coarser(lambda a: 1 if a is True else a),
    "no None": coarser(lambda a: True if a is None else a),
    "no names": lambda kernel, device, args, options: (_compiled.key_of(kernel, device, args, {}), *options.values()),
    "no values": lambda kernel, device, args, options: (_compiled.key_of(kernel, device, args, {}), *options),
    "no types": lambda kernel, device, args, options: (
        _compiled.key_of(kernel, device, args, {}),
        *options,
        *options.values(),
    ),
}


@pytest.mark.parametrize("name", COARSE)
def test_a_coarser_key_is_seen(name: str) -> None:
    assert collisions(KERNELS[0], COARSE[name])


def test_kernels_and_devices_have_their_own_keys() -> None:
    keys = {_compiled.key_of(kernel, device, (1,), {}) for kernel in KERNELS for device in (0, 1)}
    assert len(keys) == 2 * len(KERNELS)


class Kernel:
    """Stands for a kernel: says who started it, Triton or what was kept of it."""

    def __init__(self) -> None:
        self.by_triton: list[Any] = []
        self.by_us: list[Any] = []
        self.pre_run_hooks: list[Any] = []
        self.debug: Any = None
        jit = KERNELS[0]
        self.params, self.constexprs = jit.params, jit.constexprs
        self.compiled: Any = Compiled.__new__(Compiled)
        self.compiled.started = self.by_us

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            self.by_triton.append((grid, args, options))
            return self.compiled

        return run


class Compiled(CompiledKernel):
    module, function, packed_metadata = None, "function", "metadata"

    def run(self, x: int, y: int, z: int, stream: Any, *rest: Any) -> None:
        assert (stream, *rest[:5]) == ("stream of 0", "function", "metadata", None, None, None)
        self.started.append(((x, y, z), rest[5:]))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream="stream of {}".format))
    monkeypatch.setattr(triton.runtime, "driver", driver)
    monkeypatch.setattr(_compiled, "_STARTED", {})
    monkeypatch.setattr(_compiled, "KNOWN", True)
    return Kernel()


USUAL: dict[str, Any] = {"RULE": True, "SIZE": 16, "num_warps": 4}


def start(kernel: Any, *args: Any, grid: tuple[int, ...] = (5,), **options: Any) -> None:
    _compiled.start(kernel, grid, 0, args, USUAL | options)


def test_the_second_time_it_is_ours(kernel: Kernel) -> None:
    """With its own grid and arguments, and the parameters given by name, or not at all, in their own order."""
    start(kernel, STORAGE, 17)
    assert kernel.by_triton == [((5,), (STORAGE, 17), USUAL)]
    start(kernel, STORAGE[16:], 18, grid=(7,))
    start(kernel, STORAGE, 19, grid=(7, 8))
    assert len(kernel.by_triton) == 1
    assert [grid for grid, _ in kernel.by_us] == [(7, 1, 1), (7, 8, 1)]
    assert [args[1:] for _, args in kernel.by_us] == [(18, 16, True, 3), (19, 16, True, 3)]
    assert [args[0].data_ptr() - STORAGE.data_ptr() for _, args in kernel.by_us] == [16, 0]
    start(kernel, STORAGE[1:], 17)
    start(kernel, STORAGE, 16)
    start(kernel, STORAGE, 17, SIZE=17)
    assert len(kernel.by_triton) == 4


@pytest.mark.parametrize(
    "strange",
    [
        {"args": (1.5, 3)},
        {"args": (SimpleNamespace(), 3)},
        {"args": (["unhashable"], 3)},
        {"args": (STORAGE, 3, 16)},
        {"options": {"SIZE": 0.0}},
        {"options": {"SIZE": tl.constexpr(1)}},
        {"compiled": None},
        {"compiled": SimpleNamespace(result=1)},
    ],
    ids=str,
)
def test_what_no_key_decides_is_not_kept(kernel: Kernel, strange: dict[str, Any]) -> None:
    """Floats, objects, a constexpr by its place; a hook that has cancelled, a kernel that is still being compiled."""
    kernel.compiled = strange.get("compiled", kernel.compiled)
    for _ in range(2):
        start(kernel, *strange.get("args", (STORAGE, 3)), **strange.get("options", {}))
    assert len(kernel.by_triton) == 2
    assert not kernel.by_us


SETTINGS = ("version", "pre_run_hooks", "own debug", "debug", "instrumentation", "enter", "exit", "another", "stages")


@pytest.mark.parametrize("setting", SETTINGS)
def test_triton_starts_it_where_something_is_set(kernel: Kernel, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = triton.knobs
    start(kernel, STORAGE, 3)
    start(kernel, STORAGE, 3)
    assert len(kernel.by_us) == 1
    with monkeypatch.context() as patch:
        if setting == "version":
            patch.setattr(_compiled, "KNOWN", False)
        elif setting == "pre_run_hooks":
            patch.setattr(kernel, "pre_run_hooks", [print])
        elif setting == "own debug":
            patch.setattr(kernel, "debug", True)
        elif setting == "debug":
            patch.setattr(knobs.runtime, "debug", True)
        elif setting == "instrumentation":
            patch.setattr(knobs.compilation, "instrumentation_mode", "fpsan")
        elif setting == "another":
            patch.setattr(knobs.runtime, "launch_enter_hook", print)
        elif setting in ("enter", "exit"):
            patch.setattr(getattr(knobs.runtime, f"launch_{setting}_hook"), "calls", [print])
        else:
            patch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda: ("", ""), raising=False)
        start(kernel, STORAGE, 3)
        assert (len(kernel.by_triton), len(kernel.by_us)) == (2, 1)
    start(kernel, STORAGE, 3)
    assert (len(kernel.by_triton), len(kernel.by_us)) == (2, 2)


def test_not_more_are_kept_than_said(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "MOST", 4)
    for size in range(10):
        start(kernel, STORAGE, 3, SIZE=size)
        assert 0 < len(_compiled._STARTED) <= 4
    assert len(kernel.by_triton) == 10
    start(kernel, STORAGE, 3, SIZE=9)
    assert len(kernel.by_us) == 1
