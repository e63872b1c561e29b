"""Swift routes: a request that came whole is answered without ASGI and without a task of its own.

The road through ASGI (a scope, a channel for the body, a task, an event) costs more than all the
rest of a small write. A route may say that it is swift: its handler awaits nothing but the store.
Its requests are run here, step by step, by the futures they wait for. There is no current task
meanwhile, so `asyncio.timeout` and the like are not for such handlers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ksana.api.core.routing import Route

MAX_WHOLE: Final = 256 * 1024
"""A larger body is read piece by piece, with the connection held back while nobody takes it."""


class CoroutineDriver:
    """Runs a coroutine without a task. `done` is told what it returns, or None if it was cancelled.
    It raises nothing else."""

    __slots__ = ("_coroutine", "_done", "_loop")

    def __init__(
        self,
        coroutine: Coroutine[Any, None, Any],
        done: Callable[[Any], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._loop = loop
        self.step()

    def step(self, _: Any = None) -> None:
        """Go on to the next future, or to the end."""
        try:
            future = self._coroutine.send(None)
        except StopIteration as end:
            self._done(end.value)
            return
        except asyncio.CancelledError:
            self._done(None)
            return
        if future is None:  # a bare yield: let the others have their turn
            self._loop.call_soon(self.step)
            return
        future._asyncio_future_blocking = False
        future.add_done_callback(self.step)


class BufferedRequest:
    """One request and its answer, as the connection sees it; has what uvicorn looks at in a cycle
    of its own."""

    __slots__ = ("body", "disconnected", "found", "headers", "keep_alive", "response_complete")

    response_started = False
    """The answer is one write: it has not begun until it is over."""

    def __init__(
        self,
        found: tuple[Route, dict[str, Any], str],
        headers: dict[bytes, bytes],
        keep_alive: bool,
    ) -> None:
        self.found = found
        self.headers = headers
        self.keep_alive = keep_alive
        self.body = b""
        self.disconnected = False
        self.response_complete = False

    @property
    def message_event(self) -> "BufferedRequest":
        """Nobody waits for more of a whole request."""
        return self

    def set(self) -> None:
        """Tell nobody."""
