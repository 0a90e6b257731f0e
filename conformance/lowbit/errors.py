"""The exceptions of lowbit, in one tree.

    LowbitError
    ├── ArgumentError (ValueError)      a value that an argument cannot take
    │   ├── ShapeError                  wrong rank, length or divisibility
    │   ├── DeviceError                 tensor on a device this call cannot run on
    │   ├── UnknownScheme               no scheme, or no rule, of that name
    │   └── UnknownImplementation       `--impl` names nothing that can be loaded
    ├── DtypeError (TypeError)          wrong element type
    ├── Unsupported                     an implementation declines a scheme or an operation; counted, not an error
    ├── NothingCompared                 a run, file or selection that would pass without comparing anything
    ├── WitnessDisagreement             two references differ: a fault of lowbit, never of the kernel judged
    └── ReportError                     a run folder that cannot be read

Every message names the argument, what it got and what it wants.
"""


class LowbitError(Exception):
    """Base of every exception that lowbit raises on purpose."""


class ArgumentError(LowbitError, ValueError):
    """A value that an argument cannot take."""


class ShapeError(ArgumentError):
    """A tensor of the wrong rank, length or divisibility."""


class DeviceError(ArgumentError):
    """A tensor on a device on which this call cannot run."""


class UnknownScheme(ArgumentError):
    """No scheme, or no rule, of that name."""


class UnknownImplementation(ArgumentError):
    """A name that leads to no `Implementation`."""


class DtypeError(LowbitError, TypeError):
    """A tensor of the wrong element type."""


class Unsupported(LowbitError):
    """An implementation declines a scheme or an operation.

    It is typed so that a run can count it: an implementation that declines everything has been
    judged on nothing, and that is a failure of the run.
    """

    def __init__(self, reason: str):
        super().__init__(reason)
        self.reason = reason


class NothingCompared(LowbitError):
    """A run, a file or a selection that would pass without comparing anything."""


class WitnessDisagreement(LowbitError):
    """Two independent references differ: a fault of lowbit, never of the kernel judged."""


class ReportError(LowbitError):
    """A run folder that cannot be read."""
