"""Signals between instances: gathered, never in anybody's way, and only a hint."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import MILLISECOND, SECOND
from ksana.boot.surface import listen
from ksana.boot.task_hints import TaskHints
from ksana.engine.core.long_poll import LongPoll, Waiter
from ksana.engine.core.signal_relay import INTERVAL, SignalRelay
from ksana.fabric.memory.fabric import MemoryFabric
from ksana.fabric.memory.hub import MemoryHub
from ksana.ports.signals import NO_SIGNALS
from ksana.service.core.keys import KeyRing
from ksana.store.sql import open_store

pytestmark = pytest.mark.spec("X3", "X4")


class Recording:
    """Signals that are only remembered, with the instant they were told at."""

    is_live = True

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.told: list[tuple[int, str, str]] = []

    def subscribe(self, name: str, hear: Callable[[str], None]) -> Callable[[], None]:
        return lambda: None

    def publish(self, name: str, detail: str = "") -> None:
        self.told.append((self._clock.now(), name, detail))

    async def flush(self) -> None: ...


async def test_a_crowd_of_one_name_is_told_once_in_an_interval(clock: VirtualClock) -> None:
    signals = Recording(clock)
    relay = SignalRelay(signals, clock, is_shared=True)
    running = asyncio.ensure_future(relay.pump.run())
    await clock.settle()
    await clock.advance(SECOND)
    began = clock.now()
    for _ in range(1000):
        for _ in range(20):
            relay.tell("queue.ready")
            relay.tell("tasks.due", str(clock.now()), lambda one, other: min(one, other, key=int))
        await clock.advance(MILLISECOND)
    running.cancel()
    times = [at for at, name, _ in signals.told if name == "queue.ready"]
    assert times[0] - began <= MILLISECOND, "the first is told at once"
    assert len(times) <= SECOND // INTERVAL + 2
    assert all(later - early >= INTERVAL for early, later in itertools.pairwise(times))
    due = [(at, int(detail)) for at, name, detail in signals.told if name == "tasks.due"]
    assert all(at - detail <= INTERVAL + MILLISECOND for at, detail in due)
    assert due[1][1] < due[1][0], "of those that waited the earliest is told"


async def test_of_two_details_that_wait_the_latest_is_told(clock: VirtualClock) -> None:
    signals = Recording(clock)
    relay = SignalRelay(signals, clock, is_shared=True)
    for detail in ("1", "2"):
        relay.tell("keys", detail)
    relay.tell("queue.ready")
    await relay._send()
    assert signals.told == [(clock.now(), "keys", "2"), (clock.now(), "queue.ready", "")]
    assert (relay.told, relay.pump.name) == (2, "signals")


async def test_where_nobody_else_is_nothing_is_noted(clock: VirtualClock) -> None:
    relay = SignalRelay(NO_SIGNALS, clock, is_shared=False)
    relay.tell("queue.ready")
    assert await relay._send() is None
    assert (relay.told, relay.is_live) == (0, False)


class Pair:
    """Long polls of two instances, and how often each looked into the store."""

    def __init__(self, clock: VirtualClock, *, is_heard: bool = True) -> None:
        hub = MemoryHub(clock)
        self.looks = [0, 0]
        self.mark = 0
        self.relays: list[SignalRelay] = []
        self.polls: list[LongPoll[str]] = []
        for number in range(2):
            fabric = MemoryFabric(f"i{number}", clock, None, hub if is_heard else None)
            relay = SignalRelay(fabric.signals, clock, is_shared=is_heard)
            poll: LongPoll[str] = LongPoll(clock, lambda n=number: self._read(n), lambda: True)
            listen(relay, "queue.ready", poll)
            self.relays.append(relay)
            self.polls.append(poll)

    async def _read(self, number: int) -> int:
        self.looks[number] += 1
        return self.mark

    def start(self) -> list["asyncio.Future[None]"]:
        loops = [relay.pump.run() for relay in self.relays]
        return [asyncio.ensure_future(one) for one in (*loops, *(p.watch() for p in self.polls))]


async def test_who_waits_elsewhere_is_woken_by_the_signal(clock: VirtualClock) -> None:
    pair = Pair(clock)
    running = pair.start()
    await clock.settle()
    with Waiter(pair.polls[1], lambda _: True) as waiter:
        await clock.advance(SECOND)
        waiter.came.clear()
        pair.polls[0].notify(["a job"])  # the mark does not change: the signal alone tells
        await clock.advance(5 * MILLISECOND)
        assert waiter.came.is_set()
        waiter.came.clear()
        pair.polls[0].notify_all()
        await clock.advance(2 * INTERVAL)
        assert waiter.came.is_set()
        told = pair.relays[0].told
        pair.polls[1].hear()
        pair.polls[1].close()
        await clock.advance(SECOND)
        assert [relay.told for relay in pair.relays] == [told, 0], "what was heard is not told on"
    for one in running:
        one.cancel()


@pytest.mark.parametrize(("is_heard", "most_looks"), [(True, 12), (False, 52)])
async def test_the_store_is_asked_less_often_while_others_are_heard_and_still_asked(
    clock: VirtualClock, is_heard: bool, most_looks: int
) -> None:
    pair = Pair(clock, is_heard=is_heard)
    running = pair.start()
    await clock.settle()
    with Waiter(pair.polls[1], lambda _: True) as waiter:
        await clock.advance(SECOND)
        assert most_looks // 2 <= pair.looks[1] <= most_looks
        waiter.came.clear()
        pair.mark += 1  # somebody wrote, and the signal was lost
        await clock.advance(100 * MILLISECOND)
        assert waiter.came.is_set()
    for one in running:
        one.cancel()


@pytest.mark.spec("X19")
async def test_a_key_revoked_elsewhere_is_refused_at_once_when_a_signal_tells(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/k.db", clock, inline=True)
    here, there = KeyRing(store, clock), KeyRing(store, clock)
    made = await there.create_key("k", ["*:admin"])
    await here.refresh()
    await there.revoke_key(made.key.id)
    assert here.is_fresh
    assert here.recognise(made.text).key_id == made.key.id, "nobody told us yet"
    here.expire()
    assert not here.is_fresh
    await here.follow()
    with pytest.raises(Exception, match="not known"):
        here.recognise(made.text)
    for ring in (here, there):
        await ring.close()
    await store.close()


class Engine:
    """What hints come to, remembered."""

    def __init__(self) -> None:
        self.hinted: list[int | None] = []
        self.aborted: list[int] = []

    def hint(self, at: int | None) -> None:
        self.hinted.append(at)

    def fire_all_until(self, at: int) -> None:
        """The memory's signals are not live: it fires what it made itself."""

    def abort(self, run_id: int) -> None:
        self.aborted.append(run_id)


