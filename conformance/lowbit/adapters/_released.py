"""What adapters of released packages share: the version, and a plain word where the package is missing."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

from lowbit.errors import Unsupported
from lowbit.implementation import Implementation

MISSING = "not installed"
"""In place of a version."""


def version(distribution: str) -> str:
    """The version that is installed, or `MISSING`."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return MISSING


def adapt(name: str, distribution: str, module: str, **operations: Callable[..., Any]) -> Implementation:
    """An implementation that declines everything, with the command that helps, where its package is missing.

    Args:
      name: of the entry point, and of the extra that brings the package.
      distribution: the package as it is installed. module: as it is imported.
      operations: fields of `Implementation`.
    """
    extra = name.replace("_", "-")

    def guarded(operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return operation(*args, **options)
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                if missing == "lowbit":
                    raise
                lacks = f"{distribution} is" if missing == module else f"{distribution} needs {missing}, which is"
                raise Unsupported(f"{lacks} not installed: pip install 'lowbit[{extra}]'") from error

        return call

    offered: dict[str, Any] = {field: guarded(operation) for field, operation in operations.items()}
    return Implementation(name=name, version=version(distribution), **offered)


def decline_options(name: str, options: dict[str, Any]) -> None:
    """Declines what the caller asks for and the package has not.

    Raises:
      Unsupported: any option is given.
    """
    if options:
        raise Unsupported(f"{name} takes no {', '.join(sorted(options))}")
