"""The Store: durable truth, reached by transaction functions and nothing else.

`await store.transact(fn, *args)` runs `fn(tx, *args)` and answers what it returned, once that is
durable. `fn` is a plain synchronous function: it reads and writes through `tx`, never awaits, never
does I/O of its own, and may be run more than once (a deadlock, a lost connection, a neighbour's
failure), so its only effect is through `tx` and its return value.

What every store guarantees:

- **Atomic.** All of `fn`'s writes, events and rollups happen, or none.
- **Durable before answered.** When `transact` returns, the writes survive a power cut.
- **Isolated failures.** Functions that wait are committed together. If one raises, its writes are
  undone and it alone sees the exception; its neighbours are neither failed nor undone.
- **No guessing.** If the connection is lost while committing, the store finds out whether the
  commit happened before it answers; it never runs `fn` again when it did.
- **Guarded.** Every `*_if_*` method is one `UPDATE … WHERE` on the state it expects and answers
  whether it happened.
- **Its own clock.** `tx.now` is the store's clock, read inside the transaction: leases and claims
  are measured by it.

A function may take for granted what is nearly always so, if a guard of its writes tells when it is
not: it then raises RaceLostError, or the database does in its place, and it is run again at once,
with `tx.is_again` true. Now it looks first.

`store.read(fn, *args)` is the read-only twin on other connections: a consistent snapshot, no
writes. When the store cannot be reached or cannot write, who awaits either gets StoreDownError,
soon, and nothing took effect.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from ksana.base.instant import Instant, Micros
from ksana.ports.events import EventRow, Events

P = ParamSpec("P")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class RaceLostError(Exception):
    """What a transaction function took for granted is not so: run it again."""


class Instance(msgspec.Struct, frozen=True):
    """One running (or dead) server process."""

    id: str
    host: str
    version: str
    started_at: Instant
    alive_at: Instant
    lease_until: Instant
    stopped_at: Instant | None
    outage_from: Instant | None
    """When nobody else was alive at its start: since when. The outage ends at started_at."""


class Share(msgspec.Struct, frozen=True, gc=False):
    """Which part of what falls due is an instance's own: ids whose remainder by `of` is `mine`."""

    mine: int = 0
    of: int = 1


WHOLE: Final = Share()
"""The share of an instance that is alone."""


class Instances(Protocol):
    """Who runs. An instance's lease covers everything it holds: it renews one row, not one for
    each run."""

    def register(
        self,
        instance_id: str,
        host: str,
        version: str,
        lease_us: int,
        sole: bool,
        dead: tuple[str, ...] = (),
    ) -> Instance:
        """Enter a new instance at `tx.now`. With no other instance alive the gap since the last
        sign of life is recorded as an outage. `sole` says that the store admits one server only, so
        every other instance is dead for certain; `dead` names others that are: their leases end
        now."""
        ...

    def renew_if_registered(
        self, instance_id: str, lease_us: int, is_draining: bool = False
    ) -> bool:
        """Sign of life: alive_at = tx.now, lease_until = tx.now + lease_us. An instance that drains
        keeps its lease only: alive_at stays when it stopped to take work."""
        ...

    def note_begun(self, instance_id: str, run_id: int) -> None:
        """Say that the instance may begin any run it holds up to this id. Nothing happens if it
        said more before."""
        ...

    def find_begun_to(self, instance_id: str) -> int | None:
        """Up to which run an instance may have begun what it held; None if nobody knows."""
        ...

    def stop(self, instance_id: str) -> None:
        """Record an orderly end. The outage that may follow counts from the last sign of life."""
        ...

    def list_instances(self) -> list[Instance]:
        """All known instances, newest first."""
        ...

    def list_outages(self, since: Instant) -> list[tuple[Instant, Instant]]:
        """Spans in which no instance was alive that ended after `since`, and not later than now."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Forget instances that ended before; their outages go with them."""
        ...


class Locks(Protocol):
    """`scheduler_locks`: named leases for chores that one instance should do at a time. An
    optimisation, never safety."""

    def take(self, name: str, owner: str, ttl_us: int) -> bool:
        """Take or extend the lock if it is free, expired or ours."""
        ...

    def drop(self, name: str, owner: str) -> None:
        """Give it back if it is ours."""
        ...


class Rollups(Protocol):
    """Counts per time bucket, written with what they count. Nothing ever scans history for a
    statistic."""

    def add(self, metric: str, key: str = "", count: int = 1, total: float = 0.0) -> None:
        """Add to the minute of `tx.now`."""
        ...

    def list_buckets(
        self, metric: str, key: str, since: Instant, until: Instant
    ) -> list[tuple[Instant, int, float]]:
        """(start, count, total) of the minutes in [since, until), oldest first."""
        ...

    def fold(self, before: Instant, limit: int) -> int:
        """Add up to `limit` shares of minutes before an instant to their minutes: every writer
        counts in rows of its own. Answer how many."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` buckets that ended before."""
        ...


class RowCounts(Protocol):
    """How many rows of a kind there are, which lists show. Every connection counts in rows of its
    own."""

    def fold(self, limit: int) -> int:
        """Put up to `limit` of these rows together; the totals stay. Answer how many."""
        ...


