"""How an instance keeps its lease: what it holds from when, when it renews, whom it sees beside
itself, and what it says about it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import StoreDownError
from ksana.base.instant import HOUR, SECOND, Instant, Micros
from ksana.engine.core.membership import LEASE, RENEW_EVERY, Membership, divide_shares
from ksana.ports.store import WHOLE, Instance, Share
from ksana.store.sql import SqlStore, open_store
from tests.ground.logs import capture_logs

HELD_AGAIN = {"event": "lease held again", "log_level": "info"}
LOST = {
    "event": "lease lost: the store does not answer",
    "log_level": "warning",
    "err": "gone",
}
FORGOTTEN = {
    "event": "this instance was forgotten by the store; entering again",
    "log_level": "warning",
}


class FarStore:
    """A store as far as membership sees it: shared, slow, and away when told so."""

    def __init__(self, clock: VirtualClock, *, is_sole: bool = False) -> None:
        self.clock = clock
        self.sole = is_sole
        self.takes_us: Micros = 0
        self.is_down = False
        self.is_forgetful = False
        self.renewed: list[Instant] = []

    async def transact(self, fn: Any, *_: Any) -> Any:
        self.renewed.append(self.clock.now())
        await self.clock.sleep_until(self.clock.now() + self.takes_us)
        if self.is_down:
            raise StoreDownError("gone")
        return (not self.is_forgetful, []) if fn.__name__ == "_renew" else (None, [])


def member(store: Any, clock: VirtualClock, **more: Any) -> Membership:
    return Membership(store, clock, more.pop("name", "one"), "host", "0", **more)


@pytest.fixture
async def far(clock: VirtualClock) -> FarStore:
    await clock.advance(HOUR)
    return FarStore(clock)


@pytest.fixture
async def store(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqlStore]:
    """A store that others share."""
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    monkeypatch.setattr(store, "sole", False)
    yield store
    await store.close()


@pytest.mark.spec("X4", "C19")
async def test_the_lease_counts_from_before_it_was_asked_for(far: FarStore) -> None:
    clock, membership = far.clock, member(far, far.clock)
    far.takes_us = 4 * SECOND
    joining = asyncio.ensure_future(membership.join())
    await clock.advance(4 * SECOND)
    await joining
    generation = membership.generation
    await clock.advance(LEASE - 4 * SECOND - 1)
    assert (membership.is_held(), membership.covers(generation)) == (True, True)
    await clock.advance(1)
    assert (membership.is_held(), membership.covers(generation)) == (False, False)


@pytest.mark.spec("X4", "C19")
async def test_a_renewal_counts_from_before_it_was_asked_for(far: FarStore) -> None:
    clock, membership = far.clock, member(far, far.clock)
    await membership.join()
    far.takes_us = 4 * SECOND
    renewing = asyncio.ensure_future(membership._renew())
    await clock.advance(4 * SECOND)
    assert await renewing is True
    await clock.advance(LEASE - 4 * SECOND - 1)
    assert membership.is_held()
    await clock.advance(1)
    assert not membership.is_held()


@pytest.mark.spec("C19", "C23")
async def test_a_generation_is_a_lease_that_was_held_without_a_gap(far: FarStore) -> None:
    membership = member(far, far.clock)
    seen = [membership.generation]
    for wait_us in (0, RENEW_EVERY, LEASE - 1, LEASE, LEASE):
        await far.clock.advance(wait_us)
        await membership.join()
        seen.append(membership.generation)
        assert [membership.covers(one) for one in (seen[-1] - 1, seen[-1], seen[-1] + 1)] == [
            False,
            True,
            False,
        ]
    assert seen == [0, 1, 1, 1, 2, 3]


@pytest.mark.spec("C19")
async def test_where_nobody_else_can_be_a_lease_is_held_for_good(clock: VirtualClock) -> None:
    membership = member(FarStore(clock, is_sole=True), clock)
    await membership.join()
    await clock.advance(100 * LEASE)
    assert (membership.is_held(), membership.covers(0), membership.covers(1)) == (True, True, False)
    await membership.leave()
    assert (membership.is_held(), membership.covers(0)) == (False, False)


@pytest.mark.spec("X4")
async def test_it_renews_every_few_seconds_and_every_second_while_the_store_is_away(
    far: FarStore,
) -> None:
    clock, membership = far.clock, member(far, far.clock, every_us=3 * SECOND)
    began_at = clock.now()
    running = asyncio.ensure_future(membership.run())
    with capture_logs():
        await clock.advance(6 * SECOND)
        far.is_down = True
        await clock.advance(5 * SECOND)
        far.is_down = False
        await clock.advance(4 * SECOND)
    running.cancel()
    seconds = [(at - began_at) // SECOND for at in far.renewed]
    assert seconds == [0, 3, 6, 9, 10, 11, 12, 15]


@pytest.mark.spec("X4")
async def test_a_lease_is_said_to_be_lost_once_and_to_be_held_again(far: FarStore) -> None:
    clock, membership = far.clock, member(far, far.clock)
    await membership.join()
    with capture_logs() as logs:
        assert await membership._renew() is True
        far.is_down = True
        await clock.advance(RENEW_EVERY)
        assert await membership._renew() is False
        assert logs == [], "the lease still lasts"
        far.takes_us = LEASE
        losing = asyncio.ensure_future(membership._renew())
        await clock.advance(LEASE)
        assert await losing is False
        far.takes_us = 0
        assert await membership._renew() is False
        assert logs == [LOST], "it was lost once"
        far.is_down = False
        assert await membership._renew() is True
        assert await membership._renew() is True
    assert logs == [LOST, HELD_AGAIN]


async def test_an_instance_that_the_store_forgot_says_so_and_holds_its_lease_again(
    far: FarStore,
) -> None:
    membership = member(far, far.clock)
    await membership.join()
    far.is_forgetful = True
    await far.clock.advance(LEASE)
    with capture_logs() as logs:
        assert await membership._renew() is True
    assert (logs, membership.is_held(), membership.generation) == ([FORGOTTEN], True, 2)


async def test_an_end_that_could_not_be_recorded_is_said(far: FarStore) -> None:
    membership = member(far, far.clock)
    await membership.join()
    far.is_down = True
    with capture_logs() as logs:
        await membership.leave()
    assert logs == [
        {
            "event": "the end of this instance could not be recorded",
            "log_level": "warning",
            "err": "gone",
        }
    ]


# Who else lives


@pytest.mark.spec("X3")
async def test_others_live_until_their_lease_is_over_or_they_have_left(
    store: SqlStore, clock: VirtualClock
) -> None:
    seen: list[int] = []
    one = member(store, clock, on_peers=seen.append)
    two, three = member(store, clock, name="two"), member(store, clock, name="three")
    await two.join()
    await clock.advance(SECOND)
    await three.join()
    await one.join()
    assert (seen, one.share) == ([2], Share(0, 3))
    await three.leave()
    await one._renew()
    assert (seen, one.share) == ([2, 1], Share(0, 2))
    await clock.advance(LEASE - SECOND - 1)
    await one._renew()
    assert seen == [2, 1, 1]
    await clock.advance(1)
    await one._renew()
    assert (seen, one.share) == ([2, 1, 1, 0], WHOLE)


@pytest.mark.spec("X3", "C10")
async def test_another_that_is_known_to_be_dead_does_not_count_when_we_enter(
    store: SqlStore, clock: VirtualClock
) -> None:
    for name in ("dead", "living"):
        await member(store, clock, name=name).join()
    asked: list[str] = []

    def is_dead(instance: Instance) -> bool:
        asked.append(instance.id)
        return instance.id == "dead"

    seen: list[int] = []
    one = member(store, clock, is_dead=is_dead, on_peers=seen.append)
    instance = await one.join()
    assert (sorted(asked), seen, one.share) == (["dead", "living"], [1], Share(1, 2))
    assert instance.id == "one"
    rows = await store.read(lambda tx: tx.instances.list_instances())
    ended = {row.id for row in rows if row.stopped_at is not None or row.lease_until <= clock.now()}
    assert ended == {"dead"}


@pytest.mark.spec("X3")
async def test_on_a_store_for_one_server_nobody_else_is_seen(
    store: SqlStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await member(store, clock, name="before").join()
    monkeypatch.setattr(store, "sole", True)
    seen: list[int] = []
    one = member(store, clock, on_peers=seen.append)
    await one.join()
    await one._renew()
    assert (seen, one.share) == ([0, 0], WHOLE)


async def test_an_instance_that_does_not_drain_gives_signs_of_life(
    store: SqlStore, clock: VirtualClock
) -> None:
    one = member(store, clock)
    await one.join()
    await clock.advance(RENEW_EVERY)
    await one._renew()
    [row] = await store.read(lambda tx: tx.instances.list_instances())
    assert (row.alive_at, row.stopped_at) == (clock.now(), None)
    await one.leave()
    [row] = await store.read(lambda tx: tx.instances.list_instances())
    assert row.stopped_at == clock.now()


@pytest.mark.parametrize(
    ("ids", "shares"),
    [
        (["a"], {"a": WHOLE}),
        (["b", "a", "b"], {"a": Share(0, 2), "b": Share(1, 2)}),
        (["c", "a", "b"], {"a": Share(0, 3), "b": Share(1, 3), "c": Share(2, 3)}),
    ],
)
def test_shares_are_the_same_whoever_divides_them(ids: list[str], shares: dict[str, Share]) -> None:
    assert divide_shares(ids) == shares
