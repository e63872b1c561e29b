"""Messages between instances: sending, reading our inbox, and its chores.

A message to ourselves does not travel: it is handled at once. One that fails is tried again here a
few times, then left pending; the fabric hands it out again later, and in the end makes it a dead
letter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, Instant
from ksana.domain.nodes.messages import Message, decode_message, encode_message
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxEntry, InboxState, SendResult

Handler = Callable[[Any], Awaitable[None]]

_TRIES: Final = 3
_PAUSE_US: Final = 200 * MILLISECOND

_log = structlog.get_logger("ksana.nodes")


class Courier:
    """The way of messages to and from this instance."""

    def __init__(self, fabric: Fabric, clock: Clock, settings: NodeParameters) -> None:
        self._fabric = fabric
        self._clock = clock
        self._settings = settings
        self._handlers: dict[type, Handler] = {}
        self.sent = 0
        self.received = 0
        self.failed = 0
        self.buried = 0
        self.state = InboxState(length=0, pending=0, dead_letters=0)
        """How full our inbox was when it was last looked at."""
        self.chores = Pump("node-inbox-chores", clock, self._do_chores, settings.dlq_scan_us)

    def on(self, kind: type, handler: Handler) -> None:
        """Say who handles a kind of message."""
        self._handlers[kind] = handler

    async def tell(self, instance_id: str, message: Message) -> SendResult:
        """Send a message to an instance, this one included."""
        if instance_id == self._fabric.instance_id:
            await self._handlers[type(message)](message)
            return "sent"
        self.sent += 1
        return await self._fabric.inbox.send(instance_id, encode_message(message))

    async def read(self) -> None:
        """The loop that reads our inbox."""
        settings = self._settings
        await self._fabric.inbox.open()
        while True:
            found = await self._fabric.inbox.read(settings.stream_count, settings.stream_block_us)
            if found:
                done = await self.handle(found)
                await self._fabric.inbox.done(done)

    async def handle(self, entries: Sequence[InboxEntry]) -> list[str]:
        """Handle messages in their order; answers the ids of those that are done."""
        done = []
        for entry in entries:
            self.received += 1
            try:
                message = decode_message(entry.body)
            except msgspec.DecodeError as error:
                # Of another version, or garbage: the dead letters are for it.
                _log.warning("a message cannot be read", id=entry.id, err=str(error)[:200])
                self.failed += 1
                continue
            if await self._try(message, entry):
                done.append(entry.id)
        return done

    async def _try(self, message: Message, entry: InboxEntry) -> bool:
        for turn in range(_TRIES):
            try:
                await self._handlers[type(message)](message)
                return True
            except UnavailableError:
                await self._clock.sleep_until(self._clock.now() + _PAUSE_US)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                _log.error(
                    "a message could not be handled",
                    kind=type(message).__name__,
                    attempt=turn + 1,
                    exc_info=error,
                )
                break
        self.failed += 1
        return False

    async def _do_chores(self) -> Instant | None:
        """Bury what failed too often, then try again what was left alone."""
        settings = self._settings.inbox
        moved = await self._fabric.inbox.bury()
        if moved:
            self.buried += moved
            _log.warning("messages became dead letters", count=moved)
        again = await self._fabric.inbox.reclaim(
            settings.dlq_min_idle_us, self._settings.stream_count
        )
        if again:
            await self._fabric.inbox.done(await self.handle(again))
        self.state = await self._fabric.inbox.measure()
        return AGAIN if moved and moved >= settings.dlq_scan_count else None
