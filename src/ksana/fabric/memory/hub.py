"""What the instances of one process share. Several instances in one process exist in tests only.

Everything happens on one event loop, so a method without an await inside is atomic.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec

from ksana.base.clock import Clock
from ksana.base.instant import Instant, Micros
from ksana.domain.nodes.records import (
    Binding,
    InstanceInfo,
    NodeJob,
    NodeRecord,
    SessionRecord,
)

T = TypeVar("T")

MOST_ENDED = 20_000
"""Records of ended jobs, with the bindings of their requests, that are kept in memory whatever
their time to live: under load an hour of them would fill it."""

_SWEEP_EVERY = 1_000
"""Writes between two sweeps of what ran out: memory stays within a small factor of what lives."""


class Expiring(Generic[T]):
    """A dict whose entries run out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[T, Micros]] = {}
        self._writes = 0

    def __len__(self) -> int:
        """How many there are at most: some may have run out."""
        return len(self._entries)

    def put(self, key: str, value: T, ttl_us: Micros) -> None:
        """Keep a value for so long."""
        self._entries[key] = (value, self._clock.monotonic() + ttl_us)
        self._writes += 1
        if self._writes % _SWEEP_EVERY == 0:
            now = self._clock.monotonic()
            self._entries = {k: entry for k, entry in self._entries.items() if entry[1] > now}

    def get(self, key: str) -> T | None:
        """Find a value that has not run out."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry[1] <= self._clock.monotonic():
            del self._entries[key]
            return None
        return entry[0]

    def rest_us(self, key: str) -> Micros:
        """For how much longer it is kept; 0 if it is not there."""
        return 0 if self.get(key) is None else self._entries[key][1] - self._clock.monotonic()

    def pop(self, key: str) -> bool:
        """Remove a value; tell whether it was there."""
        was_there = self.get(key) is not None
        self._entries.pop(key, None)
        return was_there

    def items(self) -> Iterator[tuple[str, T]]:
        """All that have not run out."""
        now = self._clock.monotonic()
        for key, (value, until) in list(self._entries.items()):
            if until > now:
                yield key, value

    def count(self) -> int:
        """How many have not run out. Those that have are removed."""
        now = self._clock.monotonic()
        for key in [key for key, (_, until) in self._entries.items() if until <= now]:
            del self._entries[key]
        return len(self._entries)

    def clear(self) -> None:
        """Remove everything."""
        self._entries.clear()


class Entry(msgspec.Struct):
    """A message in an inbox."""

    id: str
    body: bytes
    deliveries: int = 0
    """0: unread."""
    handed_mono: Micros = 0


class Letter(msgspec.Struct, frozen=True):
    """A dead letter."""

    id: str
    instance_id: str
    body: bytes
    deliveries: int
    moved_at: Instant


class Mailbox:
    """One instance's inbox and dead letters."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.letters: dict[str, Letter] = {}
        self.arrived = asyncio.Event()


class MemoryHub:
    """The state behind `MemoryFabric`."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.presence: Expiring[InstanceInfo] = Expiring(clock)
        self.instances: dict[str, None] = {}
        self.owners: Expiring[str] = Expiring(clock)
        self.mailboxes: dict[str, Mailbox] = {}
        self.drainers: Expiring[str] = Expiring(clock)
        self.nodes: Expiring[NodeRecord] = Expiring(clock)
        self.node_marks: dict[str, tuple[int, Micros]] = {}
        """When each node was last written: a number that only grows, and the monotonic time."""
        self.sessions: Expiring[dict[str, SessionRecord]] = Expiring(clock)
        """By instance and session."""
        self.bindings: Expiring[Binding] = Expiring(clock)
        self.bound_by: dict[str, str] = {}
        """The request of each job that has one."""
        self.locks: Expiring[str] = Expiring(clock)
        self.reserved: dict[str, Expiring[bool]] = {}
        self.away: dict[str, dict[str, tuple[Micros, Micros]]] = {}
        """By node and model: marked at, until."""
        self.away_marks: dict[str, list[Micros]] = {}
        self.draining: Expiring[bool] = Expiring(clock)
        self.jobs: Expiring[NodeJob] = Expiring(clock)
        self.ended: deque[str] = deque()
        """Jobs that have ended, the first to end first."""
        self.homed: dict[str, dict[str, None]] = {}
        self.hearers: list[tuple[str, str, Callable[[str], None]]] = []
        """(instance, name, hearer)"""
        self._number = 0

    def note_ended(self, job_id: str) -> None:
        """Keep its record as long as there is room."""
        self.ended.append(job_id)
        while len(self.ended) > MOST_ENDED:
            oldest = self.ended.popleft()
            self.jobs.pop(oldest)
            if (request_id := self.bound_by.pop(oldest, None)) is not None:
                self.bindings.pop(request_id)

    def next_number(self) -> int:
        """A number greater than all before."""
        self._number += 1
        return self._number

    def publish(self, sender: str, name: str, detail: str) -> None:
        """Tell everybody but the sender, soon."""
        loop = asyncio.get_running_loop()
        for instance_id, heard, hear in self.hearers:
            if heard == name and instance_id != sender:
                loop.call_soon(hear, detail)

    def wipe(self) -> None:
        """Lose everything but who listens."""
        for kept in (
            self.presence,
            self.owners,
            self.drainers,
            self.nodes,
            self.sessions,
            self.bindings,
            self.locks,
            self.draining,
            self.jobs,
        ):
            kept.clear()
        for mapping in (
            self.instances,
            self.mailboxes,
            self.node_marks,
            self.reserved,
            self.away,
            self.away_marks,
            self.homed,
            self.ended,
            self.bound_by,
        ):
            mapping.clear()
