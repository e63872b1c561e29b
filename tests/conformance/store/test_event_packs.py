"""Several events of one entity and one commit lie in one row; whoever reads them, by the port or in
SQL, sees one event after the other (X11)."""

from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuid, new_ordered_uuids
from ksana.base.instant import HOUR
from ksana.domain.queue.admission import Limits
from ksana.domain.queue.attempt_ends import Release
from ksana.domain.queue.classes import Wants, class_of
from ksana.domain.queue.jobs import NewJob
from ksana.ports.events import Event
from ksana.service.queue.claims import Claim, JobClassCache, claim_jobs
from ksana.service.queue.jobs import read_events, submit_jobs
from ksana.service.queue.releases import release_compactly
from ksana.store.sql import SqlStore, migrate, open_store
from ksana.store.sql.core import migrate as migrations
from ksana.store.sql.core.event_rows import PLACES
from tests.conformance.store.ground import Database

CLASS = class_of("addon", "kind", 1, ())
TEXT = "naïve 中文 🌍 \u0000 \u2028 ' \" \\ % :x {now} ],[ \t"
PACKS = 17
"""The migration that brought packs."""


def append(tx: Any, *facts: tuple[str, str | int, str]) -> None:
    for entity_type, entity_id, event_type in facts:
        tx.events.append(entity_type, entity_id, event_type, {"note": TEXT})


async def list_all(store: SqlStore, **filters: Any) -> list[Event]:
    return await store.read(lambda tx: tx.events.list_after(0, 1000, **filters))


def view(database: Database) -> list[tuple[Any, ...]]:
    columns = "id, ts, entity_type, entity_id, event_type, data_json"
    rows = database.ask(f"SELECT {columns} FROM scheduler_events ORDER BY id")
    return [(*row[:5], msgspec.json.decode(row[5])) for row in rows]


def as_rows(events: list[Event]) -> list[tuple[Any, ...]]:
    return [
        (one.id, one.ts, one.entity_type, one.entity_id, one.type, msgspec.json.decode(one.data))
        for one in events
    ]


async def run_jobs(store: SqlStore, count: int = 2) -> list[tuple[str, str]]:
    """Jobs submitted, claimed with a lease and released; their ids and their leases'."""
    ids = new_ordered_uuids(SystemClock().now(), count)
    jobs = [NewJob(one, "NORMAL", CLASS, "{}", "{}", None, 1, None, None) for one in ids]
    await store.transact(submit_jobs, jobs, [CLASS], True)
    claim = Claim("w1", Wants("addon"), count, True, 30.0)
    claimed = await store.transact(claim_jobs, claim, JobClassCache(), Limits(1000))
    releases = [Release(lease.lease_id, "SUCCEEDED") for lease in claimed.leases]
    await store.transact(release_compactly, releases)
    return [(lease.job_id, lease.lease_id) for lease in claimed.leases]


@pytest.mark.spec("X11")
async def test_the_events_of_a_job_and_a_commit_are_one_row(
    store: SqlStore, database: Database
) -> None:
    await run_jobs(store, 1)
    assert database.ask("SELECT COUNT(*) FROM event_packs") == [(3,)]
    assert database.ask("SELECT COUNT(*) FROM scheduler_events") == [(6,)]


@pytest.mark.spec("X11")
async def test_in_sql_every_event_is_a_row_with_its_id(store: SqlStore, database: Database) -> None:
    await store.transact(append, ("TASK", 1, "A"), ("TASK", 1, "B"), ("RUN", 1, "C"))
    await run_jobs(store)
    await store.transact(append, ("TASK", 1, "D"))
    events = await list_all(store)
    assert len(events) == 3 + 2 * 6 + 1
    assert view(database) == as_rows(events)
    ids = [event.id for event in events]
    assert ids == sorted(set(ids)) and ids[0] > 0 and ids[-1] < 2**53
    assert await store.read(lambda tx: tx.events.latest_id()) == ids[-1]


@pytest.mark.spec("X11")
async def test_events_of_several_entities_keep_the_order_of_the_calls(store: SqlStore) -> None:
    facts = [("TASK", 1, "A"), ("RUN", 1, "B"), ("RUN", 1, "C"), ("TASK", 1, "D"), ("RUN", 2, "E")]
    await store.transact(append, *facts)
    assert [event.type for event in await list_all(store)] == ["A", "B", "C", "D", "E"]


