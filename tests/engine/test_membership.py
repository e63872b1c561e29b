"""The lease of this process: what we may believe of it ourselves."""

import asyncio
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.engine.core.membership import LEASE, RENEW_EVERY, Membership
from ksana.ports.store import WHOLE, Share
from ksana.store.sql import open_store


@pytest.mark.spec("X4", "C19")
@pytest.mark.parametrize("is_sole", [True, False])
async def test_a_frozen_instance_doubts_its_lease_only_where_another_may_have_taken_over(
    tmp_path: Path, clock: VirtualClock, is_sole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    monkeypatch.setattr(store, "sole", is_sole)
    membership = Membership(store, clock, "one", "host", "0")
    assert not membership.is_held()
    await membership.join()
    assert membership.is_held()
    await clock.advance(16 * SECOND)
    assert membership.is_held() is is_sole
    await membership.leave()
    assert not membership.is_held()
    await store.close()


@pytest.mark.spec("X3")
async def test_the_others_on_a_shared_store_are_counted_while_they_live(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    monkeypatch.setattr(store, "sole", False)
    seen: list[int] = []
    one = Membership(store, clock, "one", "host", "0", on_peers=seen.append)
    await one.join()
    renewing = asyncio.create_task(one.run())
    two = Membership(store, clock, "two", "host", "0")
    await two.join()
    assert (one.share, two.share) == (WHOLE, Share(1, 2))
    await clock.advance(RENEW_EVERY)
    assert seen[0] == 0
    assert seen[-1] == 1
    assert one.share == Share(0, 2)
    await clock.advance(LEASE)  # the other one never renews
    assert seen[-1] == 0
    assert one.share == WHOLE
    renewing.cancel()
    await store.close()


@pytest.mark.spec("C19", "C23")
@pytest.mark.parametrize("is_sole", [True, False])
async def test_a_lease_that_was_lost_and_held_again_is_another_generation(
    tmp_path: Path, clock: VirtualClock, is_sole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    monkeypatch.setattr(store, "sole", is_sole)
    membership = Membership(store, clock, "one", "host", "0")
    await membership.join()
    first = membership.generation
    await clock.advance(RENEW_EVERY)
    await membership._renew()
    assert membership.generation == first, "renewed in time"
    await clock.advance(LEASE + SECOND)  # frozen for longer than the lease
    await membership._renew()
    assert membership.is_held()
    assert (membership.generation == first) is is_sole, "another may have taken over meanwhile"
    await store.close()


@pytest.mark.spec("C10", "X14")
async def test_an_instance_that_drains_keeps_its_lease_and_gives_no_sign_of_life(
    tmp_path: Path, clock: VirtualClock
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    membership = Membership(store, clock, "one", "host", "0")
    await membership.join()
    await clock.advance(2 * SECOND)
    await membership.begin_drain()
    began_at = clock.now()
    await clock.advance(RENEW_EVERY)
    await membership._renew()
    [instance] = await store.read(lambda tx: tx.instances.list_instances())
    assert (instance.alive_at, instance.lease_until) == (began_at, clock.now() + LEASE)
    await membership.leave()
    after = Membership(store, clock, "two", "host", "0")
    assert (await after.join()).outage_from == began_at
    await store.close()


@pytest.mark.spec("X4", "C19")
async def test_the_lease_runs_on_while_the_machine_is_suspended(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    monkeypatch.setattr(store, "sole", False)
    membership = Membership(store, clock, "one", "host", "0")
    await membership.join()
    claimed_under = membership.generation
    assert membership.covers(claimed_under)
    clock.suspend(LEASE)  # monotonic time stands still meanwhile
    assert not membership.covers(claimed_under)
    await membership._renew()
    assert membership.is_held()
    assert not membership.covers(claimed_under), "another may have taken it over"
    await store.close()
