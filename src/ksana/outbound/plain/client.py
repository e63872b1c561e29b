"""Calls to http:// on kept connections, without libcurl.

start_if_plain() -> the name is looked up, its addresses are checked -> a kept connection, or a new
one -> the request is sent -> bytes come (on_bytes), or the connection ends (on_end), or the
deadline passes (_on_due) -> done(reply)

It opens connections only to addresses that the egress policy has checked, by their numbers, so
nothing can change between the check and the connect. Connections are kept by (host, port): what was
checked for one name is not used for another. A request on a kept connection that ends before a byte
of the answer is sent once more, on a new one, where `can_send_again` allows it.
"""

import asyncio
import socket
from collections.abc import Callable
from time import monotonic

import pycurl

from ksana.outbound.deadlines import Deadlines
from ksana.outbound.egress import EgressPolicy
from ksana.outbound.plain.call import PlainCall, PlainRoute, encode_request, find_route
from ksana.outbound.plain.connect import ConnectAttempt
from ksana.outbound.plain.connection import ConnectionPool, Origin, PlainConnection
from ksana.outbound.plain.response import ResponseError, ResponseParser, read_common
from ksana.outbound.redirects import REDIRECTS, can_send_again, join_location, next_hop, show_url
from ksana.outbound.resolver import LookupResult, Resolver
from ksana.ports.caller import Call, MaySend, Reply, Request, always

HandOver = Callable[[Request, Callable[[Reply], None], MaySend, int, float, int], Call]
"""Takes a redirected call that is not for this client: its request, its listener, who says whether
it may be sent, hops left, milliseconds spent, and how often the earlier hops were sent."""


