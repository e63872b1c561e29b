"""A call under way, and the reply made of what its handle has received."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import pycurl

from ksana.base.durations import format_duration
from ksana.domain.tasks.headers import Target
from ksana.domain.tasks.outcome import clip_error
from ksana.outbound.curl.handle import CurlHandle
from ksana.outbound.errors import Failure, describe
from ksana.outbound.redirects import MAX_HOPS, show_url
from ksana.outbound.resolver import LookupResult
from ksana.ports.caller import MaySend, Reply, ReplyKind, Request, Timing

_ASKS_TO_WAIT: Final = 400
"""Retry-After is read from this status up; on a redirect nobody heeds it."""


class CurlCallOwner(Protocol):
    """What a call may ask of the caller that sent it."""

    def abort(self, call: "CurlCall") -> None: ...

    def on_lookup(self, call: "CurlCall", answer: LookupResult) -> None: ...


class CurlCall:
    """One call. It waits for a name (`lookup_timer`), then has a handle; else it is over."""

    __slots__ = (
        "_owner",
        "dns_ms",
        "done",
        "handle",
        "hops_left",
        "is_redirected",
        "is_resent",
        "lookup_began_s",
        "lookup_timer",
        "may_send",
        "offset_ms",
        "request",
        "sends",
        "sends_of_hops",
        "target",
    )

    def __init__(
        self,
        owner: CurlCallOwner,
        request: Request,
        done: Callable[[Reply], None],
        may_send: MaySend,
    ) -> None:
        self._owner = owner
        self.request = request
        self.done = done
        self.may_send = may_send
        self.target: Target | None = None
        self.handle: CurlHandle | None = None
        self.lookup_timer: asyncio.TimerHandle | None = None
        self.lookup_began_s = 0.0
        self.hops_left = min(request.follow_redirects, MAX_HOPS)
        self.is_redirected = self.is_resent = False
        self.sends = self.sends_of_hops = 0
        """How often the request was written before the present handle had it, and the highest such
        number of earlier hops."""
        # Time spent before the handle was prepared, on earlier hops and on looking the name up; and
        # when the name was known.
        self.offset_ms = self.dns_ms = 0.0

    def abort(self) -> None:
        """End it now; `done` is called soon."""
        if self.handle is not None or self.lookup_timer is not None:
            self._owner.abort(self)

    @property
    def is_resolving(self) -> bool:
        """Whether it waits for a name."""
        return self.lookup_timer is not None

    def on_lookup(self, answer: LookupResult) -> None:
        """Take the answer of a lookup."""
        if self.lookup_timer is not None:
            self._owner.on_lookup(self, answer)

    def count_sends(self) -> int:
        """Count how often the request was written; of several hops the highest number counts."""
        handle = self.handle
        return max(self.sends + (handle is not None and handle.has_written()), self.sends_of_hops)

    def read_timing(self) -> Timing:
        """Tell how far it got and when."""
        if self.handle is None:
            return Timing(dns_ms=self.dns_ms, total_ms=self.offset_ms)
        return self.handle.read_timing(self.offset_ms, self.dns_ms)

    def fail(self, kind: ReplyKind, why: str) -> Reply:
        """Make the reply of a call that got no answer."""
        if self.is_redirected and kind == "refused":
            why = f"redirected to {show_url(self.request, self.request.url)}: {why}"
        return Reply(
            kind=kind,
            timing=self.read_timing(),
            error=clip_error(why),
            sends=self.count_sends(),
        )

    def fail_lookup(self) -> Reply:
        """Make the reply of a call whose name did not become known in time."""
        limit = format_duration(min(self.request.connect_timeout_us, self.request.timeout_us))
        return self.fail(
            "timeout",
            f"the name {self.target.host if self.target else ''} was not found within {limit}",
        )


def make_reply(handle: CurlHandle, call: CurlCall, status: int) -> Reply:
    """Make the reply of a whole answer, or of one cut at the hard cap."""
    retry_after = None
    if status >= _ASKS_TO_WAIT:
        # libcurl counts a date down to seconds; an absent or unreadable header reads as none.
        wait_s = handle.curl.getinfo(pycurl.RETRY_AFTER)
        retry_after = str(wait_s) if wait_s > 0 else None
    chunks = handle.chunks
    body = b"".join(chunks) if chunks else b""
    return Reply(
        "answered",
        handle.read_timing(call.offset_ms, call.dns_ms),
        status,
        body,
        handle.room < 0,
        retry_after,
        None,
        max(call.sends + 1, call.sends_of_hops),
    )


def read_failure(handle: CurlHandle, call: CurlCall, code: int, message: str, status: int) -> Reply:
    """Make the reply of a call that broke, with an error line."""
    if handle.refusal is not None:
        return call.fail("refused", f"not called: {handle.refusal}")
    request, target = call.request, call.target
    kind, text = describe(
        Failure(
            code=code,
            message=message,
            host=target.host if target else "",
            port=target.port if target else 0,
            ip=handle.curl.getinfo(pycurl.PRIMARY_IP) or "",
            os_errno=handle.curl.getinfo(pycurl.OS_ERRNO),
            received=handle.received,
            has_status=status > 0,
            is_connected=handle.is_connected(),
            timing=call.read_timing(),
            timeout_us=request.timeout_us,
            connect_timeout_us=min(request.connect_timeout_us, request.timeout_us),
        )
    )
    return call.fail(kind, text)
