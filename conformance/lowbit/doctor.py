"""What is installed and working on this machine, and what to do about the rest.

Each check gives findings; none stops the others, so one broken installation is told as a whole.
"""

from __future__ import annotations

import enum
import importlib.metadata
import os
import platform
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit import environment

PACKAGE = Path(__file__).resolve().parent
CHECKOUT = PACKAGE.parents[1]
"""The root of the checkout, if the package lies in one."""


class Status(enum.StrEnum):
    """How bad a finding is; FAIL makes the exit code 1."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the answer.

    Args:
      subject: what was looked at.
      text: what was found.
      advice: what to do; empty for OK.
    """

    status: Status
    subject: str
    text: str
    advice: str = ""


def examine(load: Callable[[str], Any], implementation: str) -> list[Finding]:
    """All findings, in the order in which they are told.

    Args:
      load: `lowbit.implementation.load`.
      implementation: the one that is judged when none is named.
    """
    torch = _import("torch")
    return [
        *packages(),
        *plugin(),
        *device(torch),
        *interpreter(os.environ, torch is not None and torch.cuda.is_available()),
        default_implementation(load, implementation),
        vectors((PACKAGE / "_vectors", CHECKOUT / "vectors")),
        *float_environments(_import("numpy"), torch),
    ]


def exit_code(findings: list[Finding]) -> int:
    """1 if anything fails."""
    return int(any(finding.status is Status.FAIL for finding in findings))


