"""The import law, kept by reading the imports; and that each fact of the project stands in one place.

A layer may import the layers below it, never those above: so a kernel cannot reach the truth that it is judged by, a
reference cannot reach a kernel, and a report can be made where neither torch nor a GPU is.
"""

from __future__ import annotations

import ast
import enum
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowbit import rules, schemes, weights
from lowbit.formats import FORMATS

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"lowbit": ROOT / "conformance" / "lowbit", "lowbit_kernels": ROOT / "kernels" / "lowbit_kernels"}
LINES = 450

LAYERS: dict[str, tuple[str, ...]] = {
    "spec": (
        *("", "errors", "formats", "rules", "schemes", "glossary"),  # "" is the package itself: its version
        *("weights", "weight_tensors", "weight_words", "weight_glossary"),
    ),
    "truth": ("references", "packing", "packing_weights"),
    "inputs": ("cases", "strategies", "vectors", "checkpoints", "explain", "proofs"),
    "subject": ("implementation",),
    "adapters": ("adapters",),
    "judgement": ("compare", "diagnose", "suspects"),
    "identification": ("identify",),
    "records": ("records", "tables", "waivers", "waiving"),
    "telling": ("report", "environment", "doctor"),
    "glue": ("plugin", "cli", "cli_report", "pipe", "bench", "suite"),
}
"""Every module or package directly in lowbit, in one layer each."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "spec": ("spec",),
    "truth": ("spec", "truth"),
    "inputs": ("spec", "truth", "inputs"),
    "subject": ("spec", "packing"),
    "adapters": ("spec", "packing", "subject", "adapters"),
    "judgement": ("spec", "truth", "judgement"),
    "identification": ("spec", "truth", "inputs", "subject", "judgement", "identification"),
    "records": ("spec", "judgement", "records"),
    "telling": ("spec", "records", "telling"),
    "glue": tuple(LAYERS),
}
"""Layers, or single modules, of lowbit that a layer may import."""

THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "spec": (),
    "truth": ("numpy", "torch"),
    "inputs": ("hypothesis", "jsonschema", "numpy"),
    "subject": (),
    "adapters": ("numpy", "torch"),
    "judgement": ("numpy",),
    "identification": ("numpy", "torch"),
    "records": ("pandas",),
    "telling": ("jinja2", "packaging", "pandas"),
    "glue": ("hypothesis", "numpy", "pytest", "rich", "torch"),
}
"""Packages from elsewhere that a layer may import."""

ORACLES = ("bitstring", "fpy2", "gfloat", "gmpy2", "ml_dtypes")
"""Outside oracles: only modules named ``witness…`` may import them, inside functions, for they may be missing."""

PROOFS = (
    *("decoding", "device", "drawn", "elements", "language", "lemma", "nearest", "nvfp4", "pairs"),
    *("products", "quotients", "reals", "scales", "variants", "whole"),
)
"""Modules of `lowbit.proofs` that need the solver, which may be missing."""

OWN: dict[str, tuple[str, ...]] = {
    "lowbit.adapters.reference": tuple(f"lowbit.references.{name}" for name in ("bits", "matmul", "weights_bits")),
    "lowbit.adapters.bitsandbytes": ("bitsandbytes",),
    **{
        f"lowbit.adapters.{name}": (name,)
        for name in ("torchao", "compressed_tensors", "gfloat", "ml_dtypes", "transformers", "modelopt")
    },
    "lowbit.adapters._integers": ("lowbit.packing_weights",),
    "lowbit.adapters.quanto": ("optimum",),
    "lowbit.adapters.autoawq": ("awq",),
    **{f"lowbit.adapters.{name}": (name,) for name in ("gguf", "hqq", "gptqmodel")},
    "lowbit.report.parquet": ("pyarrow",),
    **{f"lowbit.proofs.{name}": ("z3",) for name in PROOFS},
}
"""What one module may import beside its layer's, inside functions."""

DISTRIBUTIONS = {"z3": "z3_solver", "modelopt": "nvidia_modelopt", "optimum": "optimum_quanto", "awq": "autoawq"}
"""Package → the distribution that has it, where their names differ."""

KERNELS_MAY_IMPORT = (
    *("lowbit.errors", "lowbit.formats", "lowbit.rules", "lowbit.schemes", "lowbit.implementation"),
    *("lowbit.weights", "lowbit.weight_tensors"),
)

NEEDS_TORCH = (
    *("lowbit.references.rtn", "lowbit.references.tensor", "lowbit.references.weights_tensors"),
    *("lowbit.references.witness", "lowbit.suite."),
)
"""Beginnings of the names of lowbit's modules that import torch when they are imported."""


def files() -> dict[str, Path]:
    """Every module of both packages by its dotted name."""
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


FILES = files()


