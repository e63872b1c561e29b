"""The Caller of the service: plain http by our own client, everything else by libcurl.

Both ask the same egress policy and the same resolver. A redirect may lead from the plain client to
libcurl, with what is left of its hops and its deadline; libcurl follows its own, http or not.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from ksana.outbound.curl.caller import MAX_IDLE, CurlCaller, check_libcurl
from ksana.outbound.curl.handle import HARD_CAP
from ksana.outbound.egress import EgressPolicy
from ksana.outbound.plain.client import PlainHttpClient
from ksana.outbound.resolver import (
    MAX_THREADS,
    LookUpFunction,
    Resolver,
    look_up_addresses,
)
from ksana.ports.caller import Call, MaySend, Reply, Request, always


class HttpCaller:
    """Makes calls on the running loop. Make it on the loop, use it on the loop, close it there."""

    def __init__(
        self,
        policy: EgressPolicy | None = None,
        *,
        max_idle: int = MAX_IDLE,
        ca_file: str | None = None,
        look_up: LookUpFunction = look_up_addresses,
        hard_cap: int = HARD_CAP,
        plain_http: Literal["own", "libcurl"] = "own",
        max_lookups: int = MAX_THREADS,
    ) -> None:
        """Take the egress rules. `look_up` turns a name into addresses, on a thread of its own; it
        may block; `max_lookups` of them run at once. `plain_http` chooses the client of http://
        URLs; https:// is always libcurl's."""
        check_libcurl()  # now: a call cannot raise it later
        self._policy = policy or EgressPolicy()
        self._is_all_curl = plain_http == "libcurl"
        self._max_idle = max_idle
        self._ca_file = ca_file
        self._hard_cap = hard_cap
        self._resolver = Resolver(asyncio.get_running_loop(), look_up, max_lookups)
        self._plain = PlainHttpClient(
            self._policy, self._resolver, self._hand_over, max_idle=max_idle, hard_cap=hard_cap
        )
        self._curl: CurlCaller | None = None
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Count the calls that have not ended."""
        return self._plain.in_flight + (self._curl.in_flight if self._curl is not None else 0)

    def call(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend = always
    ) -> Call:
        """Start an attempt; see the port."""
        if self._closed:
            return self._plain.refuse(request, done)
        if self._is_all_curl:
            return self._find_curl().call(request, done, may_send)
        return self._plain.start_if_plain(request, done, may_send) or self._find_curl().call(
            request, done, may_send
        )

    def close(self) -> None:
        """Abort what is in flight, calling each `done` before this returns; free every socket."""
        self._closed = True
        self._plain.close()
        if self._curl is not None:
            self._curl.close()
        self._resolver.close()

    def _hand_over(
        self,
        request: Request,
        done: Callable[[Reply], None],
        may_send: MaySend,
        hops_left: int,
        spent_ms: float,
        sends: int,
    ) -> Call:
        return self._find_curl().take_over(request, done, may_send, hops_left, spent_ms, sends)

    def _find_curl(self) -> CurlCaller:
        if self._curl is None:
            self._curl = CurlCaller(
                self._policy,
                max_idle=self._max_idle,
                ca_file=self._ca_file,
                hard_cap=self._hard_cap,
                resolver=self._resolver,
            )
        return self._curl
