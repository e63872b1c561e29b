"""How many calls may be in flight, in all and per host, and how many runs are claimed ahead.

A claimed run waits in our memory for a call slot; one that is only ready waits in the store, for
any instance. To keep a fast host busy some runs are prefetched: as many as the host can take within
2 s; where no other instance could take them, within 30 s, since one that is ready costs another
write before it starts. What it can take is told by how long its calls last, not by how many there
were: few calls may mean that we had few to make. A host that hangs can take none, so nothing is
claimed for it beyond its free slots.

Hosts that hang must not take every slot from those that answer. A call without an answer for half
a second makes its host slow, until a call of it ends sooner. Slow hosts share the `workers` slots;
for all others a stale call does not count, so they find a slot while the slow ones wait for theirs.
In all at most twice `workers` calls have a connection or are about to. A call that waits for a name
has none: names that nobody answers for make their hosts slow sooner, and take no slot of others.

Until they are found to be slow, many of them would still take every slot: hundreds that are new, or
that are tried again. So an eighth of the slots is kept for hosts whose last call ended soon, as
long as there are calls to such hosts. One that did so a minute ago and is slow now may have met a
moment in which nothing went on, here or there: it is tried by one call before it waits with those
that are slow.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.domain.tasks.records import ClaimedRun
from ksana.ports.caller import Call


class Prefetch(msgspec.Struct, frozen=True):
    """How many runs are claimed ahead of a free slot."""

    unknown: int
    """For a host nothing is known of yet."""
    window_us: Micros
    """For a known one: what it can take in this time."""
    limit: int


SHARED: Final = Prefetch(1024, 2 * SECOND, 4096)
ALONE: Final = Prefetch(4096, 30 * SECOND, 16_384)

SOON: Final[Micros] = 100 * MILLISECOND
"""Calls that begin within this time mostly begin before the next outcomes are on disk."""

_UNKNOWN_SOON: Final = 64

_RATE_WINDOW: Final[Micros] = 50 * MILLISECOND

STALE: Final[Micros] = 500 * MILLISECOND
"""A call this long in flight is stale, and its host slow."""

NAMELESS: Final[Micros] = 150 * MILLISECOND
"""A call that waits this long for a name makes its host slow, and holds no slot."""
MAX_NAMELESS: Final = 1024
"""Calls that may wait for names beside those that count."""

KEPT_FOR: Final[Micros] = 10 * SECOND
"""So long after a call to a host that answers soon, slots are kept for such hosts."""

TRIED_FOR: Final[Micros] = 60 * SECOND
"""So long after a call that ended soon a slow host is tried by one call at a time."""

STALE_LOOK: Final[Micros] = 50 * MILLISECOND
"""How often calls in flight are looked through for those that have grown old."""


class SlotBudget:
    """A snapshot of how many runs may be claimed now, taken on the event loop and used up in a
    transaction. `lease` is the generation of our lease at that moment. `taken` tells of each slot
    that was taken whether its call begins soon."""

    __slots__ = ("_by_host", "_default", "_soon", "_soon_default", "_total", "lease", "taken")

    def __init__(
        self,
        by_host: dict[str, int],
        default: int,
        total: int,
        soon: dict[str, int] | None = None,
        soon_default: int = 0,
        lease: int = 0,
    ) -> None:
        """`soon` is how many more calls of each host begin at once or nearly so."""
        self._by_host = by_host
        self._default = default
        self._total = total
        self._soon = soon or {}
        self._soon_default = soon_default
        self.lease = lease
        self.taken: list[bool] = []

    def copy(self) -> "SlotBudget":
        """A copy to use up."""
        return SlotBudget(
            dict(self._by_host),
            self._default,
            self._total,
            dict(self._soon),
            self._soon_default,
            self.lease,
        )

    def take(self, host: str) -> bool:
        """Take one slot at a host, if there is one."""
        room = self._by_host.get(host, self._default)
        if room <= 0 or self._total <= 0:
            return False
        self._by_host[host] = room - 1
        self._total -= 1
        soon = self._soon.get(host, self._soon_default)
        self._soon[host] = soon - 1
        self.taken.append(soon > 0)
        return True


class HostQueue:
    """One host: the calls in flight, the claimed runs that wait here, and how fast it answers."""

    __slots__ = (
        "_prompt_until",
        "_quiet_since",
        "_window_busy",
        "_window_count",
        "_window_ends",
        "capacity",
        "host",
        "in_flight",
        "is_in_turn",
        "is_known",
        "is_prompt",
        "is_slow",
        "limit",
        "rate",
        "ticket",
        "waiting",
    )

    def __init__(self, host: str, limit: int) -> None:
        self.host = host
        self.limit = limit
        self.in_flight = 0
        self.waiting: deque[ClaimedRun] = deque()
        self.rate = 0.0
        """Calls that ended a second, lately."""
        self.capacity = 0.0
        """Calls that would end a second if all its slots were in use."""
        self.is_known = False
        self.is_slow = False
        self.is_prompt = False
        """The last call of it ended soon."""
        self.is_in_turn = False
        self.ticket = 0
        """Its place among those who wait for their turn."""
        self._prompt_until: Micros = 0
        self._quiet_since: Micros = 0
        self._window_busy: Micros = 0
        self._window_count = 0
        self._window_ends: Micros = 0

    def began(self, now_mono: Micros) -> None:
        """A call begins."""
        if self.in_flight == 0:
            self._quiet_since = now_mono
        self.in_flight += 1

    def ended(self, since_mono: Micros, now_mono: Micros) -> None:
        """A call ended: count it into the rate."""
        lasted = now_mono - since_mono
        self.in_flight -= 1
        self._quiet_since = now_mono
        self.is_slow = lasted >= STALE
        self.is_prompt = not self.is_slow
        if self.is_prompt:
            self._prompt_until = now_mono + TRIED_FOR
        if now_mono >= self._window_ends:
            self._roll(now_mono)
        self._window_count += 1
        self._window_busy += lasted

    def mark_slow(self) -> None:
        """A call of it has waited too long."""
        self.is_slow, self.is_prompt = True, False

    def is_held_back(self, now_mono: Micros) -> bool:
        """Whether it has to wait for its turn among the slow ones."""
        return self.is_slow and (self.in_flight > 0 or now_mono >= self._prompt_until)

    def room(self, now_mono: Micros, prefetch: Prefetch) -> int:
        """How many more runs may be claimed for this host."""
        if now_mono >= self._window_ends:
            self._roll(now_mono)
        if self.is_slow:
            ahead = 0
        elif not self.is_known:
            ahead = prefetch.unknown
        else:
            ahead = min(int(self.capacity * prefetch.window_us / 1e6), prefetch.limit)
        return self.limit - self.in_flight + ahead - len(self.waiting)

    def soon(self, now_mono: Micros) -> int:
        """How many of those that wait here are sent soon: as many as there are free slots, and as
        many again or what the rate says."""
        if now_mono >= self._window_ends:
            self._roll(now_mono)
        more = int(self.rate * SOON / 1e6) if self.is_known else _UNKNOWN_SOON
        return max(1, self.limit - self.in_flight + max(self.limit, more))

    def _roll(self, now_mono: Micros) -> None:
        late = now_mono - self._window_ends
        if self._window_ends and self._window_count:
            self.is_known = True
            measured = self._window_count / ((_RATE_WINDOW + max(0, late)) / 1e6)
            self.rate = measured if self.rate == 0 else 0.5 * self.rate + 0.5 * measured
            capacity = self.limit * self._window_count / (max(1, self._window_busy) / 1e6)
            self.capacity = capacity if self.capacity == 0 else 0.5 * (self.capacity + capacity)
        elif self._window_ends:
            lost = 0.5 ** min(20, 1 + late // _RATE_WINDOW)
            self.rate *= lost
            if self.in_flight:  # it was asked and does not answer; otherwise nobody asked
                self.capacity *= lost
            # Not sooner: in a crowd we ourselves may be too busy to read the first answers.
            self.is_known = self.is_known or (
                self.in_flight > 0 and now_mono - self._quiet_since >= STALE
            )
        self._window_busy = self._window_count = 0
        self._window_ends = now_mono + _RATE_WINDOW


class InFlight(Protocol):
    """What is asked of a call in flight."""

    @property
    def call(self) -> Call: ...

    @property
    def queue(self) -> HostQueue: ...

    @property
    def since_mono(self) -> Micros: ...


class CallSlots:
    """Who may send next when slots are short: one call a turn, so that no host keeps the slots it
    has."""

    def __init__(self, calls: Mapping[int, InFlight], workers: int) -> None:
        """`calls` are the calls in flight, in the order in which they began."""
        self._calls = calls
        self._workers = workers
        self._kept = workers // 8
        self.for_all = workers - self._kept
        """While fewer calls are in flight, everybody may send."""
        self.prompt_mono: Micros = -KEPT_FOR
        """When a call to a prompt host began last."""
        self._prompt_turn: deque[HostQueue] = deque()
        self._turn: deque[HostQueue] = deque()
        self._slow_turn: deque[HostQueue] = deque()
        self._is_slow_first = True
        self._tickets = 0
        self.waiting = 0
        """Hosts that wait for their turn."""
        self._stale = 0
        self._nameless = 0
        self._looked_mono: Micros = 0

    def has_slot(self, queue: HostQueue, now_mono: Micros) -> bool:
        """Whether this host may send now, its own limit aside."""
        count = len(self._calls)
        is_kept = not queue.is_prompt and now_mono - self.prompt_mono < KEPT_FOR
        kept = self._kept if is_kept else 0
        if count < self._workers - kept:
            return True
        self._look(now_mono)
        if queue.is_held_back(now_mono):
            return False
        count += kept - min(self._nameless, MAX_NAMELESS)
        return count < 2 * self._workers and count < self._workers + self._stale

    def wait_for_turn(self, queue: HostQueue, now_mono: Micros) -> None:
        """Let a host wait for its turn."""
        if not queue.is_in_turn:
            queue.is_in_turn = True
            self.waiting += 1
            self._tickets += 1
            queue.ticket = self._tickets
            if queue.is_held_back(now_mono):
                self._slow_turn.append(queue)
            else:
                (self._prompt_turn if queue.is_prompt else self._turn).append(queue)

    def next_queue(self, now_mono: Micros) -> HostQueue | None:
        """The host whose turn it is, if there is a slot for it: who has waited longest. Slow ones
        and others take turns where both may go."""
        for turn in (self._prompt_turn, self._turn):
            # One that became slow while it waited must not hold up those behind it.
            while turn and turn[0].is_held_back(now_mono):
                self._slow_turn.append(turn.popleft())
        while self._prompt_turn and not self._prompt_turn[0].is_prompt:
            self._turn.appendleft(self._prompt_turn.popleft())
        turns = sorted(filter(None, (self._prompt_turn, self._turn)), key=_ticket_of)
        if self._slow_turn:
            turns.insert(0 if self._is_slow_first else len(turns), self._slow_turn)
        for turn in turns:
            if self.has_slot(turn[0], now_mono):
                self._is_slow_first = turn is not self._slow_turn
                queue = turn.popleft()
                queue.is_in_turn = False
                self.waiting -= 1
                return queue
        return None

    def _look(self, now_mono: Micros) -> None:
        """Count the calls that are stale, and apart from them those that wait for a name."""
        if now_mono - self._looked_mono < STALE_LOOK:
            return
        self._looked_mono = now_mono
        self._stale = self._nameless = 0
        for flying in self._calls.values():
            age = now_mono - flying.since_mono
            if age < NAMELESS:
                break
            if flying.call.is_resolving:
                flying.queue.mark_slow()
                self._nameless += 1
            elif age >= STALE:
                flying.queue.mark_slow()
                self._stale += 1


def _ticket_of(turn: deque[HostQueue]) -> int:
    return turn[0].ticket
