"""An implementation under judgement: a frozen dataclass of callables, each optional.

A kernel needs no base class and no registration to be judged: ``--impl module:attr`` is enough.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit.errors import UnknownImplementation, Unsupported
from lowbit.schemes import Quantized

__all__ = ["DEFAULT", "ENTRY_POINTS", "Implementation", "Quantized", "Unsupported", "available", "installed", "load"]

ENTRY_POINTS = "lowbit.implementations"
"""The entry-point group in which packages announce an `Implementation`."""

DEFAULT = "lowbit_kernels"
"""The implementation judged when none is named."""

ADAPTERS = "lowbit.adapters."
"""Modules that adapt a package which an extra of the same name brings."""


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """Somebody's kernels, as callables on torch tensors of the device under judgement.

    A callable raises `Unsupported` for a scheme that it does not provide; one that is None provides nothing.
    Options that a check does not need are not passed, so a callable declares those that it understands.

    Args:
      name: as reports show it.
      version: of the package, or a commit.
      encode: ``(x, element, rounding, *, random_bits) -> codes``. x: (N,) float32, codes: (N,) uint8, one a byte.
        Lets every one of 2**32 inputs be tried alone.
      quantize: ``(x, scheme, *, tensor_scale, random_bits, scale_random_bits, seed, swizzle) -> Quantized``.
        x: (..., K) float32, bfloat16 or float16, any strides.
        tensor_scale: float32 of one element, the factor g that x is multiplied by.
        random_bits: uint8, shape of x. scale_random_bits: int32, (..., groups). seed: int, where neither is given.
        swizzle: True asks for scales in the SWIZZLE_32_4_4 layout.
      dequantize: ``(quantized, scheme, dtype) -> values``. (..., P) of dtype, P the padded width.
      swizzle: ``(scales) -> buffer``. (..., M, C) uint8 to the 1-D SWIZZLE_32_4_4 buffer.
      unswizzle: ``(buffer, rows, columns) -> scales``.
      matmul: ``(a, b, scheme, out_dtype) -> out`` of two `Quantized`.
      dequantize_weight: ``(tensors, scheme, dtype) -> values`` of a mapping of the scheme's named tensors.
      out: whether `quantize` takes ``out=Quantized(...)``, buffers to write into; guard bands are judged only there.
      hardware: whether `quantize` takes ``hardware=True``, which converts to E2M1 by an instruction of the GPU where it
        else would not.
    """

    name: str
    version: str
    encode: Callable[..., Any] | None = None
    quantize: Callable[..., Any] | None = None
    dequantize: Callable[..., Any] | None = None
    swizzle: Callable[..., Any] | None = None
    unswizzle: Callable[..., Any] | None = None
    matmul: Callable[..., Any] | None = None
    dequantize_weight: Callable[..., Any] | None = None
    out: bool = False
    hardware: bool = False

    def call(self, operation: str, *args: Any, **options: Any) -> Any:
        """Calls an operation without the options that are None.

        Raises:
          Unsupported: the implementation has no such operation, or declines.
        """
        function = getattr(self, operation)
        if function is None:
            raise Unsupported(f"{self.name} provides no {operation}")
        return function(*args, **{name: value for name, value in options.items() if value is not None})


def available() -> dict[str, str]:
    """The installed implementations: name → ``module:attr``."""
    found = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if DEFAULT not in found and importlib.util.find_spec(DEFAULT) is not None:
        found[DEFAULT] = f"{DEFAULT}.adapter:IMPLEMENTATION"
    return found


def installed() -> list[dict[str, str]]:
    """One row an implementation that is announced, whether its package is installed or not.

    Returns:
      name; version, of the adapted package where it is one of lowbit's adapters; target; install, the command that
      brings a package that is missing, else empty.
    """
    rows = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        version, install = (point.dist.version, "") if point.dist is not None else ("", "")
        if point.value.startswith(ADAPTERS) and point.dist is not None:
            extra = point.value.removeprefix(ADAPTERS).partition(":")[0].replace("_", "-")
            distribution = _brought(point.dist.requires or [], extra)
            try:
                version = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                version, install = "not installed", f"pip install '{point.dist.name}[{extra}]'"
        rows[point.name] = {"name": point.name, "version": version, "target": point.value, "install": install}
    for name, target in available().items():
        rows.setdefault(name, {"name": name, "version": "", "target": target, "install": ""})
    return [rows[name] for name in sorted(rows)]


def _brought(requirements: list[str], extra: str) -> str:
    """The distribution that an extra is for: the first that it requires; the extra's own name if there is none."""
    marked = [text for text in requirements if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", text)]
    return re.split(r"[^\w.-]", marked[0], maxsplit=1)[0] if marked else extra


def load(target: str) -> Implementation:
    """The implementation that `target` names.

    Args:
      target: an entry-point name, ``module:attr`` (the invocation directory is importable) or ``path/file.py:attr``.

    Raises:
      UnknownImplementation: nothing of that name, or what is there is no `Implementation`; says what was tried.
    """
    known = available()
    place = known.get(target, target)
    head, colon, attribute = place.rpartition(":")
    if not colon:
        raise UnknownImplementation(
            f"impl: got {target!r}, want {', '.join(known) or '(none is installed)'}, module:attr or path/file.py:attr"
        )
    try:
        value = getattr(_module(head), attribute)
    except UnknownImplementation:
        raise
    except AttributeError as error:
        raise UnknownImplementation(f"impl: {target!r}: {error}") from error
    except (Exception, SystemExit) as error:  # sys.exit() in a script would end this process, with its own status
        raise UnknownImplementation(f"impl: {target!r} fails on import: {type(error).__name__}: {error}") from error
    if not isinstance(value, Implementation):
        raise UnknownImplementation(f"impl: {target!r} is a {type(value).__name__}, want an Implementation")
    return value


def _module(head: str) -> Any:
    if not head.endswith(".py"):
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(head)
    path = Path(head).resolve()
    if not path.is_file():
        raise UnknownImplementation(f"impl: no file {head}")
    name = f"lowbit_impl_{path.stem}_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a .py suffix always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
