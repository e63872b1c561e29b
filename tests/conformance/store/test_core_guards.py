"""Every guard of the core's statements by itself: a row that it protects stays as it is."""

from typing import Any

import pytest

from ksana.store.sql import SqlStore
from tests.conformance.store.ground import LEASE, MINUTE, SECOND, Database

HOUR = 60 * MINUTE


async def enter_instance(
    store: SqlStore, database: Database, alive: int, lease: int, stopped: int | None = None
) -> tuple[Any, ...]:
    """An instance whose instants lie so far from now; answer them."""
    now = await store.read(lambda tx: tx.now)
    await store.transact(lambda tx: tx.instances.register("old", "h", "1", LEASE, False))
    stopped_at = "NULL" if stopped is None else str(now + stopped)
    database.ask(
        f"UPDATE instances SET alive_at = {now + alive}, lease_until = {now + lease}, "
        f"stopped_at = {stopped_at} WHERE id = 'old'"
    )
    return instants(database)


def instants(database: Database) -> tuple[Any, ...]:
    sql = "SELECT alive_at, lease_until, stopped_at FROM instances WHERE id = 'old'"
    return database.ask(sql)[0]


@pytest.mark.parametrize("is_sole", [False, True])
async def test_a_lease_that_runs_is_ended_for_the_dead(
    store: SqlStore, database: Database, is_sole: bool
) -> None:
    alive_at, _, _ = await enter_instance(store, database, -SECOND, HOUR)
    dead = () if is_sole else ("old",)
    await store.transact(lambda tx: tx.instances.register("new", "h", "1", LEASE, is_sole, dead))
    assert instants(database) == (alive_at, alive_at, None)


@pytest.mark.parametrize("is_sole", [False, True])
@pytest.mark.parametrize(
    ("alive", "lease", "stopped"),
    [
        pytest.param(HOUR, HOUR, HOUR, id="stopped before the clock was set back"),
        pytest.param(HOUR, -MINUTE, None, id="ended before, its sign of life in the future"),
    ],
)
async def test_a_lease_that_is_over_is_left_as_it_is(
    store: SqlStore, database: Database, is_sole: bool, alive: int, lease: int, stopped: int | None
) -> None:
    before = await enter_instance(store, database, alive, lease, stopped)
    dead = () if is_sole else ("old",)
    await store.transact(lambda tx: tx.instances.register("new", "h", "1", LEASE, is_sole, dead))
    assert instants(database) == before


async def test_an_orderly_end_is_recorded_once(store: SqlStore, database: Database) -> None:
    before = await enter_instance(store, database, -HOUR, -HOUR, -HOUR)
    await store.transact(lambda tx: tx.instances.stop("old"))
    assert instants(database) == before


@pytest.mark.spec("C19")
@pytest.mark.parametrize("is_draining", [False, True])
async def test_an_instance_that_has_stopped_renews_nothing(
    store: SqlStore, database: Database, is_draining: bool
) -> None:
    """A renewal that was under way when it stopped comes after the end."""
    before = await enter_instance(store, database, -HOUR, -HOUR, -HOUR)
    renew = lambda tx: tx.instances.renew_if_registered("old", LEASE, is_draining)  # noqa: E731
    assert await store.transact(renew) is False
    assert instants(database) == before
    database.ask("UPDATE instances SET stopped_at = NULL WHERE id = 'old'")
    assert await store.transact(renew) is True


@pytest.mark.fault("F08")
@pytest.mark.parametrize(("alive", "lease"), [(-HOUR, HOUR), (HOUR, -HOUR)])
async def test_an_instance_that_gave_a_sign_of_life_meanwhile_is_not_removed(
    store: SqlStore, database: Database, alive: int, lease: int
) -> None:
    """Between the list of old ones and their removal."""
    await enter_instance(store, database, alive, lease)

    def remove(tx: Any, before: int) -> int:
        rows = [("old", before)]
        return int(tx._session.run_rows("core.delete_instance", ("id", "before"), rows))

    now = await store.read(lambda tx: tx.now)
    assert await store.transact(remove, now) == 0
    assert await store.transact(remove, now + 2 * HOUR) == 1


async def test_a_young_event_among_old_ones_is_not_removed(
    store: SqlStore, database: Database
) -> None:
    await store.transact(lambda tx: [tx.events.append("JOB", n, "OLD") for n in range(3)])
    database.ask(f"UPDATE event_packs SET ts = ts + {2 * HOUR} WHERE entity_id = '1'")
    assert await store.transact(lambda tx: tx.events.purge(tx.now + HOUR, 10)) == 2
    left = await store.read(lambda tx: tx.events.list_after(0, 10))
    assert [event.entity_id for event in left] == ["1"]


async def test_a_lock_is_given_back_by_its_owner_only(store: SqlStore) -> None:
    assert await store.transact(lambda tx: tx.locks.take("chore", "one", LEASE))
    await store.transact(lambda tx: tx.locks.drop("chore", "two"))
    assert not await store.transact(lambda tx: tx.locks.take("chore", "two", LEASE))
    await store.transact(lambda tx: tx.locks.drop("chore", "one"))
    assert await store.transact(lambda tx: tx.locks.take("chore", "two", LEASE))


async def test_a_mark_set_meanwhile_is_not_removed(store: SqlStore) -> None:
    def enter(tx: Any) -> None:
        tx._session.run("core.enter_mark", writer="w", mark=1, at=tx.now)

    def remove(tx: Any, before: int) -> int:
        columns = ("writer", "before")
        return int(tx._session.run_rows("core.delete_mark", columns, [("w", before)]))

    await store.transact(enter)
    now = await store.read(lambda tx: tx.now)
    assert await store.transact(remove, now - HOUR) == 0
    assert await store.transact(remove, now + HOUR) == 1


@pytest.mark.spec("X21")
async def test_an_answer_remembered_meanwhile_is_not_removed(store: SqlStore) -> None:
    key = "k" * 64
    await store.transact(lambda tx: tx.idempotency.remember("s", key, "b" * 64, "{}", HOUR))

    def remove(tx: Any, before: int) -> int:
        columns = ("scope", "key_hash", "before")
        rows = [("s", key, before)]
        return int(tx._session.run_rows("idempotency.delete_answer", columns, rows))

    now = await store.read(lambda tx: tx.now)
    assert await store.transact(remove, now) == 0
    assert await store.transact(remove, now + 2 * HOUR) == 1