@pytest.mark.spec("X11", "Q8")
async def test_a_leases_events_are_found_by_the_lease_and_with_its_job(store: SqlStore) -> None:
    await store.transact(append, ("LEASE", "capacity", "CAPACITY_RECOUNTED"))
    (job_id, lease_id), (_, other) = await run_jobs(store)
    granted = ["LEASE_GRANTED", "LEASE_RELEASED"]

    async def types(**filters: Any) -> list[str]:
        return [event.type for event in await list_all(store, **filters)]

    assert await types(entity_type="LEASE", entity_id=lease_id) == granted
    assert await types(entity_id=lease_id) == granted
    assert await types(entity_type="LEASE", entity_id=lease_id, is_newest_first=True) == [
        "LEASE_RELEASED",
        "LEASE_GRANTED",
    ]
    assert await types(entity_type="LEASE", entity_id=lease_id, event_type="LEASE_RELEASED") == [
        "LEASE_RELEASED"
    ]
    assert await types(entity_type="LEASE", entity_id="capacity") == ["CAPACITY_RECOUNTED"]
    every = [e.entity_id for e in await list_all(store, entity_type="LEASE")]
    assert sorted(every) == sorted(["capacity", *[lease_id] * 2, *[other] * 2])
    own = ["JOB_SUBMITTED", "JOB_CLAIMED", "JOB_RUNNING", "JOB_DONE"]
    assert await types(entity_type="JOB", entity_id=job_id) == own
    assert [event.type for event in await store.read(read_events, job_id)] == [
        "JOB_SUBMITTED",
        "JOB_CLAIMED",
        "LEASE_GRANTED",
        "JOB_RUNNING",
        "LEASE_RELEASED",
        "JOB_DONE",
    ]


@pytest.mark.spec("X11", "Q8")
async def test_a_job_that_was_leased_before_packs_keeps_all_its_events(
    store: SqlStore, database: Database
) -> None:
    [(job_id, new_id)] = await run_jobs(store, 1)
    lease_id = new_ordered_uuid(SystemClock().now())  # as leases were called then
    database.ask(f"UPDATE scheduler_job_runs SET lease_id = '{lease_id}'")
    database.ask(f"UPDATE event_packs SET data_json = REPLACE(data_json, '{new_id}', '{lease_id}')")
    database.ask(
        "INSERT INTO past_leases (lease_id, job_id, job_seq, addon_id, cost_units, ttl_sec, state,"
        " granted_at, last_heartbeat_at, expires_at) SELECT lease_id, job_id, seq, addon_id, 1, 30,"
        " 'RELEASED', started_at, started_at, started_at FROM scheduler_job_runs"
    )
    named = [event.type for event in await store.read(read_events, job_id)]
    [_, (claim,), (release,)] = database.ask("SELECT id FROM event_packs ORDER BY id")
    # The claim's events as they were written before: each in a row of its own.
    database.ask(f"UPDATE event_packs SET id = id + 100 WHERE id = {release}")
    database.ask(f"DELETE FROM event_packs WHERE id = {claim}")
    facts = [("JOB", job_id, "JOB_CLAIMED"), ("LEASE", lease_id, "LEASE_GRANTED")]
    for place, fact in enumerate([*facts, ("JOB", job_id, "JOB_RUNNING")]):
        values = ", ".join(f"'{word}'" for word in fact)
        database.ask(
            "INSERT INTO event_packs (id, ts, entity_type, entity_id, event_type, data_json)"
            f" VALUES ({claim + place}, 1, {values}, '{{}}')"
        )
    assert [event.type for event in await store.read(read_events, job_id)] == named
    of_lease = await list_all(store, entity_type="LEASE", entity_id=lease_id)
    assert [event.type for event in of_lease] == ["LEASE_GRANTED", "LEASE_RELEASED"]


@pytest.mark.spec("X11")
async def test_pages_that_end_within_a_pack_show_every_event_once(store: SqlStore) -> None:
    many = [("TASK", 1, f"T{n % 3}") for n in range(3 * PLACES + 5)]
    await store.transact(append, *many[:-9])
    await store.transact(append, *many[-9:], ("TASK", 2, "T1"))
    everything = await list_all(store)
    assert [event.type for event in everything] == [*(fact[2] for fact in many), "T1"]

    async def follow(is_back: bool, limit: int, **filters: Any) -> list[Event]:
        shown: list[Event] = []
        after, before = 0, None
        while True:
            page = await store.read(
                lambda tx: tx.events.list_after(
                    after, limit, before=before, is_newest_first=is_back, **filters
                )
            )
            shown += page
            if len(page) < limit:
                return shown
            after, before = (0, page[-1].id) if is_back else (page[-1].id, None)

    of_one = [event for event in everything if event.entity_id == "1"]
    for limit in (1, 7, PLACES):
        assert await follow(False, limit) == everything
        assert await follow(True, limit) == everything[::-1]
        assert await follow(False, limit, entity_type="TASK", entity_id="1") == of_one
        assert await follow(True, limit, entity_type="TASK", entity_id="1") == of_one[::-1]
        found = await follow(False, limit, event_type="T1")
        assert found == [event for event in everything if event.type == "T1"]


@pytest.mark.spec("X11")
async def test_a_name_in_the_data_of_a_pack_is_not_taken_for_the_events_own(
    store: SqlStore,
) -> None:
    def mislead(tx: Any, n: int) -> None:
        tx.events.append("TASK", n, "A", {"x": ["B", 1, "LEASE", "1"]})
        tx.events.append("TASK", n, "C", {"x": ["B", 1, "LEASE", "1"]})

    for n in range(5):
        await store.transact(mislead, n)
    await store.transact(append, ("TASK", 9, "B"), ("TASK", 9, "D"))
    found = await store.read(lambda tx: tx.events.list_after(0, 2, event_type="B"))
    assert [(event.entity_id, event.type) for event in found] == [("9", "B")]
    back = await store.read(
        lambda tx: tx.events.list_after(0, 2, event_type="A", is_newest_first=True)
    )
    assert [event.entity_id for event in back] == ["4", "3"]
    assert await list_all(store, entity_type="LEASE") == []


