"""The lease of this process: what we may believe of it ourselves."""

from pathlib import Path

import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import SECOND
from ksana.engine.membership import Membership
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
