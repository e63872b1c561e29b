"""One connection to one Redis server, shared by everybody: what waits is sent together.

    callers --send--> waiting --pump--> one write --> server --> answers in order --> callers

While a batch is on its way, new commands pile up and make the next batch. A lone command is sent at
once; under load one write and one wait serve many callers. That is where most of the speed over a
connection per command comes from, and it keeps the number of round trips small.

A batch succeeds or fails as a whole at this level: when the connection breaks, everybody in the
batch gets LinkDownError, and nobody knows whether the server executed the commands. Retrying is the
router's business. Blocking commands never come here.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ksana.fabric.redis import scripts

Word = str | bytes | int | float
Command = tuple[Word, ...]
Unit = tuple[tuple[Command, ...], asyncio.Future[list[Any]]]
"""Commands that are sent side by side, and who waits for them."""

ANSWER_WITHIN_SEC: Final = 1.5
"""For a whole batch. A server that is silent for longer is as good as gone."""

TRY_AGAIN_SEC: Final = 0.25
"""After a failed connect nobody tries again for so long: callers are told at once."""

MOST_IN_BATCH: Final = 512

_BROKEN: Final = (RedisConnectionError, RedisTimeoutError, OSError, TimeoutError)


class LinkDownError(Exception):
    """The server could not be reached, or the connection broke; the outcome is unknown."""


class Link:
    """A server, by its address. Connects when first needed and again after a failure."""

    def __init__(self, name: str, make_connection: Callable[[], AbstractConnection]) -> None:
        self.name = name
        self.round_trips = 0
        self.down_since: float | None = None
        """Loop time of the first failure since it last worked."""
        self._make_connection = make_connection
        self._connection: AbstractConnection | None = None
        self._waiting: list[Unit] = []
        self._pump: asyncio.Task[None] | None = None
        self._failed_at = -math.inf
        self._error = ""

    async def send(self, *commands: Command) -> list[Any]:
        """Send commands side by side, with nobody's between them, and answer what the server says
        to each. An error that it answers is returned, not raised."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._failed_at + TRY_AGAIN_SEC:
            raise LinkDownError(self._error)
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._waiting.append((commands, future))
        if self._pump is None:
            self._pump = loop.create_task(self._pump_all())
        return await future

    async def close(self) -> None:
        """Close the connection; what is under way fails."""
        pump = self._pump
        if pump is not None:
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump
        await self._disconnect()

    async def _pump_all(self) -> None:
        batch: list[Unit] = []
        try:
            while self._waiting:
                batch = self._waiting[:MOST_IN_BATCH]
                self._waiting = self._waiting[MOST_IN_BATCH:]
                await self._exchange(batch)
        except BaseException as error:
            # Cancelled, or a fault of ours: nobody may be left waiting.
            await self._disconnect()
            batch += self._waiting
            self._waiting = []
            _fail(batch, LinkDownError(f"{self.name}: {str(error) or type(error).__name__}"))
            raise
        finally:
            self._pump = None

    async def _exchange(self, batch: Sequence[Unit]) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN_SEC):
                connection = self._connection
                if connection is None:
                    connection = self._connection = self._make_connection()
                    await connection.connect()  # type: ignore[no-untyped-call]
                    await _load_scripts(connection)
                packed = connection.pack_commands(
                    command for commands, _ in batch for command in commands
                )
                await connection.send_packed_command(packed, check_health=False)
                for commands, future in batch:
                    answers = [await _read(connection) for _ in commands]
                    if not future.done():
                        future.set_result(answers)
        except _BROKEN as error:
            await self._disconnect()
            self._note_failure(error)
            _fail(batch, LinkDownError(self._error))
        except RedisError as error:  # refused at the handshake: a wrong password, loading, …
            await self._disconnect()
            self._note_failure(error)
            _fail(batch, LinkDownError(self._error))
        else:
            self.round_trips += 1
            self.down_since = None

    def _note_failure(self, error: BaseException) -> None:
        now = asyncio.get_running_loop().time()
        self._failed_at = now
        if self.down_since is None:
            self.down_since = now
        said = str(error) or f"no answer within {ANSWER_WITHIN_SEC:g} s"
        self._error = f"{self.name}: {said}"[:300]

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await disconnect(connection)


async def _load_scripts(connection: AbstractConnection) -> None:
    """Make every script known to a server that we have not met, or that restarted. One that refuses
    is sent the text with the call."""
    names = scripts.list_names()
    packed = connection.pack_commands(("SCRIPT", "LOAD", scripts.load(name).text) for name in names)
    await connection.send_packed_command(packed, check_health=False)
    for _ in names:
        await _read(connection)


async def disconnect(connection: AbstractConnection) -> None:
    """Close a connection without waiting for the other side."""
    with contextlib.suppress(*_BROKEN, RedisError):
        await connection.disconnect(nowait=True)


async def _read(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response(disable_decoding=True, timeout=math.inf)
    except ResponseError as error:
        return error


def _fail(batch: Sequence[Unit], error: LinkDownError) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
