"""Which scheme or dialect does an implementation follow? Asked of its operations, not of its documentation.

Each operation gets designed inputs under every scheme that it takes. What comes back is compared with every registered
scheme, every dialect and every single change of a rule; what agrees best is told, and the input that tells it from the
next best.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lowbit import schemes, weights
from lowbit.errors import ArgumentError, DeviceError, LowbitError, UnknownScheme
from lowbit.identify.identity import Identity
from lowbit.implementation import Implementation
from lowbit.schemes import Scheme
from lowbit.weights import WeightScheme


def identify(implementation: Implementation, globs: Sequence[str] = (), *, device: str = "cpu") -> list[Identity]:
    """What every operation of an implementation follows.

    Args:
      globs: schemes to ask for; none for all block schemes without stochastic or appended element rules, and all
        weight schemes.
      device: where its inputs are.

    Returns:
      One identity an operation and scheme, in the registry's order; none of a scheme that it declines.

    Raises:
      UnknownScheme: a glob matches nothing.
      ArgumentError: all that the globs match is stochastic, so that no one result is right.
    """
    return list(identities(implementation, globs, device=device))


def identities(implementation: Implementation, globs: Sequence[str] = (), *, device: str = "cpu") -> Iterator[Identity]:
    """`identify`, one after another as they are found."""
    from lowbit.identify.blocks import identify_quantizer
    from lowbit.identify.decoding import decoding_class, identify_decoder
    from lowbit.identify.matmul import FAMILIES, identify_product
    from lowbit.identify.weights import identify_weight

    blocks, stored = _asked(globs)
    implementation = _kept_inside(implementation)
    seen = set()
    for scheme in blocks:
        if implementation.quantize is not None and (found := identify_quantizer(implementation, scheme, device)):
            yield found
        kind = decoding_class(scheme)  # such schemes decode alike, and multiply what they decode
        if kind in seen:
            continue
        others: list[Identity | None] = []
        if implementation.dequantize is not None:
            others.append(identify_decoder(implementation, scheme, device))
        if implementation.matmul is not None and scheme.family in FAMILIES:
            others.append(identify_product(implementation, scheme, device))
        for other in others:
            if other is not None:
                seen.add(kind)
                yield other
    for weight in stored:
        if implementation.dequantize_weight is not None and (found := identify_weight(implementation, weight, device)):
            yield found


def _kept_inside(implementation: Implementation) -> Implementation:
    """The same, whose operations end no process: ``sys.exit()``, or a test framework's skip, is an error like any."""

    def inside(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            try:
                return operation(*args, **options)
            except (Exception, KeyboardInterrupt):
                raise
            except BaseException as error:
                raise LowbitError(f"{type(error).__name__}: {error}") from error

        return call

    asked = {name: getattr(implementation, name) for name in ("quantize", "dequantize", "matmul", "dequantize_weight")}
    kept: dict[str, Any] = {name: inside(operation) for name, operation in asked.items() if operation is not None}
    return replace(implementation, **kept)


def _asked(globs: Sequence[str]) -> tuple[list[Scheme], list[WeightScheme]]:
    if not globs:
        plain = [scheme for scheme in schemes.select() if "+" not in scheme.name and not scheme.stochastic]
        return plain, list(weights.select())
    blocks: list[Scheme] = []
    stored: list[WeightScheme] = []
    for glob in globs:
        is_weight = glob.startswith(weights.families())
        try:
            stored += weights.select((glob,)) if is_weight or "*" in glob else ()
        except UnknownScheme:
            if is_weight:
                raise
        try:
            blocks += () if is_weight else schemes.select((glob,))
        except UnknownScheme:
            if not stored:
                raise
    kept = [scheme for scheme in dict.fromkeys(blocks) if not scheme.stochastic]
    if not kept and not stored:
        raise ArgumentError(f"scheme: got {', '.join(globs)}, want one that is not stochastic: it has no one result")
    return kept, list(dict.fromkeys(stored))


def choose_device(wanted: str) -> str:
    """The device, cpu or cuda.

    Without a GPU kernels run in Triton's interpreter, which is to be chosen before triton is imported.

    Raises:
      DeviceError: a GPU is wanted, and there is none.
    """
    if wanted != "cpu":
        import torch

        if torch.cuda.is_available():
            return "cuda"
        if wanted == "cuda":
            raise DeviceError(f"device: got cuda, but torch {torch.__version__} finds no GPU")
    os.environ["TRITON_INTERPRET"] = "1"
    return "cpu"


def exit_code(found: Iterable[Identity]) -> int:
    """0 if something follows a registered scheme or a dialect exactly, else 1."""
    return 0 if any(one.exact for one in found) else 1
