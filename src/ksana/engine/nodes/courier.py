"""Messages between instances: sending, reading our inbox, and its chores.

A message to ourselves does not travel: it is handled at once. One that fails is tried again here a
few times, then left pending; the fabric hands it out again later, and in the end makes it a dead
letter.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, Instant
from ksana.domain.nodes.messages import Message, decode_message, encode_message
from ksana.engine.core.pump import AGAIN, Pump
from ksana.engine.nodes.parameters import NodeParameters
from ksana.ports.fabric import Fabric
from ksana.ports.inbox import InboxEntry, InboxState, Post, SendResult

Handler = Callable[[Sequence[Any]], Awaitable[None]]

_TRIES: Final = 3
_PAUSE_US: Final = 200 * MILLISECOND


class Courier:
    """The way of messages to and from this instance."""

    def __init__(self, fabric: Fabric, clock: Clock, settings: NodeParameters) -> None:
        self._fabric = fabric
        self._clock = clock
        self._settings = settings
        self._alone: set[type] = set()
        self._handlers: dict[type, Handler] = {}
        """Each is given neighbours of its kind together."""
        self.sent = 0
        self.received = 0
        self.failed = 0
        self.buried = 0
        self.state = InboxState(length=0, pending=0, dead_letters=0)
        """How full our inbox was when it was last looked at."""
        self.chores = Pump("node-inbox-chores", clock, self._do_chores, settings.dlq_scan_us)

    def on(self, kind: type, handler: Callable[[Any], Awaitable[None]]) -> None:
        """Say who handles a kind of message."""

        async def take(messages: Sequence[Message]) -> None:
            for message in messages:
                await handler(message)

        self._handlers[kind] = take
        self._alone.add(kind)

    def on_many(self, kind: type, handler: Handler) -> None:
        """Say who handles messages of a kind, several at a time where they come together."""
        self._handlers[kind] = handler

    def is_here(self, instance_id: str) -> bool:
        """Whether a message to this instance would not travel."""
        return instance_id == self._fabric.instance_id

    def post(self, instance_id: str, message: Message) -> Post:
        """A message to another instance, to go along with something else."""
        self.sent += 1
        return Post(instance_id=instance_id, body=encode_message(message))

    async def tell(self, instance_id: str, message: Message) -> SendResult:
        """Send a message to an instance, this one included."""
        if self.is_here(instance_id):
            await self._handlers[type(message)]((message,))
            return "sent"
        self.sent += 1
        return await self._fabric.inbox.send(instance_id, encode_message(message))

    async def read(self) -> None:
        """The loop that reads our inbox."""
        settings = self._settings
        await self._fabric.inbox.open()
        done: list[str] = []
        while True:
            found = await self._fabric.inbox.read(
                settings.stream_count, settings.stream_block_us, done
            )
            done = await self.handle(found)

    async def handle(self, entries: Sequence[InboxEntry]) -> list[str]:
        """Handle messages in their order; answers the ids of those that are done."""
        done: list[str] = []
        for _, group in groupby(self._decode(entries), key=self._group_of):
            ids, messages = zip(*group, strict=True)
            if await self._try(messages):
                done += ids
            elif len(messages) > 1:  # one of them spoils it: find out which
                done += [
                    name for name, one in zip(ids, messages, strict=True) if await self._try([one])
                ]
        return done

    def _decode(self, entries: Sequence[InboxEntry]) -> Iterator[tuple[str, Message]]:
        for entry in entries:
            self.received += 1
            try:
                yield entry.id, decode_message(entry.body)
            except msgspec.DecodeError as error:
                # Of another version, or garbage: the dead letters are for it.
                log.warning("a message cannot be read", id=entry.id, err=str(error)[:200])
                self.failed += 1

    def _group_of(self, one: tuple[str, Message]) -> object:
        """Messages with the same answer, side by side, are handled together."""
        kind = type(one[1])
        return one[0] if kind in self._alone else kind

    async def _try(self, messages: Sequence[Message]) -> bool:
        kind = type(messages[0])
        for turn in range(_TRIES):
            try:
                await self._handlers[kind](messages)
                return True
            except UnavailableError:
                await self._clock.sleep_until(self._clock.now() + _PAUSE_US)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.error(
                    "a message could not be handled",
                    kind=kind.__name__,
                    attempt=turn + 1,
                    exc_info=error,
                )
                break
        self.failed += len(messages) == 1
        return False

    async def _do_chores(self) -> Instant | None:
        """Bury what failed too often, then try again what was left alone."""
        settings = self._settings.inbox
        moved = await self._fabric.inbox.bury()
        if moved:
            self.buried += moved
            log.warning("messages became dead letters", count=moved)
        again = await self._fabric.inbox.reclaim(
            settings.dlq_min_idle_us, self._settings.stream_count
        )
        if again:
            await self._fabric.inbox.done(await self.handle(again))
        self.state = await self._fabric.inbox.measure()
        return AGAIN if moved and moved >= settings.dlq_scan_count else None
