"""One libcurl handle, kept and used again, with everything that never changes set once.

It knows how to prepare a request and read what came; when to do so is up to the caller.
"""

import re
import socket
from typing import Any, Final

import pycurl

from ksana.domain.tasks.headers import Target
from ksana.outbound.egress import EgressPolicy
from ksana.ports.caller import Request, Timing

HARD_CAP: Final = 16 * 1024 * 1024
"""No answer is read past this; it ends there, as a truncated answer."""
DNS_CACHE_S: Final = 30
CONNECTION_LIFE_S: Final = 600
"""A connection is not used again after this, so that a target that moved is found again."""
USER_AGENT: Final = "ksana"

BAD_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
METHOD = re.compile(r"[A-Z]{1,16}\Z", re.ASCII)
IN_ONE_PIECE: Final = 16 * 1024
"""A body up to this goes out with the head of its request, in one write. libcurl takes a longer one
from us piece by piece, so that each can be held back."""
NEEDS_LENGTH: Final = frozenset({"POST", "PUT", "PATCH"})
"""Servers expect `Content-Length: 0` from these when there is no body."""


class CurlHandle:
    """One handle, and what the call on it has received so far."""

    __slots__ = (
        "_has_begun",
        "_is_fresh",
        "_opened",
        "_shape",
        "_unread",
        "_url",
        "call",
        "chunks",
        "curl",
        "hard_cap",
        "is_capped",
        "is_forbidden",
        "is_stopped",
        "policy",
        "received",
        "refusal",
        "room",
        "target",
        "timeout_ms",
    )

    def __init__(
        self, policy: EgressPolicy, opened: list[socket.socket], ca_file: str | None, hard_cap: int
    ) -> None:
        self.policy = policy
        self.hard_cap = hard_cap
        self.curl: Any = pycurl.Curl()
        self.call: Any = None
        self.target: Target | None = None
        self.chunks: list[bytes] = []
        self.room = self.received = 0
        self.is_capped = self.is_stopped = self.is_forbidden = self._has_begun = False
        self.refusal: str | None = None
        self.timeout_ms = (0, 0)
        self._shape: tuple[str, bool, bool] | None = None
        self._is_fresh = False
        self._url = ""
        self._unread = memoryview(b"")
        self._opened = opened
        self._set_constants(ca_file)

    def _set_constants(self, ca_file: str | None) -> None:
        curl = self.curl
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.FOLLOWLOCATION, 0),
            # An empty proxy is "none", whatever the environment says: a proxy would connect where
            # we cannot look.
            (pycurl.PROXY, ""),
            (pycurl.NOPROXY, "*"),
            (pycurl.NETRC, pycurl.NETRC_IGNORED),
            (pycurl.HTTP09_ALLOWED, 0),
            (pycurl.HTTP_CONTENT_DECODING, 0),
            (pycurl.USERAGENT, USER_AGENT),
            (pycurl.DNS_CACHE_TIMEOUT, DNS_CACHE_S),
            (pycurl.MAXLIFETIME_CONN, CONNECTION_LIFE_S),
            (pycurl.WRITEFUNCTION, self._write),
            (pycurl.OPENSOCKETFUNCTION, self._open_socket),
            (pycurl.PREREQFUNCTION, self._before_request),
            (pycurl.READFUNCTION, self._read_body),
            (pycurl.SEEKFUNCTION, self._rewind_body),
        ):
            curl.setopt(option, value)
        if ca_file is not None:
            curl.setopt(pycurl.CAINFO, ca_file)

    def prepare(
        self,
        request: Request,
        target: Target,
        addresses: tuple[str, ...],
        timeout_ms: int,
        connect_ms: int,
        *,
        is_fresh: bool,
    ) -> None:
        """Set the handle up for a request; options that stay as they were are not touched.

        `addresses` are those of the target's name, looked up and checked; none if the host is an
        address itself. `is_fresh` asks for a new connection.
        """
        curl, body = self.curl, request.body
        if target.url != self._url:
            curl.setopt(pycurl.URL, target.url)
            self._url = target.url
        if addresses:
            # libcurl takes the list for one transfer; the plus lets the entry age like any other.
            listed = ",".join(f"[{each}]" if ":" in each else each for each in addresses)
            curl.setopt(pycurl.RESOLVE, [f"+{target.host}:{target.port}:{listed}"])
        is_long = body is not None and len(body) > IN_ONE_PIECE and request.method != "HEAD"
        shape = (request.method, body is not None, is_long)
        if shape != self._shape:
            self._set_method(*shape)
        if is_fresh != self._is_fresh:
            curl.setopt(pycurl.FRESH_CONNECT, int(is_fresh))
            self._is_fresh = is_fresh
        if is_long:
            assert body is not None
            self._unread = memoryview(body)
            curl.setopt(pycurl.INFILESIZE_LARGE, len(body))
        elif body is not None and request.method != "HEAD":
            curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.HTTPHEADER, header_lines(request.headers))
        if (timeout_ms, connect_ms) != self.timeout_ms:
            curl.setopt(pycurl.TIMEOUT_MS, timeout_ms)
            curl.setopt(pycurl.CONNECTTIMEOUT_MS, connect_ms)
            self.timeout_ms = (timeout_ms, connect_ms)
        self.target = target
        self.chunks = []
        self.received = 0
        self.room = self.hard_cap if request.max_body is None else request.max_body
        self.is_capped = self.is_stopped = self.is_forbidden = self._has_begun = False
        self.refusal = None

    def _set_method(self, method: str, has_body: bool, is_long: bool) -> None:
        if not METHOD.match(method):
            raise ValueError(f"{method[:32]!r} is not a method")
        curl = self.curl
        self._shape = None
        curl.setopt(pycurl.HTTPGET, 1)  # also undoes NOBODY and POST
        curl.unsetopt(pycurl.CUSTOMREQUEST)
        if method == "HEAD":
            curl.setopt(pycurl.NOBODY, 1)
        elif is_long:
            curl.setopt(pycurl.UPLOAD, 1)
            curl.setopt(pycurl.CUSTOMREQUEST, method)
        elif has_body or method in NEEDS_LENGTH:
            curl.setopt(pycurl.POST, 1)
            if not has_body:
                curl.setopt(pycurl.POSTFIELDS, b"")
            if method != "POST":
                curl.setopt(pycurl.CUSTOMREQUEST, method)
        elif method != "GET":
            curl.setopt(pycurl.CUSTOMREQUEST, method)
        self._shape = (method, has_body, is_long)

    def _read_body(self, size: int) -> bytes | int:
        """Give libcurl the next piece of a long body."""
        if not self.call.may_send():
            self.is_forbidden = True
            return pycurl.READFUNC_ABORT  # type: ignore[no-any-return]
        piece, self._unread = self._unread[:size], self._unread[size:]
        return bytes(piece)

    def _rewind_body(self, offset: int, origin: int) -> int:
        """Allow libcurl to begin the body anew, so that it goes on to ask `_before_request`, which
        stops it."""
        return pycurl.SEEKFUNC_OK  # type: ignore[no-any-return]

    def _write(self, data: bytes) -> int | None:
        self.received += len(data)
        if self.room > 0:
            self.chunks.append(data if len(data) <= self.room else data[: self.room])
            self.room -= len(data)
        elif data:
            self.room = -1
        if self.received > self.hard_cap:
            self.is_capped = True
            return 0  # fewer than were given: libcurl ends the transfer
        return None

    def _before_request(self, *_: Any) -> int:
        """Let the request out once. libcurl asks here each time it has a connection for it, and it
        asks again when it wants to repeat the request by itself."""
        if self._has_begun:
            self.is_stopped = True
            return pycurl.PREREQFUNC_ABORT  # type: ignore[no-any-return]
        if not self.call.may_send():
            self.is_forbidden = True
            return pycurl.PREREQFUNC_ABORT  # type: ignore[no-any-return]
        self._has_begun = True
        return pycurl.PREREQFUNC_OK  # type: ignore[no-any-return]

    def has_written(self) -> bool:
        """Tell whether a byte of the request was written."""
        return bool(self.curl.getinfo(pycurl.REQUEST_SIZE) > 0)

    def _open_socket(self, purpose: int, address: Any) -> Any:
        """Judge the address libcurl is about to connect to. Here names are resolved, so nothing can
        change after."""
        family, kind, protocol, sockaddr = address
        if self.refusal is not None:
            return pycurl.SOCKET_BAD
        if family not in (socket.AF_INET, socket.AF_INET6) or self.target is None:
            self.refusal = "only IPv4 and IPv6 addresses can be called"
            return pycurl.SOCKET_BAD
        reason = self.policy.check_address(sockaddr[0], sockaddr[1], self.target.host)
        if reason is not None:
            # One forbidden answer of a name spoils the rest: mixing open and closed addresses is
            # how names are abused.
            self.refusal = reason
            return pycurl.SOCKET_BAD
        opened = socket.socket(family, kind, protocol)
        # pycurl takes a duplicate; the caller closes this one as soon as libcurl has returned.
        self._opened.append(opened)
        return opened

    def read_timing(self, offset_ms: float, lookup_ms: float) -> Timing:
        """Read the phases, counted from the start of the first hop; the name was looked up before
        libcurl began."""
        getinfo = self.curl.getinfo
        dns, connect, tls = (
            getinfo(pycurl.NAMELOOKUP_TIME),
            getinfo(pycurl.CONNECT_TIME),
            getinfo(pycurl.APPCONNECT_TIME),
        )
        first, total = getinfo(pycurl.STARTTRANSFER_TIME), getinfo(pycurl.TOTAL_TIME)
        if offset_ms:
            parts = (
                offset_ms + part * 1e3 if part else 0.0 for part in (connect, tls, first, total)
            )
            return Timing(lookup_ms or offset_ms + dns * 1e3, *parts)
        return Timing(dns * 1e3, connect * 1e3, tls * 1e3, first * 1e3, total * 1e3)

    def is_connected(self) -> bool:
        """Tell whether the call had a connection, a new one or one kept from before."""
        getinfo = self.curl.getinfo
        return bool(getinfo(pycurl.CONNECT_TIME) > 0 or getinfo(pycurl.LOCAL_PORT) > 0)

    def close(self) -> None:
        """Free the handle."""
        self.curl.close()
        self.call = None


def header_lines(headers: tuple[tuple[str, str], ...]) -> list[str] | list[bytes]:
    """Write headers as libcurl takes them. Raise ValueError for a control byte: the last check
    before the socket."""
    # An empty value needs a semicolon; a bare colon tells libcurl to leave the header out.
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in headers]
    text = "".join(lines)
    if BAD_HEADER.search(text):
        raise ValueError("a header holds a control character")
    lines.append("Expect:")
    if not any(name.lower() == "content-type" for name, _ in headers):
        lines.append("Content-Type:")  # or libcurl would call every body a form
    return lines if text.isascii() else [line.encode() for line in lines]
