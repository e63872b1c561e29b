"""Who runs on which core. The program measured has the first one, its target and the onlooker the
last."""

import contextlib
import os
from collections.abc import Iterator

from bench.caller import serve_nginx

ALL = frozenset(os.sched_getaffinity(0))
FIRST = frozenset({min(ALL)})
LAST = frozenset({max(ALL)})


@contextlib.contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """Run this thread, and what it starts, on these cores; afterwards where it ran before."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def target() -> Iterator[str]:
    """A local nginx on the last core; the address to POST to."""
    before = frozenset(os.sched_getaffinity(0))
    # It moves this process to another core than its own: we stay where we were.
    with on(ALL), serve_nginx() as url, on(before):
        yield url