def imports(source: str, package: str) -> Iterator[tuple[str, bool]]:
    """What a module imports, inside functions and by `import_module("…")` too; and whether it does so on import.

    Args:
      package: of the module, for relative imports.
    """

    def walk(node: ast.AST, on_import: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, on_import) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = package.split(".")
                    base = ".".join([*parts[: len(parts) - child.level + 1], *base.split(".")]).rstrip(".")
                yield from ((f"{base}.{alias.name}", on_import) for alias in child.names)
            elif isinstance(child, ast.Call) and child.args and isinstance(child.args[0], ast.Constant):
                called = ast.unparse(child.func).split(".")[-1]
                if called in ("import_module", "__import__") and isinstance(child.args[0].value, str):
                    yield child.args[0].value, on_import
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from walk(child, on_import and not inner and not typing_only)

    return walk(ast.parse(source), True)


@functools.cache
def module_imports(name: str) -> set[tuple[str, bool]]:
    """The imports of a module: modules of ours by their full name, others by their top-level package; no stdlib."""
    path = FILES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for target, on_import in imports(path.read_text(encoding="utf-8"), package):
        head = target.partition(".")[0]
        if head in SOURCES:
            while target not in FILES:  # a name inside a module
                assert "." in target, f"{name} imports {target}, which is not there"
                target = target.rpartition(".")[0]
            found.add((target, on_import))
        elif head not in sys.stdlib_module_names:
            found.add((head, on_import))
    return found


def part(name: str) -> str:
    """The module or package directly in lowbit that a module belongs to."""
    return name.removeprefix("lowbit").removeprefix(".").partition(".")[0]


def layer(name: str) -> str:
    found = [layer for layer, parts in LAYERS.items() if part(name) in parts]
    assert len(found) == 1, f"{name} is in {len(found)} layers, want one: add it to LAYERS"
    return found[0]


def is_witness(name: str) -> bool:
    return name.rpartition(".")[2].startswith("witness")


def lawful(name: str, target: str) -> bool:
    """Whether a module may import another, or a package from elsewhere."""
    head = target.partition(".")[0]
    if name.partition(".")[0] == "lowbit_kernels":
        return head in ("lowbit_kernels", "torch", "triton") or target in KERNELS_MAY_IMPORT
    if target in OWN.get(name, ()) or (is_witness(name) and target in ORACLES):
        return True
    if head == "lowbit":
        allowed = MAY_IMPORT[layer(name)]
        return layer(target) in allowed or part(target) in allowed
    return head in THIRD_PARTY[layer(name)]


@pytest.mark.parametrize("name", FILES)
def test_import_law(name: str) -> None:
    if name.partition(".")[0] == "lowbit":
        assert layer(name)
    unlawful = sorted(target for target, _ in module_imports(name) if not lawful(name, target))
    assert not unlawful, f"{name} imports {unlawful}"


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("lowbit.adapters.")])
def test_adapters_import_what_they_adapt_lazily(name: str) -> None:
    modules = (*LAYERS["spec"], *LAYERS["subject"], "packing", "adapters._released", "adapters._integers")
    spec = ("lowbit", *(f"lowbit.{module}" for module in modules))
    eager = sorted(target for target, on_import in module_imports(name) if on_import and target not in spec)
    assert not eager, f"{name} imports {eager} at its top"


def test_every_named_exception_of_the_law_is_there_and_needed() -> None:
    for name, extra in OWN.items():
        assert {target for target, _ in module_imports(name)} >= set(extra), name


@pytest.mark.parametrize("name", [name for name in FILES if is_witness(name)])
def test_oracles_are_imported_lazily(name: str) -> None:
    eager = sorted(target for target, on_import in module_imports(name) if on_import and target in ORACLES)
    assert not eager, f"{name} imports {eager} at its top"


@pytest.mark.parametrize("name", OWN)
def test_exceptions_are_imported_lazily(name: str) -> None:
    assert not [target for target, on_import in module_imports(name) if on_import and target in OWN[name]]


