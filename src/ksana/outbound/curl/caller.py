"""The Caller on libcurl's multi interface, driven by the event loop.

call() -> the name is looked up, its addresses are checked -> a handle is prepared and added -> the
loop serves libcurl's sockets and its timer (`LoopMulti`) -> transfers that have ended are collected
(_collect) -> done(reply)

Collecting waits until the loop has served every socket that was ready: calls that end together are
reported together, the calls they lead to start together, and libcurl finds a free connection for
each without searching among busy ones.

Every connection is opened by `CurlHandle._open_socket`, which asks the egress policy about the
resolved address. Connections are kept by (scheme, host, port), and the policy never changes, so a
kept connection was checked by the rules now in force. Redirects are not left to libcurl: each hop
is a new request, under the same checks and what is left of the deadline. Neither is sending again:
libcurl would, on any kept connection that ends unanswered, whatever the method and up to five
times. The handle stops it (`CurlHandle._before_request`), and `_send_again` does it where it is
allowed, once.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Any, Final

import pycurl

from ksana.base.errors import SetupError
from ksana.base.instant import MILLISECOND
from ksana.domain.tasks.headers import Target, split_url
from ksana.outbound.curl.call import CurlCall, make_reply, read_failure
from ksana.outbound.curl.handle import HARD_CAP, CurlHandle
from ksana.outbound.curl.multi import LoopMulti
from ksana.outbound.egress import EgressPolicy
from ksana.outbound.redirects import REDIRECTS, can_send_again, next_hop, read_location, show_url
from ksana.outbound.resolver import (
    LookUpFunction,
    LookupResult,
    Resolver,
    is_literal,
    look_up_addresses,
)
from ksana.ports.caller import NOT_OURS, MaySend, Reply, Request, always

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
        look_up: LookUpFunction = look_up_addresses,
        hard_cap: int = HARD_CAP,
        resolver: Resolver | None = None,
    ) -> None:
        """Take the egress rules. `look_up` turns a name into addresses, on a thread of its own; it
        may block.

        `resolver` is shared with others, who close it.
        """
        check_libcurl()
        self._loop = asyncio.get_running_loop()
        self._policy = policy or EgressPolicy()
        self._max_idle = max_idle
        self._ca_file = ca_file or _find_ca_file()
        self._resolver = resolver or Resolver(self._loop, look_up)
        self._owns_resolver = resolver is None
        self._resolving: set[CurlCall] = set()
        self._hard_cap = hard_cap
        self._free: list[CurlHandle] = []
        self._busy: dict[Any, CurlHandle] = {}
        self._collecting = False
        self._closed = False
        self._multi = LoopMulti(self._loop, max_idle, self._on_progress)

    @property
    def in_flight(self) -> int:
        """Count the calls that have not ended."""
        return len(self._busy) + len(self._resolving)

    def call(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend = always
    ) -> CurlCall:
        """Start an attempt; see the port."""
        return self._begin(CurlCall(self, request, done, may_send))

    def take_over(
        self,
        request: Request,
        done: Callable[[Reply], None],
        may_send: MaySend,
        hops_left: int,
        spent_ms: float,
        sends: int,
    ) -> CurlCall:
        """Take over a call that another client began and that was redirected here."""
        call = CurlCall(self, request, done, may_send)
        call.hops_left = hops_left
        call.offset_ms = spent_ms
        call.is_redirected = True
        call.sends_of_hops = sends
        return self._begin(call)

    def _begin(self, call: CurlCall) -> CurlCall:
        reply = (
            self._start(call) if not self._closed else call.fail("aborted", "the caller is closed")
        )
        if reply is not None:
            self._loop.call_soon(call.done, reply)
        return call

    def abort(self, call: CurlCall) -> None:
        """End a call that is under way; `done` is called from the loop."""
        reply = call.fail("aborted", "ended by Ksana before an answer came")
        if call.handle is not None:
            self._multi.remove_handle(call.handle.curl)
            self._release(call.handle, call)
        else:
            self._end_lookup(call)
        self._loop.call_soon(call.done, reply)

    def close(self) -> None:
        """Abort what is in flight, calling each `done` before this returns; free every socket."""
        if self._closed:
            return
        self._closed = True
        handles = list(self._busy.values())
        ended: list[CurlCall] = [*(handle.call for handle in handles), *self._resolving]
        # Made before the handles are closed: they know how often a request was sent.
        replies = [call.fail("aborted", "ended by Ksana, which is stopping") for call in ended]
        for call in list(self._resolving):
            self._end_lookup(call)
        if self._owns_resolver:
            self._resolver.close()
        for handle in handles:
            self._multi.remove_handle(handle.curl)
        self._multi.close()
        for handle in (*handles, *self._free):
            handle.close()
        self._busy.clear()
        self._free.clear()
        for call, reply in zip(ended, replies, strict=True):
            call.handle = None
            self._notify(call, reply)

    # --- names and addresses ---

    def _start(self, call: CurlCall) -> Reply | None:
        """Send the request, or begin to look its name up. Answer a reply if it may not or cannot
        be sent."""
        call.dns_ms = 0.0
        try:
            target = call.target = split_url(call.request.url)
        except ValueError as error:
            return call.fail("refused", f"the request cannot be sent: {error}")
        wrong = self._policy.check_host(target.host, target.port)
        if wrong is not None:
            return call.fail("refused", f"not called: {wrong}")
        if is_literal(target.host):
            return self._send(call, target, ())
        addresses = self._resolver.find(target.host)
        if addresses is not None:
            return self._send_to_name(call, target, addresses)
        self._resolving.add(call)
        call.lookup_began_s = self._loop.time()
        left_ms = min(self._left_ms(call), call.request.connect_timeout_us / MILLISECOND)
        call.lookup_timer = self._loop.call_later(left_ms / 1e3, self._on_lookup_late, call)
        self._resolver.ask(target.host, call.on_lookup)
        return None

    def on_lookup(self, call: CurlCall, answer: LookupResult) -> None:
        """Go on with a call whose name is known now, or end it if there is no such name."""
        self._end_lookup(call)
        call.dns_ms = call.offset_ms
        if isinstance(answer, str):
            reply: Reply | None = call.fail("unreachable", answer)
        else:
            assert call.target is not None
            reply = self._send_to_name(call, call.target, answer)
        if reply is not None:
            self._notify(call, reply)

    def _on_lookup_late(self, call: CurlCall) -> None:
        self._end_lookup(call)
        self._notify(call, call.fail_lookup())

    def _end_lookup(self, call: CurlCall) -> None:
        self._resolving.discard(call)
        if call.lookup_timer is not None and call.target is not None:
            call.lookup_timer.cancel()
            call.lookup_timer = None
            call.offset_ms += (self._loop.time() - call.lookup_began_s) * 1e3
            self._resolver.forget(call.target.host, call.on_lookup)

    def _send_to_name(
        self, call: CurlCall, target: Target, addresses: tuple[str, ...]
    ) -> Reply | None:
        # All addresses are checked, not only the one that would be tried first: a mix of allowed
        # and forbidden ones is how names are abused.
        for address in addresses:
            wrong = self._policy.check_address(address, target.port, target.host)
            if wrong is not None:
                return call.fail("refused", f"not called: {wrong}")
        return self._send(call, target, addresses)

    def _send(self, call: CurlCall, target: Target, addresses: tuple[str, ...]) -> Reply | None:
        request = call.request
        handle = self._free.pop() if self._free else self._new_handle()
        left_ms = max(1, int(self._left_ms(call)))
        connect_ms = min(left_ms, max(1, request.connect_timeout_us // MILLISECOND))
        try:
            is_fresh = call.is_resent or not request.may_resend
            handle.prepare(request, target, addresses, left_ms, connect_ms, is_fresh=is_fresh)
        except (ValueError, pycurl.error) as error:
            self._free.append(handle)
            return call.fail("refused", f"the request cannot be sent: {error}")
        call.handle = handle
        handle.call = call
        self._busy[handle.curl] = handle
        self._multi.add_handle(handle.curl)
        return None

    def _left_ms(self, call: CurlCall) -> float:
        return call.request.timeout_us / MILLISECOND - call.offset_ms

    def _new_handle(self) -> CurlHandle:
        return CurlHandle(self._policy, self._multi.opened, self._ca_file, self._hard_cap)

    def _on_progress(self, running: int) -> None:
        if running < len(self._busy) and not self._collecting:
            self._collecting = True
            self._loop.call_soon(self._collect)

    # --- what came of it ---

    def _collect(self) -> None:
        self._collecting = False
        queued = 1
        while queued and not self._closed:
            queued, answered, failed = self._multi.info_read()
            # The calls are noted first: a `done` may abort another of this batch and put its handle
            # to new use.
            busy = self._busy
            ended = [(busy[curl].call, 0, "") for curl in answered]
            for curl, code, message in failed:
                ended.append((busy[curl].call, code, message))
            for call, code, message in ended:
                if call.handle is not None:
                    self._finish_safely(call.handle, call, code, message)

    def _finish_safely(self, handle: CurlHandle, call: CurlCall, code: int, message: str) -> None:
        """Finish a call. An error of ours in reading the answer costs that call alone; its `done`
        is called all the same."""
        try:
            self._finish(handle, call, code, message)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "an answer could not be read", "exception": error}
            )
            if call.handle is not None:
                reply = call.fail("unreachable", f"the answer cannot be read: {error}")
                self._release(handle, call)
                self._notify(call, reply)

    def _finish(self, handle: CurlHandle, call: CurlCall, code: int, message: str) -> None:
        self._multi.remove_handle(handle.curl)
        status: int = handle.curl.getinfo(pycurl.RESPONSE_CODE)
        url = None
        if handle.is_forbidden:
            reply = call.fail("aborted", NOT_OURS)
            self._release(handle, call)
            self._notify(call, reply)
            return
        if handle.is_stopped:
            # libcurl was about to send the request again by itself.
            if self._can_send_again(handle, call):
                self._send_again(handle, call)
                return
            code, message = pycurl.E_GOT_NOTHING, ""
        if code != 0 and not handle.is_capped:
            reply = read_failure(handle, call, code, message, status)
        else:
            if status in REDIRECTS and call.hops_left > 0:
                url = read_location(handle.curl.getinfo_raw(pycurl.REDIRECT_URL) or b"")
            reply = make_reply(handle, call, status)
        self._release(handle, call)
        if url:
            followed = self._follow(call, reply, url)
            if followed is None:
                return
            reply = followed
        self._notify(call, reply)

    def _can_send_again(self, handle: CurlHandle, call: CurlCall) -> bool:
        if call.is_resent:
            return False
        return not handle.has_written() or can_send_again(call.request)

    def _send_again(self, handle: CurlHandle, call: CurlCall) -> None:
        """Send the request once more, on a new connection."""
        call.offset_ms = call.read_timing().total_ms
        call.sends += handle.has_written()
        call.is_resent = True
        self._release(handle, call)
        reply = self._start(call)
        if reply is not None:
            self._notify(call, reply)

    def _follow(self, call: CurlCall, reply: Reply, url: str) -> Reply | None:
        """Start the next hop. Answer a reply if it may not be called."""
        assert reply.status is not None
        call.hops_left -= 1
        call.is_redirected = True
        call.is_resent = False
        call.sends, call.sends_of_hops = 0, reply.sends
        call.offset_ms = reply.timing.total_ms
        try:
            call.request = next_hop(call.request, reply.status, url)
        except ValueError as error:
            return call.fail("refused", f"redirected to {show_url(call.request, url)}: {error}")
        return self._start(call)

    def _release(self, handle: CurlHandle, call: CurlCall) -> None:
        call.handle = None
        handle.call = None
        handle.chunks = []
        del self._busy[handle.curl]
        if len(self._free) < self._max_idle:
            self._free.append(handle)
        else:
            handle.close()

    def _notify(self, call: CurlCall, reply: Reply) -> None:
        try:
            call.done(reply)
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
            "this libcurl looks names up on the calling thread; "
            "install one with a threaded resolver"
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
