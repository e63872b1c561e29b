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
_NET: Final[Micros] = 60 * SECOND
"""Where no socket is open, nothing is to be judged until one is."""
MOST_SOCKETS: Final = 20_000
"""Sockets on one instance."""
MOST_OF_A_KEY: Final = 10_000

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

    def __init__(
        self,
        clock: Clock,
        judge: Judge = judge_by_key,
        most: int = MOST_SOCKETS,
        most_of_a_key: int = MOST_OF_A_KEY,
    ) -> None:
        self._judge = judge
        self._most = most
        self._most_of_a_key = most_of_a_key
        self._count = 0
        self._open: dict[str, dict[Peer, Call]] = {}
        self._clock = clock
        self.pump = Pump("node keys", clock, self._check, poll_us=_NET)

    @contextlib.contextmanager
    def watching(self, peer: Peer, call: Call) -> Iterator[None]:
        """Watch a socket while it is open. Raise 429 if there are too many, of its key or of all.
        Without keys all of them are of one."""
        most = self._most if not peer.key_id else self._most_of_a_key
        if self._count >= self._most:
            raise RateLimitedError(f"{self._most} sockets are open on this instance, the most")
        sockets = self._open.setdefault(peer.key_id, {})
        if len(sockets) >= most:
            raise RateLimitedError(f"one key may hold {most} sockets open on an instance")
        sockets[peer] = call
        self._count += 1
        if self._count == 1:
            self.pump.signal()
        try:
            yield
        finally:
            self._count -= 1
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
        return self._clock.now() + CHECK_EVERY if self._open else None
