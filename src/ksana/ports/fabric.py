"""The Fabric: coordination between instances for the nodes surface. It may be lost at any moment.

Two adapters keep this contract: `memory` (one process, nothing survives it) and `redis` (one server
or a Cluster). The store stays the truth for timers, tasks, queue and governance; losing the fabric
costs seconds there, and only node jobs are kept here.

What every fabric guarantees:

- **Atomic by noun.** Each method that guards or counts is one atomic step on the keys of one node,
  one job, one session, one request or one instance. No step spans two of them: callers order their
  steps so that what a crash leaves behind runs out by itself. A method that names two (a job and a
  message, a binding and a slot) is two steps that share a way, and a crash may part them.
- **Guarded.** A guard that fails is an answer, never an exception, and changes nothing.
- **Repeatable.** Every method may be executed twice although it was called once (an answer was
  lost on the way). All but `Inbox.send` and `Signals.publish` then leave the same state; those two
  may deliver twice.
- **Bounded.** A method that cannot be done raises DependencyDownError, within seconds, or at once
  while the fabric is known to be away. Whether it took effect is then unknown.
- **Forgetful.** What has a time to live is gone after it; everything may be gone after a failover
  or a wipe. Whoever holds a socket writes its own part again with the next renewal.
- **Its own clock.** Times to live and marks are judged by the clock of the fabric, so the clocks of
  instances do not matter. Instants in records are the writer's, for people to read.

Blocking reads (`Inbox.read`) use a connection of their own and never hold up another method.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from ksana.base.instant import DAY, Micros
from ksana.domain.nodes.moves import Moved, NodeJobChange
from ksana.domain.nodes.records import (
    Binding,
    InstanceInfo,
    JobRequest,
    NodeJob,
    NodeRecord,
    OwnerKind,
)
from ksana.domain.nodes.storm import MarkResult, StormLimits
from ksana.ports.inbox import DeadLetters, Inbox, Post, SendResult
from ksana.ports.nodes.sessions import SessionList
from ksana.ports.signals import Signals


class Presence(Protocol):
    """Which instances live (N1)."""

    async def renew(self, info: InstanceInfo, ttl_us: Micros) -> None:
        """Say that this instance lives, for `ttl_us` from now."""
        ...

    async def withdraw(self) -> None:
        """This instance ends in order: its presence goes at once, its place in the list stays until
        somebody has drained its inbox."""
        ...

    async def list_living(self) -> list[InstanceInfo]:
        """All instances whose presence has not run out."""
        ...

    async def list_dead(self) -> list[str]:
        """Instances that were present once, are no more, and have not been forgotten yet."""
        ...

    async def forget(self, instance_id: str) -> bool:
        """Strike a dead instance off the list. False if it lives again; nothing changed then."""
        ...


class Owners(Protocol):
    """Which instance holds the socket of a node or a session (N2)."""

    async def claim(self, kind: OwnerKind, owned_id: str, ttl_us: Micros) -> str:
        """Become the owner if there is none, or it is us. Answers who is the owner now."""
        ...

    async def replace_if(self, kind: OwnerKind, owned_id: str, former: str, ttl_us: Micros) -> bool:
        """Become the owner in place of `former`. False if somebody else has become it meanwhile."""
        ...

    async def renew(self, kind: OwnerKind, owned_ids: Sequence[str], ttl_us: Micros) -> list[bool]:
        """For each: still ours, or ours again where nobody owned it. False: another instance owns
        it, and our socket must be closed."""
        ...

    async def drop_if_ours(self, kind: OwnerKind, owned_id: str) -> bool:
        """Give it up. False if another instance owns it; nothing changed then."""
        ...

    async def find(self, kind: OwnerKind, owned_id: str) -> str | None:
        """Who owns it."""
        ...


class NodeChanges(msgspec.Struct, frozen=True):
    """What changed in the view of all nodes."""

    nodes: Mapping[str, NodeRecord | None]
    """None: the node is gone."""
    mark: int
    """Hand it in to see what changed after this."""


class NodeSnapshots(Protocol):
    """Every instance writes its own nodes and reads everybody's (N10). Eventually consistent: a
    reader may be behind by as long as it does not read."""

    async def publish(self, nodes: Sequence[NodeRecord], ttl_us: Micros) -> None:
        """Write these nodes; each is seen for `ttl_us` from now."""
        ...

    async def withdraw(self, node_ids: Sequence[str]) -> None:
        """These are gone: readers see it with their next reading."""
        ...

    async def read_changes(self, mark: int) -> NodeChanges:
        """What was written or withdrawn after `mark`; 0 reads everything. A node may be named
        although nothing changed. One that ran out in silence is found by reading from 0."""
        ...

    async def sweep(self, idle_us: Micros) -> int:
        """Strike nodes off the list that nobody has written for so long; answers how many."""
        ...


ReserveResult = Literal["reserved", "full", "away", "draining"]


class SlotWish(msgspec.Struct, frozen=True):
    """A slot that a job would like to hold. See `Reservations.reserve`."""

    node_id: str
    job_id: str
    slots: int
    model: str
    ttl_us: Micros


class RequestBindings(Protocol):
    """One job per request id, over all instances (N8)."""

    async def bind(self, request_id: str, binding: Binding, ttl_us: Micros) -> Binding:
        """Bind the request to this job if it is free. Answers what it is bound to: the caller
        compares the job id to learn whether it was first."""
        ...

    async def bind_and_reserve(
        self, request_id: str, binding: Binding, ttl_us: Micros, wish: SlotWish
    ) -> tuple[Binding, ReserveResult | None]:
        """Bind as above, and ask for a slot on the same way, whoever is first: one who is not gives
        it back. None for the slot: the two do not share a way, and it was not asked for."""
        ...

    async def find(self, request_id: str) -> Binding | None:
        """What a request is bound to."""
        ...

    async def unbind_if(self, request_id: str, job_id: str) -> bool:
        """Take the binding back: the request came to nothing, and may be made again."""
        ...

    async def lock(self, request_id: str, ttl_us: Micros) -> bool:
        """Become the one that makes the job of a bound request whose job is missing. Not safety:
        creating a job is guarded by itself; it only saves work."""
        ...


class Reservations(Protocol):
    """Slots of nodes (N6). A slot is held by (node, job); it runs out by itself."""

    async def reserve(
        self, node_id: str, job_id: str, slots: int, model: str, ttl_us: Micros
    ) -> ReserveResult:
        """Hold a slot for a job. In one step: reservations that ran out are swept, a model marked
        away and a draining node are refused, and never are more than `slots` held. A job that holds
        a slot there already keeps it, for `ttl_us` from now."""
        ...

    async def release(self, node_id: str, job_id: str) -> bool:
        """Give a slot back. False if it was not held."""
        ...

    async def count(self, node_id: str) -> int:
        """How many slots are held."""
        ...


class NodeMarks(Protocol):
    """What is known of a node besides its snapshot, over all instances."""

    async def mark_away(self, node_id: str, model: str, limits: StormLimits) -> MarkResult:
        """The node said MODEL_NOT_AVAILABLE (N11)."""
        ...

    async def list_away(self, node_id: str) -> dict[str, Micros]:
        """Models that are away, and for how much longer."""
        ...

    async def set_draining(self, node_id: str, is_draining: bool, ttl_us: Micros) -> None:
        """Give the node no more jobs, or give it jobs again. The mark outlives a reconnection, and
        `ttl_us` without being set again."""
        ...

    async def is_draining(self, node_id: str) -> bool:
        """Whether the mark is set."""
        ...


class Created(msgspec.Struct, frozen=True):
    """What came of creating a job."""

    is_new: bool
    state: str
    attempt: int
    sent: SendResult | None = None
    """What came of the message that went along."""


class JobEnd(msgspec.Struct, frozen=True):
    """A job with its outcome."""

    job_id: str
    node_id: str
    """Where it holds a slot; empty for a job that holds none."""
    change: NodeJobChange
    """The move `finish`."""


class NodeJobs(Protocol):
    """The records of node jobs and their moves (N7)."""

    async def create(
        self,
        request: JobRequest,
        home: str,
        keep_us: Micros,
        dispatch: NodeJobChange | None = None,
        post: Post | None = None,
    ) -> Created:
        """Write a new job, CREATED with attempt 1; with `dispatch` it is DISPATCHED in the same
        step. A job of that id that is there already is left alone, and answered with its state. The
        very same request of the same home is new however often the step is executed. `post` is sent
        after the job is written, whether it was new or not."""
        ...

    async def move(self, job_id: str, change: NodeJobChange) -> Moved:
        """Move a job as `domain.nodes.moves.judge` says, in one step with its guards."""
        ...

    async def move_and_post(
        self, job_id: str, change: NodeJobChange, post: Post
    ) -> tuple[Moved, SendResult]:
        """Move a job, then send a message, whatever came of the move."""
        ...

    async def settle(self, ends: Sequence[JobEnd], *, hint: bool = False) -> list[Moved]:
        """End jobs, each for itself: make its move `finish`. Where slot and record share a way, the
        slot that the job holds on its node is given back before it and the move `release` is made
        with it: then its state is RELEASED. Else it is FINISHED, and the slot and the release are
        left to the caller. Jobs stay on the list of their home. With `hint`, `nodes.free` is
        published where it costs no way of its own."""
        ...

    async def find(self, job_id: str) -> NodeJob | None:
        """The whole record."""
        ...

    async def adopt_if(self, job_id: str, former: str, keep_us: Micros) -> bool:
        """Become the home of a job in place of `former`. False if it has another home, or ended."""
        ...

    async def list_homed(self, instance_id: str, limit: int) -> list[str]:
        """Jobs whose home is this instance and which are not RELEASED, the oldest first. Some may
        have ended, or have another home by now: look at the record."""
        ...

    async def strike_homed(self, instance_id: str, job_ids: Sequence[str]) -> None:
        """Take jobs off the list of an instance: they ended, or have another home."""
        ...


class FabricHealth(msgspec.Struct, frozen=True):
    """How the fabric fares, for /readyz and the cluster page. Told without asking it anything."""

    ok: bool
    reason: str | None = None
    ok_us: Micros = DAY
    """How long it has been well, a day at most; 0 while it is not."""
    round_trips: int = 0
    """Batches sent and answered, blocking reads included."""
    blocking_reads: int = 0
    """Those of them that waited for messages."""
    signals_dropped: int = 0
    replicas: int = 0
    """Copies of its servers that could take over, as far as was looked."""
    replicas_behind: tuple[str, ...] = ()
    """Addresses of those that could not: their first sync is not finished."""


class Fabric(Protocol):
    """Everything together, as one instance sees it."""

    @property
    def instance_id(self) -> str: ...

    @property
    def durable(self) -> bool:
        """Whether node jobs survive the end of this process."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other instances can be reached through it."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether it is certain that no other instance is here."""
        ...

    @property
    def presence(self) -> Presence: ...

    @property
    def owners(self) -> Owners: ...

    @property
    def inbox(self) -> Inbox: ...

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def snapshots(self) -> NodeSnapshots: ...

    @property
    def sessions(self) -> SessionList: ...

    @property
    def requests(self) -> RequestBindings: ...

    @property
    def reservations(self) -> Reservations: ...

    @property
    def marks(self) -> NodeMarks: ...

    @property
    def jobs(self) -> NodeJobs: ...

    @property
    def signals(self) -> Signals: ...

    def health(self) -> FabricHealth:
        """How it fares."""
        ...

    def count_ops(self) -> Mapping[tuple[str, str], int]:
        """How many operations were done, by (operation, result), since the start. Results: ok,
        refused (a guard failed), retried, error."""
        ...

    async def look_at_replicas(self) -> None:
        """Ask its servers whether their copies could take over; `health` tells it."""
        ...

    async def start(self) -> None:
        """Begin background work (listening to signals). Does not wait for a server."""
        ...

    async def close(self) -> None:
        """End background work and close connections. Nothing is withdrawn by this."""
        ...
