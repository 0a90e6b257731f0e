"""lowbit: proves, bit for bit, that a low-bit kernel does what its format says.

Importing this package imports neither torch nor triton.
"""

__version__ = "0.1.0"