class ApiKey(msgspec.Struct, frozen=True):
    """An API key as stored: only the hash of its secret."""

    id: str
    name: str
    secret_hash: str
    scopes: tuple[str, ...]
    created_at: Instant
    revoked_at: Instant | None
    last_used_at: Instant | None


class Keys(Protocol):
    """API keys (X19)."""

    def insert(self, key_id: str, name: str, secret_hash: str, scopes: tuple[str, ...]) -> ApiKey:
        """Enter a key, made at `tx.now`."""
        ...

    def list_keys(self) -> list[ApiKey]:
        """All keys, revoked ones too, oldest first."""
        ...

    def revoke_if_live(self, key_id: str) -> bool:
        """Revoke a key that is not revoked yet."""
        ...

    def touch(self, key_id: str) -> None:
        """Note that a key was used at `tx.now`."""
        ...


class Marks(Protocol):
    """The store's own notes on which commits happened. Nobody reads them but the store; they must
    only not pile up."""

    def purge(self, before: Instant, limit: int) -> int:
        """Remove up to `limit` notes of writers that have not committed since `before`."""
        ...


class RememberedAnswer(msgspec.Struct, frozen=True):
    """The answer to the first request with a key, and a digest of that request's body."""

    body_hash: str
    answer: str


class Idempotency(Protocol):
    """Answers remembered by Idempotency-Key. What a repeated key means is decided by the service;
    `scope` is its choice, up to 160 characters, and contains the caller."""

    def find_answer(self, scope: str, key_hash: str) -> RememberedAnswer | None:
        """What is remembered for a key and has not expired."""
        ...

    def remember(
        self, scope: str, key_hash: str, body_hash: str, answer: str, ttl_us: Micros
    ) -> bool:
        """Keep an answer for so long. False when another transaction used the key meanwhile."""
        ...

    def purge(self, before: Instant, limit: int) -> int:
        """Forget up to `limit` answers that expired before; answer how many."""
        ...


class Facts(Protocol):
    """What belongs to the store as a whole, such as the key of its tokens."""

    def find_or_note(self, name: str, value: str) -> str:
        """The fact of this name; if there is none, note this value and answer it. Of several
        instances at once the first decides for all."""
        ...

    def find(self, name: str) -> str | None:
        """The fact of this name, if it was noted."""
        ...

    def note(self, name: str, value: str) -> None:
        """Note a fact that may change; the newest holds."""
        ...


class Tx(Protocol):
    """What a transaction function is given: the clock and the tables of the core. A surface's own
    protocol adds its tables (`TasksTx`, `QueueTx`); the core names none of them."""

    @property
    def now(self) -> Instant:
        """The store's clock."""
        ...

    @property
    def is_again(self) -> bool:
        """Whether the function was run before and had to be undone."""
        ...

    @property
    def events(self) -> Events: ...

    @property
    def instances(self) -> Instances: ...

    @property
    def locks(self) -> Locks: ...

    @property
    def rollups(self) -> Rollups: ...

    @property
    def row_counts(self) -> RowCounts: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def marks(self) -> Marks: ...

    @property
    def idempotency(self) -> Idempotency: ...

    @property
    def facts(self) -> Facts: ...


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What one commit counted and recorded."""

    counts: Mapping[tuple[str, str], tuple[int, float]]
    """By metric and key the (count, total) that were added to `rollups`."""
    events: Sequence[EventRow]
    """Its events of the types asked for."""


CommitListener = Callable[[Committed], None]


class StoreHealth(msgspec.Struct, frozen=True):
    """How the store fares, for /readyz and /metrics."""

    ok: bool
    reason: str | None
    commits: int
    transactions: int
    retries: int
    round_trips: int = 0
    """Of the writers to a network database."""


class Receiver(Protocol[T_contra]):
    """Who is told what came of a transaction. A future is one."""

    def done(self) -> bool:
        """Whether it need not be told any more."""
        ...

    def set_result(self, result: T_contra, /) -> None:
        """It is durable."""
        ...

    def set_exception(self, error: Any, /) -> None:
        """It did not happen, or what happened is not known: as `transact` would have raised."""
        ...


class Store(Protocol):
    """The seam. See the module's text for what it promises."""

    @property
    def url(self) -> str:
        """Where it is, secrets masked; for SQLite the full path."""
        ...

    @property
    def sole(self) -> bool:
        """Whether one server at most can be on this store (SQLite, JSON)."""
        ...

    def transact(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `fn(tx, *args)` durably."""
        ...

    def transact_for(
        self,
        receiver: Receiver[T],
        fn: Callable[Concatenate[Any, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """The same, told to a receiver: from the event loop, perhaps at once, and never with an
        error raised here. Whoever passes the answer on to others spares them a turn of the event
        loop so."""
        ...

    def read(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `fn(tx, *args)` on a snapshot, read-only."""
        ...

    def read_list(
        self, fn: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """The same for a list: on connections that only lists use, and within a deadline, after
        which it raises StoreDownError."""
        ...

    def health(self) -> StoreHealth:
        """Its state, without touching the database."""
        ...

    def watch_commits(self, listener: CommitListener, event_types: frozenset[str]) -> None:
        """Tell `listener` of every commit made here from now on, once it is durable and exactly
        once, with its events of these types. It is called on a writer's thread: it must be brief,
        and must not raise."""
        ...

    async def close(self) -> None:
        """Commit what waits, then close."""
        ...
