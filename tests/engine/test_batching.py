"""Single writes entered as one set, on a real store."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.service.core.batching import MAX_ITEMS, Batcher
from ksana.store.sql import open_store


@pytest.mark.spec("X10")
async def test_on_a_real_store_many_at_once_are_all_there_and_share_commits(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/ksana.db", SystemClock())

    def enter(tx: Any, items: Sequence[int]) -> list[int]:
        for item in items:
            tx.events.append("JOB", item, "JOB_SUBMITTED")
        return list(items)

    batcher: Batcher[int, int] = Batcher(store, enter, lambda *_: None)
    try:
        before = store.health().commits
        done = await asyncio.gather(*(batcher.add(number) for number in range(1000)))
        assert done == list(range(1000))
        events = await store.read(lambda tx: tx.events.list_after(0, 2000))
        assert sorted(int(event.entity_id) for event in events) == list(range(1000))
        assert store.health().commits - before <= 1000 // MAX_ITEMS + 1
    finally:
        await store.close()