async def test_a_task_that_is_due_soon_and_a_cancelled_run_are_told(clock: VirtualClock) -> None:
    hub = MemoryHub(clock)
    relays = [
        SignalRelay(MemoryFabric(name, clock, None, hub).signals, clock, is_shared=True)
        for name in ("a", "b")
    ]
    engines = [Engine(), Engine()]
    here, _ = (
        TaskHints(engine, engine, relay, clock)  # type: ignore[arg-type]
        for engine, relay in zip(engines, relays, strict=True)
    )
    running = [asyncio.ensure_future(relay.pump.run()) for relay in relays]
    await clock.settle()
    soon, later = clock.now() + SECOND, clock.now() + 3 * SECOND
    for at in (later, soon, None, clock.now() + 3600 * SECOND):
        here.due(at)
    for run_id in range(1, 1000):
        here.canceled(run_id)
    await clock.advance(SECOND)
    assert engines[1].hinted == [soon], "the earliest, and nothing that polls find in time"
    assert engines[1].aborted[:3] == [1, 2, 3]
    assert 100 < len(engines[1].aborted) < 999, "a signal is not longer than it may be"
    assert relays[0].told == 2
    for strange in ("", "x", "1,,x"):
        hub.publish("a", "tasks.due", strange)
        hub.publish("a", "tasks.canceled", strange)
    await clock.settle()
    assert engines[1].aborted[-1] == 1
    for one in running:
        one.cancel()
