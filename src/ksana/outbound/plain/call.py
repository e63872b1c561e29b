"""A call of the plain client under way, over all its hops, and the reply made of what came."""

import socket
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from time import monotonic
from typing import Final, Protocol

from ksana.base.clock import SystemClock
from ksana.base.durations import format_duration
from ksana.base.instant import SECOND
from ksana.domain.tasks.classify import clip_error
from ksana.outbound.deadlines import Timed
from ksana.outbound.errors import Failure, describe
from ksana.outbound.plain.connect import ConnectAttempt
from ksana.outbound.plain.connection import Origin, PlainConnection
from ksana.outbound.plain.encode_request import PlainRoute
from ksana.outbound.plain.response import ResponseParser
from ksana.outbound.redirects import MAX_HOPS, show_url
from ksana.outbound.resolver import LookupResult
from ksana.ports.caller import NOT_OURS, Call, MaySend, Reply, ReplyKind, Request, Timing

_ASKS_TO_WAIT: Final = 400
"""Retry-After is read from this status up; on a redirect nobody heeds it."""
_LONGEST_WAIT_S: Final = 21_600
"""libcurl believes no longer wait than this, and calls that ask for more wait as long."""


class PlainCallOwner(Protocol):
    """What a call may ask of the owner it is on."""

    def abort(self, call: "PlainCall") -> None: ...

    def on_lookup(self, call: "PlainCall", response: LookupResult) -> None: ...

    def on_connected(self, call: "PlainCall", sock: socket.socket, ip: str) -> None: ...

    def on_connect_failed(self, call: "PlainCall", code: int) -> None: ...


class PlainCall(Timed):
    """One call. It resolves a name, connects, or has a connection; else it is over or was handed
    over."""

    __slots__ = (
        "_owner",
        "began_s",
        "connected_s",
        "connecting",
        "connection",
        "done",
        "due_s",
        "encoded",
        "first_s",
        "handed_over",
        "hops_left",
        "is_notified",
        "is_redirected",
        "is_resolving",
        "may_send",
        "origin",
        "request",
        "resolved_s",
        "route",
        "sends",
        "sends_of_hops",
    )

    route: PlainRoute
    origin: Origin
    encoded: bytes

    def __init__(
        self,
        owner: PlainCallOwner,
        request: Request,
        done: Callable[[Reply], None],
        may_send: MaySend,
    ) -> None:
        self._owner = owner
        self.request = request
        self.done = done
        self.may_send = may_send
        self.slot = 0
        self.began_s = began_s = monotonic()
        self.due_s = began_s + request.timeout_us / SECOND
        self.hops_left = request.follow_redirects
        self.is_redirected = self.is_resolving = self.is_notified = False
        self.resolved_s = self.connected_s = self.first_s = 0.0
        self.sends = self.sends_of_hops = 0
        self.connecting: ConnectAttempt | None = None
        self.connection: PlainConnection | None = None
        self.handed_over: Call | None = None

    def abort(self) -> None:
        """End it now; `done` is called soon."""
        if self.connection is not None or self.connecting is not None or self.is_resolving:
            self._owner.abort(self)
        elif self.handed_over is not None:
            self.handed_over.abort()

    def connect_due(self) -> float:
        """Tell until when the next step towards a connection must be done."""
        return min(self.due_s, monotonic() + self.request.connect_timeout_us / SECOND)

    def count_sends(self) -> int:
        """Count how often the request was written; of several hops the highest number counts."""
        connection = self.connection
        sends = self.sends + (connection is not None and connection.has_written)
        return max(sends, self.sends_of_hops)

    def go_on_with(self, request: Request) -> float:
        """Go on with the request of the next hop. ResponseParser the milliseconds spent."""
        self.sends_of_hops = self.count_sends()
        self.sends = 0
        self.request = request
        self.hops_left = min(self.hops_left, MAX_HOPS) - 1
        self.is_redirected = True
        self.resolved_s = self.connected_s = self.first_s = 0.0
        return (monotonic() - self.began_s) * 1e3

    # --- events ---

    def on_lookup(self, response: LookupResult) -> None:
        """Take the response of a lookup."""
        if self.is_resolving:
            self._owner.on_lookup(self, response)

    def on_connected(self, sock: socket.socket, ip: str) -> None:
        """Take the connection that has opened."""
        self._owner.on_connected(self, sock, ip)

    def on_connect_failed(self, code: int) -> None:
        """Take it that no connection could be had."""
        self._owner.on_connect_failed(self, code)

    # --- replies ---

    def make_reply(self, response: ResponseParser, now_s: float) -> Reply:
        """Make the reply of a whole response, or of one cut at the hard cap."""
        status = response.status
        retry_after = (
            read_wait(response.retry_after)
            if response.retry_after and status >= _ASKS_TO_WAIT
            else None
        )
        return Reply(
            kind="answered",
            timing=self.read_timing(now_s),
            status=status,
            body=response.body,
            truncated=response.room < 0,
            retry_after=retry_after,
            sends=self.count_sends(),
        )

    def read_timing(self, now_s: float) -> Timing:
        """Tell how far it got and when, in milliseconds from the start of the first hop."""
        began_s = self.began_s
        return Timing(
            (self.resolved_s - began_s) * 1e3 if self.resolved_s else 0.0,
            (self.connected_s - began_s) * 1e3 if self.connected_s else 0.0,
            0.0,
            (self.first_s - began_s) * 1e3 if self.first_s else 0.0,
            (now_s - began_s) * 1e3,
        )

    def fail(self, kind: ReplyKind, why: str) -> Reply:
        """Make the reply of a call that got no response."""
        if self.is_redirected and kind == "refused":
            why = f"redirected to {show_url(self.request, self.request.url)}: {why}"
        return Reply(
            kind=kind,
            timing=self.read_timing(monotonic()),
            error=clip_error(why),
            sends=self.count_sends(),
        )

    def fail_not_ours(self) -> Reply:
        """Make the reply of a call that may not be sent, or not any further."""
        return self.fail("aborted", NOT_OURS)

    def fail_lookup(self) -> Reply:
        """Make the reply of a call whose name did not become known in time."""
        limit = format_duration(min(self.request.connect_timeout_us, self.request.timeout_us))
        return self.fail("timeout", f"the name {self.route.host} was not found within {limit}")

    def fail_broken(self, code: int, message: str = "", os_errno: int = 0) -> Reply:
        """Make the reply of a call that broke, with the text that libcurl's error of the same kind
        has."""
        connection, request = self.connection, self.request
        response = connection.response if connection is not None else None
        kind, text = describe(
            Failure(
                code=code,
                message=message,
                host=self.route.host,
                port=self.route.port,
                ip=connection.ip if connection is not None else self.route.host,
                os_errno=os_errno,
                received=response.received if response is not None else 0,
                has_status=response is not None,
                is_connected=connection is not None,
                timing=self.read_timing(monotonic()),
                timeout_us=request.timeout_us,
                connect_timeout_us=min(request.connect_timeout_us, request.timeout_us),
            )
        )
        return self.fail(kind, text)


def read_wait(raw: bytes) -> str | None:
    """Read a Retry-After as libcurl does: whole seconds, or a date counted down to them; None if it
    says nothing."""
    text = raw.decode("latin-1")
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    if digits:
        wait_s = int(digits) if len(digits) <= 18 else 0
    else:
        try:
            wait_s = int(parsedate_to_datetime(text).timestamp() - SystemClock().now() / SECOND)
        except (ValueError, TypeError, OverflowError):
            return None
    return str(min(wait_s, _LONGEST_WAIT_S)) if wait_s > 0 else None
