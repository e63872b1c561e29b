"""HTTP to one server: a bounded pool of keep-alive connections, a deadline for every call, TLS, and
repeats.

A repeat happens only where it cannot do harm: the request never left, the server said that nothing
was done (429, 503), or the call is one that may be made twice.
"""

import asyncio
import random
import re
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from ksana.client.connection import Connection, HttpReply
from ksana.client.errors import (
    ApiError,
    BusyError,
    ClientError,
    DeadlineError,
    TransportError,
    from_answer,
)

MAX_RETRY_AFTER_SEC = 60.0
"""A server that asks for a longer pause is asked again after this one."""

MAX_SERVER_ERRORS = 4
"""How often a call is tried that is answered with a 500: that is a mistake of the server, which
seldom passes."""

LAST_TRY_SEC = 0.02
"""Less than this before the deadline, no other try is begun."""

_UNSAFE = re.compile(r"[\x00-\x20\x7f]")


class CallBackoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait before the next try: full jitter under a ceiling that doubles."""

    first_sec: float = 0.1
    most_sec: float = 5.0
    tries: int | None = None
    """How often a call is tried at most. None: as often as its deadline allows."""

    def pause(self, failures: int, asked_sec: float | None = None) -> float:
        """The pause after so many failures; never shorter than the server asked for."""
        ceiling: float = min(self.most_sec, self.first_sec * 2 ** min(failures - 1, 30))
        pause = random.uniform(ceiling / 4, ceiling)
        return max(pause, min(asked_sec or 0.0, MAX_RETRY_AFTER_SEC))


class Transport:
    """Calls to one server. Belongs to the event loop it is first used on."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        max_connections: int = 32,
        connect_sec: float = 5.0,
        idle_sec: float = 4.0,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        backoff: CallBackoff | None = None,
    ) -> None:
        """`idle_sec` stays below the five seconds after which uvicorn closes an idle connection."""
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{base_url!r} is not an http:// or https:// address")
        self.base_url = base_url.rstrip("/")
        self._host, self._port = (
            parts.hostname,
            parts.port or (443 if parts.scheme == "https" else 80),
        )
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._head = _common_head(parts.netloc.rpartition("@")[2], api_key, headers or {})
        self._max_connections, self._connect_sec, self._idle_sec = (
            max_connections,
            connect_sec,
            idle_sec,
        )
        self.backoff = backoff or CallBackoff()
        self._idle: list[Connection] = []
        self._slots: asyncio.Semaphore | None = None
        self._polls: asyncio.Semaphore | None = None
        """Slots of calls that wait at the server. They leave some to the others: a release that
        waits for a claim to end may come too late."""
        self._is_closed = False

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        deadline_sec: float,
        is_repeatable: bool = True,
        tries: int | None = None,
        headers: Mapping[str, str] | None = None,
        is_poll: bool = False,
    ) -> tuple[HttpReply, int]:
        """Make the call, repeated where that is safe, and give a 2xx answer and how many tries had
        an unknown outcome. Raise an ApiError or a TransportError. `is_poll`: it may wait at the
        server for something to come."""
        request = self._request(method, path, body, headers)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + deadline_sec
        failures = unknown = 0
        while True:
            failure: ClientError
            try:
                reply = await self._ask_once(request, ends_at - loop.time(), is_poll)
                if 200 <= reply.status < 300:
                    return reply, unknown
                failure = from_answer(reply.status, reply.body, _seconds(reply.retry_after))
            except TransportError as error:
                failure = error
                unknown += error.is_outcome_unknown
            failures += 1
            pause = None
            if _may_repeat(failure, is_repeatable, failures, tries or self.backoff.tries):
                pause = self._pause_within(failure, failures, ends_at - loop.time())
            if pause is None:
                if unknown and isinstance(failure, TransportError):
                    failure.is_outcome_unknown = True
                failure.unknown_tries = unknown
                raise failure
            await asyncio.sleep(pause)

    def _pause_within(self, failure: ClientError, failures: int, left_sec: float) -> float | None:
        """The pause before the next try; None when the time left allows for no other. A pause of
        our own is cut short where the deadline comes first, so that a server which is back by then
        is found; one that the server asked for is not."""
        asked_sec = failure.retry_after_sec if isinstance(failure, ApiError) else None
        pause, longest = self.backoff.pause(failures, asked_sec), left_sec - LAST_TRY_SEC
        if pause > longest and (asked_sec or 0.0) <= longest:
            pause = max(asked_sec or 0.0, left_sec * 0.75)
        return pause if pause <= longest else None

    async def close(self) -> None:
        """Close what is idle; a call under way ends with its connection."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
        await asyncio.sleep(0)  # lets the closed transports report to the event loop

    async def _ask_once(self, request: bytes, left_sec: float, is_poll: bool = False) -> HttpReply:
        if self._is_closed:
            closed = TransportError("the client is closed", is_outcome_unknown=False)
            closed.is_permanent = True
            raise closed
        if left_sec <= 0:
            raise DeadlineError("the time for the call is over", is_outcome_unknown=False)
        if self._slots is None or self._polls is None:
            most = self._max_connections
            self._slots, self._polls = asyncio.Semaphore(most), asyncio.Semaphore(most - most // 4)
        ends_at = asyncio.get_running_loop().time() + left_sec
        if not is_poll:
            return await self._ask_within(self._slots, request, ends_at)
        await _acquire(self._polls, ends_at)
        try:
            return await self._ask_within(self._slots, request, ends_at)
        finally:
            self._polls.release()

    async def _ask_within(
        self, slots: asyncio.Semaphore, request: bytes, ends_at: float
    ) -> HttpReply:
        loop = asyncio.get_running_loop()
        await _acquire(slots, ends_at)
        try:
            connection = self._find_idle(loop.time()) or await self._connect(
                min(self._connect_sec, ends_at - loop.time())
            )
            reply = await connection.ask(request, max(0.001, ends_at - loop.time()))
            if connection.is_open and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.close()
            return reply
        finally:
            slots.release()

    def _find_idle(self, now: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < self._idle_sec:
                return connection
            connection.close()
        return None

    async def _connect(self, within_sec: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_sec):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                )
        except TimeoutError:
            raise TransportError(
                f"{self._host}:{self._port} did not take the connection", is_outcome_unknown=False
            ) from None
        except OSError as error:  # ssl.SSLError is one too
            message = f"cannot connect to {self._host}:{self._port}: {error}"
            failure = TransportError(message, is_outcome_unknown=False)
            failure.is_permanent = isinstance(error, ssl.SSLCertVerificationError)
            raise failure from None
        return connection

    def _request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> bytes:
        if _UNSAFE.search(path):
            raise ValueError(f"{path!r} cannot stand in a request line")
        more = "".join(_header(name, value) for name, value in headers.items()) if headers else ""
        if body is None:
            length = "Content-Length: 0\r\n" if method != "GET" else ""
            return (
                f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}{more}{length}\r\n".encode(
                    "latin-1"
                )
            )
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._head}{more}{kind}"
        return head.encode("latin-1") + body


async def _acquire(slots: asyncio.Semaphore, ends_at: float) -> None:
    if not slots.locked():
        await slots.acquire()
        return
    left_sec = ends_at - asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(left_sec):
            await slots.acquire()
    except TimeoutError:
        raise DeadlineError(
            f"no free connection within {left_sec:g} s", is_outcome_unknown=False
        ) from None


def _common_head(host: str, api_key: str | None, headers: Mapping[str, str]) -> str:
    head = _header("Host", host) + "Accept: application/json\r\n"
    if api_key:
        head += _header("Authorization", f"Bearer {api_key}")
    return head + "".join(_header(name, value) for name, value in headers.items())


def _header(name: str, value: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\x00]", value):
        raise ValueError(f"header {name!r} cannot be sent")
    return f"{name}: {value}\r\n"


def _may_repeat(failure: ClientError, is_repeatable: bool, failures: int, most: int | None) -> bool:
    if most is not None and failures >= most:
        return False
    if isinstance(failure, TransportError):
        return not failure.is_permanent and (is_repeatable or not failure.is_outcome_unknown)
    if isinstance(failure, BusyError):
        # 502 and 504 come from a proxy that lost the answer, not from the server.
        return is_repeatable or failure.status in {429, 503}
    is_server_error = isinstance(failure, ApiError) and failure.status >= 500
    return is_repeatable and is_server_error and failures < MAX_SERVER_ERRORS


def _seconds(header: str | None) -> float | None:
    """Read Retry-After in seconds; the date form is not used by the API and counts as absent."""
    return float(header) if header is not None and header.strip().isdigit() else None