def test_every_package_is_declared() -> None:
    """What is imported must come with an installation, or a fresh machine fails where this one passes."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    declared = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in texts} | {"packaging"}  # pytest brings it
    imported = {target: name for name in FILES for target, _ in module_imports(name) if target not in FILES}
    missing = {t: name for t, name in imported.items() if DISTRIBUTIONS.get(t, t) not in declared}
    assert not missing, f"declared neither as a dependency nor in an extra: {missing}"


def test_lowbit_never_imports_kernels() -> None:
    """The glue layer may import all of lowbit; kernels are found by name at run time."""
    for name in FILES:
        if name.partition(".")[0] == "lowbit":
            assert not [t for t, _ in module_imports(name) if t.partition(".")[0] == "lowbit_kernels"], name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch.nn", {("torch.nn", True)}),
        ("def f():\n    from lowbit import schemes", {("lowbit.schemes", False)}),
        ("class A:\n    import torch", {("torch", True)}),
        ("import importlib\nx = importlib.import_module('triton')", {("importlib", True), ("triton", True)}),
        ("if TYPE_CHECKING:\n    import pandas", {("pandas", False)}),
        ("from . import csv", {("lowbit.report.csv", True)}),
        ("from ..records import Record", {("lowbit.records.Record", True)}),
        ("try:\n    import gmpy2\nexcept ImportError:\n    gmpy2 = None", {("gmpy2", True)}),
        ("'import torch'", set()),
    ],
)
def test_imports_are_seen_wherever_they_stand(source: str, found: set[tuple[str, bool]]) -> None:
    assert set(imports(source, "lowbit.report")) == found


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("lowbit.schemes", "numpy"),
        ("lowbit.weights", "numpy"),
        ("lowbit.weight_glossary", "lowbit.packing_weights"),
        ("lowbit.references.bits", "lowbit.cases.blocks"),
        ("lowbit.references.bits", "gmpy2"),
        ("lowbit.references.bits", "ml_dtypes"),
        ("lowbit.implementation", "lowbit.references.bits"),
        ("lowbit.compare", "lowbit.records"),
        ("lowbit.records", "lowbit.report"),
        ("lowbit.report", "lowbit.references.bits"),
        ("lowbit.report", "torch"),
        ("lowbit.suite.judge", "lowbit_kernels.mxfp4"),
        ("lowbit_kernels.mxfp4", "lowbit.references.bits"),
        ("lowbit_kernels.mxfp4", "lowbit.packing"),
        ("lowbit_kernels.awq", "lowbit.packing_weights"),
        ("lowbit_kernels.awq", "lowbit.references.weights_tensors"),
        ("lowbit_kernels.mxfp4", "numpy"),
    ],
)
def test_the_law_forbids(name: str, target: str) -> None:
    assert not lawful(name, target)


def imported_after(statements: str) -> set[str]:
    """The top-level packages that a fresh Python has loaded after some imports."""
    code = f"{statements}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_torch_is_imported_by_the_torch_references_and_the_suite_only() -> None:
    light = [n for n in FILES if n.partition(".")[0] == "lowbit" and not n.startswith(NEEDS_TORCH)]
    assert "lowbit.report" in light
    assert not imported_after("\n".join(f"import {name}" for name in light)) & {"torch", "triton", "lowbit_kernels"}


def test_the_plugin_the_command_and_the_spec_import_nothing_heavy() -> None:
    """pytest loads the plugin in every project of the environment."""
    light = "import lowbit.plugin, lowbit.cli, lowbit.glossary, lowbit.weight_glossary, lowbit.implementation"
    heavy = {"torch", "triton", "numpy", "pandas", "jinja2", "hypothesis", "ml_dtypes", "safetensors"}
    assert not imported_after(light) & heavy


def named_calls(function: str) -> dict[str, list[str]]:
    """name= of every construction of a class in both packages, with the modules where it stands."""
    found: dict[str, list[str]] = {}
    for module, path in FILES.items():
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if function in source else ():
            if not isinstance(node, ast.Call) or ast.unparse(node.func).split(".")[-1] != function:
                continue
            for keyword in node.keywords:
                if keyword.arg == "name":
                    found.setdefault(ast.unparse(keyword.value).strip("'\""), []).append(module)
    return found


def test_the_literal_of_a_format_stands_in_one_place() -> None:
    calls = named_calls("FloatFormat")
    assert calls == {name: ["lowbit.formats"] for name in FORMATS}


@pytest.mark.parametrize(("built", "home"), [("Scheme", "lowbit.schemes"), ("WeightScheme", "lowbit.weights")])
def test_schemes_are_built_in_one_file(built: str, home: str) -> None:
    assert {module for modules in named_calls(built).values() for module in modules} == {home}


RULES = [c for c in vars(rules).values() if isinstance(c, enum.EnumMeta) and c is not enum.Enum]


@pytest.mark.parametrize("member", [member for rule in RULES for member in rule], ids=str)
def test_every_rule_is_exercised_by_a_scheme(member: enum.Enum) -> None:
    registered = (*schemes.select(), *weights.select())
    pinned = [scheme.name for scheme in registered if member in vars(scheme).values()]
    assert pinned, f"no registered scheme pins {member}: it could be wrong in every reference"


DATA_PACKAGES = {"lowbit._vectors"}
"""Folders that a wheel carries as packages though they hold no module: golden data."""


def test_the_list_of_packages_is_complete() -> None:
    """setuptools is given an explicit list, so a forgotten package would be missing from the wheel only."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    on_disk = {".".join(name.split(".")) for name, path in FILES.items() if path.name == "__init__.py"}
    assert set(listed) - DATA_PACKAGES == on_disk
    for package, folder in SOURCES.items():
        folders = {path.parent for path in folder.rglob("*.py")}
        assert folders == {p.parent for n, p in FILES.items() if p.name == "__init__.py" and n.split(".")[0] == package}


@pytest.mark.parametrize("folder", ["conformance", "kernels", "vectors", "reports"])
def test_top_level_folders_are_no_packages(folder: str) -> None:
    """PyPI has packages of these names; one that shadows them breaks others in the same environment."""
    assert not (ROOT / folder / "__init__.py").exists()


PYTHON_FILES = sorted(path for folder in ("conformance", "kernels", "tests") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_described_and_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if source.strip():  # an empty __init__.py has nothing to describe
        assert ast.get_docstring(ast.parse(source)), "no docstring"
    assert source.count("\n") <= LINES, f"more than {LINES} lines: split it by meaning"
