"""A call of the plain lane under way, over all its hops, and the reply made of what came."""

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
from ksana.outbound.plain.connect import Dial
from ksana.outbound.plain.connection import Place, Wire
from ksana.outbound.plain.encode_request import Route
from ksana.outbound.plain.response import Answer
from ksana.outbound.redirects import MAX_HOPS
from ksana.outbound.resolver import Answer as NameAnswer
from ksana.ports.caller import Call, Reply, ReplyKind, Request, Timing

_ASKS_TO_WAIT: Final = 400
"""Retry-After is read from this status up; on a redirect nobody heeds it."""
_LONGEST_WAIT_S: Final = 21_600
"""libcurl believes no longer wait than this, and calls that ask for more wait as long."""


class Lane(Protocol):
    """What a trip may ask of the lane it is on."""

    def abort(self, trip: "Trip") -> None: ...

    def hear_name(self, trip: "Trip", answer: NameAnswer) -> None: ...

    def hear_opened(self, trip: "Trip", sock: socket.socket, ip: str) -> None: ...

    def hear_failed(self, trip: "Trip", code: int) -> None: ...


class Trip(Timed):
    """One call. It looks a name up, dials, or is on a wire; with none of these it is over, or
    another lane has it."""

    __slots__ = (
        "_lane",
        "began_s",
        "connected_s",
        "dial",
        "done",
        "due_s",
        "first_s",
        "hops_left",
        "is_looking",
        "is_redirected",
        "is_told",
        "known_s",
        "letter",
        "onward",
        "place",
        "request",
        "route",
        "sends",
        "sends_of_hops",
        "wire",
    )

    route: Route
    place: Place
    letter: bytes

    def __init__(self, lane: Lane, request: Request, done: Callable[[Reply], None]) -> None:
        self._lane = lane
        self.request = request
        self.done = done
        self.slot = 0
        self.began_s = began_s = monotonic()
        self.due_s = began_s + request.timeout_us / SECOND
        self.hops_left = request.follow_redirects
        self.is_redirected = self.is_looking = self.is_told = False
        self.known_s = self.connected_s = self.first_s = 0.0
        self.sends = self.sends_of_hops = 0
        self.dial: Dial | None = None
        self.wire: Wire | None = None
        self.onward: Call | None = None

    def abort(self) -> None:
        """End it now; `done` hears of it soon."""
        if self.wire is not None or self.dial is not None or self.is_looking:
            self._lane.abort(self)
        elif self.onward is not None:
            self.onward.abort()

    def connect_due(self) -> float:
        """Tell until when the next step towards a connection must be done."""
        return min(self.due_s, monotonic() + self.request.connect_timeout_us / SECOND)

    def count_sends(self) -> int:
        """Count how often the request was written; of several hops the highest number counts."""
        wire = self.wire
        sends = self.sends + (wire is not None and wire.has_written)
        return max(sends, self.sends_of_hops)

    def turn_to(self, request: Request) -> float:
        """Go on with the request of the next hop. Answer the milliseconds spent."""
        self.sends_of_hops = self.count_sends()
        self.sends = 0
        self.request = request
        self.hops_left = min(self.hops_left, MAX_HOPS) - 1
        self.is_redirected = True
        self.known_s = self.connected_s = self.first_s = 0.0
        return (monotonic() - self.began_s) * 1e3

    # --- what it hears ---

    def hear_name(self, answer: NameAnswer) -> None:
        """Take the answer of a lookup."""
        if self.is_looking:
            self._lane.hear_name(self, answer)

    def hear_opened(self, sock: socket.socket, ip: str) -> None:
        """Take the connection that was dialled."""
        self._lane.hear_opened(self, sock, ip)

    def hear_failed(self, code: int) -> None:
        """Take it that no connection could be had."""
        self._lane.hear_failed(self, code)

    # --- replies ---

    def read_answer(self, answer: Answer, now_s: float) -> Reply:
        """Make the reply of a whole answer, or of one cut at the hard cap."""
        status = answer.status
        retry_after = (
            read_wait(answer.retry_after)
            if answer.retry_after and status >= _ASKS_TO_WAIT
            else None
        )
        return Reply(
            kind="answered",
            timing=self.read_timing(now_s),
            status=status,
            body=answer.body,
            truncated=answer.room < 0,
            retry_after=retry_after,
            sends=self.count_sends(),
        )

    def read_timing(self, now_s: float) -> Timing:
        """Tell how far it got and when, in milliseconds from the start of the first hop."""
        began_s = self.began_s
        return Timing(
            (self.known_s - began_s) * 1e3 if self.known_s else 0.0,
            (self.connected_s - began_s) * 1e3 if self.connected_s else 0.0,
            0.0,
            (self.first_s - began_s) * 1e3 if self.first_s else 0.0,
            (now_s - began_s) * 1e3,
        )

    def fail(self, kind: ReplyKind, why: str) -> Reply:
        """Make the reply of a call that got no answer."""
        if self.is_redirected and kind == "refused":
            why = f"redirected to {self.request.url[:200]}: {why}"
        return Reply(
            kind=kind,
            timing=self.read_timing(monotonic()),
            error=clip_error(why),
            sends=self.count_sends(),
        )

    def fail_lookup(self) -> Reply:
        """Make the reply of a call whose name did not become known in time."""
        limit = format_duration(min(self.request.connect_timeout_us, self.request.timeout_us))
        return self.fail("timeout", f"the name {self.route.host} was not found within {limit}")

    def fail_broken(self, code: int, message: str = "", os_errno: int = 0) -> Reply:
        """Make the reply of a call that broke, in the words that libcurl's error of the same kind
        has."""
        wire, request = self.wire, self.request
        answer = wire.answer if wire is not None else None
        kind, text = describe(
            Failure(
                code=code,
                message=message,
                host=self.route.host,
                port=self.route.port,
                ip=wire.ip if wire is not None else self.route.host,
                os_errno=os_errno,
                received=answer.received if answer is not None else 0,
                has_status=answer is not None,
                is_connected=wire is not None,
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
