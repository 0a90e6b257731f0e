"""The kernels' own source text, run on the model of the device language.

Nothing is transcribed and nothing of `lowbit_kernels` is imported: its modules are read as text and executed with
`device.language()` in place of triton. So a proof is about the source as it stands, and an edited kernel is proved, or
refuted, anew. What the compiler makes of the source is not judged here; the suite does that, on the device.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from lowbit.errors import ArgumentError
from lowbit.proofs import device

PACKAGE = "lowbit_kernels"

MODULES = ("_codec", "_e4m3", "_pairs", "_mx4_kernels", "_mxfp4_kernels", "_nvfp4_kernels", "_nvfp4_dequantize")
"""The modules that lemmas are about."""


class Edit(NamedTuple):
    """A change of the source before it is run, for planting faults."""

    module: str
    old: str
    new: str


class Kernels:
    """The device functions of the kernels, by module: ``kernels.codec.encode_e2m1``."""

    def __init__(self, modules: Mapping[str, SimpleNamespace]):
        self.codec = modules["_codec"]
        self.e4m3 = modules["_e4m3"]
        self.pairs = modules["_pairs"]
        self.mx4 = modules["_mx4_kernels"]
        self.mxfp4 = modules["_mxfp4_kernels"]
        self.nvfp4 = modules["_nvfp4_kernels"]
        self.nvfp4_dequantize = modules["_nvfp4_dequantize"]


@functools.cache
def kernels() -> Kernels:
    """The installed kernels, unchanged."""
    return load()


def load(edits: Iterable[Edit] = (), folder: Path | None = None) -> Kernels:
    """Runs the sources.

    Args:
      edits: changes of the text; each must apply exactly once.
      folder: of the package; None finds the installed one.

    Raises:
      ArgumentError: no such package, or an edit that does not apply.
    """
    folder = _locate() if folder is None else folder
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    for edit in edits:
        count = texts.get(edit.module, "").count(edit.old)
        if count != 1:
            raise ArgumentError(f"edit: got {edit.old!r}, which is {count} times in {edit.module}, want once")
        texts[edit.module] = texts[edit.module].replace(edit.old, edit.new)
    return Kernels(_Loader(folder, texts).modules())


def _locate() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ArgumentError(f"kernels: got no package {PACKAGE} here, want the one whose sources are to be proved")
    return Path(next(iter(spec.submodule_search_locations)))


class _Missing:
    """Stands for what belongs to the host or to memory; it can be handed on, but not used."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise ArgumentError(f"{self._name}: got a call, which is not modelled")


class _Loader:
    """Runs the modules' texts, each once, with imports of its own making."""

    def __init__(self, folder: Path, texts: Mapping[str, str]):
        self._folder = folder
        self._texts = texts
        self._loaded: dict[str, SimpleNamespace] = {"_launch": SimpleNamespace(INTERPRETED=False)}
        language = device.language()
        self._shims: dict[str, Any] = {
            "triton": SimpleNamespace(jit=_decorator, constexpr_function=_decorator, language=language),
            "triton.language": language,
            "triton._C": _Missing("triton._C"),
            "torch": _Missing("torch"),
        }

    def modules(self) -> dict[str, SimpleNamespace]:
        return {name: self._module(name) for name in MODULES}

    def _module(self, name: str) -> Any:
        if name not in self._texts:
            raise ArgumentError(f"kernels: got no module {name} in {self._folder}, which a lemma is about")
        if name not in self._loaded:
            self._loaded[name] = SimpleNamespace()
            builtins = {**vars(importlib.import_module("builtins")), "__import__": self._import}
            space: dict[str, Any] = {"__name__": f"{PACKAGE}.{name}", "__builtins__": builtins}
            exec(compile(self._texts[name], str(self._folder / f"{name}.py"), "exec"), space)
            vars(self._loaded[name]).update(space)
        return self._loaded[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: tuple[str, ...] = (),
        level: int = 0,
    ) -> Any:
        head, _, module = name.partition(".")
        if head == PACKAGE:
            if module:
                return self._own(module)
            return SimpleNamespace(**{part: self._own(part) for part in fromlist or ()})
        if name in self._shims:
            return self._shims[name if fromlist else head]
        found: ModuleType = __import__(name, globals, locals, fromlist, level)
        return found

    def _own(self, module: str) -> Any:
        """A module of the kernels; those that only the host and memory need stay closed."""
        return self._module(module) if module in self._loaded or module in MODULES else _Missing(module)


def _decorator(function: Any = None, **options: Any) -> Any:
    """`triton.jit` with or without options: the function itself."""
    return function if function is not None else lambda inner: inner
