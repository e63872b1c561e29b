"""The core's own tables: events, instances and outages, locks, rollups, keys, marks, and the
store's clock."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core import commit_queue
from tests.conformance.store.checks import enter_key
from tests.conformance.store.ground import LEASE, MINUTE, SECOND, Database

UNICODE = "naïve 中文 🌍👩‍🚀 \u0000 \u2028 ' \" \\ % :x {now}"


def append(tx: Any, *facts: tuple[str, str | int, str]) -> None:
    for entity_type, entity_id, event_type in facts:
        tx.events.append(entity_type, entity_id, event_type)


@pytest.mark.spec("X11")
async def test_events_come_back_in_the_order_of_the_calls(store: SqlStore) -> None:
    await store.transact(append, *(("TASK", n, "FIRED") for n in range(50)))
    await store.transact(append, ("TASK", "last", "FIRED"))
    events = await store.read(lambda tx: tx.events.list_after(0, 500))
    assert [event.entity_id for event in events] == [*map(str, range(50)), "last"]
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    assert all(0 < number < 2**53 for number in ids)
    assert await store.read(lambda tx: tx.events.latest_id()) == ids[-1]


@pytest.mark.spec("X11")
async def test_events_are_paged_and_filtered(store: SqlStore) -> None:
    await store.transact(
        append,
        ("TASK", 1, "A"),
        ("RUN", 1, "A"),
        ("TASK", 2, "A"),
        ("TASK", 1, "B"),
        ("TASK", 1, "A"),
    )

    async def find(after: int = 0, limit: int = 100, **filters: str) -> list[Any]:
        return await store.read(lambda tx: tx.events.list_after(after, limit, **filters))

    everything = await find()
    first, second = await find(limit=3), await find(after=everything[2].id, limit=3)
    assert [*first, *second] == everything
    assert [e.id for e in await find(entity_type="TASK", entity_id="1")] == [
        everything[n].id for n in (0, 3, 4)
    ]
    assert [e.id for e in await find(entity_type="TASK", event_type="A")] == [
        everything[n].id for n in (0, 2, 4)
    ]
    assert [
        e.id
        for e in await find(
            after=everything[0].id, entity_type="TASK", entity_id="1", event_type="A"
        )
    ] == [everything[4].id]
    assert await find(entity_id="nobody") == []


async def test_the_log_is_empty_at_first(store: SqlStore) -> None:
    assert await store.read(lambda tx: tx.events.latest_id()) == 0
    assert await store.read(lambda tx: tx.events.list_after(0, 10)) == []


async def test_text_of_every_kind_and_size_comes_back_as_it_went_in(store: SqlStore) -> None:
    large = "é🌍" * (1024 * 1024 // 6)

    def write(tx: Any) -> None:
        tx.events.append(
            "TASK",
            "名前-🌍'%:x{y}",
            "T",
            {"text": UNICODE, "large": large, "n": 2**53 - 1, "none": None},
        )

    await store.transact(write)
    (event,) = await store.read(lambda tx: tx.events.list_after(0, 10, entity_id="名前-🌍'%:x{y}"))
    assert msgspec.json.decode(event.data) == {
        "text": UNICODE,
        "large": large,
        "n": 2**53 - 1,
        "none": None,
    }


async def test_large_events_of_many_functions_share_a_commit(store: SqlStore) -> None:
    text = "x" * 300_000
    await asyncio.gather(
        *(
            store.transact(lambda tx, n=n: tx.events.append("TASK", n, "BIG", {"t": text}))
            for n in range(40)
        )
    )
    assert len(await store.read(lambda tx: tx.events.list_after(0, 100, event_type="BIG"))) == 40


async def test_the_clock_is_the_stores_and_runs(store: SqlStore) -> None:
    def look(tx: Any) -> int:
        tx.instances.register(f"i{tx.now}", "h", "1", LEASE, False)
        return int(tx.now)

    stamps = [await store.transact(look) for _ in range(5)]
    assert stamps == sorted(stamps)
    here = time.time_ns() // 1000
    assert abs(stamps[-1] - here) < 5 * SECOND
    assert abs(await store.read(lambda tx: tx.now) - here) < 5 * SECOND


@pytest.mark.spec("C19", "X2")
async def test_how_far_an_instance_has_begun_only_grows(store: SqlStore) -> None:
    def begun(tx: Any) -> Any:
        return tx.instances.find_begun_to("i")

    assert await store.read(begun) is None, "nobody knows"
    await store.transact(lambda tx: tx.instances.note_begun("i", 7))
    assert await store.read(begun) is None
    await store.transact(lambda tx: tx.instances.register("i", "h", "1", LEASE, False))
    assert await store.read(begun) == 0
    for run_id, expected in ((7, 7), (5, 7), (9, 9)):
        await store.transact(lambda tx, run_id=run_id: tx.instances.note_begun("i", run_id))
        assert await store.read(begun) == expected


@pytest.mark.fault("F23")
async def test_the_clock_inside_a_statement_agrees_with_the_functions(store: SqlStore) -> None:
    await store.transact(lambda tx: tx.instances.register("i", "h", "1", LEASE, False))

    def renew(tx: Any) -> int:
        assert tx.instances.renew_if_registered("i", LEASE)
        return int(tx.now)

    now = await store.transact(renew)
    (instance,) = await store.read(lambda tx: tx.instances.list_instances())
    assert abs(instance.alive_at - now) < 2 * SECOND
    assert instance.lease_until - instance.alive_at == pytest.approx(LEASE, abs=100_000)


@pytest.mark.fault("F13")
async def test_a_lock_has_one_owner_until_it_expires_or_is_dropped(store: SqlStore) -> None:
    async def take(owner: str, ttl_us: int = LEASE) -> bool:
        return bool(await store.transact(lambda tx: tx.locks.take("chore", owner, ttl_us)))

    assert await take("one")
    assert await take("one"), "the owner may extend it"
    assert not await take("two")
    await store.transact(lambda tx: tx.locks.drop("chore", "two"))
    assert not await take("two"), "a stranger cannot drop it"
    await store.transact(lambda tx: tx.locks.drop("chore", "one"))
    assert await take("two", ttl_us=1)
    await store.transact(lambda tx: None)
    assert await take("three"), "it has expired"


@pytest.mark.fault("F13")
async def test_of_many_who_want_a_lock_one_gets_it(store: SqlStore) -> None:
    takes = (
        store.transact(lambda tx, n=n: tx.locks.take("chore", f"o{n}", LEASE)) for n in range(40)
    )
    assert sum(await asyncio.gather(*takes)) == 1


@pytest.mark.fault("F06")
async def test_an_outage_is_the_span_in_which_nobody_was_alive(store: SqlStore) -> None:
    def register(tx: Any, name: str, lease_us: int) -> Any:
        return tx.instances.register(name, "host", "1.0", lease_us, False)

    first = await store.transact(register, "first", 1)
    assert first.outage_from is None, "before the first there was nothing to miss"
    second = await store.transact(register, "second", LEASE)
    assert second.outage_from == first.alive_at
    third = await store.transact(register, "third", LEASE)
    assert third.outage_from is None, "the second is alive"
    assert await store.read(lambda tx: tx.instances.list_outages(0)) == [
        (first.alive_at, second.started_at)
    ]
    assert await store.read(lambda tx: tx.instances.list_outages(second.started_at)) == []
    listed = await store.read(lambda tx: tx.instances.list_instances())
    assert [instance.id for instance in listed] == ["third", "second", "first"]


async def test_an_orderly_stop_ends_the_lease_at_once(store: SqlStore) -> None:
    await store.transact(lambda tx: tx.instances.register("first", "h", "1", LEASE, False))
    await store.transact(lambda tx: tx.instances.stop("first"))
    (stopped,) = await store.read(lambda tx: tx.instances.list_instances())
    assert stopped.stopped_at is not None
    assert stopped.lease_until <= stopped.stopped_at + 100_000
    second = await store.transact(
        lambda tx: tx.instances.register("second", "h", "1", LEASE, False)
    )
    assert second.outage_from == stopped.alive_at


async def test_on_a_sole_store_every_other_instance_is_dead(store: SqlStore) -> None:
    first = await store.transact(lambda tx: tx.instances.register("first", "h", "1", LEASE, True))
    second = await store.transact(lambda tx: tx.instances.register("second", "h", "1", LEASE, True))
    assert second.outage_from == first.alive_at
    listed = {i.id: i for i in await store.read(lambda tx: tx.instances.list_instances())}
    assert listed["first"].lease_until == listed["first"].alive_at


async def test_counts_add_up_per_minute_and_key(store: SqlStore) -> None:
    def count(tx: Any) -> None:
        tx.rollups.add("runs")
        tx.rollups.add("runs", count=2, total=0.5)
        tx.rollups.add("runs", "host-a", total=1.25)

    await store.transact(count)
    await store.transact(count)

    async def sum_of(key: str) -> tuple[int, float]:
        buckets = await store.read(lambda tx: tx.rollups.list_buckets("runs", key, 0, 2**53))
        assert all(at % MINUTE == 0 for at, _, _ in buckets)
        return sum(n for _, n, _ in buckets), sum(total for _, _, total in buckets)

    assert await sum_of("") == (6, 1.0)
    assert await sum_of("host-a") == (2, 2.5)
    assert await sum_of("host-b") == (0, 0)


async def test_counts_of_writers_at_once_are_all_kept(store: SqlStore, store_url: str) -> None:
    other = await open_store(store_url, SystemClock())

    def count(tx: Any, n: int) -> None:
        for key in sorted(("a", "b", "c"), reverse=bool(n % 2)):
            tx.rollups.add("runs", key)

    await asyncio.gather(*((store, other)[n % 2].transact(count, n) for n in range(120)))
    for key in ("a", "b", "c"):
        buckets = await other.read(
            lambda tx, key=key: tx.rollups.list_buckets("runs", key, 0, 2**53)
        )
        assert sum(n for _, n, _ in buckets) == 120
    await other.close()


@pytest.mark.spec("X19")
async def test_keys_are_kept_listed_touched_and_revoked_once(store: SqlStore) -> None:
    made = await store.transact(
        lambda tx: tx.keys.insert("k1", "ops 🌍", "a" * 64, ("read", "tasks:write"))
    )
    assert (made.scopes, made.revoked_at, made.last_used_at) == (
        ("read", "tasks:write"),
        None,
        None,
    )
    assert await store.read(lambda tx: tx.keys.list_keys()) == [made]
    await store.transact(lambda tx: tx.keys.touch("k1"))
    assert await store.transact(lambda tx: tx.keys.revoke_if_live("k1"))
    (key,) = await store.read(lambda tx: tx.keys.list_keys())
    assert key.last_used_at >= made.created_at
    assert key.revoked_at is not None
    assert not await store.transact(lambda tx: tx.keys.revoke_if_live("k1"))
    assert await store.read(lambda tx: tx.events.list_after(0, 10)) == [], (
        "what is an event, the service decides"
    )


async def test_touching_twice_in_one_instant_still_counts_as_a_match(store: SqlStore) -> None:
    await store.transact(lambda tx: tx.instances.register("i", "h", "1", LEASE, False))

    def renew_twice(tx: Any) -> list[bool]:
        return [tx.instances.renew_if_registered("i", 0) for _ in range(3)]

    assert await store.transact(renew_twice) == [True, True, True]


@pytest.mark.fault("F34")
@pytest.mark.spec("X13")
async def test_old_rows_are_purged_in_small_batches_and_counted(
    store: SqlStore, database: Database
) -> None:
    await store.transact(append, *(("TASK", n, "OLD") for n in range(25)))
    for n in range(7):
        await store.transact(lambda tx, n=n: tx.instances.register(f"i{n}", "h", "1", 0, False))
    await store.transact(lambda tx: [tx.rollups.add("m", f"k{n}") for n in range(13)])
    later = await store.read(lambda tx: tx.now) + 60 * MINUTE
    for table, batches in (
        ("events", [10, 10, 5, 0]),
        ("instances", [5, 2, 0]),
        ("rollups", [10, 3, 0]),
    ):
        limit = batches[0]
        purge = lambda tx, table=table, limit=limit: getattr(tx, table).purge(later, limit)  # noqa: E731
        assert [await store.transact(purge) for _ in batches] == batches, table
    for table in ("scheduler_events", "instances", "rollups"):
        assert database.ask(f"SELECT COUNT(*) FROM {table}") == [(0,)]


@pytest.mark.spec("X13")
async def test_a_purge_spares_what_is_young_or_alive(store: SqlStore) -> None:
    await store.transact(append, ("TASK", 1, "YOUNG"))
    await store.transact(lambda tx: tx.instances.register("alive", "h", "1", LEASE, False))
    await store.transact(lambda tx: tx.rollups.add("m"))
    now = await store.read(lambda tx: tx.now)
    for table in ("events", "instances", "rollups", "marks"):
        assert (
            await store.transact(
                lambda tx, table=table: getattr(tx, table).purge(now - 2 * MINUTE, 100)
            )
            == 0
        )
    assert await store.transact(lambda tx: tx.instances.renew_if_registered("alive", LEASE))


@pytest.mark.fault("F20")
@pytest.mark.spec("X13")
async def test_events_stamped_by_a_clock_that_ran_ahead_do_not_stop_the_purge(
    store: SqlStore, database: Database
) -> None:
    await store.transact(append, *(("TASK", n, "AHEAD") for n in range(30)))
    await store.transact(append, *(("TASK", n, "OLD") for n in range(10)))
    database.ask(f"UPDATE event_packs SET ts = {2**52} WHERE event_type = 'AHEAD'")
    later = await store.read(lambda tx: tx.now) + MINUTE
    assert await store.transact(lambda tx: tx.events.purge(later, 10)) == 10
    kept = await store.read(lambda tx: tx.events.list_after(0, 100))
    assert {event.type for event in kept} == {"AHEAD"}


async def test_a_writer_whose_mark_was_purged_marks_again(
    store: SqlStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(10):
        await store.transact(enter_key, f"k{n}")
    monkeypatch.setattr(commit_queue, "ENTER_SECONDS", 0.0)  # as if it had been idle for long
    later = await store.read(lambda tx: tx.now) + MINUTE
    await store.transact(lambda tx: tx.marks.purge(later, 100))
    database.ask("DELETE FROM commit_marks")
    await store.transact(enter_key, "again")
    marks = [row[0] for row in database.ask("SELECT mark FROM commit_marks")]
    assert store.sole or any(marks)


@pytest.mark.spec("X11")
async def test_events_are_read_back_and_found_by_time(store: SqlStore) -> None:
    def append(tx: Any, number: int) -> int:
        tx.events.append("KEY", number, "EVEN" if number % 2 == 0 else "ODD")
        return int(tx.now)

    times = [await store.transact(append, number) for number in range(1, 7)]

    def read(
        tx: Any, before: int, limit: int, *kinds: Any, after: int = 0, **filters: Any
    ) -> list[int]:
        events = tx.events.list_after(
            after, limit, *kinds, before=before, is_newest_first=True, **filters
        )
        return [int(event.entity_id) for event in events]

    ids = [event.id for event in await store.read(lambda tx: tx.events.list_after(0, 10))]
    after, top = ids[0], ids[-1] + 1
    assert await store.read(read, top, 3) == [6, 5, 4]
    assert await store.read(read, ids[3], 10) == [3, 2, 1]
    assert await store.read(read, top, 10, after=after) == [6, 5, 4, 3, 2]
    assert await store.read(read, top, 10, "KEY", None, "ODD") == [5, 3, 1]
    assert await store.read(read, top, 10, since=times[2], until=times[4]) == [4, 3]
    for place, at in enumerate(times):
        found = await store.read(lambda tx, at=at: tx.events.find_id_at(at))
        assert found == (ids[place - 1] if place else 0)
    assert await store.read(lambda tx: tx.events.find_id_at(times[-1] + 1)) == ids[-1]
