"""An implementation whose calls are watched: what they change, raise and return, and how long they take."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from lowbit.implementation import Implementation, Unsupported
from lowbit.suite import results, settings
from lowbit.suite.convert import same_bits
from lowbit.suite.escapes import KEYBOARD, PYTEST_OWN, THREADS, Escaped, WrongForm, told
from lowbit.suite.limits import CLOCK, TimeLimit

KEPT_LIMIT = 1 << 22
"""Elements up to which an argument is copied before a call and compared after it."""

STORAGE_LIMIT = 1 << 24
"""Bytes up to which the memory around an argument is copied and compared too."""


@dataclass
class Watched:
    """Behaves as the implementation does.

    Args:
      found: called with kind, tensor and text of each fault that a call shows beside its result.
      note: called with what is to be told and is no fault.

    Attributes:
      raised: the last error that came out of the implementation itself; None before there is one.
    """

    implementation: Implementation
    found: Callable[[str, str, str], None]
    note: Callable[[str], None]
    raised: Exception | None = field(default=None, init=False)
    _again: Callable[[], bool] | None = field(default=None, init=False)
    _results: list[weakref.ref[torch.Tensor]] = field(default_factory=list, init=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.implementation, name)

    def call(self, operation: str, *args: Any, **options: Any) -> Any:
        """As `Implementation.call`.

        ``out`` is there to be written to and is not watched.

        Raises:
          Unsupported: as the implementation does, or it does not take an option.
          Escaped: it raised what would end the run, or what pytest takes for its own.
          WrongForm: nothing can be read from the result.
        """
        self._again = None
        self._takes(operation, options)
        given = list(tensors_in(args, options))
        own = self._own()
        small = [(name, value) for name, value in given if value.numel() <= KEPT_LIMIT]
        kept = [_Kept(name, value, around=value.untyped_storage().data_ptr() not in own) for name, value in small]
        result = self._called(operation, args, options)
        changed = [(kind, one.name) for one in kept if (kind := one.change())]
        for kind, name in changed:
            what = f"changed its {name}" if kind == "changed_input" else f"wrote to memory beside its {name}"
            self.found(kind, name, f"{operation} {what}")
        try:
            result = results.formed(operation, result, next((value.device for _, value in given), None))
        except TypeError as error:
            self.found("dtype" if "quantize returned" not in str(error) else "shape", "result", str(error))
            raise WrongForm(str(error)) from None
        for part in results.tensors_of(result):
            for name, value in given:
                if results.shares_memory(part, value):
                    text = f"{operation} returned a view of its {name}: to write to the result changes the input"
                    self.found("view", name, text)
            self._results.append(weakref.ref(part))
        if not changed and len(kept) == len(given) and options.get("out") is None:
            self._again = partial(self._differs, operation, args, options, result)
        return result

    def _takes(self, operation: str, options: dict[str, Any]) -> None:
        """Declines for a callable that does not declare an option which a check needs.

        Raises:
          Unsupported: it does not.
        """
        try:
            parameters = inspect.signature(getattr(self.implementation, operation)).parameters
        except (TypeError, ValueError):  # None, or something built in
            return
        if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            return
        for name, value in options.items():
            if value is not None and name not in parameters:
                raise Unsupported(f"{operation} of {self.implementation.name} takes no {name}=")

    def differs_again(self) -> str | None:
        """Makes the last call once more: how it differs from what it returned, "" if it does not.

        Returns:
          None if it cannot be made again: it changed its arguments, wrote to `out`, or had too much to be kept.
        """
        again, self._again = self._again, None
        if again is None:
            return None
        try:
            return "the same call, made again, gave other bits" if again() else ""
        except Exception as error:
            return f"the same call, made again, raised {told(error)}"

    def _differs(self, operation: str, args: tuple[Any, ...], options: dict[str, Any], first: Any) -> bool:
        again = self._called(operation, args, options)
        return not results.same_result(results.formed(operation, again, None), first)

    def _called(self, operation: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The call alone: its time is limited, the process around it is as before when it ends."""
        before = settings.taken()
        CLOCK.start(operation)
        try:
            result = self.implementation.call(operation, *args, **options)
            if any(value.device.type != "cpu" for _, value in tensors_in(args, options)):
                torch.accelerator.synchronize()  # what the device does, and what goes wrong there, belongs to this call
            return result
        except PYTEST_OWN as error:
            raise self._escaped(operation, error) from error
        except Exception as error:
            self.raised = error
            raise
        except TimeLimit:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and KEYBOARD.pressed:
                raise
            raise self._escaped(operation, error) from error
        finally:
            CLOCK.stop()
            for text, fault in settings.changes(before):
                if fault:
                    self.found("setting", operation, f"{operation} {text}")
                else:
                    self.note(f"{operation} {text}")
            for text in THREADS.taken():
                self.found("error", "thread", f"a thread raised {text}, in {operation} or an earlier call of the check")

    def _own(self) -> set[int]:
        """The memory of results that are still held: it is the implementation's, to write to around them."""
        self._results = [one for one in self._results if one() is not None]
        alive = (one() for one in self._results)
        return {part.untyped_storage().data_ptr() for part in alive if part is not None}

    def _escaped(self, operation: str, error: BaseException) -> Escaped:
        self.raised = Escaped(f"{operation} raised {told(error)}")
        return self.raised


class _Kept:
    """An argument and, on request, the memory around it, as they were before a call."""

    def __init__(self, name: str, value: torch.Tensor, *, around: bool):
        self.name, self.value = name, value
        storage = value.untyped_storage()
        self._around: torch.Tensor | None = None
        if around and 0 < storage.nbytes() <= STORAGE_LIMIT:
            self._around = _bytes_of(value).clone()
            self._copy = torch.empty(0, dtype=value.dtype, device=value.device).set_(
                self._around.untyped_storage(), value.storage_offset(), value.shape, value.stride()
            )
        else:
            self._copy = value.clone()

    def change(self) -> str:
        """The kind of fault that a call did to it, "" for none."""
        if not same_bits(self.value, self._copy):
            return "changed_input"
        if self._around is not None and not torch.equal(_bytes_of(self.value), self._around):
            return "guard"
        return ""


def _bytes_of(value: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())


def tensors_in(args: tuple[Any, ...], options: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among the arguments, those inside tuples and mappings too."""
    named = [(f"argument {i}", value) for i, value in enumerate(args)]
    named += [(name, value) for name, value in options.items() if name != "out"]
    for name, value in named:
        yield from _tensors_of(name, value)


def _tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a value of that name; what a mapping holds goes by its key."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _tensors_of(str(key), inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _tensors_of(name, inner)
