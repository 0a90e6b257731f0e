"""The order in which a run's workers take the checks."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, cast

import pytest
from suite_runs import ROOT, run_pytest

from lowbit import schemes, weights
from lowbit.suite import pace

SUITE = ROOT / "conformance" / "lowbit" / "suite"


class Node:
    """What `arranged` reads of a node."""

    def __init__(self, name: str, scheme: Any = None):
        self.name = self.originalname = name
        self.callspec = types.SimpleNamespace(params={} if scheme is None else {"subject": (None, scheme)})


def arranged(nodes: list[Node]) -> list[Any]:
    return pace.arranged(cast(Any, nodes))


def test_every_check_that_is_timed_is_there() -> None:
    """A check that was renamed would be taken for a short one."""
    found = {
        part.name
        for path in SUITE.glob("test_*.py")
        for part in ast.parse(path.read_text()).body
        if isinstance(part, ast.FunctionDef)
    }
    assert {*pace.SECONDS, *pace.GPU_SECONDS} <= found
    assert not pace.SECONDS.keys() & pace.GPU_SECONDS.keys()


class Unhashable:
    """A foreign test's parameter with the names that a scheme has."""

    def __init__(self) -> None:
        self.family = ["mxfp4"]
        self.element = self.block = self.bits = {}

    def __repr__(self) -> str:
        return "unhashable"


@pytest.mark.parametrize("subject", [("a",), (), ("a", "b"), (None, Unhashable()), ["a", "b"], "ab", None, 7], ids=repr)
def test_tests_of_others_are_short_ones(subject: Any) -> None:
    """Whatever they are parametrised with, under any name."""
    foreign, own = Node("test_shapes"), Node("test_shapes", schemes.get("mxfp4_floor"))
    foreign.callspec.params["subject"] = subject
    other = Node("test_something_else")
    other.callspec.params["subject"] = subject
    assert arranged([other, foreign, own]) == [foreign, own, other]


def test_a_run_with_tests_of_others(tmp_path: Path) -> None:
    """All run: a worker that failed while it arranges would end the run."""
    source = """
import pytest

class Odd:
    family = element = block = bits = []

@pytest.fixture
def judge():
    return "nobody's"

@pytest.mark.parametrize("subject", [("a",), (), (1, Odd()), (Odd(), "b"), "c"])
def test_shapes(subject, judge):
    pass
"""
    (tmp_path / "test_foreign.py").write_text(source)
    words = [f"{SUITE}/test_packing.py::test_every_pair_of_codes", f"{tmp_path}/test_foreign.py", "-n", "1"]
    words += ["--scheme", "mxfp4_floor", "--level", "quick", "--device", "cpu", "-p", "no:cacheprovider", "--no-html"]
    done = run_pytest(*words, "--report-dir", str(tmp_path / "runs"), output=tmp_path / "printed")
    assert done.code == 0, done.output
    assert "6 passed" in done.output


def test_the_longest_come_first_and_none_is_lost() -> None:
    mxfp4, nvfp4, three = schemes.get("mxfp4_floor"), schemes.get("nvfp4"), weights.get("gptq3_v1_g128")
    eight = weights.get("gptq8_v1_g128")
    given = [
        Node("test_scale", mxfp4),
        Node("test_shapes", eight),
        Node("test_shapes", mxfp4),
        Node("test_shapes", three),
        Node("test_exactly_summable_operands", nvfp4),
        Node("test_something_else"),
    ]
    found = arranged(given)
    assert sorted(map(id, found)) == sorted(map(id, given))
    assert [found.index(item) for item in given] == [4, 3, 2, 1, 0, 5]


def test_neighbours_share_no_kernel() -> None:
    """The decoder of MXFP4 is the same for all scale rules: two that begin together would both compile it."""
    names = ("mxfp4_floor", "mxfp4_ceil", "mxfp4_even", "nvfp4", "nvfp4_two_level", "mx4_ceil_e2m1_g32")
    found = arranged([Node("test_shapes", schemes.get(name)) for name in names])
    families = [item.callspec.params["subject"][1].family for item in found]
    assert families[:3] == ["mxfp4", "nvfp4", "mx4"]
    assert families[3:] == ["mxfp4", "nvfp4", "mxfp4"]


def test_those_that_keep_the_gpu_busy_are_spread() -> None:
    """At equal distances, each kind over the whole run, none at the end."""
    names = ["test_every_amax"] * 6 + ["test_beyond_int32"] * 3
    given = [Node(name, schemes.get("nvfp4")) for name in names]
    given += [Node("test_shapes", schemes.get("mxfp4_floor")) for _ in range(40)]
    found = arranged(given)
    places = {name: [i for i, item in enumerate(found) if item.name == name] for name in names}
    assert len(found) == len(set(map(id, found))) == 49
    assert places == {"test_every_amax": [1, 12, 17, 28, 33, 44], "test_beyond_int32": [5, 22, 38]}


@pytest.mark.parametrize(
    ("dist", "collects", "page", "prepared"),
    [("load", False, True, [True]), ("load", False, False, [False]), ("load", True, True, []), ("no", False, True, [])],
)
def test_the_report_is_prepared_while_workers_start(
    dist: str, collects: bool, page: bool, prepared: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process that writes it: where there are workers, they have "no" for theirs."""
    found: list[bool] = []
    monkeypatch.setattr(pace.report, "prepare", lambda *, html: found.append(html))
    option = types.SimpleNamespace(dist=dist, collectonly=collects, no_html=not page)
    pace.Pace().pytest_collection(cast(Any, types.SimpleNamespace(config=types.SimpleNamespace(option=option))))
    assert found == prepared


def test_what_is_prepared_is_loaded() -> None:
    code = "import sys; from lowbit import report; report.prepare(); from lowbit.report import html\n"
    code += "print('pandas' in sys.modules, len(html._environment().cache), len(html._environment().list_templates()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pandas, kept, templates = done.stdout.split()
    assert pandas == "True"
    assert int(kept) == int(templates) > 2


def test_one_process_keeps_the_order() -> None:
    given = [Node("test_elements", schemes.get("mxfp4_floor")), Node("test_shapes", schemes.get("mxfp4_floor"))]
    items = given[:]
    config: Any = types.SimpleNamespace()
    pace.Pace().pytest_collection_modifyitems(config, items)
    assert items == given
    config.workerinput = {"lowbit_arranged": True}
    pace.Pace().pytest_collection_modifyitems(config, items)
    assert items == given[::-1]


@pytest.mark.parametrize(("dist", "given", "chunk"), [("load", None, 1), ("load", 5, 5), ("no", None, None)])
def test_a_users_own_distribution_stays(dist: str, given: int | None, chunk: int | None) -> None:
    config: Any = types.SimpleNamespace(option=types.SimpleNamespace(dist=dist, maxschedchunk=given))
    pace.Pace().pytest_configure(config)
    assert config.option.maxschedchunk == chunk
    worker: Any = types.SimpleNamespace(config=config, workerinput={})
    pace.Pace().pytest_configure_node(worker)
    assert worker.workerinput == {"lowbit_arranged": dist == "load"}
