"""One WebSocket to the nodes surface: how it is opened, one writer, frames in, frames out.

`websockets` is imported when a socket is opened: who only uses the queue does not need it.
"""

import asyncio
import contextlib
import logging
import random
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from ksana.client.errors import (
    ApiError,
    BusyError,
    ClientError,
    TransportError,
    from_answer,
    from_body,
)
from ksana.client.transport import CallBackoff
from ksana.domain.nodes.frames import MAX_FRAME, ErrorFrame, Ping, Pong, encode

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MAX_QUEUED: Final = 4 * 1024 * 1024
"""Bytes of partial results that may wait to be sent; more are dropped."""

RECONNECT: Final = CallBackoff(first_sec=1.0, most_sec=30.0)
"""Pauses before a lost socket is made again, as the protocol says."""

STEADY_SEC: Final = 10.0
"""A connection that held so long ends the growing of the pauses."""

REVOKED: Final = 4012
REPLACED: Final = 4009
_PING_SEC: Final = 15.0
_CLOSE_SEC: Final = 5.0
_NEEDS_WEBSOCKETS: Final = (
    "nodes and sessions need the package `websockets`: install `ksana-client[nodes]`"
)

log = logging.getLogger("ksana.client")


class SocketClosed(TransportError):
    """The socket ended. `code` is why, as the protocol lists it; 1006 if it was cut."""

    def __init__(self, code: int, reason: str) -> None:
        said = f"{code} {reason}".strip()
        super().__init__(f"the socket was closed: {said}", is_outcome_unknown=True)
        self.code = code
        self.reason = reason