class PlainHttpClient:
    """Makes calls on the running loop."""

    def __init__(
        self,
        policy: EgressPolicy,
        resolver: Resolver,
        hand_over: HandOver,
        *,
        max_idle: int,
        hard_cap: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._policy = policy
        self._resolver = resolver
        self._hand_over = hand_over
        self._hard_cap = hard_cap
        self._deadlines: Deadlines[PlainCall] = Deadlines(self._loop, self._on_due)
        self._pool = ConnectionPool(self._loop, max_idle)
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Count the calls that have not ended."""
        return len(self._deadlines)

    def start_if_plain(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend
    ) -> PlainCall | None:
        """Start a call, or answer None if it is not for this client."""
        call = PlainCall(self, request, done, may_send)
        try:
            route = find_route(request.url)
            encoded = encode_request(route, request) if route is not None else None
        except ValueError as error:
            self._loop.call_soon(done, call.fail("refused", f"the request cannot be sent: {error}"))
            return call
        if route is None or encoded is None:
            return None
        reply = self._start(call, route, encoded)
        if reply is not None:
            self._loop.call_soon(done, reply)
        return call

    def refuse(self, request: Request, done: Callable[[Reply], None]) -> PlainCall:
        """Refuse a call that comes after the end."""
        call = PlainCall(self, request, done, always)
        self._loop.call_soon(done, call.fail("aborted", "the caller is closed"))
        return call

    def abort(self, call: PlainCall) -> None:
        """End a call that is under way; `done` is called from the loop."""
        reply = call.fail("aborted", "ended by Ksana before an answer came")
        self._detach(call)
        self._loop.call_soon(call.done, reply)

    def close(self) -> None:
        """Abort what is in flight, calling each `done` before this returns; free every socket."""
        if self._closed:
            return
        self._closed = True
        ended = list(self._deadlines)
        replies = [call.fail("aborted", "ended by Ksana, which is stopping") for call in ended]
        for call in ended:
            self._detach(call)
        self._deadlines.close()
        self._pool.close()
        for call, reply in zip(ended, replies, strict=True):
            self._notify(call, reply)

    # --- names and addresses ---

    def _start(self, call: PlainCall, route: PlainRoute, encoded: bytes) -> Reply | None:
        """Send the request, or begin to connect. Answer a reply if it may not be sent."""
        call.route, call.encoded = route, encoded
        origin = self._pool.origins.get(route.origin)
        if origin is None:
            wrong = self._policy.check_host(route.host, route.port)
            if wrong is not None:
                return call.fail("refused", f"not called: {wrong}")
            origin = self._pool.add_origin(route.host, route.port)
        call.origin = origin
        addresses = route.addresses or self._resolver.find(route.host)
        if addresses is None:
            call.is_resolving = True
            self._deadlines.add(call, call.connect_due())
            self._resolver.ask(route.host, call.on_lookup)
            return None
        return self._send_or_connect(call, origin, addresses)

    def on_lookup(self, call: PlainCall, result: LookupResult) -> None:
        """Go on with a call whose name is known now, or end it if there is no such name."""
        self._detach(call)
        call.resolved_s = monotonic()
        if isinstance(result, str):
            reply: Reply | None = call.fail("unreachable", result)
        else:
            reply = self._send_or_connect(call, call.origin, result)
        if reply is not None:
            self._notify(call, reply)

    def _send_or_connect(
        self, call: PlainCall, origin: Origin, addresses: tuple[str, ...]
    ) -> Reply | None:
        if addresses != origin.checked:
            # All addresses are checked, not only the one that would be tried first: a mix of
            # allowed and forbidden ones is how names are abused.
            for address in addresses:
                wrong = self._policy.check_address(address, origin.port, origin.host)
                if wrong is not None:
                    return call.fail("refused", f"not called: {wrong}")
            origin.checked = addresses
        if not call.may_send():
            return call.fail_not_ours()
        if call.request.may_resend:
            while (kept := self._pool.take(origin, call.request, call.began_s)) is not None:
                if self._send(call, kept):
                    return None
        self._connect(call)
        return None

    def _connect(self, call: PlainCall) -> None:
        origin = call.origin
        call.connecting = ConnectAttempt(
            self._loop, origin.checked, origin.port, call.on_connected, call.on_connect_failed
        )
        self._deadlines.add(call, call.connect_due())
        call.connecting.start()

    def on_connected(self, call: PlainCall, sock: socket.socket, ip: str) -> None:
        """Send the request on the connection that has opened."""
        self._detach(call)
        call.connected_s = monotonic()
        if not call.may_send():
            sock.close()
            self._notify(call, call.fail_not_ours())
            return
        connection = PlainConnection(self, self._loop, sock, ip, call.origin)
        if not self._send(call, connection):
            self._notify(
                call, call.fail_broken(pycurl.E_SEND_ERROR, "reset while the request was sent")
            )

    def on_connect_failed(self, call: PlainCall, code: int) -> None:
        """End a call that no address of its origin has answered."""
        self._detach(call)
        self._notify(call, call.fail_broken(pycurl.E_COULDNT_CONNECT, os_errno=code))

    # --- connections ---

    def _send(self, call: PlainCall, connection: PlainConnection) -> bool:
        try:
            connection.send(call.encoded)
        except OSError:
            connection.close()
            return False
        connection.call = call
        call.connection = connection
        self._deadlines.add(call, call.due_s)
        return True

    def may_write(self, connection: PlainConnection) -> bool:
        """Tell whether the rest of a request may be written; if not, its call is ended."""
        call: PlainCall | None = connection.call
        if call is None or call.may_send():
            return True
        reply = call.fail_not_ours()
        self._detach(call)
        self._notify(call, reply)
        return False

    def on_bytes(self, connection: PlainConnection, data: bytes) -> None:
        """Read on; what comes on an idle connection was not asked for, and ends it."""
        call: PlainCall | None = connection.call
        if call is None:
            self._pool.drop(connection)
            return
        now_s = monotonic()
        response = connection.response
        try:
            if response is None:
                call.first_s = now_s
                request, hard_cap = call.request, self._hard_cap
                most = request.max_body
                # The answer to a HEAD request has no body, whatever it says.
                common = None if request.method == "HEAD" else read_common(data)
                if common is not None:
                    status, body = common
                    size = len(body)
                    if size <= hard_cap and (most is None or size <= most):
                        self._release(call, connection, now_s, can_keep=True)
                        sends = call.count_sends() if call.sends_of_hops else call.sends
                        timing = call.read_timing(now_s)
                        reply = Reply("answered", timing, status, body, False, None, None, sends)
                        self._notify(call, reply)
                        return
                response = connection.response = ResponseParser(
                    request.method == "HEAD", most, hard_cap
                )
            if response.feed(data):
                self._finish(call, connection, response, now_s)
        except ResponseError as error:
            self._fail_response(call, error)
        except Exception as error:
            self._fail_unreadable(call, error)

    def on_end(self, connection: PlainConnection, error: OSError | None) -> None:
        """End or repeat the call of a connection that has ended, in order or with an error."""
        call: PlainCall | None = connection.call
        if call is None:
            self._pool.drop(connection)
            return
        response = connection.response
        if (
            connection.calls > 1
            and response is None
            and (not connection.has_written or can_send_again(call.request))
        ):
            # It was closed before our request reached anybody, most likely: kept connections end
            # like this.
            self._detach(call)
            self._connect(call)
            return
        try:
            if error is not None:
                raise ResponseError(pycurl.E_RECV_ERROR, error.strerror or str(error))
            if response is None:
                raise ResponseError(pycurl.E_GOT_NOTHING)
            response.finish()
            self._finish(call, connection, response, monotonic())
        except ResponseError as broken:
            self._fail_response(call, broken, os_errno=error.errno or 0 if error is not None else 0)
        except Exception as mistake:
            self._fail_unreadable(call, mistake)

    def _release(
        self, call: PlainCall, connection: PlainConnection, now_s: float, can_keep: bool
    ) -> None:
        self._deadlines.remove(call)
        call.sends += connection.has_written
        call.connection = connection.call = connection.response = None
        if can_keep:
            self._pool.put(connection, now_s)
        else:
            connection.close()

    # --- what came of it ---

    def _finish(
        self, call: PlainCall, connection: PlainConnection, response: ResponseParser, now_s: float
    ) -> None:
        self._release(call, connection, now_s, response.can_keep)
        if response.location and response.status in REDIRECTS and call.hops_left > 0:
            followed = self._follow(call, response.status, response.location)
            if followed is not None:
                self._notify(call, followed)
            return
        self._notify(call, call.make_reply(response, now_s))

    def _follow(self, call: PlainCall, status: int, location: bytes) -> Reply | None:
        """Start the next hop. Answer a reply if it may not be called."""
        url = ""
        try:
            url = join_location(call.request.url, location)
            request = next_hop(call.request, status, url)
            route = find_route(request.url)
            encoded = encode_request(route, request) if route is not None else None
        except ValueError as error:
            return call.fail("refused", f"redirected to {show_url(call.request, url)}: {error}")
        spent_ms = call.go_on_with(request)
        if route is None or encoded is None:
            call.handed_over = self._hand_over(
                request, call.done, call.may_send, call.hops_left, spent_ms, call.count_sends()
            )
            return None
        return self._start(call, route, encoded)

    def _on_due(self, call: PlainCall) -> None:
        if call.is_resolving:
            reply = call.fail_lookup()
        else:
            reply = call.fail_broken(pycurl.E_OPERATION_TIMEDOUT)
        self._detach(call)
        self._notify(call, reply)

    def _fail_response(self, call: PlainCall, error: ResponseError, os_errno: int = 0) -> None:
        reply = call.fail_broken(error.code, error.message, os_errno)
        self._detach(call)
        self._notify(call, reply)

    def _fail_unreadable(self, call: PlainCall, error: Exception) -> None:
        """End a call after an error of ours in reading its answer. It costs that call alone, and
        its `done` is called all the same."""
        self._loop.call_exception_handler(
            {"message": "an answer could not be read", "exception": error}
        )
        if not call.is_notified:
            reply = call.fail("unreachable", f"the answer cannot be read: {error}")
            self._detach(call)
            self._notify(call, reply)

    def _detach(self, call: PlainCall) -> None:
        """Take a call out of whatever it waits for."""
        self._deadlines.remove(call)
        if call.is_resolving:
            call.is_resolving = False
            self._resolver.forget(call.origin.host, call.on_lookup)
        if call.connecting is not None:
            call.connecting.end()
            call.connecting = None
        if call.connection is not None:
            call.sends += call.connection.has_written
            call.connection.call = None
            call.connection.close()
            call.connection = None

    def _notify(self, call: PlainCall, reply: Reply) -> None:
        call.is_notified = True
        try:
            call.done(reply)
        except (
            Exception
        ) as error:  # a listener's mistake must not cost the other calls their answers
            self._loop.call_exception_handler(
                {"message": "the listener of a call failed", "exception": error}
            )
