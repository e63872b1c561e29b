"""The audit on every SQL store: whole after any mixture of writers, and every hand laid on it is
found."""

import asyncio
from typing import Any

import pytest

from ksana.base.errors import ConflictError
from ksana.domain.governance.audit import AuditEntry, AuditFinding
from ksana.engine.governance.anchoring import purge_audit
from ksana.ports.governance.tables import AuditFilter
from ksana.service.governance import portions
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.ground.governance import ME, SECOND, Governing


@pytest.fixture
async def governing(store: SqlStore) -> Governing:
    governing = Governing(store)
    for number in range(10):
        await governing.enqueue(f"m{number}")
    for job in await governing.pull(10):
        await governing.ack(job)
    return governing


async def kinds(governing: Governing) -> list[tuple[str, int]]:
    """What is found, all at once; in portions the same is found."""
    report = await governing.audit.verify()
    found = [(finding.kind, finding.seq) for finding in report.findings]
    assert set(await kinds_in_portions(governing)) == set(found)
    return found


async def kinds_in_portions(governing: Governing) -> list[tuple[str, int]]:
    found, cursor = list[AuditFinding](), None
    while True:
        portion = await governing.audit.portions.verify(cursor)
        assert portion.entries <= portions.PORTION
        found += portion.findings
        cursor = portion.next
        if cursor is None:
            return [(finding.kind, finding.seq) for finding in found]


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION", 4)
    monkeypatch.setattr(portions, "PAGE", 3)
    monkeypatch.setattr(portions, "ANCHORS", 1)


@pytest.mark.spec("G12")
async def test_every_step_of_a_job_is_an_entry_in_the_same_transaction(
    governing: Governing,
) -> None:
    page = await governing.audit.list_entries(AuditFilter(object_id="m3"), None, 50)
    types = [entry.event_type for entry in reversed(page.entries)]
    assert types == ["job.enqueue", "job.pull", "job.ack"]
    ack = next(entry for entry in page.entries if entry.event_type == "job.ack")
    assert (ack.actor, ack.correlation_id) == (ME.actor, ME.correlation_id)
    assert '"running"' in (ack.before or "")
    assert '"succeeded"' in (ack.after or "")
    assert await kinds(governing) == []


@pytest.mark.spec("G12")
async def test_an_altered_entry_is_found_and_named(
    governing: Governing, database: Database
) -> None:
    database.ask("UPDATE audit_events SET actor = 'somebody else' WHERE place = 5")
    assert await kinds(governing) == [("ALTERED", 5)]


@pytest.mark.spec("G12")
async def test_a_missing_entry_is_found_and_named(governing: Governing, database: Database) -> None:
    database.ask("DELETE FROM audit_events WHERE place = 5")
    assert await kinds(governing) == [("MISSING", 5)]


@pytest.mark.spec("G12")
async def test_entries_that_changed_places_are_found_and_named(
    governing: Governing, database: Database
) -> None:
    for old, new in ((5, 999), (6, 5), (999, 6)):
        database.ask(f"UPDATE audit_events SET place = {new} WHERE place = {old}")
    found = await kinds(governing)
    assert ("REORDERED", 5) in found
    assert ("REORDERED", 6) in found


@pytest.mark.spec("G12")
async def test_an_end_that_was_cut_off_is_found(governing: Governing, database: Database) -> None:
    head = (await governing.audit._read_heads())[0]
    database.ask(f"DELETE FROM audit_events WHERE place = {head.seq}")
    assert await kinds(governing) == [("CUT", head.seq)]


@pytest.mark.spec("G12")
async def test_an_end_cut_off_with_its_record_is_found_by_the_anchor(
    governing: Governing, database: Database
) -> None:
    head = (await governing.audit._read_heads())[0]
    await governing.anchor()
    last = database.ask("SELECT hash FROM audit_events WHERE place = 3")[0][0]
    database.ask("DELETE FROM audit_events WHERE place > 3 AND place < 1000000")
    database.ask(f"UPDATE audit_chains SET seq = 3, hash = '{last}' WHERE chain = 0")
    found = await kinds(governing)
    assert ("CUT", head.seq) in found


@pytest.mark.spec("G12")
async def test_an_anchor_that_is_no_json_any_more_is_found_and_another_is_made(
    governing: Governing, database: Database
) -> None:
    first = await governing.anchor()
    database.ask("UPDATE audit_anchors SET heads_json = 'x'")
    assert ("ALTERED", first.number) in await kinds(governing)
    assert (await governing.anchor()).number > first.number


@pytest.mark.spec("G12")
async def test_all_of_it_rolled_back_is_found_by_an_anchor_noted_elsewhere(
    governing: Governing, database: Database
) -> None:
    anchor = await governing.anchor()
    assert (await governing.audit.verify(anchor.hash)).ok
    database.ask("DELETE FROM audit_anchors")
    report = await governing.audit.verify(anchor.hash)
    assert [finding.kind for finding in report.findings] == ["CUT"]


@pytest.mark.spec("G12")
async def test_what_is_rolled_back_leaves_no_gap(governing: Governing) -> None:
    def write_and_fail(tx: Any) -> None:
        tx.audit.append(AuditEntry(event_type="test", actor="me"))
        raise ConflictError("no")

    def write(tx: Any, name: str) -> str:
        return str(tx.audit.append(AuditEntry(event_type="test", actor=name)))

    calls = [
        governing.store.transact(write_and_fail)
        if number % 3 == 0
        else governing.store.transact(write, f"a{number}")
        for number in range(90)
    ]
    done = await asyncio.gather(*calls, return_exceptions=True)
    ids = [one for one in done if isinstance(one, str)]
    assert len(ids) == len(set(ids)) == 60
    assert await kinds(governing) == []
    entry = await governing.audit.get_entry(ids[0])
    assert entry.id == ids[0]


@pytest.mark.spec("G12", "X13")
async def test_what_retention_removes_leaves_a_chain_that_verifies(
    governing: Governing, database: Database
) -> None:
    await governing.anchor()
    before = governing.clock.now() + SECOND
    removed = await governing.store.transact(purge_audit, before, 7)
    assert removed >= 7
    await governing.enqueue("later")
    assert await kinds(governing) == []
    while await governing.store.transact(purge_audit, before, 7):
        pass
    await governing.anchor()
    assert await kinds(governing) == []
    # Removed by other hands it is found: no entry tells of it.
    head = (await governing.audit._read_heads())[0]
    rows = await governing.store.read(
        lambda tx: tx.audit.list_chain(head.chain, head.base_seq, head.seq, 1)
    )
    database.ask(f"DELETE FROM audit_events WHERE place = {rows[0].seq}")
    database.ask(
        f"UPDATE audit_chains SET base_seq = {rows[0].seq}, base_hash = '{rows[0].hash}'"
        " WHERE chain = 0"
    )
    assert ("PURGE", rows[0].seq) in await kinds(governing)


@pytest.mark.spec("G12")
async def test_pages_of_the_audit_show_every_entry_once(governing: Governing) -> None:
    seen: list[str] = []
    before = None
    while True:
        page = await governing.audit.list_entries(AuditFilter(), before, 7)
        seen += [entry.id for entry in page.entries]
        before = page.next_before
        if before is None:
            break
    report = await governing.audit.verify()
    assert len(seen) == len(set(seen)) == report.entries