class SocketAddress:
    """Where to connect, and with what. Of several addresses the first is chosen by chance, so that
    many programs spread over the instances; after a failure the next one is tried."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        path: str,
        *,
        api_key: str | None,
        connect_sec: float,
        tls: ssl.SSLContext | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        given = [base_url] if isinstance(base_url, str) else list(base_url)
        if not given:
            raise ValueError("there is no address")
        self._urls = [_socket_url(one, path) for one in given]
        self._turn = random.randrange(len(self._urls))
        is_secure = any(url.startswith("wss:") for url in self._urls)
        self._tls = (tls or ssl.create_default_context()) if is_secure else None
        self._connect_sec = connect_sec
        self._headers = dict(headers or {})
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @property
    def url(self) -> str:
        """Which address is tried next, or was tried last."""
        return self._urls[self._turn % len(self._urls)]

    @property
    def shown(self) -> str:
        """All of them, for the log; without what stands before the host."""
        return ", ".join(self._urls)

    def pass_on(self) -> None:
        """This one failed: the next."""
        self._turn += 1

    async def open(self, decoder: msgspec.json.Decoder[Any]) -> "FrameSocket":
        """Connect to the first that takes us. Raise the ApiError of a server that refuses, or
        TransportError."""
        for _ in range(len(self._urls) - 1):
            try:
                return await self._open(decoder)
            except ClientError as error:
                if is_for_good(error):
                    raise
                log.info("%s; trying another address", error)
                self.pass_on()
        try:
            return await self._open(decoder)
        except ClientError:
            self.pass_on()
            raise

    async def _open(self, decoder: msgspec.json.Decoder[Any]) -> "FrameSocket":
        try:
            from websockets.asyncio.client import connect
            from websockets.exceptions import InvalidHandshake, InvalidStatus
        except ImportError as error:
            raise RuntimeError(_NEEDS_WEBSOCKETS) from error
        url = self.url
        try:
            connection = await connect(
                url,
                ssl=self._tls if url.startswith("wss:") else None,
                additional_headers=self._headers,
                compression=None,
                max_size=MAX_FRAME,
                open_timeout=self._connect_sec,
                close_timeout=_CLOSE_SEC,
                ping_interval=_PING_SEC,
                ping_timeout=2 * _PING_SEC,
                proxy=None,
            )
        except InvalidStatus as error:
            refused = error.response
            asked = refused.headers.get("Retry-After", "")
            retry_after_sec = float(asked) if asked.isdigit() else None
            body = bytes(refused.body or b"")
            raise from_answer(refused.status_code, body, retry_after_sec) from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
            told = f"cannot connect to {url}: {str(error) or type(error).__name__}"
            raise TransportError(told, is_outcome_unknown=False) from None
        return FrameSocket(connection, decoder)


def _socket_url(base_url: str, path: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{base_url!r} is not an http:// or https:// address")
    scheme = "wss" if parts.scheme == "https" else "ws"
    host = parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}{parts.path.rstrip('/')}{path}"


class FrameSocket:
    """A connected socket. `send` never waits; one task writes."""

    def __init__(self, connection: "ClientConnection", decoder: msgspec.json.Decoder[Any]) -> None:
        self._connection = connection
        self._decode = decoder.decode
        self._waiting: deque[bytes] = deque()
        self._queued = 0
        self._has_work = asyncio.Event()
        self._is_written = asyncio.Event()
        self._is_written.set()
        self._is_ended = False
        self._pongs: dict[str, asyncio.Event] = {}
        self._writer = asyncio.create_task(self._write())

    def send(self, frame: msgspec.Struct, *, is_dispensable: bool = False) -> bool:
        """Queue a frame; tell whether it was taken. One that is dispensable is dropped when too
        much waits."""
        if self._is_ended or (is_dispensable and self._queued > MAX_QUEUED):
            return False
        data = encode(frame)
        self._waiting.append(data)
        self._queued += len(data)
        self._is_written.clear()
        self._has_work.set()
        return True

    async def read(self) -> Any:
        """The next frame. Pings are answered here; frames of a type that is not known are passed
        over. Raise SocketClosed."""
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                data = await self._connection.recv()
            except ConnectionClosed as closed:
                self._is_ended = True
                seen = closed.rcvd
                code, reason = (1006, "cut off") if seen is None else (seen.code, seen.reason)
                raise SocketClosed(code, reason) from None
            try:
                frame = self._decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.debug("a frame was passed over: %s", error)
                continue
            if isinstance(frame, Ping):
                self.send(Pong(id=frame.id))
            elif isinstance(frame, Pong):
                answered = self._pongs.pop(frame.id, None)
                if answered is not None:
                    answered.set()
            else:
                return frame

    async def ask_alive(self, ping_id: str) -> None:
        """Wait until the server has read everything sent so far. Somebody else must `read`."""
        answered = self._pongs[ping_id] = asyncio.Event()
        self.send(Ping(id=ping_id))
        await answered.wait()

    async def flush(self) -> None:
        """Wait until everything queued was written, or the socket has ended."""
        await self._is_written.wait()

    async def close(self) -> None:
        """End it in good order."""
        self._is_ended = True
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self._is_written.set()
        await self._connection.close()

    async def _write(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                while self._waiting:
                    data = self._waiting.popleft()
                    await self._connection.send(data, text=True)
                    self._queued -= len(data)
                self._is_written.set()
                self._has_work.clear()
                await self._has_work.wait()
        except ConnectionClosed:
            pass  # the reading side tells
        finally:
            self._is_ended = True
            self._is_written.set()


async def first_answer(socket: FrameSocket, sec: float) -> Any:
    """The answer to the first frame, if it comes in time. Raise TransportError."""
    try:
        async with asyncio.timeout(sec):
            return await socket.read()
    except TimeoutError:
        with contextlib.suppress(Exception):
            await socket.close()
        told = f"the server did not answer the first frame within {sec:g} s"
        raise TransportError(told, is_outcome_unknown=True) from None


def is_for_good(error: ClientError) -> bool:
    """Tell whether connecting again would end the same way."""
    if isinstance(error, SocketClosed):
        return error.code == REVOKED
    return isinstance(error, ApiError) and error.status < 500 and not isinstance(error, BusyError)


def pause_after(error: ClientError, failures: int, backoff: CallBackoff) -> float:
    """How long to wait before the next try; never shorter than the server asked for."""
    return backoff.pause(failures, error.retry_after_sec if isinstance(error, ApiError) else None)


def refusal_of(frame: ErrorFrame) -> ApiError:
    """The exception for an `error` frame."""
    return from_body(None, {"code": frame.code, "message": frame.message})


async def wait_at_most(event: asyncio.Event, most_sec: float) -> None:
    """Wait for an event, or for the time to pass."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_sec):
            await event.wait()
