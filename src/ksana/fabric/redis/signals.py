"""Signals over Redis pub/sub: a connection of its own listens, publishing shares the router."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from ksana.base.errors import UnavailableError
from ksana.base.instant import SECOND
from ksana.fabric.redis.keys import RedisKeys
from ksana.fabric.redis.link import Command, disconnect
from ksana.fabric.redis.router import Router

_MOST_UNDER_WAY: Final = 64
"""Signals that are being sent. More are dropped: they are hints, and many of one name are one."""

_PING_AFTER_SEC: Final = 10.0
_PONG_WITHIN_SEC: Final = 3.0
_FLUSH_WITHIN_SEC: Final = 3.0
_AGAIN_AFTER_US: Final = SECOND


class RedisSignals:
    """See `ports.signals.Signals`."""

    def __init__(self, router: Router, keys: RedisKeys, instance_id: str) -> None:
        self._router = router
        self._channel = keys.signals
        self._instance_id = instance_id
        self._hearers: dict[str, list[Callable[[str], None]]] = {}
        self._under_way: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Task[None] | None = None
        self.is_listening = asyncio.Event()
        self.dropped = 0

    @property
    def is_live(self) -> bool:
        return self.is_listening.is_set()

    def subscribe(self, name: str, hear: Callable[[str], None]) -> Callable[[], None]:
        hearers = self._hearers.setdefault(name, [])
        hearers.append(hear)

        def end() -> None:
            if hear in hearers:
                hearers.remove(hear)

        return end

    def publish(self, name: str, detail: str = "") -> None:
        if len(self._under_way) >= _MOST_UNDER_WAY:
            self.dropped += 1
            return
        task = asyncio.get_running_loop().create_task(self._publish(name, detail))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def flush(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_FLUSH_WITHIN_SEC)

    async def start(self) -> None:
        """Begin to listen."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen_always(), name="redis signals")

    async def close(self) -> None:
        """End."""
        tasks = [*self._under_way, *([] if self._listener is None else [self._listener])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener = None

    def command(self, name: str, detail: str = "") -> Command:
        """A signal as a command, which every server of a Cluster takes."""
        return "PUBLISH", self._channel, f"{self._instance_id}\n{name}\n{detail}"

    async def _publish(self, name: str, detail: str) -> None:
        try:
            await self._router.run("signal", self._channel, *self.command(name, detail))
        except UnavailableError:
            self.dropped += 1

    async def _listen_always(self) -> None:
        turn = 0
        while True:
            try:
                masters = await self._router.list_masters()
                connection = self._router.url.connection(masters[turn % len(masters)])
                try:
                    await self._listen(connection)
                finally:
                    self.is_listening.clear()
                    await disconnect(connection)
            except (RedisError, OSError, TimeoutError):
                turn += 1  # in a Cluster every server has every signal: try the next one
                await self._router.refresh()
            clock = self._router.clock
            await clock.sleep_until(clock.now() + _AGAIN_AFTER_US)

    async def _listen(self, connection: AbstractConnection) -> None:
        async with asyncio.timeout(_PONG_WITHIN_SEC):
            await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command("SUBSCRIBE", self._channel)
        is_pinged = False
        while True:
            wait_sec = _PONG_WITHIN_SEC if is_pinged else _PING_AFTER_SEC
            try:
                async with asyncio.timeout(wait_sec):
                    message = await connection.read_response(
                        disable_decoding=True, timeout=math.inf
                    )
            except TimeoutError:
                if is_pinged:
                    raise
                is_pinged = True
                await connection.send_command("PING", check_health=False)
                continue
            is_pinged = False
            if message[0] == b"message":
                self._hear(message[2].decode("utf-8", "replace"))
            elif message[0] == b"subscribe":
                self.is_listening.set()

    def _hear(self, text: str) -> None:
        sender, _, rest = text.partition("\n")
        name, _, detail = rest.partition("\n")
        if sender != self._instance_id:
            for hear in list(self._hearers.get(name, ())):
                hear(detail)
