"""The Caller on libcurl's multi interface, driven by the event loop's own readiness and timers.

call() -> the name is looked up, its addresses judged -> a line is dialled and added libcurl names
its sockets (_watch) and its next deadline (_set_timer) the loop wakes us (_on_ready, _on_timer) ->
libcurl moves on -> what is over is collected (_collect) -> done(reply)

Collecting waits until the loop has served every socket that was ready: calls that end together are
told together, the calls they lead to start together, and libcurl finds a free connection for each
without searching among busy ones.

Every connection is opened by `Line._open_socket`, which asks the egress policy about the resolved
address. Connections are kept by (scheme, host, port), the policy never changes, so a kept
connection was judged by the rules now in force. Redirects are not left to libcurl: each hop is a
new dial, under the same guard and what is left of the deadline. Neither is sending again: libcurl
would, on any kept connection that ends unanswered, whatever the method and up to five times. The
line stops it (`Line._before_request`), and `_send_again` does it where it is allowed, once.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import pycurl

from ksana.base.errors import SetupError
from ksana.base.instant import MILLISECOND
from ksana.domain.tasks.headers import Target, split_url
from ksana.outbound.curl.call import Flight, read_answer, read_failure
from ksana.outbound.curl.handle import HARD_CAP, Line
from ksana.outbound.egress import EgressPolicy
from ksana.outbound.redirects import REDIRECTS, next_hop, read_location
from ksana.outbound.resend import can_send_again
from ksana.outbound.resolver import Answer, LookUp, Names, is_literal, look_up_addresses
from ksana.ports.caller import Reply, Request

MAX_IDLE: Final = 256
"""Connections kept open for the next call, and handles kept for it; not less than the calls made at
once."""


class CurlCaller:
    """Makes calls on the running loop. Make it on the loop, use it on the loop, close it there."""

    def __init__(
        self,
        policy: EgressPolicy | None = None,
        *,
        max_idle: int = MAX_IDLE,
        ca_file: str | None = None,
        look_up: LookUp = look_up_addresses,
        hard_cap: int = HARD_CAP,
        names: Names | None = None,
    ) -> None:
        """Take the egress rules. `look_up` turns a name into addresses, on a thread of its own; it
        may block.

        `names` is a resolver shared with others, who close it.
        """
        check_libcurl()
        self._loop = asyncio.get_running_loop()
        self._policy = policy or EgressPolicy()
        self._max_idle = max_idle
        self._ca_file = ca_file or _find_ca_file()
        self._names = names or Names(self._loop, look_up)
        self._owns_names = names is None
        self._looking: set[Flight] = set()
        self._hard_cap = hard_cap
        self._free: list[Line] = []
        self._opened: list[socket.socket] = []
        self._busy: dict[Any, Line] = {}
        self._collecting = False
        self._watched: dict[int, int] = {}
        self._timer: asyncio.Handle | None = None
        self._closed = False
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, max_idle)
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._act = self._multi.socket_action

    @property
    def in_flight(self) -> int:
        """Count the calls that have not ended."""
        return len(self._busy) + len(self._looking)

    def call(self, request: Request, done: Callable[[Reply], None]) -> Flight:
        """Start an attempt; see the port."""
        return self._launch(Flight(self, request, done))

    def carry_on(
        self,
        request: Request,
        done: Callable[[Reply], None],
        hops_left: int,
        spent_ms: float,
        sends: int,
    ) -> Flight:
        """Take over a call that another lane began and that was redirected here."""
        flight = Flight(self, request, done)
        flight.hops_left = hops_left
        flight.offset_ms = spent_ms
        flight.is_redirected = True
        flight.sends_of_hops = sends
        return self._launch(flight)

    def _launch(self, flight: Flight) -> Flight:
        reply = (
            self._start(flight)
            if not self._closed
            else flight.fail("aborted", "the caller is closed")
        )
        if reply is not None:
            self._loop.call_soon(flight.done, reply)
        return flight

    def abort(self, flight: Flight) -> None:
        """End a flight that is under way, and tell it so from the loop."""
        reply = flight.fail("aborted", "ended by Ksana before an answer came")
        if flight.line is not None:
            self._multi.remove_handle(flight.line.curl)
            self._release(flight.line, flight)
        else:
            self._end_lookup(flight)
        self._loop.call_soon(flight.done, reply)

    def close(self) -> None:
        """Abort what is in flight, telling each one before this returns, and free every socket."""
        if self._closed:
            return
        self._closed = True
        lines = list(self._busy.values())
        ended: list[Flight] = [*(line.flight for line in lines), *self._looking]
        # Made before the handles are closed: they know how often a request was sent.
        replies = [flight.fail("aborted", "ended by Ksana, which is stopping") for flight in ended]
        for flight in list(self._looking):
            self._end_lookup(flight)
        if self._owns_names:
            self._names.close()
        for line in lines:
            self._multi.remove_handle(line.curl)
        if self._timer is not None:
            self._timer.cancel()
        for fd in list(self._watched):
            self._unwatch(fd)
        self._multi.close()
        for line in (*lines, *self._free):
            line.close()
        self._busy.clear()
        self._free.clear()
        for flight, reply in zip(ended, replies, strict=True):
            flight.line = None
            self._tell(flight, reply)

    # --- names and dialling ---

    def _start(self, flight: Flight) -> Reply | None:
        """Send the flight's request, or begin to look its name up. Answer a reply if it may not or
        cannot be sent."""
        flight.dns_ms = 0.0
        try:
            target = flight.target = split_url(flight.request.url)
        except ValueError as error:
            return flight.fail("refused", f"the request cannot be sent: {error}")
        wrong = self._policy.check_host(target.host, target.port)
        if wrong is not None:
            return flight.fail("refused", f"not called: {wrong}")
        if is_literal(target.host):
            return self._dial(flight, target, ())
        addresses = self._names.find(target.host)
        if addresses is not None:
            return self._dial_name(flight, target, addresses)
        self._looking.add(flight)
        flight.lookup_began_s = self._loop.time()
        left_ms = min(self._left_ms(flight), flight.request.connect_timeout_us / MILLISECOND)
        flight.lookup_timer = self._loop.call_later(left_ms / 1e3, self._on_lookup_late, flight)
        self._names.ask(target.host, flight.hear_name)
        return None

    def hear_name(self, flight: Flight, answer: Answer) -> None:
        """Go on with a flight whose name is known now, or end it if there is no such name."""
        self._end_lookup(flight)
        flight.dns_ms = flight.offset_ms
        if isinstance(answer, str):
            reply: Reply | None = flight.fail("unreachable", answer)
        else:
            assert flight.target is not None
            reply = self._dial_name(flight, flight.target, answer)
        if reply is not None:
            self._tell(flight, reply)

    def _on_lookup_late(self, flight: Flight) -> None:
        self._end_lookup(flight)
        self._tell(flight, flight.fail_lookup())

    def _end_lookup(self, flight: Flight) -> None:
        self._looking.discard(flight)
        if flight.lookup_timer is not None and flight.target is not None:
            flight.lookup_timer.cancel()
            flight.lookup_timer = None
            flight.offset_ms += (self._loop.time() - flight.lookup_began_s) * 1e3
            self._names.forget(flight.target.host, flight.hear_name)

    def _dial_name(
        self, flight: Flight, target: Target, addresses: tuple[str, ...]
    ) -> Reply | None:
        # All answers are judged, not only the one that would be tried first: a mixed set is how
        # names are abused.
        for address in addresses:
            wrong = self._policy.check_address(address, target.port, target.host)
            if wrong is not None:
                return flight.fail("refused", f"not called: {wrong}")
        return self._dial(flight, target, addresses)

    def _dial(self, flight: Flight, target: Target, addresses: tuple[str, ...]) -> Reply | None:
        request = flight.request
        line = self._free.pop() if self._free else self._new_line()
        left_ms = max(1, int(self._left_ms(flight)))
        connect_ms = min(left_ms, max(1, request.connect_timeout_us // MILLISECOND))
        try:
            is_fresh = flight.is_resent or not request.may_resend
            line.dial(request, target, addresses, left_ms, connect_ms, is_fresh=is_fresh)
        except (ValueError, pycurl.error) as error:
            self._free.append(line)
            return flight.fail("refused", f"the request cannot be sent: {error}")
        flight.line = line
        line.flight = flight
        self._busy[line.curl] = line
        self._multi.add_handle(line.curl)
        return None

    def _left_ms(self, flight: Flight) -> float:
        return flight.request.timeout_us / MILLISECOND - flight.offset_ms

    def _new_line(self) -> Line:
        return Line(self._policy, self._opened, self._ca_file, self._hard_cap)

    # --- what libcurl asks of the loop ---

    def _set_timer(self, wait_ms: int) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_ms == 0:
            self._timer = self._loop.call_soon(self._on_timer)
        elif wait_ms > 0:
            self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _watch(self, what: int, fd: int, multi: Any, data: Any) -> None:
        if self._closed:  # libcurl's last words while it is freed
            return
        wanted = 0 if what == pycurl.POLL_REMOVE else what
        had = self._watched.get(fd, 0)
        changed = wanted ^ had
        if changed & pycurl.POLL_IN:
            if wanted & pycurl.POLL_IN:
                self._loop.add_reader(fd, self._on_ready, fd, pycurl.CSELECT_IN)
            else:
                self._loop.remove_reader(fd)
        if changed & pycurl.POLL_OUT:
            if wanted & pycurl.POLL_OUT:
                self._loop.add_writer(fd, self._on_ready, fd, pycurl.CSELECT_OUT)
            else:
                self._loop.remove_writer(fd)
        if wanted:
            self._watched[fd] = wanted
        elif had:
            del self._watched[fd]

    def _unwatch(self, fd: int) -> None:
        had = self._watched.pop(fd)
        if had & pycurl.POLL_IN:
            self._loop.remove_reader(fd)
        if had & pycurl.POLL_OUT:
            self._loop.remove_writer(fd)

    def _on_timer(self) -> None:
        self._timer = None
        running = self._act(pycurl.SOCKET_TIMEOUT, 0)[1]
        if self._opened:
            self._close_opened()
        if running < len(self._busy) and not self._collecting:
            self._collecting = True
            self._loop.call_soon(self._collect)

    def _on_ready(self, fd: int, ready: int) -> None:
        running = self._act(fd, ready)[1]
        if self._opened:
            self._close_opened()
        if running < len(self._busy) and not self._collecting:
            self._collecting = True
            self._loop.call_soon(self._collect)

    def _close_opened(self) -> None:
        """Close our ends of the sockets that libcurl now holds duplicates of."""
        for opened in self._opened:
            opened.close()
        self._opened.clear()

    # --- what came of it ---

    def _collect(self) -> None:
        self._collecting = False
        queued = 1
        while queued and not self._closed:
            queued, answered, failed = self._multi.info_read()
            # The flights are noted first: a `done` may abort another of this batch and put its line
            # to new use.
            busy = self._busy
            ended = [(busy[curl].flight, 0, "") for curl in answered]
            for curl, code, message in failed:
                ended.append((busy[curl].flight, code, message))
            for flight, code, message in ended:
                if flight.line is not None:
                    self._finish_safely(flight.line, flight, code, message)

    def _finish_safely(self, line: Line, flight: Flight, code: int, message: str) -> None:
        """Finish a call; an answer that we stumble over costs that call alone, and it still hears
        of its end."""
        try:
            self._finish(line, flight, code, message)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "an answer could not be read", "exception": error}
            )
            if flight.line is not None:
                reply = flight.fail("unreachable", f"the answer cannot be read: {error}")
                self._release(line, flight)
                self._tell(flight, reply)

    def _finish(self, line: Line, flight: Flight, code: int, message: str) -> None:
        self._multi.remove_handle(line.curl)
        status: int = line.curl.getinfo(pycurl.RESPONSE_CODE)
        url = None
        if line.is_stopped:
            # libcurl was about to send the request again by itself.
            if self._can_send_again(line, flight):
                self._send_again(line, flight)
                return
            code, message = pycurl.E_GOT_NOTHING, ""
        if code != 0 and not line.is_capped:
            reply = read_failure(line, flight, code, message, status)
        else:
            if status in REDIRECTS and flight.hops_left > 0:
                url = read_location(line.curl.getinfo_raw(pycurl.REDIRECT_URL) or b"")
            reply = read_answer(line, flight, status)
        self._release(line, flight)
        if url:
            followed = self._follow(flight, reply, url)
            if followed is None:
                return
            reply = followed
        self._tell(flight, reply)

    def _can_send_again(self, line: Line, flight: Flight) -> bool:
        if flight.is_resent:
            return False
        return not line.has_written() or can_send_again(flight.request)

    def _send_again(self, line: Line, flight: Flight) -> None:
        """Send the request once more, on a new connection."""
        flight.offset_ms = flight.read_timing().total_ms
        flight.sends += line.has_written()
        flight.is_resent = True
        self._release(line, flight)
        reply = self._start(flight)
        if reply is not None:
            self._tell(flight, reply)

    def _follow(self, flight: Flight, reply: Reply, url: str) -> Reply | None:
        """Start the next hop. Answer a reply if it may not be called."""
        assert reply.status is not None
        flight.hops_left -= 1
        flight.is_redirected = True
        flight.is_resent = False
        flight.sends, flight.sends_of_hops = 0, reply.sends
        flight.offset_ms = reply.timing.total_ms
        try:
            flight.request = next_hop(flight.request, reply.status, url)
        except ValueError as error:
            return flight.fail("refused", f"redirected to {url[:200]}: {error}")
        return self._start(flight)

    def _release(self, line: Line, flight: Flight) -> None:
        flight.line = None
        line.flight = None
        line.chunks = []
        del self._busy[line.curl]
        if len(self._free) < self._max_idle:
            self._free.append(line)
        else:
            line.close()

    def _tell(self, flight: Flight, reply: Reply) -> None:
        try:
            flight.done(reply)
        except (
            Exception
        ) as error:  # a listener's mistake must not cost the other calls their answers
            self._loop.call_exception_handler(
                {"message": "the listener of a call failed", "exception": error}
            )


def check_libcurl() -> None:
    """Raise SetupError if this libcurl cannot be used."""
    if not hasattr(pycurl, "PREREQFUNCTION"):
        raise SetupError("this pycurl cannot watch requests leave; install 7.45.7 or later")
    if not pycurl.version_info()[4] & pycurl.VERSION_ASYNCHDNS:
        raise SetupError(
            "this libcurl looks names up on the calling thread; install one with a threaded resolver"
        )


def _find_ca_file() -> str | None:
    """Find the machine's list of trusted roots: the libcurl inside a wheel does not know where it
    lies."""
    paths = ssl.get_default_verify_paths()
    for path in (
        paths.cafile,
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/cert.pem",
    ):
        if path and os.path.exists(path):
            return path
    return None
