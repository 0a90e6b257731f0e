"""The kernels' own source text, run on the model of the device language.

Nothing is transcribed and nothing of `lowbit_kernels` is imported: its modules are read as text and executed with the
model in place of triton. So a proof is about the source as it stands, and an edited kernel is proved, or refuted, anew.
What the compiler makes of the source is not judged here; the suite does that, on the device.
"""

from __future__ import annotations

import builtins
import functools
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from lowbit.errors import ArgumentError
from lowbit.proofs.language import language

PACKAGE = "lowbit_kernels"

MODULES = (
    *("_codec", "_e4m3", "_pairs", "_stochastic_pairs"),
    *("_mx4_kernels", "_mxfp4_kernels", "_nvfp4_kernels", "_nvfp4_dequantize"),
)
"""The modules that lemmas are about."""

HOST: dict[str, SimpleNamespace] = {"_launch": SimpleNamespace(INTERPRETED=False)}
"""What these take from modules of the host: the kernels are looked at as a GPU runs them."""


class Edit(NamedTuple):
    """A change of the source before it is run, for planting faults."""

    module: str
    old: str
    new: str


class Kernels:
    """The device functions of the kernels, by module: ``kernels.codec.encode_e2m1``.

    Args:
      texts: module → source.
      stubs: module → names there that mean something else.
    """

    def __init__(self, texts: Mapping[str, str], stubs: Mapping[str, Mapping[str, Any]] | None = None):
        self._texts = texts
        self._modules = _Loader(texts, stubs or {}).modules()
        self.codec = self._modules["_codec"]
        self.e4m3 = self._modules["_e4m3"]
        self.pairs = self._modules["_pairs"]
        self.stochastic_pairs = self._modules["_stochastic_pairs"]
        self.mx4 = self._modules["_mx4_kernels"]
        self.mxfp4 = self._modules["_mxfp4_kernels"]
        self.nvfp4 = self._modules["_nvfp4_kernels"]
        self.nvfp4_dequantize = self._modules["_nvfp4_dequantize"]

    def replacing(self, module: str, **stubs: Any) -> Kernels:
        """The same sources, with names of one module replaced by what other lemmas say of them.

        Raises:
          ArgumentError: the module has no such name, so that a lemma would rest on nothing.
        """
        missing = [name for name in stubs if not hasattr(self._modules[module], name)]
        if missing:
            raise ArgumentError(f"stubs: got {missing}, want names that {module} has")
        return Kernels(self._texts, {module: stubs})


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
      ArgumentError: no such package or module, or an edit that does not apply.
    """
    folder = _locate() if folder is None else folder
    missing = [name for name in MODULES if not (folder / f"{name}.py").is_file()]
    if missing:
        raise ArgumentError(f"kernels: got no {', '.join(missing)} in {folder}, want the modules that lemmas are about")
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    for edit in edits:
        count = texts[edit.module].count(edit.old)
        if count != 1:
            raise ArgumentError(f"edit: got {edit.old!r}, which is {count} times in {edit.module}, want once")
        texts[edit.module] = texts[edit.module].replace(edit.old, edit.new)
    return Kernels(texts)


def _locate() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ArgumentError(f"kernels: got no package {PACKAGE} here, want the one whose sources are to be proved")
    return Path(next(iter(spec.submodule_search_locations)))


class _Closed:
    """Stands for what belongs to the host or to memory: it can be handed on, but not called."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> _Closed:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Closed(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise ArgumentError(f"{self._name}: got a call, which is not modelled")


class _Loader:
    """Runs the modules' texts, each once, with imports of its own making."""

    def __init__(self, texts: Mapping[str, str], stubs: Mapping[str, Mapping[str, Any]]):
        self._texts = texts
        self._stubs = stubs
        self._loaded: dict[str, SimpleNamespace] = dict(HOST)
        tl = language()
        self._shims: dict[str, Any] = {
            "triton": SimpleNamespace(jit=_decorator, constexpr_function=_decorator, language=tl),
            "triton.language": tl,
            "triton._C": _Closed("triton._C"),
            "torch": _Closed("torch"),
        }

    def modules(self) -> dict[str, SimpleNamespace]:
        return {name: self._module(name) for name in self._texts}

    def _module(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in self._texts:
                return _Closed(name)
            self._loaded[name] = SimpleNamespace()
            own = {**vars(builtins), "__import__": self._import}
            space: dict[str, Any] = {"__name__": f"{PACKAGE}.{name}", "__builtins__": own}
            try:
                exec(_compiled(name, self._texts[name]), space)
            except (AttributeError, ImportError, NameError, TypeError) as error:
                raise ArgumentError(f"{PACKAGE}.{name}: cannot be run on the model: {error}") from error
            space.update(self._stubs.get(name, {}))
            vars(self._loaded[name]).update(space)
        return self._loaded[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> Any:
        head, _, module = name.partition(".")
        if head == PACKAGE:
            if module:
                return self._module(module)
            return SimpleNamespace(**{part: self._module(part) for part in fromlist or ()})
        if name in self._shims:
            return self._shims[name if fromlist else head]
        return __import__(name, globals, locals, fromlist or (), level)


@functools.cache
def _compiled(name: str, text: str) -> Any:
    return compile(text, f"{PACKAGE}/{name}.py", "exec")


def _decorator(function: Any = None, **options: Any) -> Any:
    """`triton.jit` with or without options: the function itself."""
    return function if function is not None else lambda inner: inner
