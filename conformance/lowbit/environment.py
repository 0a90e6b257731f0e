"""Where a run took place: versions, device, floating-point flags, state of the checkout.

What is not there is left out, never guessed. No path of the machine and no user name is kept.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("lowbit", "torch", "triton", "numpy", "ml_dtypes", "pandas", "pytest", "hypothesis", "gfloat", "gmpy2")
"""The distributions whose versions a report states."""

GIT_SECONDS = 5
"""How long the checkout is asked for its state before the report goes without."""


def collect(device: str) -> dict[str, Any]:
    """The environment of a run.

    Args:
      device: the line that says on what kernels are judged, such as
        ``cpu, Triton interpreter — GPU code generation not judged``; kept as it is. A bare ``cpu`` or ``cuda`` is
        completed by `device_line`.

    Returns:
      JSON's own types. `packages`: versions without importing; `gpu`: what torch says, if torch is loaded and the
      device is a GPU; `flags`: settings that change bits; `git`: commit and whether the tree differs from it.
    """
    if device in ("cpu", "cuda"):
        device = device_line(device)
    return {
        "device": device,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": versions(),
        "gpu": _with_driver(_gpu()) if device.startswith("cuda") else None,
        "flags": _flags(),
        "git": _git(Path(__file__).resolve().parent),
    }


def device_line(device: str) -> str:
    """A device in words, with what a reader must know about it."""
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    warning = ", Triton interpreter — GPU code generation not judged" if interpreted or device == "cpu" else ""
    gpu = _gpu() if device.startswith("cuda") else None
    return f"{device}, {gpu['name']} ({gpu['capability']})" + warning if gpu else device + warning


def versions() -> dict[str, str]:
    """Versions of the packages that are installed, none of them imported."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)  # names the build: 2.13.0+cpu
    return found


def _gpu() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    found = {
        "name": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "count": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    return {name: value for name, value in found.items() if value is not None}


def _with_driver(gpu: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same with the version of the driver, which a program tells: too slow to ask for every record of a run."""
    driver = _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if gpu else None
    return gpu if gpu is None or driver is None else gpu | {"driver": driver}


def _flags() -> dict[str, Any]:
    """Settings that change the bits of results, and the variables that choose how kernels are built."""
    names = ("TRITON_INTERPRET", "TRITON_F32_DEFAULT", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING", "PYTHONHASHSEED")
    found: dict[str, Any] = {name: os.environ[name] for name in names if name in os.environ}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["cpu_flushes_subnormals"] = bool((torch.tensor([2.0**-127]) * 0.5 == 0).item())
        found["deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
        found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
        found["cpu_threads"] = torch.get_num_threads()
        if torch.cuda.is_available():
            found["matmul_tf32"] = bool(torch.backends.cuda.matmul.allow_tf32)
            found["cudnn_tf32"] = bool(torch.backends.cudnn.allow_tf32)
    return found


def _git(folder: Path) -> dict[str, Any] | None:
    commit = _command("git", "-C", str(folder), "rev-parse", "HEAD")
    if commit is None:
        return None
    # Files that git ignores, installed packages among them, are no part of a checkout.
    tracked = _command("git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name)
    if tracked is None:
        return None
    changed = _command("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=normal")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _command(*words: str) -> str | None:
    """The first line that a program prints, "" if none; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    if done.returncode != 0:
        return None
    return next(iter(done.stdout.strip().splitlines()), "")
