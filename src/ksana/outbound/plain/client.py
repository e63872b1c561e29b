"""The plain lane: calls to http:// on kept connections, without libcurl.

take() -> the name is looked up, its addresses judged -> a kept wire, or a dial -> the letter is
sent bytes come (on_bytes), or the end does (on_end), or the deadline passes (_on_due) ->
done(reply)

It opens connections only to addresses that the egress policy has judged, by their numbers, so
nothing can change between judging and connecting. Connections are kept by (host, port): what was
judged for one name is not lent to another. A request on a kept connection that ends before a byte
of the answer is sent once more, on a new one, where `can_send_again` says so.
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

import pycurl

from ksana.outbound.curl.handle import CONNECTION_LIFE_S
from ksana.outbound.deadlines import Deadlines
from ksana.outbound.egress import EgressPolicy
from ksana.outbound.plain.call import Trip
from ksana.outbound.plain.connect import Dial
from ksana.outbound.plain.connection import Place, Wire
from ksana.outbound.plain.encode_request import Route, find_route, write_letter
from ksana.outbound.plain.response import Answer, AnswerError, read_common
from ksana.outbound.redirects import REDIRECTS, join_location, next_hop
from ksana.outbound.resend import can_send_again
from ksana.outbound.resolver import Answer as NameAnswer
from ksana.outbound.resolver import Names
from ksana.ports.caller import Call, Reply, Request

IDLE_LIFE_S: Final = 118
"""An idle connection is closed after this, as libcurl does; servers keep theirs for 60 to 120 s."""
_SWEEP_S: Final = 15
_LOOK_AFTER_S: Final = 1.0
"""A connection idle for longer is looked at before it is used; a younger one tells us itself,
through the loop."""
_LOOK_FIRST_AFTER_S: Final = 0.01
"""The same for a request that cannot be sent again: its connection must not be a stale one. Looking
costs 1.5 µs; one used just now has hardly had the time to end."""
_MAX_PLACES: Final = 4096

HandOver = Callable[[Request, Callable[[Reply], None], int, float, int], Call]
"""Takes a redirected call that is not for this lane: its request, its listener, hops left,
milliseconds spent, and how often the earlier hops were sent."""


class PlainLane:
    """Makes calls on the running loop."""

    def __init__(
        self,
        policy: EgressPolicy,
        names: Names,
        hand_over: HandOver,
        *,
        max_idle: int,
        hard_cap: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._policy = policy
        self._names = names
        self._hand_over = hand_over
        self._max_idle = max_idle
        self._hard_cap = hard_cap
        self._deadlines: Deadlines[Trip] = Deadlines(self._loop, self._on_due)
        self._places: dict[tuple[str, int], Place] = {}
        self._idle: OrderedDict[Wire, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Count the calls that have not ended."""
        return len(self._deadlines)

    def take(self, request: Request, done: Callable[[Reply], None]) -> Trip | None:
        """Start a call, or answer None if it is not for this lane."""
        trip = Trip(self, request, done)
        try:
            route = find_route(request.url)
            letter = write_letter(route, request) if route is not None else None
        except ValueError as error:
            self._loop.call_soon(done, trip.fail("refused", f"the request cannot be sent: {error}"))
            return trip
        if route is None or letter is None:
            return None
        reply = self._start(trip, route, letter)
        if reply is not None:
            self._loop.call_soon(done, reply)
        return trip

    def refuse(self, request: Request, done: Callable[[Reply], None]) -> Trip:
        """Answer a call that comes after the end."""
        trip = Trip(self, request, done)
        self._loop.call_soon(done, trip.fail("aborted", "the caller is closed"))
        return trip

    def abort(self, trip: Trip) -> None:
        """End a call that is under way, and tell it so from the loop."""
        reply = trip.fail("aborted", "ended by Ksana before an answer came")
        self._leave(trip)
        self._loop.call_soon(trip.done, reply)

    def close(self) -> None:
        """Abort what is in flight, telling each one before this returns, and free every socket."""
        if self._closed:
            return
        self._closed = True
        ended = list(self._deadlines)
        replies = [trip.fail("aborted", "ended by Ksana, which is stopping") for trip in ended]
        for trip in ended:
            self._leave(trip)
        self._deadlines.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for wire in self._idle:
            wire.close()
        self._idle.clear()
        self._places.clear()
        for trip, reply in zip(ended, replies, strict=True):
            self._tell(trip, reply)

    # --- names and addresses ---

    def _start(self, trip: Trip, route: Route, letter: bytes) -> Reply | None:
        """Send the request, or begin with what it takes. Answer a reply if it may not be sent."""
        trip.route, trip.letter = route, letter
        place = self._places.get(route.place)
        if place is None:
            wrong = self._policy.check_host(route.host, route.port)
            if wrong is not None:
                return trip.fail("refused", f"not called: {wrong}")
            place = self._add_place(route)
        trip.place = place
        addresses = route.addresses or self._names.find(route.host)
        if addresses is None:
            trip.is_looking = True
            self._deadlines.add(trip, trip.connect_due())
            self._names.ask(route.host, trip.hear_name)
            return None
        return self._go(trip, place, addresses)

    def _add_place(self, route: Route) -> Place:
        if len(self._places) >= _MAX_PLACES:
            for key in [key for key, place in self._places.items() if not place.idle]:
                del self._places[key]
        place = self._places[route.place] = Place(route.host, route.port)
        return place

    def hear_name(self, trip: Trip, answer: NameAnswer) -> None:
        """Go on with a call whose name is known now, or end it if there is no such name."""
        self._leave(trip)
        trip.known_s = monotonic()
        if isinstance(answer, str):
            reply: Reply | None = trip.fail("unreachable", answer)
        else:
            reply = self._go(trip, trip.place, answer)
        if reply is not None:
            self._tell(trip, reply)

    def _go(self, trip: Trip, place: Place, addresses: tuple[str, ...]) -> Reply | None:
        if addresses != place.judged:
            # All answers are judged, not only the one that would be tried first: a mixed set is how
            # names are abused.
            for address in addresses:
                wrong = self._policy.check_address(address, place.port, place.host)
                if wrong is not None:
                    return trip.fail("refused", f"not called: {wrong}")
            place.judged = addresses
        while place.idle and trip.request.may_resend:
            wire = place.idle.pop()
            del self._idle[wire]
            idle_s = trip.began_s - wire.idle_s
            if idle_s > _LOOK_FIRST_AFTER_S and not self._is_fit(wire, trip, idle_s):
                wire.close()
            elif self._send(trip, wire):
                return None
        self._dial(trip)
        return None

    def _dial(self, trip: Trip) -> None:
        place = trip.place
        trip.dial = Dial(self._loop, place.judged, place.port, trip.hear_opened, trip.hear_failed)
        self._deadlines.add(trip, trip.connect_due())
        trip.dial.start()

    def hear_opened(self, trip: Trip, sock: socket.socket, ip: str) -> None:
        """Send the request on the connection that has opened."""
        self._leave(trip)
        trip.connected_s = monotonic()
        wire = Wire(self, self._loop, sock, ip, trip.place)
        if not self._send(trip, wire):
            self._tell(
                trip, trip.fail_broken(pycurl.E_SEND_ERROR, "reset while the request was sent")
            )

    def hear_failed(self, trip: Trip, code: int) -> None:
        """End a call that no address of its place has answered."""
        self._leave(trip)
        self._tell(trip, trip.fail_broken(pycurl.E_COULDNT_CONNECT, os_errno=code))

    # --- wires ---

    def _is_fit(self, wire: Wire, trip: Trip, idle_s: float) -> bool:
        """Tell whether a connection that was idle for a while may carry a call."""
        if idle_s <= _LOOK_AFTER_S and can_send_again(trip.request):
            return True
        if idle_s > IDLE_LIFE_S or trip.began_s - wire.born_s > CONNECTION_LIFE_S:
            return False
        return wire.is_silent()

    def _send(self, trip: Trip, wire: Wire) -> bool:
        try:
            wire.send(trip.letter)
        except OSError:
            wire.close()
            return False
        wire.answer = None
        wire.trip = trip
        trip.wire = wire
        self._deadlines.add(trip, trip.due_s)
        return True

    def on_bytes(self, wire: Wire, data: bytes) -> None:
        """Read on; what comes on an idle connection was not asked for, and ends it."""
        trip: Trip | None = wire.trip
        if trip is None:
            self._drop_idle(wire)
            return
        now_s = monotonic()
        answer = wire.answer
        try:
            if answer is None:
                trip.first_s = now_s
                request = trip.request
                common = read_common(data)
                if common is not None and self._fits(request, len(common[1])):
                    self._release(trip, wire, now_s, can_keep=True)
                    status, body = common
                    sends = trip.count_sends() if trip.sends_of_hops else trip.sends
                    timing = trip.read_timing(now_s)
                    self._tell(
                        trip, Reply("answered", timing, status, body, False, None, None, sends)
                    )
                    return
                answer = wire.answer = Answer(
                    request.method == "HEAD", request.max_body, self._hard_cap
                )
            if answer.feed(data):
                self._finish(trip, wire, answer, now_s)
        except AnswerError as error:
            self._break(trip, error)
        except Exception as error:
            self._stumble(trip, error)

    def on_end(self, wire: Wire, error: OSError | None) -> None:
        """Hear that a connection has ended: in order, or with an error."""
        trip: Trip | None = wire.trip
        if trip is None:
            self._drop_idle(wire)
            return
        answer = wire.answer
        if (
            wire.calls > 1
            and answer is None
            and (not wire.has_written or can_send_again(trip.request))
        ):
            # It was closed before our request reached anybody, most likely: kept connections end
            # like this.
            self._leave(trip)
            self._dial(trip)
            return
        try:
            if error is not None:
                raise AnswerError(pycurl.E_RECV_ERROR, error.strerror or str(error))
            if answer is None:
                raise AnswerError(pycurl.E_GOT_NOTHING)
            answer.finish()
            self._finish(trip, wire, answer, monotonic())
        except AnswerError as broken:
            self._break(trip, broken, os_errno=error.errno or 0 if error is not None else 0)
        except Exception as mistake:
            self._stumble(trip, mistake)

    def _fits(self, request: Request, size: int) -> bool:
        """Tell whether a body is kept whole; the answer to a HEAD request has none, whatever it
        says."""
        is_kept = size <= self._hard_cap and (request.max_body is None or size <= request.max_body)
        return is_kept and request.method != "HEAD"

    def _release(self, trip: Trip, wire: Wire, now_s: float, can_keep: bool) -> None:
        self._deadlines.remove(trip)
        trip.sends += wire.has_written
        trip.wire = wire.trip = wire.answer = None
        if not (can_keep and wire.is_sent and now_s - wire.born_s < CONNECTION_LIFE_S):
            wire.close()
            return
        wire.idle_s = now_s
        wire.place.idle.append(wire)
        self._idle[wire] = None
        if len(self._idle) > self._max_idle:
            self._drop_idle(next(iter(self._idle)))
        elif self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_S, self._close_old)

    def _drop_idle(self, wire: Wire) -> None:
        if wire in self._idle:
            del self._idle[wire]
            wire.place.idle.remove(wire)
        wire.close()

    def _close_old(self) -> None:
        self._sweep = None
        now_s = monotonic()
        while self._idle and now_s - (oldest := next(iter(self._idle))).idle_s > IDLE_LIFE_S:
            self._drop_idle(oldest)
        if self._idle:
            self._sweep = self._loop.call_later(_SWEEP_S, self._close_old)

    # --- what came of it ---

    def _finish(self, trip: Trip, wire: Wire, answer: Answer, now_s: float) -> None:
        self._release(trip, wire, now_s, answer.can_keep)
        if answer.location and answer.status in REDIRECTS and trip.hops_left > 0:
            followed = self._follow(trip, answer.status, answer.location)
            if followed is not None:
                self._tell(trip, followed)
            return
        self._tell(trip, trip.read_answer(answer, now_s))

    def _follow(self, trip: Trip, status: int, location: bytes) -> Reply | None:
        """Start the next hop. Answer a reply if it may not be called."""
        url = ""
        try:
            url = join_location(trip.request.url, location)
            request = next_hop(trip.request, status, url)
            route = find_route(request.url)
            letter = write_letter(route, request) if route is not None else None
        except ValueError as error:
            return trip.fail("refused", f"redirected to {url[:200]}: {error}")
        spent_ms = trip.turn_to(request)
        if route is None or letter is None:
            trip.onward = self._hand_over(
                request, trip.done, trip.hops_left, spent_ms, trip.count_sends()
            )
            return None
        return self._start(trip, route, letter)

    def _on_due(self, trip: Trip) -> None:
        if trip.is_looking:
            reply = trip.fail_lookup()
        else:
            reply = trip.fail_broken(pycurl.E_OPERATION_TIMEDOUT)
        self._leave(trip)
        self._tell(trip, reply)

    def _break(self, trip: Trip, error: AnswerError, os_errno: int = 0) -> None:
        reply = trip.fail_broken(error.code, error.message, os_errno)
        self._leave(trip)
        self._tell(trip, reply)

    def _stumble(self, trip: Trip, error: Exception) -> None:
        """End a call whose answer we stumble over: it costs that call alone, and it still hears of
        its end."""
        self._loop.call_exception_handler(
            {"message": "an answer could not be read", "exception": error}
        )
        if not trip.is_told:
            reply = trip.fail("unreachable", f"the answer cannot be read: {error}")
            self._leave(trip)
            self._tell(trip, reply)

    def _leave(self, trip: Trip) -> None:
        """Take a call out of whatever it waits for."""
        self._deadlines.remove(trip)
        if trip.is_looking:
            trip.is_looking = False
            self._names.forget(trip.place.host, trip.hear_name)
        if trip.dial is not None:
            trip.dial.end()
            trip.dial = None
        if trip.wire is not None:
            trip.sends += trip.wire.has_written
            trip.wire.trip = None
            trip.wire.close()
            trip.wire = None

    def _tell(self, trip: Trip, reply: Reply) -> None:
        trip.is_told = True
        try:
            trip.done(reply)
        except (
            Exception
        ) as error:  # a listener's mistake must not cost the other calls their answers
            self._loop.call_exception_handler(
                {"message": "the listener of a call failed", "exception": error}
            )
