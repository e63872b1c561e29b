"""The lease of this process: what we may believe of it ourselves."""

import asyncio
from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.engine.core.membership import LEASE, RENEW_EVERY, Membership
from ksana.store.sql import open_store


@pytest.mark.spec("X4", "C19")
@pytest.mark.parametrize("is_sole", [True, False])
async def test_a_frozen_instance_doubts_its_lease_only_where_another_may_have_taken_over(
    tmp_path: Path, clock: VirtualClock, is_sole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", clock, inline=True)
    monkeypatch.setattr(type(store), "sole", is_sole)
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
    monkeypatch.setattr(type(store), "sole", False)
    seen: list[int] = []
    one = Membership(store, clock, "one", "host", "0", on_peers=seen.append)
    await one.join()
    renewing = asyncio.create_task(one.run())
    two = Membership(store, clock, "two", "host", "0")
    await two.join()
    await clock.advance(RENEW_EVERY)
    assert seen[0] == 0
    assert seen[-1] == 1
    await clock.advance(LEASE)  # the other one never renews
    assert seen[-1] == 0
    renewing.cancel()
    await store.close()