@pytest.mark.spec("X11")
async def test_large_events_of_one_commit_do_not_make_one_large_row(
    store: SqlStore, database: Database
) -> None:
    def grow(tx: Any) -> None:
        for n in range(PLACES):
            tx.events.append("TASK", 1, f"T{n}", {"x": "y" * 20_000})

    await store.transact(grow)
    [(longest, rows)] = database.ask("SELECT MAX(LENGTH(data_json)), COUNT(*) FROM event_packs")
    assert longest <= 64 * 1024 and 1 < rows < PLACES
    page = await store.read(lambda tx: tx.events.list_after(0, 500, max_bytes=100_000))
    assert page.is_cut and 0 < len(page) <= 5
    assert [event.type for event in await list_all(store)] == [f"T{n}" for n in range(PLACES)]


@pytest.mark.spec("X13")
async def test_retention_removes_whole_packs(store: SqlStore, database: Database) -> None:
    for _ in range(5):
        await run_jobs(store, 1)
    now = await store.read(lambda tx: tx.now)
    assert await store.transact(lambda tx: tx.events.purge(now - HOUR, 100)) == 0
    assert await store.transact(lambda tx: tx.events.purge(now + HOUR, 8)) == 8
    assert len(await list_all(store)) == len(view(database)) == 5 * 6 - 2 * 6 - 1 - 3
    assert await store.transact(lambda tx: tx.events.purge(now + HOUR, 100)) == 7
    assert await list_all(store) == view(database) == []


@pytest.mark.spec("X11", "X2")
async def test_events_from_before_packs_keep_their_ids(
    store_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations.list_migrations()
    with monkeypatch.context() as patch:
        before = [one for one in known if one.version < PACKS]
        patch.setattr(migrations, "list_migrations", lambda: before)
        await migrate(store_url, SystemClock())
    for n in range(40):
        database.ask(
            "INSERT INTO scheduler_events (ts, entity_type, entity_id, event_type, data_json)"
            f" VALUES ({n + 1}, 'TASK', '{n % 2}', 'OLD', '{{\"n\":{n}}}')"
        )
    database.ask("DELETE FROM scheduler_events WHERE id IN (1, 2, 17)")
    old = database.ask("SELECT id, ts, entity_id FROM scheduler_events ORDER BY id")
    store = await open_store(store_url, SystemClock())
    try:
        found = await list_all(store)
        assert [(one.id, one.ts, one.entity_id) for one in found] == old
        await store.transact(append, ("TASK", 0, "NEW"), ("TASK", 0, "NEWER"), ("RUN", 1, "NEW"))
        everything = await list_all(store)
        assert view(database) == as_rows(everything)
        assert everything[: len(old)] == found and len(everything) == len(old) + 3
        for place, one in enumerate(everything):
            rest = await store.read(lambda tx, one=one: tx.events.list_after(one.id, 1000))
            assert rest == everything[place + 1 :]
            below = await store.read(
                lambda tx, one=one: tx.events.list_after(0, 1000, before=one.id)
            )
            assert below == everything[:place]
        own = [one for one in everything if (one.entity_type, one.entity_id) == ("TASK", "0")]
        assert await list_all(store, entity_type="TASK", entity_id="0") == own
        at = await store.read(lambda tx: tx.events.find_id_at(31))
        assert at == 30
        settled = await store.read(lambda tx: tx.events.find_settled(everything, 2, 10**6))
        assert settled == everything[-1].id
        assert await store.read(lambda tx: tx.events.settled_id(tx.now)) == everything[-1].id
        assert await store.transact(lambda tx: tx.events.purge(35, 100)) == 31
        assert [one.id for one in await list_all(store)][:1] == [35]
    finally:
        await store.close()


async def test_a_gap_between_rows_is_waited_for_while_its_neighbour_is_young(
    store: SqlStore, database: Database
) -> None:
    for n in range(4):
        await store.transact(append, ("TASK", n, "A"), ("TASK", n, "B"))
    everything = await list_all(store)
    database.ask("DELETE FROM event_packs WHERE entity_id = '2'")
    left = await list_all(store)

    def settled(tx: Any, after: int, since: int) -> int:
        seen = [one for one in left if one.id > after]
        return int(tx.events.find_settled(seen, after, since))

    young, old = everything[0].ts - 1, everything[-1].ts
    assert await store.read(settled, 0, old) == everything[-1].id
    assert await store.read(settled, 0, young) == everything[3].id
    assert await store.read(settled, everything[2].id, young) == everything[3].id
    assert await store.read(settled, everything[3].id, young) == everything[3].id
    assert await store.read(settled, everything[6].id, young) == everything[7].id
    assert await store.read(lambda tx: tx.events.settled_id(young)) == everything[3].id
    assert await store.read(lambda tx: tx.events.settled_id(old)) == everything[-1].id
