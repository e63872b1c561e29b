"""A call under way, and the reply made of what its line has heard."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import pycurl

from ksana.base.durations import format_duration
from ksana.domain.tasks.classify import clip_error
from ksana.domain.tasks.headers import Target
from ksana.outbound.curl.handle import Line
from ksana.outbound.errors import Failure, describe
from ksana.outbound.redirects import MAX_HOPS
from ksana.outbound.resolver import Answer
from ksana.ports.caller import Reply, ReplyKind, Request, Timing

_ASKS_TO_WAIT: Final = 400
"""Retry-After is read from this status up; on a redirect nobody heeds it."""


class Tower(Protocol):
    """What a flight may ask of the caller that sent it."""

    def abort(self, flight: "Flight") -> None: ...

    def hear_name(self, flight: "Flight", answer: Answer) -> None: ...


class Flight:
    """One call. It waits for a name (`lookup_timer`), then is on a line; with neither, it is over."""

    __slots__ = (
        "_tower",
        "dns_ms",
        "done",
        "hops_left",
        "is_redirected",
        "is_resent",
        "line",
        "lookup_began_s",
        "lookup_timer",
        "offset_ms",
        "request",
        "sends",
        "sends_of_hops",
        "target",
    )

    def __init__(self, tower: Tower, request: Request, done: Callable[[Reply], None]) -> None:
        self._tower = tower
        self.request = request
        self.done = done
        self.target: Target | None = None
        self.line: Line | None = None
        self.lookup_timer: asyncio.TimerHandle | None = None
        self.lookup_began_s = 0.0
        self.hops_left = min(request.follow_redirects, MAX_HOPS)
        self.is_redirected = self.is_resent = False
        self.sends = self.sends_of_hops = 0
        """How often the request was written before the present line, and of earlier hops the most."""
        # Time spent before the line was dialled, on earlier hops and on looking the name up; and
        # when the name was known.
        self.offset_ms = self.dns_ms = 0.0

    def abort(self) -> None:
        """End it now; `done` hears of it soon."""
        if self.line is not None or self.lookup_timer is not None:
            self._tower.abort(self)

    def hear_name(self, answer: Answer) -> None:
        """Take the answer of a lookup."""
        if self.lookup_timer is not None:
            self._tower.hear_name(self, answer)

    def count_sends(self) -> int:
        """Count how often the request was written; of several hops the highest number counts."""
        line = self.line
        return max(self.sends + (line is not None and line.has_written()), self.sends_of_hops)

    def read_timing(self) -> Timing:
        """Tell how far it got and when."""
        if self.line is None:
            return Timing(dns_ms=self.dns_ms, total_ms=self.offset_ms)
        return self.line.read_timing(self.offset_ms, self.dns_ms)

    def fail(self, kind: ReplyKind, why: str) -> Reply:
        """Make the reply of a call that got no answer."""
        if self.is_redirected and kind == "refused":
            why = f"redirected to {self.request.url[:200]}: {why}"
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


def read_answer(line: Line, flight: Flight, status: int) -> Reply:
    """Make the reply of a whole answer, or of one cut at the hard cap."""
    retry_after = None
    if status >= _ASKS_TO_WAIT:
        # libcurl counts a date down to seconds; an absent or unreadable header reads as none.
        wait_s = line.curl.getinfo(pycurl.RETRY_AFTER)
        retry_after = str(wait_s) if wait_s > 0 else None
    chunks = line.chunks
    body = b"".join(chunks) if chunks else b""
    return Reply(
        "answered",
        line.read_timing(flight.offset_ms, flight.dns_ms),
        status,
        body,
        line.room < 0,
        retry_after,
        None,
        max(flight.sends + 1, flight.sends_of_hops),
    )


def read_failure(line: Line, flight: Flight, code: int, message: str, status: int) -> Reply:
    """Make the reply of a call that broke, in plain words."""
    if line.refusal is not None:
        return flight.fail("refused", f"not called: {line.refusal}")
    request, target = flight.request, flight.target
    kind, text = describe(
        Failure(
            code=code,
            message=message,
            host=target.host if target else "",
            port=target.port if target else 0,
            ip=line.curl.getinfo(pycurl.PRIMARY_IP) or "",
            os_errno=line.curl.getinfo(pycurl.OS_ERRNO),
            received=line.received,
            has_status=status > 0,
            is_connected=line.is_connected(),
            timing=flight.read_timing(),
            timeout_us=request.timeout_us,
            connect_timeout_us=min(request.connect_timeout_us, request.timeout_us),
        )
    )
    return flight.fail(kind, text)
