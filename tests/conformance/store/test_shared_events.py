"""Jobs of one commit share rows of the event log, and are found there by the instants that their
own rows keep (X11)."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuids
from ksana.domain.leases import Proof
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.ports.events import Event
from ksana.service.queue.claims import Claim, Claimed, JobClassCache, claim_jobs
from ksana.service.queue.jobs import read_events, submit_jobs
from ksana.service.queue.releases import Released, release_compactly
from ksana.store.sql import SqlStore
from ksana.store.sql.core.event_rows import PLACES
from ksana.store.sql.core.events import SqlEvents
from tests.conformance.store.ground import Database

pytestmark = pytest.mark.spec("X11", "Q15")

CLASS = class_of("addon", "kind", 1, ())
TRIED = ["JOB_CLAIMED", "LEASE_GRANTED", "JOB_RUNNING", "LEASE_RELEASED"]
DONE = ["JOB_SUBMITTED", *TRIED, "JOB_DONE"]


async def submit(store: SqlStore, count: int, attempts: int = 2) -> list[str]:
    ids = new_ordered_uuids(SystemClock().now(), count)
    jobs = [NewJob(one, "NORMAL", CLASS, "{}", "{}", None, attempts, None, None) for one in ids]
    await store.transact(submit_jobs, jobs, [CLASS], True)
    return ids


async def claim(store: SqlStore, count: int, worker: str = "w1") -> Claimed:
    wanted = Claim(worker, Wants("addon"), count, True, 30.0)
    return await store.transact(claim_jobs, wanted, JobClassCache(), Limits(1000))


async def release(store: SqlStore, claimed: Claimed, status: str = "SUCCEEDED") -> None:
    proof = Proof(worker_id="w1")
    releases = [Release(one.lease_id, status, proof=proof) for one in claimed.leases]
    released = await store.transact(release_compactly, releases)
    assert all(isinstance(answer, Released) for answer in released.answers)


async def run(store: SqlStore, count: int) -> Claimed:
    await submit(store, count)
    claimed = await claim(store, count)
    assert len(claimed.leases) == count
    await release(store, claimed)
    return claimed


async def find(store: SqlStore, **filters: Any) -> list[Event]:
    return await store.read(lambda tx: tx.events.list_after(0, 1000, **filters))


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


async def test_events_of_many_jobs_are_few_rows_and_each_job_finds_its_own(
    store: SqlStore, database: Database
) -> None:
    claimed = await run(store, 23)
    [(rows, longest)] = database.ask("SELECT COUNT(*), MAX(LENGTH(data_json)) FROM event_packs")
    assert rows < 23 and longest <= 1_900
    events = await find(store)
    assert len(events) == 6 * 23
    columns = "id, entity_type, entity_id, event_type"
    seen = database.ask(f"SELECT {columns} FROM scheduler_events ORDER BY id")
    assert seen == [(one.id, one.entity_type, one.entity_id, one.type) for one in events]
    for lease in claimed.leases:
        own = await find(store, entity_type="JOB", entity_id=lease.job_id)
        assert types(own) == ["JOB_SUBMITTED", "JOB_CLAIMED", "JOB_RUNNING", "JOB_DONE"]
        assert own == [event for event in events if event.entity_id == lease.job_id]
        assert await find(store, entity_id=lease.job_id) == own
        of_lease = await find(store, entity_type="LEASE", entity_id=lease.lease_id)
        assert of_lease == [event for event in events if event.entity_id == lease.lease_id]
        assert await find(store, entity_id=lease.lease_id) == of_lease and len(of_lease) == 2
        whole = await store.read(read_events, lease.job_id)
        assert types(whole) == DONE
        assert {event.entity_id for event in whole} == {lease.job_id, lease.lease_id}


async def test_pages_of_one_jobs_events_show_each_once(store: SqlStore) -> None:
    claimed = await run(store, 3 * PLACES)
    job_id = claimed.leases[PLACES].job_id
    for place in ({"entity_type": "JOB", "entity_id": job_id}, {"entity_id": job_id}):
        for is_back in (False, True):
            everything = await find(store, is_newest_first=is_back, **place)
            shown: list[Event] = []
            while len(shown) < len(everything):
                last = shown[-1].id if shown else None
                after = 0 if is_back or last is None else last
                before = last if is_back else None
                [event] = await store.read(
                    lambda tx, after=after, before=before, place=place, is_back=is_back: (
                        tx.events.list_after(
                            after, 1, before=before, is_newest_first=is_back, **place
                        )
                    )
                )
                shown.append(event)
            assert shown == everything and len(everything) == 4
    found = await find(store, entity_type="JOB", entity_id=job_id, event_type="JOB_RUNNING")
    assert types(found) == ["JOB_RUNNING"]
    [running] = found
    for since, until, count in ((running.ts, None, 1), (running.ts + 1, None, 0), (0, 1, 0)):
        narrowed = await find(
            store,
            entity_type="JOB",
            entity_id=job_id,
            event_type="JOB_RUNNING",
            since=since,
            until=until,
        )
        assert len(narrowed) == count


async def test_a_job_finds_the_events_of_every_attempt(store: SqlStore) -> None:
    ids = await submit(store, 5, attempts=3)
    leases: dict[str, list[str]] = {one: [] for one in ids}
    for status in ("RETURNED", "FAILED", "SUCCEEDED"):
        await store.transact(_make_due)
        claimed = await claim(store, 5)
        assert len(claimed.leases) == 5
        for lease in claimed.leases:
            leases[lease.job_id].append(lease.lease_id)
        await release(store, claimed, status)
    again = [*TRIED, "JOB_REQUEUED"]
    for job_id, held in leases.items():
        events = await store.read(read_events, job_id)
        assert types(events) == ["JOB_SUBMITTED", *again, *again, *TRIED, "JOB_DONE"]
        for lease_id in held:
            own = await find(store, entity_type="LEASE", entity_id=lease_id)
            assert types(own) == ["LEASE_GRANTED", "LEASE_RELEASED"]
            assert own == [event for event in events if event.entity_id == lease_id]


async def test_of_very_many_events_of_a_job_the_newest_are_told(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await submit(store, 2)
    for status in ("RETURNED", "RETURNED", "SUCCEEDED"):
        await release(store, await claim(store, 2), status)
    whole = await store.read(read_events, first)
    assert types(whole)[-1] == "JOB_DONE" and len(whole) == 1 + 2 * 5 + 5
    for most, is_cut in ((len(whole), False), (len(whole) - 1, True), (4, True)):
        monkeypatch.setattr("ksana.service.queue.jobs.MAX_EVENTS", most)
        told = await store.read(read_events, first)
        assert (told, told.is_cut) == (whole[-most:], is_cut)
    monkeypatch.undo()
    monkeypatch.setattr("ksana.service.queue.jobs.MAX_PAGE_BYTES", 2_000)
    told = await store.read(read_events, first)
    assert told.is_cut and 0 < len(told) < len(whole) and told == whole[-len(told) :]


async def test_the_log_is_not_asked_for_each_lease_of_a_job(
    store: SqlStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = await submit(store, 1)
    for status in ("RETURNED", "RETURNED", "SUCCEEDED"):
        await release(store, await claim(store, 1), status)
    database.ask("DELETE FROM event_packs")
    asked: list[Any] = []
    list_after = SqlEvents.list_after

    def note(events: SqlEvents, *args: Any, **filters: Any) -> Any:
        asked.append(args)
        return list_after(events, *args, **filters)

    monkeypatch.setattr(SqlEvents, "list_after", note)
    assert await store.read(read_events, job_id) == [] and len(asked) == 1


def _make_due(tx: Any) -> None:
    """Jobs that wait for their next attempt wait no longer."""
    tx._session.raw("UPDATE scheduler_job_runs SET due_at = 1 WHERE position = 0")
    tx._session.wrote = True


async def test_what_is_too_long_to_share_a_row_has_rows_of_its_own(
    store: SqlStore, database: Database
) -> None:
    ids = await submit(store, 4, attempts=1)
    claimed = await claim(store, 4, worker="w" * 128)
    errors = ["short", "e" * 1_000, "\x01" * 1_000, "short"]
    releases = [
        Release(lease.lease_id, "FAILED", error=error, may_retry=False)
        for lease, error in zip(claimed.leases, errors, strict=True)
    ]
    await store.transact(release_compactly, releases)
    for job_id, error in zip(ids, errors, strict=True):
        events = await store.read(read_events, job_id)
        assert types(events) == [*DONE[:-1], "JOB_FAILED"]
        assert msgspec.json.decode(events[-1].data)["error"] == error
    lengths = database.ask("SELECT LENGTH(data_json) FROM event_packs ORDER BY id")
    assert [length for (length,) in lengths if length > 1_900] == [max(lengths)[0]] > [6_000]


async def test_strange_ids_find_nothing_and_break_nothing(store: SqlStore) -> None:
    await run(store, 4)
    row = (await find(store))[0]
    for strange in ("%", "_" * 36, "\\", '"', f"@{row.ts}", "', 'x", "0192%"):
        assert await find(store, entity_id=strange) == []
        for kind in ("JOB", "LEASE"):
            assert await find(store, entity_type=kind, entity_id=strange) == []


async def test_no_events_and_those_of_one_job_share_nothing(
    store: SqlStore, database: Database
) -> None:
    await store.transact(lambda tx: tx.events.append_dated([]))
    assert await find(store) == []
    [job_id] = await submit(store, 1)
    assert database.ask("SELECT entity_id FROM event_packs") == [(job_id,)]
