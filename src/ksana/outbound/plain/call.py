"""A call of the plain client: where its URL leads and the bytes that libcurl would send; the call
under way, over all its hops; and the reply made of what came.

What libcurl treats in a way of its own is not copied: then there is no route, or no encoding, and
the call goes to libcurl.
"""

import re
import socket
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import lru_cache
from ipaddress import ip_address
from time import monotonic
from typing import Final, NamedTuple, Protocol

from ksana.base.clock import SystemClock
from ksana.base.durations import format_duration
from ksana.base.instant import SECOND
from ksana.base.short_cache import cache_short
from ksana.domain.tasks.headers import split_url
from ksana.domain.tasks.outcome import clip_error
from ksana.outbound.curl.handle import BAD_HEADER, METHOD, NEEDS_LENGTH, USER_AGENT
from ksana.outbound.deadlines import Timed
from ksana.outbound.errors import Failure, describe
from ksana.outbound.plain.connect import ConnectAttempt
from ksana.outbound.plain.connection import Origin, PlainConnection
from ksana.outbound.plain.response import ResponseParser
from ksana.outbound.redirects import MAX_HOPS, show_url
from ksana.outbound.resolver import LookupResult, is_literal
from ksana.ports.caller import NOT_OURS, Call, MaySend, Reply, ReplyKind, Request, Timing

_PARTS = re.compile(r"(?P<site>[^:]+://[^/?#]*)(?P<path>[^?#]*)(?P<query>[^#]*)")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_DOTS = re.compile(r"/(?:\.|%2e)", re.IGNORECASE)
"""Where a dot segment may begin, which libcurl would take out of the path."""
_ODD_NAMES: Final = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "expect",
        "te",
        "upgrade",
        "keep-alive",
        "trailer",
    }
)
"""They change how a request is sent. Users may not set most of them; what we send ourselves never
has them."""


class Site(NamedTuple):
    """The part of a URL before its path: what all URLs of one host and port have in common."""

    host: str
    port: int
    host_line: str
    addresses: tuple[str, ...] | None
    """An address stands for itself; a name is looked up."""


class PlainRoute:
    """A URL that the plain client can call: the origin, and the first lines by method."""

    __slots__ = ("_host_line", "_path", "addresses", "host", "origin", "port", "starts")

    def __init__(self, site: Site, path: str) -> None:
        self.host, self.port, self._host_line, self.addresses = site
        self.origin = (self.host, self.port)
        self.starts: dict[str, str] = {}
        self._path = path

    def write_start(self, method: str) -> str:
        """Write the request line and the Host header. Raise ValueError for what is no method."""
        if not METHOD.match(method):
            raise ValueError(f"{method[:32]!r} is not a method")
        start = self.starts[method] = f"{method} {self._path} HTTP/1.1\r\n{self._host_line}\r\n"
        return start


@cache_short(maxsize=16_384, longest=512)
def find_route(url: str) -> PlainRoute | None:
    """Find where a URL leads, or None if it is not for this client. Raise ValueError if it cannot
    be called at all."""
    if not url.isascii() or not url.isprintable() or " " in url:
        url = split_url(url).url
    parts = _PARTS.match(url)
    if parts is None:
        split_url(url)  # says what is wrong with it
        return None
    site = _find_site(parts["site"])
    path = parts["path"]
    if site is None or _DOTS.search(path):
        return None
    if "%" in path:
        # libcurl writes escapes of the path, not of the query, in capitals; signatures are made of
        # what is sent.
        path = _ESCAPE.sub(lambda escape: escape[0].upper(), path)
    return PlainRoute(site, (path or "/") + parts["query"])


@cache_short(maxsize=16_384, longest=512)
def _find_site(text: str) -> Site | None:
    """The same for the part before the path. Apart from the route, so that taking a URL apart costs
    little beyond the routes that are remembered: many URLs have few hosts."""
    target = split_url(text)
    if target.scheme != "http":
        return None
    host, port = target.host, target.port
    is_address = is_literal(host)
    if is_address and not _is_plain_address(host):
        return None
    authority = target.url.partition("://")[2]
    named = f"[{host}]" if ":" in host else authority.partition(":")[0]
    line = f"Host: {named}" if port == 80 else f"Host: {named}:{port}"
    return Site(host, port, line, (host,) if is_address else None)


def encode_request(route: PlainRoute, request: Request) -> bytes | None:
    """Write the whole request, or None if it is not for this client. Raise ValueError for what may
    not leave."""
    method, body, headers = request.method, request.body, request.headers
    # All are pairs, and to have that looked at costs half as much again.
    names, values = zip(*headers, strict=False) if headers else ((), ())
    form = _write_form(names)
    if form is None:
        return None
    text = "".join(values)
    if not text.isprintable() and BAD_HEADER.search(text):
        raise ValueError("a header holds a control character")
    start = route.starts.get(method) or route.write_start(method)
    if body is not None and method != "HEAD":
        return f"{start}{form % values}Content-Length: {len(body)}\r\n\r\n".encode() + body
    length = "Content-Length: 0\r\n" if method in NEEDS_LENGTH else ""
    return f"{start}{form % values}{length}\r\n".encode()


@lru_cache(maxsize=1024)
def _write_form(names: tuple[str, ...]) -> str | None:
    """Write the header lines with room for the values; a task has the same names every time."""
    lower = {name.lower() for name in names}
    if not _ODD_NAMES.isdisjoint(lower):
        return None
    if BAD_HEADER.search("".join(names)):
        raise ValueError("a header holds a control character")
    lines = [name.replace("%", "%%") + ": %s\r\n" for name in names]
    if "user-agent" not in lower:
        lines.append(f"User-Agent: {USER_AGENT}\r\n")
    if "accept" not in lower:
        lines.append("Accept: */*\r\n")
    return "".join(lines)


def _is_plain_address(host: str) -> bool:
    """Tell whether an address is in its plainest spelling, the one that libcurl would turn any
    other into."""
    try:
        return str(ip_address(host)) == host
    except ValueError:
        return False


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
        """Go on with the request of the next hop. Answer the milliseconds spent."""
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
