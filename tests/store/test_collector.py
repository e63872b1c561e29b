"""What a transaction makes is freed by counting. The collector's rounds stop everything for as long
as they last."""

import gc
from pathlib import Path
from typing import Any

from ksana.base.clock import SystemClock
from ksana.store.sql import open_store
from ksana.store.sql.core.packages import find_tables
from ksana.store.sql.core.tx import SqlTx


def touch_every_table(tx: Any) -> None:
    for name in find_tables():
        getattr(tx, name)
    tx.series.add("queue.done")
    tx.events.append("TASK", 1, "FIRED")


async def test_a_transaction_leaves_nothing_to_the_collector(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/k.db", SystemClock(), inline=True)
    await store.transact(touch_every_table)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await store.transact(touch_every_table)
            await store.read(touch_and_read)
        left = [
            one for one in gc.get_objects() if isinstance(one, (SqlTx, *find_tables().values()))
        ]
    finally:
        gc.enable()
    await store.close()
    assert len(left) < 2 * (len(find_tables()) + 1)


def touch_and_read(tx: Any) -> int:
    for name in find_tables():
        getattr(tx, name)
    return int(tx.series.sum_since(["queue.done"], 0)["queue.done"])
