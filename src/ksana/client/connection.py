"""One keep-alive HTTP/1.1 connection: a request, its answer, the next request. No pool, no retries,
no JSON."""

import asyncio
from typing import Any

import httptools

from ksana.client.errors import DeadlineError, TransportError

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""More than any answer of the API; a stranger's endless body ends here."""


class HttpReply:
    """A whole answer."""

    __slots__ = ("body", "received_at", "retry_after", "status")

    def __init__(
        self, status: int, body: bytes, retry_after: str | None, received_at: float
    ) -> None:
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.received_at = received_at
        """The event loop's time when the answer was complete."""


class Connection(asyncio.Protocol):
    """Carries one request at a time. After any trouble it is closed and never used again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[HttpReply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parser: Any = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._retry_after: str | None = None
        self.is_open = False
        self.idle_since = loop.time()

    async def ask(self, request: bytes, deadline_sec: float) -> HttpReply:
        """Send the request and wait for its answer. A caller that goes away closes the connection,
        for its answer may still come and must not be taken for that of the next request."""
        if not self.is_open or self._transport is None:
            raise TransportError("the connection is closed", is_outcome_unknown=False)
        waiter: asyncio.Future[HttpReply] = self._loop.create_future()
        self._waiter = waiter
        self._parser = httptools.HttpResponseParser(self)
        self._chunks = []
        self._size = 0
        self._retry_after = None
        self._timer = self._loop.call_later(deadline_sec, self._expire, deadline_sec)
        self._transport.write(request)
        try:
            return await waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._timer.cancel()

    def close(self) -> None:
        """Close at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(
            TransportError(
                f"the server closed the connection ({exc or 'no answer'})", is_outcome_unknown=True
            )
        )

    def eof_received(self) -> bool:
        self.is_open = False
        return False

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:  # bytes that nobody asked for
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(TransportError(f"the answer is not HTTP: {error}", is_outcome_unknown=True))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser. The one header we need is Retry-After."""
        if len(name) == 11 and name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, chunk: bytes) -> None:
        """Called by the parser."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            self._fail(
                TransportError(
                    f"the answer passes {MAX_ANSWER_BYTES} bytes", is_outcome_unknown=True
                )
            )
            self.close()

    def on_message_complete(self) -> None:
        """Called by the parser."""
        parser, waiter = self._parser, self._waiter
        if (
            waiter is None or parser.get_status_code() < 200
        ):  # 100 Continue and the like come before the answer
            return
        self._waiter = None
        now = self._loop.time()
        self.idle_since = now
        if not parser.should_keep_alive():
            self.close()
        if not waiter.done():
            body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
            waiter.set_result(HttpReply(parser.get_status_code(), body, self._retry_after, now))

    def _expire(self, deadline_sec: float) -> None:
        self._fail(DeadlineError(f"no answer within {deadline_sec:g} s", is_outcome_unknown=True))
        self.close()

    def _fail(self, error: TransportError) -> None:
        self.is_open = False
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
