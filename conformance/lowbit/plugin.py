"""The pytest plugin: options of the suite, and the choice between GPU and interpreter.

It claims options only when the command line names the suite, so that an installed lowbit leaves other projects'
test suites alone; it imports nothing heavy before that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent
SUITE = PACKAGE / "suite"
LEVELS = ("quick", "full", "exhaustive")


def names_suite(args: list[str], invocation_dir: Path) -> bool:
    """Whether a command line names the suite: a path under ``conformance/`` or ``--pyargs lowbit.suite``."""
    roots = [PACKAGE]
    if PACKAGE.parent.name == "conformance":
        roots.append(PACKAGE.parent)
    for arg in args:
        if arg.startswith("-"):
            continue
        target = arg.partition("::")[0].partition("[")[0]
        if "--pyargs" in args and (target == "lowbit.suite" or target.startswith("lowbit.suite.")):
            return True
        try:  # whatever stands on the command line may be no path, or too long for one
            path = (invocation_dir / target).resolve()
            exists = path.exists()
        except (OSError, ValueError):
            continue
        if exists and any(path == root or root in path.parents for root in roots):
            return True
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    if not names_suite(args, early_config.invocation_params.dir):
        return
    add_options(parser)
    known = parser.parse_known_args(args)
    device, interpreted = choose_device(known.device, require_gpu=known.require_gpu)

    from lowbit.suite.pace import Pace  # imports torch, as does the next: after the interpreter was chosen
    from lowbit.suite.run import SuiteRun

    share_cores()

    early_config.pluginmanager.register(SuiteRun(device=device, interpreted=interpreted), "lowbit-suite")
    early_config.pluginmanager.register(Pace(), "lowbit-pace")


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("lowbit", "conformance suite for low-bit kernels")
    add = group.addoption
    add(
        "--impl",
        action="append",
        metavar="NAME|MODULE:ATTR|FILE.py:ATTR",
        help="implementation to judge (repeatable); default lowbit_kernels",
    )
    add(
        "--scheme",
        action="append",
        metavar="GLOB",
        help="schemes to judge (repeatable); default all that are registered",
    )
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="default: a GPU if there is one, else the interpreter",
    )
    add("--level", choices=LEVELS, default="full", help="how much is tried; default full")
    add("--seed", type=int, default=20260829, help="seed of random inputs; default %(default)s")
    add(
        "--max-mismatches",
        type=int,
        default=20,
        metavar="N",
        help="samples kept of one comparison; default %(default)s",
    )
    add(
        "--all-mismatches",
        action="store_true",
        help="write every mismatch to mismatches.parquet in the run's folder; needs lowbit[parquet]",
    )
    add(
        "--check-timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="how long one call of an implementation may take before its check is ended as hung, 0 for any time; "
        "default %(default)s",
    )
    add("--report-dir", metavar="DIR", help="where runs are written; default reports/runs under pytest's root")
    add("--no-html", action="store_true", help="write no index.html (`lowbit report build` can, later)")
    add("--require-gpu", action="store_true", help="fail unless kernels are compiled for, and run on, a GPU")
    add("--waivers", metavar="FILE", help="TOML: known mismatches, each with reason, issue, last day and digest")
    add("--baseline", metavar="RUN_DIR", help="an earlier run: what is new since, or no longer judged, fails this one")
    add(
        "--github",
        action="store_true",
        default=os.environ.get("GITHUB_ACTIONS") == "true",
        help="write annotations and a step summary; default where GITHUB_ACTIONS is set",
    )
    add("--vectors", metavar="DIR", help="golden vectors to use; default lowbit's own")
    add(
        "--weights",
        metavar="CHECKPOINT",
        help="judge the layers of a checkpoint, a safetensors file or a folder of them, and nothing else",
    )


def choose_device(wanted: str, *, require_gpu: bool) -> tuple[str, bool]:
    """The device to judge on, and whether kernels are interpreted; sets TRITON_INTERPRET before triton is imported.

    Raises:
      pytest.UsageError: the wanted device is not there, or triton was imported in the other mode already.
    """
    asked = os.environ.get("TRITON_INTERPRET", "") not in ("", "0")
    if require_gpu and wanted == "cpu":
        raise pytest.UsageError("--require-gpu: got --device cpu, want a GPU")
    if wanted != "cpu":
        import torch

        if torch.cuda.is_available():
            if require_gpu and asked:
                raise pytest.UsageError(
                    "--require-gpu: TRITON_INTERPRET is set, so no GPU code would be judged; unset it"
                )
            return "cuda", asked
        if require_gpu or wanted == "cuda":
            raise pytest.UsageError(
                f"{'--require-gpu' if require_gpu else '--device cuda'}: torch {torch.__version__} finds no GPU"
            )
    if "triton" in sys.modules and not asked:
        raise pytest.UsageError(
            "triton was imported before the suite could choose its interpreter; set TRITON_INTERPRET=1 first"
        )
    os.environ["TRITON_INTERPRET"] = "1"
    return "cpu", True


def share_cores() -> None:
    """Gives each of xdist's workers its part of the cores: torch's threads wait by spinning, on others' too."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        import torch

        torch.set_num_threads(min(torch.get_num_threads(), max((os.cpu_count() or 1) // workers, 1)))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lowbit(...): a check of the conformance suite; see lowbit.suite.checks")
