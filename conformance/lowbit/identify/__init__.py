"""Which scheme or dialect does an implementation follow? Asked of its operations, not of its documentation.

    operations    asks every operation: `blocks`, `decoding`, `matmul` and `weights`, each in its way
    probes        inputs that tell schemes and dialects apart
    candidates    what every scheme, dialect and change of a rule makes of them
    identity      what was found, as data and lines

What agrees best is told, and an input that tells it from the next best.
"""

from lowbit.identify.operations import choose_device, exit_code, identify, identities

__all__ = ["choose_device", "exit_code", "identify", "identities"]
