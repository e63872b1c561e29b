"""Runs a worker or a node as a program: until SIGTERM or SIGINT, on uvloop where there is one."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def serve_until_signal(
    run: Callable[[], Coroutine[Any, Any, object]], on_signal: Callable[[], None]
) -> None:
    """Run it to its end. `on_signal` is called on the event loop for each signal. What it says goes
    to stderr, unless the program has set up its logging."""
    _log_to_stderr()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, on_signal)
        await run()

    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        runner.run(main())


def _log_to_stderr() -> None:
    log = logging.getLogger("ksana.client")
    if log.hasHandlers() or log.level != logging.NOTSET:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where there is one; it is not on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
