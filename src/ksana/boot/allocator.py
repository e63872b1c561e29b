"""The C allocator's settings: what a large request or answer took goes back to the system.

glibc keeps an arena of memory for each thread, and of a block of a megabyte that was freed once it
learns to keep blocks of that size in the arena instead of giving them back. A service with a dozen
threads that now and then moves a page of 8 MiB then holds several times what it uses: 500 jobs of
a megabyte, listed once, left 100 MiB more.
"""

import ctypes
import os
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

MMAP_BYTES: Final = 256 * 1024
"""A block of this size or more is the system's, and goes back when it is freed: about 0.1 ms of
page faults for each megabyte, which only large bodies pay."""
ARENAS: Final = 2
"""The event loop's and one for the threads: they hold the interpreter's lock while they allocate,
so more would not make them faster."""

_VARIABLES: Final = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def set_allocator() -> bool:
    """Bound what the allocator keeps. False where it is not glibc's, or the operator chose."""
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(_M_ARENA_MAX, ARENAS))
