"""An event loop in a thread of its own, so that a fake peer keeps its pace whatever the test's own
loop is doing."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

TURNS = 10
"""Of the loop, from the accepting of a connection to its end."""


class BackgroundLoop:
    """A thread that runs an event loop until `close`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, coroutine: Coroutine[Any, Any, T], within_s: float = 10.0) -> T:
        """Run a coroutine over there and wait for its answer."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(within_s)

    def close(self) -> None:
        """Cancel what runs, stop the loop, end the thread."""
        self.call(_cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _cancel_all() -> None:
    """Also what is only just being accepted, and end connections, those too that were closed with
    bytes that nobody reads: one left open would be told by the garbage collector in the middle of
    another test."""
    for _ in range(TURNS):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await end_connections()


async def stop_listening(listener: asyncio.Server) -> None:
    """Close a listener. A connection that was accepted a moment ago is attached to it some turns
    later; if it is closed by then, asyncio leaves that connection open."""
    loop = asyncio.get_running_loop()
    for listening in listener.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    listener.close()


async def end_connections() -> None:
    """End every connection of the running loop, and give it the turn that this needs."""
    for transport in list(getattr(asyncio.get_running_loop(), "_transports", {}).values()):
        transport.abort()
    await asyncio.sleep(0)
