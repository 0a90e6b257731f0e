"""What keeps the processes of a run busy: the longest checks first, one at a time; nothing is loaded at the end."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lowbit import report
from lowbit.schemes import Scheme
from lowbit.weights import WeightScheme

SECONDS = {
    "test_exactly_summable_operands": 35,
    "test_exactly_summable_in_every_tile": 25,
    "test_every_scale_of_integers": 12,
    "test_arbitrary_operands": 10,
    "test_shapes": 8,
    "test_strides": 7,
    "test_lemmas": 6,
    "test_nothing_is_written_outside": 6,
    "test_tensor_scale": 6,
    "test_round_trip": 5,
    "test_scales_at_the_edges": 5,
    "test_edges_of_each_dtype": 5,
    "test_every_code_in_every_lane": 4,
    "test_swizzled_scales": 4,
    "test_all_16_bit": 3,
    "test_blocks": 3,
    "test_g_idx_decides": 3,
    "test_scale": 3,
    "test_more_than_one_tile": 2,
    "test_weights": 2,
}
"""About how long a check of one scheme takes on a GPU with nothing compiled.

Only the order follows from it: a wrong figure costs time, and nothing else.
"""

GPU_SECONDS = {
    "test_every_absmax": 20,
    "test_beyond_int32": 4,
    "test_every_amax": 3,
    "test_every_pattern": 2,
    "test_every_scale": 2,
    "test_scalar_all_patterns": 2,
    "test_all_patterns_beside_a_pin": 1.5,
}
"""The same of checks that keep the whole GPU busy: many at once take as long as one after the other."""

OTHERS = 0.5
"""The same of a check that stands in neither."""


def seconds(name: str, scheme: Any) -> float:
    """About how long a node takes: codes of 3 bits and an index of groups make the largest kernels."""
    found = float(SECONDS.get(name, OTHERS))
    if isinstance(scheme, WeightScheme):
        found *= {2: 1.5, 3: 3.0}.get(scheme.bits, 0.5)
        found *= 2 if "act_order" in scheme.name else 1
    return found


def arranged(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The longest nodes first, and those that keep the GPU busy spread over the run, each kind of them evenly.

    Among nodes of one length, neighbours share no kernel: two workers that need one at the same time both compile it.
    """
    counts, met = Counter(map(_name, items)), Counter[tuple[Any, ...]]()
    costs, keys, large = {}, {}, []
    for i, item in enumerate(items):
        name, scheme = _name(item), _scheme(item)
        busy = name in GPU_SECONDS
        kernel = name, *(getattr(scheme, part, None) for part in ("family", "element", "block", "bits") if not busy)
        costs[item] = GPU_SECONDS[name] if busy else seconds(name, scheme)
        keys[item] = (met[kernel] / counts[name], i) if busy else (-costs[item], met[kernel], i)
        met[kernel] += 1
        if busy:
            large.append(item)
    apart = set(large)
    rest = sorted((item for item in items if item not in apart), key=keys.__getitem__)
    return _spread(rest, sorted(large, key=keys.__getitem__), costs)


def _spread(
    items: list[pytest.Item], others: list[pytest.Item], costs: Mapping[pytest.Item, float]
) -> list[pytest.Item]:
    """The items with the others between them, so that both are used up alike."""
    whole, theirs = (sum(costs[item] for item in part) for part in (items, others))
    waiting, found, passed, given = list(others), [], 0.0, 0.0
    for item in items:
        found.append(item)
        passed += costs[item]
        while waiting and given * whole <= passed * theirs:
            given += costs[waiting[0]]
            found.append(waiting.pop(0))
    return found + waiting


def _name(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


def _scheme(item: pytest.Item) -> Scheme | WeightScheme | None:
    """Of a node of the suite; a run may hold tests of others, which mean anything by a subject."""
    subject = getattr(getattr(item, "callspec", None), "params", {}).get("subject")
    for part in subject[1:2] if isinstance(subject, tuple) else ():
        if isinstance(part, (Scheme, WeightScheme)):
            return part
    return None


class Pace:
    """Hooks of one run."""

    def pytest_configure(self, config: pytest.Config) -> None:
        """Has xdist hand out nodes singly: what a worker was given beforehand no other can take over."""
        if getattr(config.option, "dist", "no") == "load" and getattr(config.option, "maxschedchunk", 0) is None:
            config.option.maxschedchunk = 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["lowbit_arranged"] = node.config.option.dist == "load"

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """While its workers start, the process that writes the report loads what that takes."""
        option = session.config.option
        if getattr(option, "dist", "no") != "no" and not option.collectonly:
            report.prepare(html=not option.no_html)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if getattr(config, "workerinput", {}).get("lowbit_arranged"):
            items[:] = arranged(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Takes out Hypothesis's plugin where no test used it: it would import all of it, for seconds, in vain."""
        plugins = session.config.pluginmanager
        if "hypothesis" not in sys.modules and plugins.has_plugin("hypothesispytest"):
            plugins.unregister(name="hypothesispytest")
