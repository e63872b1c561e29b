"""A WebSocket as the engine's `Outgoing`, and the loop that reads its frames.

Writing: frames are queued and written by one task; when too many bytes wait, the peer does not
read, and is closed. Reading: so many frames a second, and at most IN_FLIGHT of one socket worked on
at a time; beyond that it is not read, and the sender feels it.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ksana.api.core.crowd import WRITE_TEXTS
from ksana.base import log
from ksana.base.clock import Clock
from ksana.base.errors import KsanaError
from ksana.base.instant import SECOND, Micros
from ksana.domain.nodes.frames import ErrorFrame, encode
from ksana.engine.nodes.peers import BAD_FRAME, SLOW

if TYPE_CHECKING:  # loaded with the first socket
    from starlette.websockets import WebSocket

IN_FLIGHT: Final = 256
MOST_BAD_FRAMES: Final = 20
"""Frames that cannot be read before the socket is closed: a peer that speaks another protocol."""

FIRST_FRAME_SEC: Final = 10.0
_CLOSE_WITHIN_SEC: Final = 2.0

_IN_A_WRITE: Final = 64 * 1024
"""Bytes that are written together."""
_FRAMES_IN_A_ROW: Final = 32
"""Frames of one socket that are read before others have their turn."""
_FAIR_SHARE: Final = 64 * 1024
"""Bytes that may wait for a socket even when too many wait for all of them together."""
_TOLD_EVERY: Final[Micros] = 10 * SECOND

T = TypeVar("T")


class SocketBounds(msgspec.Struct, frozen=True):
    """What a peer may take up."""

    queued_bytes: int = 4 * 1024 * 1024
    """Bytes that may wait for one socket: four frames of the largest size."""
    all_queued_bytes: int = 256 * 1024 * 1024
    """Bytes that may wait for all sockets together."""
    frame_rate: int = 20_000
    """Frames of one socket that are read in a second."""


class WriteBudget:
    """How many bytes wait for all sockets together."""

    def __init__(self) -> None:
        self.queued = 0


class SocketOutgoing:
    """The writing side."""

    def __init__(self, socket: "WebSocket", bounds: SocketBounds, budget: WriteBudget) -> None:
        self._socket = socket
        extensions = socket.scope.get("extensions") or {}
        self._write_texts: Callable[[Sequence[bytes]], Awaitable[None]] = extensions.get(
            WRITE_TEXTS, {}
        ).get("write", self._write_one_by_one)
        self._bounds = bounds
        self._budget = budget
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._ready = asyncio.Event()
        self._closing: tuple[int, str] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[Any] | None = None
        self._is_stopped = False
        self.ended = asyncio.Event()
        """Set when nothing more will be written."""

    def start(self) -> None:
        """Begin to write. The task that calls reads the socket: it is cancelled if the other side
        does not follow the end of the writing side."""
        self._reader = asyncio.current_task()
        self._writer = asyncio.create_task(self._write())

    def send(self, frame: bytes) -> bool:
        if self._closing is not None or self.ended.is_set():
            return False
        self._queue.append(frame)
        self._queued += len(frame)
        self._budget.queued += len(frame)
        self._ready.set()
        if self._is_too_much():
            # The writer hangs in a full buffer and would never come to the close.
            self.close(SLOW, "SLOW_READER")
            if self._writer is not None:
                self._writer.cancel()
            return False
        return True

    def _is_too_much(self) -> bool:
        if self._queued > self._bounds.queued_bytes:
            return True
        is_crowded = self._budget.queued > self._bounds.all_queued_bytes
        return is_crowded and self._queued > _FAIR_SHARE

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = (code, reason)
            self._ready.set()

    @property
    def is_closing(self) -> bool:
        """Whether the end was asked for."""
        return self._closing is not None

    async def stop(self) -> None:
        """The other side is gone, or we are done: end the writer."""
        self._is_stopped = True
        writer = self._writer
        if writer is not None:
            if self._closing is not None and not self.ended.is_set():
                # A peer that does not read does not take the close either.
                await asyncio.wait((writer,), timeout=_CLOSE_WITHIN_SEC)
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        self.ended.set()

    async def _write(self) -> None:
        try:
            while True:
                while self._queue:
                    await self._write_texts(self._take_some())
                if self._closing is not None:
                    code, reason = self._closing
                    await self._socket.close(code, reason)
                    return
                self._ready.clear()
                await self._ready.wait()
        except (RuntimeError, OSError):
            pass  # closed under our hands: the reading side notices too
        except Exception as error:
            if type(error).__name__ not in ("WebSocketDisconnect", "ClientDisconnected"):
                log.error("a socket could not be written", exc_info=error)
        finally:
            self._queue.clear()
            self._budget.queued -= self._queued
            self._queued = 0
            self.ended.set()
            if self._reader is not None and not self._is_stopped:
                loop = asyncio.get_running_loop()
                loop.call_later(_CLOSE_WITHIN_SEC, self._end_reader)

    def _take_some(self) -> list[bytes]:
        """Frames for one write: a few, or one that is large."""
        taken: list[bytes] = []
        size = 0
        while self._queue and size < _IN_A_WRITE:
            frame = self._queue.popleft()
            taken.append(frame)
            size += len(frame)
        self._queued -= size
        self._budget.queued -= size
        return taken

    async def _write_one_by_one(self, texts: Sequence[bytes]) -> None:
        for text in texts:
            await self._socket.send({"type": "websocket.send", "text": text.decode()})

    def _end_reader(self) -> None:
        if self._reader is not None and not self._is_stopped:
            self._reader.cancel()


class FrameReader:
    """The reading side: decodes frames and keeps count of what is worked on."""

    def __init__(
        self,
        socket: "WebSocket",
        outgoing: SocketOutgoing,
        decoder: msgspec.json.Decoder[Any],
        bounds: SocketBounds,
        clock: Clock,
    ) -> None:
        self._socket = socket
        self._outgoing = outgoing
        self._decode = decoder.decode
        self._clock = clock
        self._rate = bounds.frame_rate
        self._second_mono = self._told_mono = clock.monotonic() - _TOLD_EVERY
        self._read = 0
        """Frames read in the present second."""
        self._bad = 0
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self.reason = "closed"

    async def read(self) -> Any | None:
        """The next frame that can be read; None when the socket has ended."""
        while True:
            if self._outgoing.ended.is_set() or self._outgoing.is_closing:
                self.reason = "closed by the server"
                return None
            message = await self._receive()
            if message is None or message["type"] == "websocket.disconnect":
                return None
            self._read += 1
            if self._read % _FRAMES_IN_A_ROW == 0:
                await self._let_others()
            text = message.get("text")
            data = message.get("bytes") if text is None else text
            try:
                return self._decode(data or b"")
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                self._refuse(error)

    async def _receive(self) -> Any | None:
        try:
            return await self._socket.receive()
        except (RuntimeError, OSError):
            return None
        except asyncio.CancelledError:
            if self._outgoing.ended.is_set():
                return None  # the writing side ended, and the other side did not follow
            raise

    async def _let_others(self) -> None:
        """Let others have their turn; a peer that sends too fast waits for the next second."""
        await asyncio.sleep(0)
        now = self._clock.monotonic()
        rest_us = self._second_mono + SECOND - now
        if rest_us <= 0:
            self._second_mono, self._read = now, 0
        elif self._read >= self._rate:
            if now >= self._told_mono + _TOLD_EVERY:
                self._told_mono = now
                told = f"frames are read at {self._rate} a second"
                self._outgoing.send(encode(ErrorFrame(code="RATE_LIMITED", message=told)))
            await self._clock.sleep_until(self._clock.now() + rest_us)
            self._second_mono, self._read = now + rest_us, 0

    def _refuse(self, error: Exception) -> None:
        self._bad += 1
        said = str(error) or "the frame is nested too deep"
        self._outgoing.send(encode(ErrorFrame(code="INVALID_FRAME", message=said[:500])))
        if self._bad >= MOST_BAD_FRAMES:
            self._outgoing.close(BAD_FRAME, "TOO_MANY_BAD_FRAMES")

    async def work(self, step: Coroutine[Any, Any, None]) -> None:
        """Begin to work on a frame; waits while too many are under way."""
        await self._room.acquire()
        task = asyncio.create_task(step)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a frame could not be handled", exc_info=error)

    async def stop(self) -> None:
        """Wait for what is under way: a result that was read must be recorded."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_WITHIN_SEC)


def error_frame(error: KsanaError, request_id: str = "", job_id: str = "") -> ErrorFrame:
    """An error as a frame."""
    return ErrorFrame(
        code=error.code, message=error.message[:1000], request_id=request_id, job_id=job_id
    )


async def first_frame(reader: FrameReader, kind: type[T], outgoing: SocketOutgoing) -> T | None:
    """The first frame, which must be of one kind and come soon."""
    frame: Any = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_FRAME_SEC):
            frame = await reader.read()
    if isinstance(frame, kind):
        return frame
    if frame is not None:
        name = kind.__struct_config__.tag  # type: ignore[attr-defined]
        outgoing.send(
            encode(ErrorFrame(code="PROTOCOL", message=f"the first frame must be {name}"))
        )
    outgoing.close(BAD_FRAME, "FIRST_FRAME")
    return None