def render(findings: list[Finding]) -> str:
    """The findings as text, then their number."""
    width = max(len(finding.subject) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<4}  {finding.subject:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':{6 + width}}  → {finding.advice}")
    counts = ", ".join(f"{sum(f.status is status for f in findings)} {status}" for status in Status)
    return "\n".join([*lines, "", counts])


def packages() -> Iterator[Finding]:
    """Python and everything that lowbit requires, one line each; of each extra (witnesses, a real model) one line."""
    yield Finding(Status.OK, "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding(Status.FAIL, "packaging", "not installed, nor is pytest", "pip install lowbit")
        return
    required, source = _requirements()
    yield Finding(Status.OK, "requirements", f"read from {source}")
    present: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for text, extra in required:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        version = _version(requirement.name)
        sound = version is not None and requirement.specifier.contains(version, prereleases=True)
        if extra:
            (present if sound else missing).setdefault(extra, []).append(f"{requirement.name} {version or 'missing'}")
        else:
            found = f"{version or 'not installed'}, want {requirement.specifier or 'any version'}"
            advice = "" if sound else f"pip install '{requirement}'"
            yield Finding(Status.OK if sound else Status.FAIL, requirement.name, found, advice)
    for extra in dict.fromkeys(extra for _, extra in required if extra):
        text = ", ".join([*present.get(extra, []), *missing.get(extra, [])])
        advice = f"optional: pip install 'lowbit[{extra}]'" if extra in missing else ""
        yield Finding(Status.WARN if advice else Status.OK, f"extra [{extra}]", text, advice)


def plugin() -> Iterator[Finding]:
    """Whether pytest will find the suite's options."""
    found = {point.name: point.value for point in importlib.metadata.entry_points(group="pytest11")}
    if found.get("lowbit.plugin") == "lowbit.plugin":
        yield Finding(Status.OK, "pytest plugin", "registered")
    else:
        advice = f"pip install -e . in the checkout{f' ({CHECKOUT.name}/)' if _in_checkout() else ''}"
        yield Finding(Status.FAIL, "pytest plugin", "not registered: pytest knows none of the suite's options", advice)


def device(torch: Any) -> Iterator[Finding]:
    """What kernels would be judged on."""
    if torch is None:
        yield Finding(Status.FAIL, "device", "torch cannot be imported", "pip install torch")
    elif torch.cuda.is_available():
        yield Finding(Status.OK, "device", environment.device_line("cuda"))
    else:
        advice = "run on a machine with a GPU to judge compiled kernels; --require-gpu turns this into a failure"
        yield Finding(Status.WARN, "device", environment.device_line("cpu"), advice)


def interpreter(variables: Any, gpu: bool) -> Iterator[Finding]:
    """Triton's interpreter: chosen by the suite where there is no GPU, and by nobody else."""
    value = variables.get("TRITON_INTERPRET")
    if value in (None, "", "0"):
        text = "TRITON_INTERPRET is not set" + ("" if gpu else "; the suite sets it, because there is no GPU")
        yield Finding(Status.OK, "interpreter", text)
    elif gpu:
        text = f"TRITON_INTERPRET={value}: kernels are not compiled for the GPU that is here"
        yield Finding(Status.WARN, "interpreter", text, "unset TRITON_INTERPRET")
    else:
        yield Finding(Status.OK, "interpreter", f"TRITON_INTERPRET={value}")


def default_implementation(load: Callable[[str], Any], name: str) -> Finding:
    """Whether the implementation that is judged by default can be loaded."""
    subject = "implementation"
    try:
        found = load(name)
    except Exception as error:  # a broken package may raise anything on import; that is the finding
        return Finding(Status.FAIL, subject, f"{name}: {error}", "reinstall it, or name another one with --impl")
    return Finding(Status.OK, subject, f"{found.name} {found.version}")


def vectors(places: tuple[Path, ...]) -> Finding:
    """Where the golden vectors are: shipped beside the package, else in the checkout."""
    for place in places:
        if place.is_dir() and any(place.iterdir()):
            return Finding(
                Status.OK, "golden vectors", f"in {place.name}/, {'shipped' if place == places[0] else 'checkout'}"
            )
    text = f"neither {places[0].name}/ beside the package nor {places[1].name}/ in a checkout holds any"
    return Finding(Status.WARN, "golden vectors", text, "judged without them: references only")


def float_environments(numpy: Any, torch: Any) -> Iterator[Finding]:
    """Whether binary32 arithmetic keeps subnormals and rounds to nearest even, in each library that references use."""
    if numpy is None:
        yield Finding(Status.FAIL, "numpy arithmetic", "numpy cannot be imported", "pip install numpy")
    else:
        yield float_environment("numpy arithmetic", lambda values: numpy.array(values, numpy.float32))
    if torch is not None:
        yield float_environment("torch arithmetic", lambda values: torch.tensor(values, dtype=torch.float32))
        if torch.cuda.is_available():
            yield float_environment(
                "torch on the GPU", lambda values: torch.tensor(values, dtype=torch.float32, device="cuda")
            )


def float_environment(subject: str, array: Callable[[list[float]], Any]) -> Finding:
    """One library's arithmetic, tried on arrays, so that its own vector code does it.

    Args:
      array: makes a float32 array of a list.
    """
    lanes = 64  # long enough that vectorised loops, not their scalar tails, are tried
    least, ulp = 2.0**-149, 2.0**-23
    faults = []
    kept = array([2.0**-126] * lanes) * array([0.5] * lanes), array([least] * lanes) * array([1.0] * lanes)
    if any(float(got) != want for sums, want in zip(kept, (2.0**-127, least), strict=True) for got in sums):
        faults.append("flushes subnormals to zero")
    # 1 + ulp/2 is a tie and stays; 1 + 3 ulp/2 is a tie and goes up; the same below zero tells directed modes apart.
    for start, step, want in ((1, ulp / 2, 1), (1 + ulp, ulp / 2, 1 + 2 * ulp), (1, 3 * ulp / 4, 1 + ulp)):
        for sign in (1, -1):
            sums = array([sign * start] * lanes) + array([sign * step] * lanes)
            if any(float(got) != sign * want for got in sums):
                faults.append(f"{sign * start!r} + {sign * step!r} is not rounded to nearest even")
    if faults:
        advice = (
            "something in this process changed the CPU's mode (-ffast-math, set_flush_denormal): find and remove it"
        )
        return Finding(Status.FAIL, subject, "; ".join(faults), advice)
    return Finding(Status.OK, subject, "keeps subnormals, rounds to nearest even")


def _requirements() -> tuple[list[tuple[str, str]], str]:
    """Requirements as (text, extra), and where they were read."""
    try:
        metadata = importlib.metadata.metadata("lowbit")
    except importlib.metadata.PackageNotFoundError:
        if not _in_checkout():
            return [], "nowhere: neither an installed lowbit nor a checkout"
        project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        rows = [(text, "") for text in project["dependencies"]]
        return rows + [(text, extra) for extra, texts in extras.items() for text in texts], "pyproject.toml"
    texts = metadata.get_all("Requires-Dist") or []
    rows = [(text, "") for text in texts if "extra ==" not in text]
    for extra in metadata.get_all("Provides-Extra") or []:
        rows += [(text, extra) for text in texts if f'extra == "{extra}"' in text or f"extra == '{extra}'" in text]
    return rows, f"lowbit {metadata['Version']}, installed"


def _in_checkout() -> bool:
    return (CHECKOUT / "pyproject.toml").is_file() and PACKAGE.parent.name == "conformance"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import(name: str) -> Any:
    """The module, or None; what is wrong with it is told by `packages`."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
