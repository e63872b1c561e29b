"""The blocking read of an inbox, on a connection of its own.

No socket timeout and no retry inside the client: a read that is cut off after the server handed the
messages out would leave them pending, handed to us and never seen. Here the reader knows: after any
broken read it first asks for what was handed to it already.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

from ksana.base.errors import DependencyDownError
from ksana.fabric.redis import scripts
from ksana.fabric.redis.address import CONNECT_WITHIN_SEC
from ksana.fabric.redis.link import Command, disconnect
from ksana.fabric.redis.router import Router
from ksana.ports.inbox import InboxEntry

_SILENT_AFTER_SEC: Final = 3.0
"""How much longer than its block a read may take before the connection counts as dead."""


_DONE_AT_ONCE: Final = 500
"""A script takes its arguments on a stack that ends at some 8,000."""


class BlockingReader:
    """Reads one stream as one consumer of a group."""

    def __init__(self, router: Router, key: str, group: str, consumer: str) -> None:
        self._router = router
        self._key = key
        self._group = group
        self._consumer = consumer
        self._connection: AbstractConnection | None = None
        self._handed: set[str] = set()
        """What we gave out and is not done."""
        self._is_behind = True
        """Whether something may have been handed to us that we never saw."""
        self._done: list[str] = []
        """What is done and not removed yet."""
        self._remove = scripts.load("inbox_done")

    def forget(self, ids: Sequence[str]) -> None:
        """These are removed."""
        self._handed.difference_update(ids)
        if self._done:
            gone = set(ids)
            self._done = [one for one in self._done if one not in gone]

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await disconnect(connection)

    async def read(
        self, count: int, block_ms: int, done: Sequence[str] = ()
    ) -> list[InboxEntry] | None:
        """Read messages; None if the stream or its group does not exist. What is done is removed on
        the way. Raise DependencyDownError when the server does not answer."""
        self._done += done
        try:
            if self._is_behind:
                lost = await self._ask(count, None)
                if lost is None or len(lost) < count:
                    self._is_behind = False
                if lost is None:
                    return None
                missed = [entry for entry in lost if entry.id not in self._handed]
                if missed:
                    return self._hand_out(missed)
            fresh = await self._ask(count, block_ms)
        except BaseException as error:
            self._is_behind = True
            await self.close()
            if isinstance(error, MovedError):
                await self._router.refresh()
                return []
            if isinstance(error, RedisError | OSError | TimeoutError):
                await self._router.refresh()
                self._router.count("inbox_read", "error")
                raise DependencyDownError(f"the inbox cannot be read: {error}") from None
            raise
        return None if fresh is None else self._hand_out(fresh)

    async def _ask(self, count: int, block_ms: int | None) -> list[InboxEntry] | None:
        """One XREADGROUP: of what is new, or (without a block) of what was handed to us before."""
        words: list[str | int] = ["XREADGROUP", "GROUP", self._group, self._consumer]
        words += ["COUNT", count]
        if block_ms is not None:
            words += ["BLOCK", block_ms]
        words += ["STREAMS", self._key, "0" if block_ms is None else ">"]
        async with asyncio.timeout((block_ms or 0) / 1000 + _SILENT_AFTER_SEC):
            connection = await self._connect()
            commands: list[Command] = [tuple(words)]
            if removed := self._done[:_DONE_AT_ONCE]:
                step = self._router.script_step(
                    "inbox_done", self._remove, (self._key,), (self._group, *removed)
                )
                commands.insert(0, step.command)
            await connection.send_packed_command(
                connection.pack_commands(commands), check_health=False
            )
            if removed:
                await self._read_removed(connection, removed)
            try:
                answer = await connection.read_response(disable_decoding=True, timeout=math.inf)
            except ResponseError as error:
                if str(error).startswith(("NOGROUP", "UNBLOCKED")):
                    return None
                raise
        self._router.count("inbox_read", "ok")
        self._router.blocking_reads += 1
        return [] if not answer else read_entries(answer[0][1])

    async def _read_removed(self, connection: AbstractConnection, removed: Sequence[str]) -> None:
        """What the server says to the removal. After any error but a missing script, what is done
        stays on the list for the next read."""
        try:
            await connection.read_response(disable_decoding=True, timeout=math.inf)
            self._router.count("inbox_done", "ok")
        except NoScriptError:
            await self._router.call(
                "inbox_done", self._remove, (self._key,), (self._group, *removed)
            )
        self.forget(removed)

    async def _connect(self) -> AbstractConnection:
        if self._connection is None:
            async with asyncio.timeout(CONNECT_WITHIN_SEC + _SILENT_AFTER_SEC):
                address = await self._router.find_address(self._key)
                self._connection = self._router.url.connection(address)
                await self._connection.connect()  # type: ignore[no-untyped-call]
        return self._connection

    def _hand_out(self, entries: list[InboxEntry]) -> list[InboxEntry]:
        self._handed.update(entry.id for entry in entries)
        return entries


def read_entries(found: Sequence[Any]) -> list[InboxEntry]:
    """Messages of a stream. One that was deleted while it was pending has no fields."""
    return [
        InboxEntry(id=entry[0].decode(), body=entry[1][1])
        for entry in found
        if entry is not None and entry[1]
    ]
