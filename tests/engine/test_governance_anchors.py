"""Anchors of the audit: what each says, who writes them, and what retention leaves behind."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR
from ksana.domain.governance.audit import ANCHORED, PURGED, SYSTEM, encode_heads
from ksana.engine.governance.anchoring import EVERY, LOCK_US, AuditAnchors, purge_audit
from ksana.ports.governance.tables import AuditFilter
from ksana.store.sql import open_store
from tests.ground.governance import Governing
from tests.ground.logs import capture_logs


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Governing]:
    await clock.advance(HOUR)
    store = await open_store(f"sqlite:///{tmp_path / 'ksana.db'}", clock, inline=True)
    yield Governing(store, clock)
    await store.close()


async def entries(governing: Governing, event_type: str) -> list[tuple[str, str | None, Any]]:
    found = await governing.store.read(
        lambda tx: tx.audit.list_entries(AuditFilter(event_type=event_type), None, 10)
    )
    return [(entry.actor, entry.reason, msgspec.json.decode(entry.after)) for entry in found]


@pytest.mark.spec("G12")
async def test_an_anchor_is_numbered_follows_the_last_and_is_an_entry_itself(
    governing: Governing, clock: VirtualClock
) -> None:
    assert await governing.anchor() is None, "nothing was written yet"
    anchors = []
    for number in (1, 2, 3):
        await governing.enqueue(f"m{number}")
        heads = await governing.store.read(lambda tx: tx.audit.list_heads())
        anchor = await governing.anchor()
        assert (anchor.number, anchor.at, anchor.heads) == (
            number,
            clock.now(),
            encode_heads(heads),
        )
        anchors.append(anchor)
        assert await governing.anchor() is None, "no news but the anchor"
    assert [two.prev_hash for two in anchors[1:]] == [one.hash for one in anchors[:-1]]
    told = [(SYSTEM, None, {"anchor": one.number, "hash": one.hash}) for one in anchors]
    assert await entries(governing, ANCHORED) == told[::-1]


@pytest.mark.spec("G12")
async def test_an_anchor_is_logged_once_and_the_loop_comes_back_in_five_minutes(
    governing: Governing, clock: VirtualClock
) -> None:
    loop = AuditAnchors(governing.store, clock, "me")
    await governing.enqueue()
    with capture_logs() as logs:
        assert await loop._step() == clock.now() + EVERY
        assert await loop._step() == clock.now() + EVERY
    [anchor] = await governing.store.read(lambda tx: tx.audit.list_anchors(0, 10))
    assert logs == [
        {"event": "audit anchored", "log_level": "info", "anchor": 1, "hash": anchor.hash}
    ]
    assert loop.pump.name == "audit-anchors"


@pytest.mark.spec("G12")
async def test_one_instance_at_a_time_anchors(governing: Governing, clock: VirtualClock) -> None:
    await governing.enqueue()
    assert await governing.anchor() is not None
    await governing.enqueue("m2")
    other = AuditAnchors(governing.store, clock, "other")
    with capture_logs() as logs:
        await other._step()
        assert logs == []
        await clock.advance(LOCK_US)
        await other._step()
    assert [log["anchor"] for log in logs] == [2]


@pytest.mark.spec("G12", "X13")
async def test_what_is_removed_of_the_audit_is_told_by_the_audit(
    governing: Governing, clock: VirtualClock
) -> None:
    for number in range(3):
        await governing.enqueue(f"m{number}")
    [head] = await governing.store.read(lambda tx: tx.audit.list_heads())
    await clock.advance(HOUR)
    assert await governing.store.transact(purge_audit, clock.now(), 100) == head.seq == 3
    assert await entries(governing, PURGED) == [
        (SYSTEM, "RETENTION", {"chain": head.chain, "seq": head.seq, "hash": head.hash})
    ]
    assert await governing.store.transact(purge_audit, clock.now() - HOUR, 100) == 0
