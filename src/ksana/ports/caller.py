"""The Caller: one HTTP attempt, from a request to a reply, with no opinion about retries or
success.

Callback style on purpose: a future and a task per call cost more than the call's own bookkeeping.
"""

from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from ksana.base.instant import Micros
from ksana.domain.secrets import Secrets

ReplyKind = Literal["answered", "timeout", "unreachable", "refused", "aborted"]
"""answered: a complete HTTP answer came. timeout: the deadline or the connect deadline passed.
unreachable: DNS, connect, TLS, reset, or an answer that is not HTTP. refused: the egress rules
forbid the address; nothing was sent. aborted: we ended it ourselves."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One attempt to make. Headers are complete and checked: no CR, LF or NUL, none of the
    forbidden names."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    timeout_us: Micros = 10_000_000
    connect_timeout_us: Micros = 5_000_000
    follow_redirects: int = 0
    max_body: int | None = 65_536
    """Bytes of the answer kept; the rest is read, within the deadline, and dropped. None keeps all
    up to a hard cap."""
    may_resend: bool = True
    """Whether a GET, HEAD, PUT or DELETE may be sent again, once, on a new connection, when a kept
    one ends before a byte of the answer. Other methods never are: the target may have acted. If
    False, the request goes out on a new connection, so that a stale one cannot cost the attempt."""
    secrets: Secrets | None = None
    """What is for the target alone. It never follows a redirect to another origin, and is masked in
    every error text."""


class Timing(msgspec.Struct, frozen=True, gc=False):
    """Milliseconds from the start of the attempt to the end of each phase; 0 where a phase did not
    happen."""

    dns_ms: float = 0.0
    connect_ms: float = 0.0
    tls_ms: float = 0.0
    first_byte_ms: float = 0.0
    total_ms: float = 0.0


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What came of it. `error` is one clear line unless kind is answered."""

    kind: ReplyKind
    timing: Timing
    status: int | None = None
    body: bytes = b""
    truncated: bool = False
    retry_after: str | None = None
    """The Retry-After header as it came."""
    error: str | None = None
    sends: int = 1
    """How often the request was written, in whole or in part. 0: nothing of it was written to any
    connection, so the target cannot have seen it (refused, unknown name, no connection, TLS
    failure). 2: it was sent again, see `may_resend`. Of several hops the highest number counts."""


MaySend = Callable[[], bool]
"""Whether a request may be written at this moment. Asked right before each write, so it must be
quick."""


def always() -> bool:
    """Nobody else could send it."""
    return True


NOT_OURS: Final = "not sent: the lease of this instance has run out, another may have taken over"


class Call(Protocol):
    """A call in flight."""

    @property
    def is_resolving(self) -> bool:
        """Whether it waits for the addresses of a name: it has no connection yet."""
        ...

    def abort(self) -> None:
        """End it now; `done` is called with kind aborted, soon. Nothing happens if it is over
        already."""
        ...


class Caller(Protocol):
    """Makes calls on the running event loop. Not thread-safe."""

    def call(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend = always
    ) -> Call:
        """Start an attempt. `done` is called exactly once, on the loop, never from inside `call`
        itself.

        `may_send` is asked when a connection is there, right before the request is written to it:
        also before the rest of a long one, before it is sent again, and on each hop. Once it says
        no nothing more is written, and the call ends aborted.
        """
        ...

    def close(self) -> None:
        """Abort what is in flight (each `done` is still called) and free the sockets."""
        ...
