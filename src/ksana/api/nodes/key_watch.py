"""A revoked key closes its sockets (X19): every few seconds each key that holds one open is judged
again, as if the socket came now. A signal from another instance makes it come sooner."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from ksana.api.core.auth import Authenticator
from ksana.api.core.routing import Call
from ksana.base.clock import Clock
from ksana.base.errors import KsanaError, RateLimitedError, UnavailableError
from ksana.base.instant import SECOND, Instant, Micros
from ksana.engine.core.pump import Pump
from ksana.engine.nodes.peers import REVOKED, Peer

SCOPE: Final = "nodes:write"
"""What a key must be allowed to open a socket."""

CHECK_EVERY: Final[Micros] = 3 * SECOND
MOST_SOCKETS: Final = 20_000
"""Sockets that one key may hold open on one instance."""

Judge = Callable[[Call], Awaitable[None]]
"""Raises 401 or 403 if the call would not be let in now."""


async def judge_by_key(call: Call) -> None:
    """Judge a socket by the key that it came with."""
    headers: dict[bytes, bytes] = {}
    for name in ("authorization", "x-api-key"):
        if (value := call.header(name)) is not None:
            headers[name.encode()] = value.encode("latin-1")
    await Authenticator(call.app).admit(headers, SCOPE)


class KeyWatch:
    """The sockets of each key."""

    def __init__(self, clock: Clock, judge: Judge = judge_by_key) -> None:
        self._judge = judge
        self._open: dict[str, dict[Peer, Call]] = {}
        self.pump = Pump("node keys", clock, self._check, poll_us=CHECK_EVERY)

    @contextlib.contextmanager
    def watching(self, peer: Peer, call: Call) -> Iterator[None]:
        """Watch a socket while it is open. Raise 429 if its key holds too many."""
        sockets = self._open.setdefault(peer.key_id, {})
        if len(sockets) >= MOST_SOCKETS:
            raise RateLimitedError(f"one key may hold {MOST_SOCKETS} sockets open")
        sockets[peer] = call
        try:
            yield
        finally:
            sockets.pop(peer, None)
            if not sockets:
                self._open.pop(peer.key_id, None)

    async def _check(self) -> Instant | None:
        for sockets in list(self._open.values()):
            for call in list(sockets.values())[:1]:
                try:
                    await self._judge(call)
                except UnavailableError:
                    break  # the store is away: nothing is known, nothing is closed
                except KsanaError as error:
                    for peer in list(sockets):
                        peer.close(REVOKED, error.code)
        return None
